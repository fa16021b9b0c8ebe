"""Layouts: how a tensor lies in memory. The values are the same; the memory between and around them is poisoned.

Poison is NaN in float tensors and a huge negative number in integer ones, so that reading outside a view shows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

_BAND = 64  # poisoned elements behind a tensor with an offset


@dataclass(frozen=True)
class Layout:
    """One way to lay a tensor out.

    Attributes:
        name: the name in a case line.
        what: a description.
        lay: the function that lays a contiguous tensor out.
        fits: whether a tensor of this shape in this layout differs from a contiguous one.
        repeats: whether several elements share an address.
    """

    name: str
    what: str
    lay: Callable[[Tensor], Tensor]
    fits: Callable[[Sequence[int]], bool]
    repeats: bool = False


def _poisoned(like: Tensor, count: int) -> Tensor:
    if like.dtype is torch.bool:
        poison: float | bool = True
    else:
        poison = float("nan") if like.is_floating_point() else torch.iinfo(like.dtype).min // 2
    return torch.full((count,), poison, dtype=like.dtype, device=like.device)


def _swapped(tensor: Tensor, first: int, second: int) -> Tensor:
    return tensor.transpose(first, second).contiguous().transpose(first, second)


def _sliced(tensor: Tensor) -> Tensor:
    """A window of a larger tensor: one row of poison before and two after, in every dim."""
    shape = [size + 3 for size in tensor.shape]
    whole = _poisoned(tensor, torch.Size(shape).numel()).view(shape)
    window = whole[tuple(slice(1, 1 + size) for size in tensor.shape)]
    return window.copy_(tensor)


def _strided(tensor: Tensor) -> Tensor:
    """Every second element of the last dim."""
    shape = [*tensor.shape[:-1], 2 * tensor.shape[-1]]
    return _poisoned(tensor, torch.Size(shape).numel()).view(shape)[..., ::2].copy_(tensor)


def _offset(tensor: Tensor) -> Tensor:
    """Contiguous from the second element of its storage, so that the address is aligned to one element only."""
    storage = _poisoned(tensor, 1 + tensor.numel() + _BAND)
    return storage[1 : 1 + tensor.numel()].view(tensor.shape).copy_(tensor)


def _expanded(tensor: Tensor) -> Tensor:
    """Stride 0 along the first dim of more than one element, whose values are those at index 0."""
    axis = expanded_dim(tuple(tensor.shape))
    return tensor.narrow(axis, 0, 1).contiguous().expand(tensor.shape)


def _broadcast(tensor: Tensor) -> Tensor:
    """Stride 0 along every dim: the first element everywhere, what ``sum().backward()`` hands to a backward."""
    return tensor.reshape(-1)[:1].clone().as_strided(tensor.shape, (0,) * tensor.dim())


def _several(shape: Sequence[int]) -> bool:
    return max(shape, default=1) > 1


LAYOUTS: Mapping[str, Layout] = MappingProxyType(
    {
        layout.name: layout
        for layout in (
            Layout("contiguous", "row-major", lambda tensor: tensor, lambda shape: True),
            Layout(
                "transposed",
                "the last two dims exchanged in memory",
                lambda tensor: _swapped(tensor, -1, -2),
                lambda shape: len(shape) > 1 and min(shape[-2:]) > 1,
            ),
            Layout(
                "permuted",
                "the second and third dim from the end exchanged in memory",
                lambda tensor: _swapped(tensor, -2, -3),
                lambda shape: len(shape) > 2 and min(shape[-3:-1]) > 1,
            ),
            Layout("sliced", "a window of a larger tensor", _sliced, lambda shape: len(shape) > 0),
            Layout(
                "strided",
                "every second element of the last dim",
                _strided,
                lambda shape: len(shape) > 0 and shape[-1] > 1,
            ),
            Layout("offset", "contiguous, one element into its storage", _offset, lambda shape: True),
            Layout("expanded", "stride 0 along the first dim of several elements", _expanded, _several, repeats=True),
            Layout("broadcast", "stride 0 along every dim: one value", _broadcast, _several, repeats=True),
        )
    }
)


def layout(name: str) -> Layout:
    """The layout of that name.

    Raises:
        ValueError: naming what was given and what is expected.
    """
    if name not in LAYOUTS:
        raise ValueError(f"layout {name!r} is unknown; expected one of {', '.join(LAYOUTS)}")
    return LAYOUTS[name]


def apply(tensor: Tensor, name: str) -> Tensor:
    """The tensor in a layout, in fresh storage; contiguous where the layout does not fit the shape.

    Values are kept, except that ``expanded`` repeats index 0 along ``expanded_dim``, and ``broadcast`` one element.

    Raises:
        ValueError: the layout is unknown.
    """
    chosen = layout(name)
    contiguous = tensor.detach().contiguous().clone()
    return chosen.lay(contiguous) if chosen.fits(tuple(tensor.shape)) else contiguous


def expanded_dim(shape: Sequence[int]) -> int:
    """The dim along which ``expanded`` has stride 0: the first of more than one element.

    Raises:
        ValueError: no dim has more than one element.
    """
    for axis, size in enumerate(shape):
        if size > 1:
            return axis
    raise ValueError(f"shape {tuple(shape)} has no dim of more than one element to expand along")


def storage_of(tensor: Tensor) -> Tensor:
    """All elements of a tensor's storage as one dim, poison included."""
    count = tensor.untyped_storage().nbytes() // tensor.element_size()
    return torch.as_strided(tensor.detach(), (count,), (1,), 0)


def pointwise(tensor: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """``change`` of every element of a tensor, which returns new ones, with the tensor's very strides and offset."""
    return change(storage_of(tensor)).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def scaled(tensor: Tensor, factor: float) -> Tensor:
    """The tensor times a number, rounded to its dtype, with its strides and offset; also of dtypes without products."""
    return pointwise(tensor, lambda t: (t.to(torch.float64) * factor).to(t.dtype))


def moved(tensor: Tensor, device: str | torch.device) -> Tensor:
    """The tensor on another device with its strides, its offset and all of its storage, poison included."""
    return pointwise(tensor, lambda storage: storage.to(device))


def aligned(tensor: Tensor) -> Tensor:
    """The tensor contiguous in new storage, whose address the allocator aligns, as it does a result's."""
    return tensor.clone(memory_format=torch.contiguous_format)


def content(tensor: Tensor) -> bytes:
    """The bytes of a tensor's elements in order, whatever its layout; of one element with any strides too."""
    dense = tensor.detach().cpu().clone(memory_format=torch.contiguous_format)  # its last stride is 1
    return dense.reshape(-1).view(torch.uint8).numpy().tobytes()
