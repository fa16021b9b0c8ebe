"""Operator: one kind of small fault, and where in a function's code it can be planted."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import libcst as cst

from gradoracle.mutation.operators.place import Place


@dataclass(frozen=True)
class Fault:
    """Code to be replaced, and by what.

    Attributes:
        node: the expression, argument, element or small statement to be replaced; its own parentheses stay.
        code: what stands there instead, on one line; "" where a statement is dropped.
        cause: a name of ``gradoracle.model.causes.CAUSES`` where this site determines it; None where its operator does.
        until: the last node that is replaced, where several neighbours are.
    """

    node: cst.CSTNode
    code: str
    cause: str | None = None
    until: cst.CSTNode | None = None


@dataclass(frozen=True)
class Operator:
    """One kind of fault.

    Attributes:
        name: in words.
        statement: one sentence, what it plants.
        nodes: the kinds of nodes at which it may find a site.
        propose: the faults at such a node.
        kernels: whether it plants in jitted functions.
        wrappers: whether it plants in the Python around them.
        cause: a name of ``gradoracle.model.causes.CAUSES``; "" where the fault alone does not determine one.
        caveat: where the fault changes no result, if there is such a place by the nature of the operator.
    """

    name: str
    statement: str
    nodes: tuple[type[cst.CSTNode], ...]
    propose: Callable[[Any, Place], Iterable[Fault]]
    kernels: bool = True
    wrappers: bool = True
    cause: str = ""
    caveat: str = ""
