"""Specialisations: which compiled variants of jitted functions were launched, as plain values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import triton.language as tl

from gradoracle.host.interpreter import launch_hooks
from gradoracle.model.formats import OF_DTYPES

# (module, function, types by argument, constants by argument, options); a constant's type is "constexpr"
Specialisation = tuple[
    str, str, tuple[tuple[str, str], ...], tuple[tuple[str, Any], ...], tuple[tuple[str, int], ...]
]  # fmt: skip

_TYPES = {
    **{dtype: each.triton for dtype, each in OF_DTYPES.items()},
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.bool: "i1",
}
_OPTIONS = ("num_warps", "num_stages")


@contextmanager
def launched() -> Iterator[set[Specialisation]]:
    """Record what is launched, except with arguments that have no plain form (tuples, descriptors)."""
    found: set[Specialisation] = set()

    def watch(
        fn: Callable[..., Any], given: Mapping[str, Any], constants: Collection[str], options: Mapping[str, Any]
    ) -> None:
        made = _specialisation(fn, given, constants, options)
        if made is not None:
            found.add(made)

    before, launch_hooks.watch = launch_hooks.watch, watch
    try:
        yield found
    finally:
        launch_hooks.watch = before


def _specialisation(
    fn: Callable[..., Any], given: Mapping[str, Any], constants: Collection[str], options: Mapping[str, Any]
) -> Specialisation | None:
    types: list[tuple[str, str]] = []
    values: list[tuple[str, Any]] = []
    for name, value in given.items():
        value = getattr(value, "value", value) if name in constants else value  # of a tl.constexpr
        if name in constants or value is None:
            if not isinstance(value, (int, float, str, type(None), tl.dtype)):
                return None
            types.append((name, "constexpr"))
            values.append((name, value))
            continue
        of = _type(value)
        if of is None:
            return None
        types.append((name, of))
    chosen = tuple((name, int(options[name])) for name in _OPTIONS if name in options)
    return fn.__module__, fn.__name__, tuple(types), tuple(values), chosen


def _type(value: Any) -> str | None:
    """The type of an argument, as Triton's signatures write it; None if it has no plain form."""
    if isinstance(value, torch.Tensor):
        element = _TYPES.get(value.dtype)
        return f"*{element}" if element else None
    if isinstance(value, bool):
        return "i1"
    if isinstance(value, int):
        return "i32" if -(2**31) <= value < 2**31 else "i64"
    return "fp32" if isinstance(value, float) else None
