"""Guarded memory: new tensors hold a poison, which shows if it is read or left, and lie between guard bands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from gradoracle.host.claimed_cuda import device_of
from gradoracle.host.interpreter import is_active
from gradoracle.model.tensor_bits import INTEGER_POISON, POISON, POISONED_INTEGERS, is_poison
from gradoracle.model.wrong_accesses import WrongAccess

BAND = 64  # elements on either side
_other_sign = 0  # of the numbers that new memory holds instead of poison; 0: poison


class Memory:
    """The allocations under ``poisoned``: each tensor's storage with its bands.

    Attributes:
        watch: called at each allocation, if set.
        launches: the number of recorded launches of Triton kernels.
        faults: the wrong accesses that their record found.
        outside: the accesses that a fence did not let through.
    """

    def __init__(self) -> None:
        self._bands: list[tuple[Tensor, int, tuple[int, ...]]] = []
        self._storages: set[int] = set()
        self.watch: Callable[[], None] | None = None
        self.launches = 0
        self.faults: tuple[WrongAccess, ...] = ()
        self.outside: tuple[WrongAccess, ...] = ()

    def add(self, storage: Tensor, used: int, shape: tuple[int, ...]) -> None:
        """Remember a storage of ``used`` elements between two bands."""
        self._bands.append((storage, used, shape))
        with suppress(NotImplementedError):  # a tensor that torch.func wraps has no accessible storage
            self._storages.add(storage.untyped_storage().data_ptr())
        if self.watch is not None:
            self.watch()

    def unwritten(self, tensor: Tensor) -> int | None:
        """The bits, as an unsigned number, of elements that nothing wrote; None for a tensor allocated elsewhere."""
        if tensor.untyped_storage().data_ptr() not in self._storages:
            return None
        bits = POISON[tensor.dtype][1] if tensor.dtype in POISON else INTEGER_POISON
        return int(bits) % (1 << 8 * tensor.element_size())

    def overwritten(self) -> list[str]:
        """A sentence for each allocation whose guard bands were written to."""
        found = []
        for storage, used, shape in self._bands:
            for side, band in (("before", storage[:BAND]), ("after", storage[BAND + used :])):
                changed = int((~is_poison(band)).sum())
                if changed:
                    found.append(f"{changed} elements {side} a tensor of shape {shape} were written")
        return found


def _fill(storage: Tensor) -> None:
    if storage.dtype in POISON and _other_sign:
        storage.fill_(_other_sign * torch.finfo(storage.dtype).max)
    elif storage.dtype in POISON:
        bits, value = POISON[storage.dtype]
        storage.view(bits).fill_(value)
    elif storage.dtype in POISONED_INTEGERS:
        storage.fill_(int(_other_sign > 0) if _other_sign else INTEGER_POISON)


@contextmanager
def filled(sign: int) -> Iterator[None]:
    """Within it, ``poisoned`` memory holds the largest number of its dtype with a sign, integers 0 or 1.

    What depends on memory that nothing wrote differs then; what discards it does not.
    """
    global _other_sign
    before, _other_sign = _other_sign, sign
    try:
        yield
    finally:
        _other_sign = before


@contextmanager
def poisoned() -> Iterator[Memory]:
    """Within it, torch.empty and its kin return poisoned memory between guard bands (plain calls only)."""
    memory = Memory()
    plain_empty, plain_like, plain_strided = torch.empty, torch.empty_like, torch.empty_strided
    plain_new = Tensor.new_empty

    def strided(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, device: Any, grad: bool) -> Tensor:
        used = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if all(n > 0 for n in size) else 0
        storage = plain_empty(used + 2 * BAND, dtype=dtype, device=device)
        if type(storage) is not Tensor or storage.is_meta:  # torch.compile traces shapes alone
            return plain_strided(size, stride, dtype=dtype, device=device, requires_grad=grad)
        _fill(storage)
        memory.add(storage, used, size)
        tensor = storage.as_strided(size, stride, BAND)
        return tensor.requires_grad_() if grad else tensor  # torch.func forbids even requires_grad_(False)

    def known(dtype: torch.dtype) -> bool:
        return dtype in POISON or dtype in POISONED_INTEGERS

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
        return strided(tuple(like.shape), like.stride(), like.dtype, device_of(like), like.requires_grad)

    def empty_strided(size: Any, stride: Any, **keywords: Any) -> Tensor:
        dtype = keywords.get("dtype") or torch.get_default_dtype()
        if not allowed(keywords) or not known(dtype):
            return plain_strided(size, stride, **keywords)
        return strided(tuple(size), tuple(stride), dtype, keywords.get("device"), bool(keywords.get("requires_grad")))

    def new_empty(tensor: Tensor, *size: Any, **keywords: Any) -> Tensor:
        return empty(*size, **{"dtype": tensor.dtype, "device": device_of(tensor), **keywords})

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


@contextmanager
def recorded(memory: Memory) -> Iterator[None]:
    """If Triton is interpreted, note in ``memory`` the wrong accesses of the kernels that a call launches."""
    if not is_active():
        yield
        return
    from gradoracle.host.interpreter.record import recording

    with recording(memory.unwritten) as record:
        memory.watch = record.watch
        try:
            yield
        finally:
            memory.watch = None
            memory.launches, memory.faults = record.launches, tuple(record.faults())


@contextmanager
def fenced(memory: Memory) -> Iterator[None]:
    """If Triton is interpreted, perform no access outside of the storages that programs were given; note these."""
    if not is_active():
        yield
        return
    from gradoracle.host.interpreter.record import fencing

    with fencing() as fence:
        yield
    memory.outside = () if fence is None else tuple(fence.faults())


@contextmanager
def inside_tensors() -> Iterator[None]:
    """If Triton is interpreted, let programs make no access outside of their tensors; nothing is noted."""
    if not is_active():
        yield
        return
    from gradoracle.host.interpreter.record import recording

    with recording(lambda tensor: None):
        yield
