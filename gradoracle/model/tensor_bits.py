"""Tensor bits: what memory holds, byte by byte: storages, the poison of memory that nothing wrote, changes."""

from __future__ import annotations

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

# Quiet NaNs with a payload that no arithmetic produces.
POISON = {
    torch.float64: (torch.int64, 0x7FF8DEAD5EED0001),
    torch.float32: (torch.int32, 0x7FC5EED1),
    torch.bfloat16: (torch.int16, 0x7FD3),
    torch.float16: (torch.int16, 0x7ED3),
    torch.float8_e5m2: (torch.uint8, 0x7D),
    torch.float8_e4m3fn: (torch.uint8, 0xFF),  # Triton's NaN is the other one, 0x7F
}
INTEGER_POISON = -0x5EED
POISONED_INTEGERS = (torch.int16, torch.int32, torch.int64)
_SPARSE, _LARGE = 8, 1 << 28  # a storage 8 times larger than its tensor's elements, and than 256 MB
_NO_RESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)  # named from Python 3.11 on


@dataclass(frozen=True)
class Change:
    """What a call wrote to one of its arguments.

    Attributes:
        elements: bool, which elements have other bits.
        around: how many bytes of its storage around the elements have changed.
    """

    elements: Tensor
    around: int


class NoAddresses(Exception):
    """There are not so many addresses; the message says how many were wanted."""


def is_poison(tensor: Tensor) -> Tensor:
    """True where an element still holds the poison (bits compared)."""
    if tensor.dtype in POISON:
        bits, value = POISON[tensor.dtype]
        return tensor.contiguous().view(bits) == value
    if tensor.dtype in POISONED_INTEGERS:
        return tensor == INTEGER_POISON
    return torch.ones_like(tensor, dtype=torch.bool)


def storage_bytes(tensor: Tensor) -> Tensor:
    """All of a tensor's storage, byte by byte, as a view of it."""
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def differing_bits(one: Tensor, other: Tensor) -> Tensor:
    """Where elements differ in bits, NaN payloads included; both tensors have one shape and dtype."""
    integer = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[one.element_size()]
    return one.detach().contiguous().view(integer) != other.detach().contiguous().view(integer)


def is_sparse(tensor: Tensor) -> bool:
    """Whether a tensor's elements lie so far apart in a storage so large that the memory between them is left alone."""
    return not tensor.is_meta and tensor.untyped_storage().nbytes() > _SPARSE * max(tensor.nbytes, _LARGE)


def addresses(count: int, dtype: torch.dtype) -> Tensor:
    """So many elements on the CPU, as addresses that are backed by memory where they are touched.

    Raises:
        NoAddresses: this process cannot have so many.
    """
    size = count * torch.empty(0, dtype=dtype).element_size()
    try:
        pages = mmap.mmap(-1, size, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | _NO_RESERVE)
    except (OSError, ValueError, OverflowError):
        raise NoAddresses(f"needs {math.ceil(size / 2**30)} GiB of addresses") from None
    return torch.frombuffer(pages, dtype=dtype, count=count)


def copies(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors in memory of their own, with their strides, offsets and the memory around them.

    Tensors that share a storage share one in the copies. Of one that is sparse only the elements are copied.

    Raises:
        NoAddresses: this process has none left for a sparse one.
    """
    storages: dict[int, Tensor] = {}
    found = {}
    for name, tensor in tensors.items():
        if tensor.is_meta:
            found[name] = tensor
            continue
        where = tensor.untyped_storage().data_ptr()
        if tensor.numel() and is_sparse(tensor):
            storage = addresses(tensor.untyped_storage().nbytes() // tensor.element_size(), tensor.dtype)
            found[name] = storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(tensor)
            continue
        if where not in storages or not where:
            storages[where] = storage_bytes(tensor).clone()
        found[name] = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(
            storages[where].untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
        )
    return found


def changes(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> dict[str, Change]:
    """What differs in tensors of the same layout, by name; ``before`` is as it was."""
    found = {}
    for name, tensor in before.items():
        own = after[name]
        if own is tensor or tensor.is_meta:
            continue
        if is_sparse(tensor):
            wrong = differing_bits(own, tensor)
            if wrong.any():
                found[name] = Change(wrong, 0)
            continue
        kept, storage = storage_bytes(tensor), storage_bytes(own)
        if not torch.equal(storage, kept):
            elements = differing_bits(own, tensor)
            found[name] = Change(elements, 0 if elements.any() else int((storage != kept).sum()))
    return found
