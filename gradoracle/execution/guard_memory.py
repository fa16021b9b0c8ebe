"""Guarded memory: new tensors hold a poison, which shows if it is read or left, and lie between guard bands.

Arguments are copied before a call, so that writes to them are seen and undone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from gradoracle.cases.sample import Change
from gradoracle.execution.call_errors import Crashed
from gradoracle.execution.claimed_cuda import device_of
from gradoracle.execution.interpreter import is_active
from gradoracle.execution.interpreter.wrong_accesses import WrongAccess
from gradoracle.model.reason import Reason

# Quiet NaNs with a payload that no arithmetic produces.
_POISON = {
    torch.float64: (torch.int64, 0x7FF8DEAD5EED0001),
    torch.float32: (torch.int32, 0x7FC5EED1),
    torch.bfloat16: (torch.int16, 0x7FD3),
    torch.float16: (torch.int16, 0x7ED3),
    torch.float8_e5m2: (torch.uint8, 0x7D),
    torch.float8_e4m3fn: (torch.uint8, 0xFF),  # Triton's NaN is the other one, 0x7F
}
_INTEGER_POISON = -0x5EED
BAND = 64  # elements on either side
MOST_KEPT = 1 << 28  # bytes of arguments that are copied; of more, only a checksum is kept
_other_sign = 0  # of the numbers that new memory holds instead of poison; 0: poison
_SPARSE = 8  # a storage this many times larger than its tensor's elements and than all copies: only elements are kept
_CHUNK = 1 << 24  # bytes that are summed at once

Spot = tuple[str, str, int, str]


class Memory:
    """The allocations under ``poisoned``: each tensor's storage with its bands.

    Attributes:
        watch: called at each allocation, if set.
        launches: the number of recorded launches of Triton kernels.
        faults: the wrong accesses that their record found.
    """

    def __init__(self) -> None:
        self._bands: list[tuple[Tensor, int, tuple[int, ...]]] = []
        self._storages: set[int] = set()
        self.watch: Callable[[], None] | None = None
        self.launches = 0
        self.faults: tuple[WrongAccess, ...] = ()

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
        bits = _POISON[tensor.dtype][1] if tensor.dtype in _POISON else _INTEGER_POISON
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


class Originals:
    """The storages of some tensors as they are now; ``undo`` reports what changed and restores it.

    Copies are kept up to ``most`` bytes in total; beyond that 8 bytes per storage: a change is seen and not undone. Of
    a storage that holds its tensor's elements far apart, only the elements are kept.
    """

    def __init__(self, tensors: Mapping[str, Tensor], most: int = MOST_KEPT) -> None:
        self._far = {n: t for n, t in tensors.items() if t.untyped_storage().nbytes() > _SPARSE * max(t.nbytes, most)}
        self._elements = {name: tensor.detach().clone() for name, tensor in self._far.items()}
        self._tensors = {name: tensor for name, tensor in tensors.items() if name not in self._far}
        storages = {tensor.untyped_storage().data_ptr(): storage_bytes(tensor) for tensor in self._tensors.values()}
        self._copied = sum(storage.numel() for storage in storages.values()) <= most
        self._kept = {place: s.clone() if self._copied else _weighted_sum(s) for place, s in storages.items()}

    def undo(self) -> dict[str, Change]:
        """The changes by tensor name, all of them undone if copies were kept."""
        found = {}
        storages = {name: storage_bytes(tensor) for name, tensor in self._tensors.items()}
        for name, storage in storages.items():
            kept = self._kept[storage.data_ptr()]
            if not self._copied:
                if not torch.equal(_weighted_sum(storage), kept):
                    found[name] = Change(None, 1, False)
            elif not torch.equal(storage, kept):
                found[name] = _change(self._tensors[name], kept)
        if self._copied:
            for name in found:
                storages[name].copy_(self._kept[storages[name].data_ptr()])
        for name, elements in self._elements.items():
            wrong = differing_bits(self._far[name], elements)
            if wrong.any():
                found[name] = Change(wrong.cpu(), 0, True)
                self._far[name].detach().copy_(elements)
        return found


def storage_bytes(tensor: Tensor) -> Tensor:
    """All of a tensor's storage, byte by byte, as a view of it."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def differing_bits(one: Tensor, other: Tensor) -> Tensor:
    """Where elements differ in bits, NaN payloads included; both tensors have one shape and dtype."""
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    return one.detach().contiguous().view(integer) != other.detach().contiguous().view(integer)


def _change(tensor: Tensor, kept: Tensor) -> Change:
    """The change of a tensor whose storage was ``kept``."""
    before = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
        kept.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    )
    elements = differing_bits(tensor, before).cpu()
    return Change(elements, 0 if elements.any() else int((storage_bytes(tensor) != kept).sum()), True)


def _weighted_sum(storage: Tensor) -> Tensor:
    """A sum of bytes modulo 2^64, each times an odd number that depends on its place, so that swaps change it too."""
    total = torch.zeros((), dtype=torch.int64, device=storage.device)
    for start in range(0, storage.numel(), _CHUNK):
        part = storage[start : start + _CHUNK].to(torch.int64) + 1
        places = torch.arange(start, start + part.numel(), device=storage.device)
        total += (part * (places * 0x9E3779B97F4A7C1 | 1)).sum()
    return total


def is_poison(tensor: Tensor) -> Tensor:
    """True where an element still holds the poison (bits compared)."""
    if tensor.dtype in _POISON:
        bits, value = _POISON[tensor.dtype]
        return tensor.contiguous().view(bits) == value
    if tensor.dtype in (torch.int16, torch.int32, torch.int64):
        return tensor == _INTEGER_POISON
    return torch.ones_like(tensor, dtype=torch.bool)


def _fill(storage: Tensor) -> None:
    if storage.dtype in _POISON and _other_sign:
        storage.fill_(_other_sign * torch.finfo(storage.dtype).max)
    elif storage.dtype in _POISON:
        bits, value = _POISON[storage.dtype]
        storage.view(bits).fill_(value)
    elif storage.dtype in (torch.int16, torch.int32, torch.int64):
        storage.fill_(int(_other_sign > 0) if _other_sign else _INTEGER_POISON)


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
    from gradoracle.execution.interpreter.record import recording

    with recording(memory.unwritten) as record:
        memory.watch = record.watch
        try:
            yield
        finally:
            memory.watch = None
            memory.launches, memory.faults = record.launches, tuple(record.faults())


@contextmanager
def fenced(known: set[Spot] | None) -> Iterator[None]:
    """If Triton is interpreted, perform no access outside of the storages that programs were given.

    Args:
        known: the spots of reported accesses, to be added to; None: accesses are not judged.

    Raises:
        Crashed: a program made one elsewhere; the message says where.
    """
    if not is_active():
        yield
        return
    from gradoracle.execution.interpreter.record import fencing

    with fencing() as fence:
        yield
    if fence is None or known is None:
        return
    found = [fault for fault in fence.faults() if spot(fault) not in known]
    if found:
        known.update(map(spot, found))
        more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
        raise Crashed(f"{found[0]}{more}; it was not performed", Reason.ACCESS)


@contextmanager
def watched(memory: Memory, records: bool, judged: bool, known: set[Spot]) -> Iterator[None]:
    """Record accesses in ``memory``, or fence them; ``known`` is where accesses outside have been reported."""
    with recorded(memory) if records else fenced(known if judged else None):
        yield
    known.update(map(spot, memory.faults))


def spot(fault: Any) -> Spot:
    """Kernel, file, line and tensor of a wrong access."""
    return fault.kernel, fault.place.file, fault.place.line, fault.tensor


@contextmanager
def inside_tensors() -> Iterator[None]:
    """If Triton is interpreted, let programs make no access outside of their tensors; nothing is noted."""
    if not is_active():
        yield
        return
    from gradoracle.execution.interpreter.record import recording

    with recording(lambda tensor: None):
        yield
