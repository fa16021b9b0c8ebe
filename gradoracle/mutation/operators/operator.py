"""Operator: one kind of small mistake, and the function that finds its sites in a function's code."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

import libcst as cst

from gradoracle.mutation.operators.place import Place


@dataclass(frozen=True)
class Fault:
    """Code to be replaced, and its replacement.

    Attributes:
        node: the expression, argument, element or small statement to be replaced; its own parentheses stay.
        code: the replacement, on one line; "" where a statement is dropped.
        cause: a name of ``gradoracle.model.fault.PLANTED`` where this site determines it; None: the operator's.
        until: the last node that is replaced, where several neighbours are.
    """

    node: cst.CSTNode
    code: str
    cause: str | None = None
    until: cst.CSTNode | None = None


Propose = Callable[[Any, Place], Iterable[Fault]]


@dataclass(frozen=True)
class Operator:
    """One kind of mistake.

    Attributes:
        name: in words.
        nodes: the kinds of nodes at which it may find a site.
        propose: yields the mistakes at such a node.
        kernels: whether it plants in jitted functions.
        wrappers: whether it plants in the Python around them.
        cause: a name of ``gradoracle.model.fault.PLANTED``; "" where the mistake alone does not determine one.
    """

    name: str
    nodes: tuple[type[cst.CSTNode], ...]
    propose: Propose
    kernels: bool
    wrappers: bool
    cause: str


def operator(
    *, name: str = "", kernels: bool = True, wrappers: bool = True, cause: str = ""
) -> Callable[[Propose], Operator]:
    """Make an operator of the function that proposes its mistakes.

    Its docstring says what it plants, the annotation of ``node`` at which nodes, and its name, unless another is given,
    is the operator's, in words.
    """

    def made(propose: Propose) -> Operator:
        hint = get_type_hints(propose)["node"]
        words = name or propose.__name__.replace("_", " ")
        return Operator(words, get_args(hint) or (hint,), propose, kernels, wrappers, cause)

    return made
