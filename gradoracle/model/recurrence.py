"""scan: a recurrence as one operation, in the form of ``torch._higher_order_ops.scan``.

On plain tensors it is a loop. While a definition is traced, the oracle takes its place (``read_by``): the step is
traced once, and each reading runs it over the length (docs/how-to/recurrences.md).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Tensors = list[Tensor]
FlatStep = Callable[[Tensors, Tensors], tuple[Tensors, Tensors]]
Reader = Callable[[FlatStep, Tensors, Tensors, bool], tuple[Tensors, Tensors]]

_reader: ContextVar[Reader | None] = ContextVar("reader", default=None)


class RecurrenceError(ValueError):
    """A scan that is no recurrence over tensors of one shape; the message is one sentence."""


@contextmanager
def read_by(reader: Reader | None) -> Iterator[None]:
    """Within, scans are given to ``reader``; None: they are loops."""
    token = _reader.set(reader)
    try:
        yield
    finally:
        _reader.reset(token)


def scan(
    combine_fn: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, *, dim: int = 0, reverse: bool = False
) -> tuple[Any, Any]:
    """A loop over slices of ``xs`` that carries state from step to step.

    Args:
        combine_fn: ``(carry, x) -> (carry, y)``, a pure function of tensors. The new carry has the structure, shapes
            and dtypes of the old one; y is a tensor, a structure of tensors, or None.
        init: the first carry: a tensor or a structure (tuple, list, dict) of tensors.
        xs: a tensor or a structure of tensors; a step is given their slices along ``dim``, without that dim.
        dim: the dim of ``xs`` that is looped over.
        reverse: whether to begin with the last slice; y of each slice stays in its place.

    Returns:
        The last carry, and the y of all steps, stacked along ``dim`` (along dim 0 if y has fewer dims).

    Raises:
        RecurrenceError: there is no tensor to carry or to loop over, lengths differ, or a step changes the structure, a
            shape or a dtype of the carry.
    """
    carried, carry_spec = pytree.tree_flatten(init)
    given, xs_spec = pytree.tree_flatten(xs)
    for what, found in (("init", carried), ("xs", given)):
        if not found or not all(isinstance(x, Tensor) for x in found):
            wrong = next((type(x).__name__ for x in found if not isinstance(x, Tensor)), "nothing")
            raise RecurrenceError(f"scan was given {wrong} in {what}; expected one tensor or more")
    if any(not -x.dim() <= dim < x.dim() for x in given):
        shapes = ", ".join(str(list(x.shape)) for x in given)
        raise RecurrenceError(
            f"scan was given dim {dim} for xs of shape {shapes}; expected a dim that each of them has"
        )
    dim = dim % given[0].dim()
    lengths = {int(x.shape[dim]) for x in given}
    if len(lengths) > 1:
        raise RecurrenceError(
            f"scan was given xs of lengths {', '.join(map(str, sorted(lengths)))} along dim {dim}; expected one length"
        )
    structure: list[Any] = []

    def step(carry: Tensors, slices: Tensors) -> tuple[Tensors, Tensors]:
        found = combine_fn(pytree.tree_unflatten(carry, carry_spec), pytree.tree_unflatten(slices, xs_spec))
        if not isinstance(found, tuple) or len(found) != 2:
            raise RecurrenceError(f"the step of a scan returned {type(found).__name__}; expected (carry, y)")
        new, new_spec = pytree.tree_flatten(found[0])
        if new_spec != carry_spec:
            raise RecurrenceError("the step of a scan changes the structure of its carry; expected that of init")
        require_same(carry, new)
        ys, spec = pytree.tree_flatten(found[1])
        structure[:] = [spec, [isinstance(y, Tensor) for y in ys]]
        return new, [y for y in ys if isinstance(y, Tensor)]

    reader = _reader.get() or stepwise
    last, ys = reader(step, carried, [x.movedim(dim, 0) if dim else x for x in given], reverse)
    stacked = iter([y.movedim(0, dim) if 0 < dim < y.dim() else y for y in ys])
    spec, are = structure
    return pytree.tree_unflatten(last, carry_spec), pytree.tree_unflatten(
        [next(stacked) if is_tensor else None for is_tensor in are], spec
    )


@contextmanager
def uncompiled() -> Iterator[None]:
    """Within, ``torch._higher_order_ops.scan`` is this scan; PyTorch would compile its step."""
    from torch._higher_order_ops import scan as module

    place = sys.modules[module.__module__] if callable(module) else module  # the package also exports the function
    name = "_maybe_compile_and_run_fn"
    before = getattr(place, name, None)
    if before is None:
        yield
        return

    def run(_: Any, combine_fn: Any, init: Sequence[Tensor], xs: Sequence[Tensor]) -> tuple[Any, Any]:
        structure: list[Any] = []

        def step(carry: Tensors, slices: Tensors) -> tuple[Tensors, Any]:
            new, y = combine_fn(*carry, *slices)
            structure[:] = [pytree.tree_structure(new)]
            return pytree.tree_leaves(new), y

        last, ys = scan(step, list(init), list(xs))
        return pytree.tree_unflatten(last, structure[0]), ys

    setattr(place, name, run)
    try:
        yield
    finally:
        setattr(place, name, before)


def require_same(before: Sequence[Tensor], after: Sequence[Any]) -> None:
    """A carry after a step has the shapes and dtypes of that before it.

    Raises:
        RecurrenceError: it has others.
    """
    for position, (old, new) in enumerate(zip(before, after, strict=True)):
        if not isinstance(new, Tensor):
            raise RecurrenceError(f"the step of a scan carries {type(new).__name__}; expected a tensor, as in init")
        for what, was, found in (("shape", list(old.shape), list(new.shape)), ("dtype", old.dtype, new.dtype)):
            if was != found:
                of = f"number {position + 1} of its carry" if len(before) > 1 else "its carry"
                raise RecurrenceError(f"the step of a scan changes the {what} of {of} from {was} to {found}")


def stepwise(step: FlatStep, init: Tensors, xs: Tensors, reverse: bool) -> tuple[Tensors, Tensors]:
    """The recurrence as a loop; ``xs`` are looped over along dim 0."""
    if xs[0].shape[0] == 0:
        return one_step(step, init, xs, reverse)
    slices = list(zip(*(x.unbind(0) for x in xs), strict=True))
    carry, found = init, []
    for given in reversed(slices) if reverse else slices:
        carry, ys = step(carry, list(given))
        found.append(ys)
    found = found[::-1] if reverse else found
    return carry, [torch.stack(ys) for ys in zip(*found, strict=True)]


def one_step(step: FlatStep, init: Tensors, xs: Tensors, reverse: bool) -> tuple[Tensors, Tensors]:
    """Tensors of the recurrence's sizes, without its values: a single step shows those of y."""
    _, ys = step(init, [x.new_zeros(x.shape[1:]) for x in xs])
    return init, [y.new_zeros((len(xs[0]), *y.shape)) for y in ys]
