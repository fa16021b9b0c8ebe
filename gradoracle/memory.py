"""Memory that tells: new tensors hold a poison that shows where it was read or left, and lie between guard bands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

# Quiet NaNs with a payload that no arithmetic makes by itself, per width in bytes.
_POISON = {
    torch.float64: (torch.int64, 0x7FF8DEAD5EED0001),
    torch.float32: (torch.int32, 0x7FC5EED1),
    torch.bfloat16: (torch.int16, 0x7FD3),
    torch.float16: (torch.int16, 0x7ED3),
}
_INTEGER_POISON = -0x5EED
BAND = 64  # elements on either side


class Memory:
    """What was allocated under ``poisoned``: each tensor's storage with its bands."""

    def __init__(self) -> None:
        self._bands: list[tuple[Tensor, int, tuple[int, ...]]] = []

    def add(self, storage: Tensor, used: int, shape: tuple[int, ...]) -> None:
        """Remember a storage of ``used`` elements between two bands."""
        self._bands.append((storage, used, shape))

    def overwritten(self) -> list[str]:
        """A sentence for each allocation whose guard bands were written to; empty where none was."""
        found = []
        for storage, used, shape in self._bands:
            for side, band in (("before", storage[:BAND]), ("after", storage[BAND + used :])):
                changed = int((~is_poison(band)).sum())
                if changed:
                    found.append(f"{changed} elements {side} a tensor of shape {shape} were written")
        return found


def is_poison(tensor: Tensor) -> Tensor:
    """True where an element still holds the poison (bits compared)."""
    if tensor.dtype in _POISON:
        bits, value = _POISON[tensor.dtype]
        return tensor.contiguous().view(bits) == value
    if tensor.dtype in (torch.int16, torch.int32, torch.int64):
        return tensor == _INTEGER_POISON
    return torch.ones_like(tensor, dtype=torch.bool)


def _fill(storage: Tensor) -> None:
    if storage.dtype in _POISON:
        bits, value = _POISON[storage.dtype]
        storage.view(bits).fill_(value)
    elif storage.dtype in (torch.int16, torch.int32, torch.int64):
        storage.fill_(_INTEGER_POISON)


@contextmanager
def poisoned() -> Iterator[Memory]:
    """While it lasts, torch.empty and its kin give poisoned memory between guard bands (plain calls only)."""
    memory = Memory()
    plain_empty, plain_like, plain_strided = torch.empty, torch.empty_like, torch.empty_strided
    plain_new = Tensor.new_empty

    def strided(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: Any, grad: bool) -> Tensor:
        used = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if all(n > 0 for n in size) else 0
        storage = plain_empty(used + 2 * BAND, dtype=dtype, device=device)
        _fill(storage)
        memory.add(storage, used, size)
        return storage.as_strided(size, stride, BAND).requires_grad_(grad)

    def known(dtype: torch.dtype) -> bool:
        return dtype in _POISON or dtype in (torch.int16, torch.int32, torch.int64)

    def allowed(keywords: dict[str, Any]) -> bool:
        return set(keywords) <= {"dtype", "device", "requires_grad"} and not torch.compiler.is_compiling()

    def empty(*size: Any, **keywords: Any) -> Tensor:
        dtype = keywords.get("dtype") or torch.get_default_dtype()
        if "size" in keywords or not allowed(keywords) or not known(dtype):
            return plain_empty(*size, **keywords)
        shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)
        return strided(shape, _contiguous(shape), dtype, keywords.get("device"), bool(keywords.get("requires_grad")))

    def empty_like(tensor: Tensor, **keywords: Any) -> Tensor:
        like = plain_like(tensor, **keywords)
        if not allowed(keywords) or not known(like.dtype) or type(like) is not Tensor:
            return like
        return strided(tuple(like.shape), like.stride(), like.dtype, like.device, like.requires_grad)

    def empty_strided(size: Any, stride: Any, **keywords: Any) -> Tensor:
        dtype = keywords.get("dtype") or torch.get_default_dtype()
        if not allowed(keywords) or not known(dtype):
            return plain_strided(size, stride, **keywords)
        return strided(tuple(size), tuple(stride), dtype, keywords.get("device"), bool(keywords.get("requires_grad")))

    def new_empty(tensor: Tensor, *size: Any, **keywords: Any) -> Tensor:
        shape = tuple(size[0]) if len(size) == 1 and not isinstance(size[0], int) else tuple(size)
        return empty(shape, **{"dtype": tensor.dtype, "device": tensor.device, **keywords})

    patches: list[tuple[Any, str, Callable[..., Any], Callable[..., Any]]] = [
        (torch, "empty", empty, plain_empty),
        (torch, "empty_like", empty_like, plain_like),
        (torch, "empty_strided", empty_strided, plain_strided),
        (Tensor, "new_empty", new_empty, plain_new),
    ]
    for owner, name, replacement, _ in patches:
        setattr(owner, name, replacement)
    try:
        yield memory
    finally:
        for owner, name, _, plain in patches:
            setattr(owner, name, plain)


def _contiguous(shape: tuple[int, ...]) -> tuple[int, ...]:
    stride, strides = 1, []
    for size in reversed(shape):
        strides.append(stride)
        stride *= max(size, 1)
    return tuple(reversed(strides))
