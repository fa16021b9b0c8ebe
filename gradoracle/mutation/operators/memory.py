"""Mistakes in what reaches memory: stores, barriers, atomic operations, buffers that are not filled."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, operator
from gradoracle.mutation.operators.place import Place
from gradoracle.mutation.operators.syntax import argument, argument_text, called, qualified, text, with_value


@operator(wrappers=False, cause="stale")
def store_dropped(node: cst.Expr, place: Place) -> Iterator[Fault]:
    """A store or an atomic operation is dropped."""
    name = place.operation(node.value)
    if name == "store" or name.startswith("atomic"):
        yield Fault(node, "")


@operator(wrappers=False, cause="access")
def barrier_dropped(node: cst.Expr, place: Place) -> Iterator[Fault]:
    """The threads of a program do not wait for each other."""
    if place.operation(node.value) == "debug_barrier":
        yield Fault(node, "")


@operator(wrappers=False, cause="access")
def atomic_to_store(node: cst.Call, place: Place) -> Iterator[Fault]:
    """An atomic operation becomes a plain store."""
    if place.operation(node).startswith("atomic") and place.operation(node) != "atomic_cas":
        root, _ = qualified(node.func)
        given = (argument(node, "pointer", 0), argument(node, "val", 1), argument(node, "mask", 2))
        pointer, value, mask = ("" if each is None else text(each.value) for each in given)
        if pointer and value:
            yield Fault(node, f"{root}.store({pointer}, {value}{f', mask={mask}' if mask else ''})")


@operator(wrappers=False)
def initial_value(node: cst.Call, place: Place) -> Iterator[Fault]:
    """A tile begins with 1 instead of 0, or with 0 instead of anything else."""
    if place.operation(node) == "zeros":
        shape, *rest = map(argument_text, node.args)
        yield Fault(node, f"{qualified(node.func)[0]}.full({', '.join((shape, '1', *rest))})")
    elif place.operation(node) == "full" and (value := argument(node, "value", 1)) is not None:
        old = text(value.value)
        if not old.startswith("float("):  # `constant` plants that
            new = with_value(value, "1.0" if old in ("0", "0.0") else "0.0")
            kept = (new if each is value else argument_text(each) for each in node.args)
            yield Fault(node, f"{text(node.func)}({', '.join(kept)})")


@operator(kernels=False, cause="stale")
def buffer_unfilled(node: cst.Call, place: Place) -> Iterator[Fault]:
    """Memory is allocated and not set to zero."""
    _, name = qualified(node.func)
    if isinstance(node.func, cst.Attribute) and name in ("zeros", "zeros_like", "new_zeros"):
        yield Fault(node, called(node, function=f"{text(node.func.value)}.{name.replace('zeros', 'empty')}"))
