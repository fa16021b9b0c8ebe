"""Faults in what reaches memory: stores, barriers, atomic operations, buffers that are not filled."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, Operator
from gradoracle.mutation.operators.place import Place
from gradoracle.mutation.operators.syntax import argument, argument_text, called, dotted, text


def _store(node: cst.Expr, place: Place) -> Iterator[Fault]:
    name = place.operation(node.value)
    if name == "store" or name.startswith("atomic"):
        yield Fault(node, "")


def _barrier(node: cst.Expr, place: Place) -> Iterator[Fault]:
    if place.operation(node.value) == "debug_barrier":
        yield Fault(node, "")


def _atomic(node: cst.Call, place: Place) -> Iterator[Fault]:
    if not place.operation(node).startswith("atomic") or place.operation(node) == "atomic_cas":
        return
    root = dotted(node.func).rpartition(".")[0]
    given = (argument(node, "pointer", 0), argument(node, "val", 1), argument(node, "mask", 2))
    pointer, value, mask = ("" if each is None else text(each.value) for each in given)
    if pointer and value:
        yield Fault(node, f"{root}.store({pointer}, {value}{f', mask={mask}' if mask else ''})")


def _initial(node: cst.Call, place: Place) -> Iterator[Fault]:
    operation = place.operation(node)
    if operation == "zeros":
        rest = [argument_text(each) for each in node.args[1:]]
        root = dotted(node.func).rpartition(".")[0]
        yield Fault(node, f"{root}.full({', '.join((argument_text(node.args[0]), '1', *rest))})")
    elif operation == "full" and (value := argument(node, "value", 1)) is not None:
        if text(value.value).startswith("float("):
            return  # of the constants
        new = "1.0" if text(value.value) in ("0", "0.0") else "0.0"
        name = "value=" if value.keyword is not None else ""
        kept = [name + new if each is value else argument_text(each) for each in node.args]
        yield Fault(node, f"{text(node.func)}({', '.join(kept)})")


def _unfilled(node: cst.Call, place: Place) -> Iterator[Fault]:
    name = dotted(node.func).rpartition(".")[2]
    if isinstance(node.func, cst.Attribute) and name in ("zeros", "zeros_like", "new_zeros"):
        function = f"{text(node.func.value)}.{name.replace('zeros', 'empty')}"
        yield Fault(node, called(node, function=function))


OPERATORS = (
    Operator(
        "store dropped",
        "A store or an atomic operation is left out.",
        (cst.Expr,),
        _store,
        wrappers=False,
        cause="stale",
    ),
    Operator(
        "barrier dropped",
        "The threads of a program do not wait for each other.",
        (cst.Expr,),
        _barrier,
        wrappers=False,
        cause="access",
    ),
    Operator(
        "atomic to store",
        "What is added to memory by one operation is stored there by a plain one.",
        (cst.Call,),
        _atomic,
        wrappers=False,
        cause="access",
    ),
    Operator(
        "initial value",
        "A tile begins with 1 in place of 0, or with 0 in place of anything else.",
        (cst.Call,),
        _initial,
        wrappers=False,
    ),
    Operator(
        "buffer unfilled",
        "Memory is allocated and not set to zero.",
        (cst.Call,),
        _unfilled,
        kernels=False,
        cause="stale",
    ),
)
