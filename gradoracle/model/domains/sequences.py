"""Sequences: what their ends say of each packed token, its number and its position."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gradoracle.model.domains.domain import Drawing, Neighbours, at, place

Reading = Callable[[Tensor, Sequence[int]], Tensor | None]


def numbers(ends: Tensor, shape: Sequence[int]) -> Tensor | None:
    """The number of the sequence of each token; empty sequences have no token, and so their numbers do not occur.

    Args:
        ends: where each sequence ends, [... N]: in each row of its own, in all rows alike, or in all rows together.
        shape: of the tokens, [... T].

    Returns:
        int64 of that shape; None where the sequences do not end with the tokens.
    """
    found = _numbers(ends, shape)
    return None if found is None else found.reshape(tuple(shape)).contiguous()


def positions(ends: Tensor, shape: Sequence[int]) -> Tensor | None:
    """The position of each token in its sequence, 0 of the first one; as ``numbers``."""
    found = _numbers(ends, shape)
    if found is None:
        return None
    begins = found.diff(dim=-1, prepend=found[..., :1] - 1) != 0
    return since(begins, found.shape[-1]).reshape(tuple(shape)).contiguous()


def since(begins: Tensor, most: int) -> Tensor:
    """How many tokens each is behind the last that begins a sequence, modulo ``most``; along the last dim."""
    token = torch.arange(begins.shape[-1], device=begins.device).expand(begins.shape)
    first = torch.where(begins, token, torch.zeros_like(token)).cummax(-1)[0]
    return (token - first) % max(most, 1)


def _numbers(ends: Tensor, shape: Sequence[int]) -> Tensor | None:
    """``numbers``, in one row where the sequences run through all rows."""
    if not ends.numel() or not math.prod(shape):
        return None
    ends, last, every = ends.long(), shape[-1], math.prod(shape)
    if ends.dim() == 1 and int(ends[-1]) == every != last:
        return _sought(ends, every)
    if (ends[..., -1] != last).any() or tuple(ends.shape[:-1]) not in ((), tuple(shape[:-1])):
        return None
    return _sought(ends, last).expand(tuple(shape))


def _sought(ends: Tensor, count: int) -> Tensor:
    tokens = torch.arange(count, device=ends.device).expand(*ends.shape[:-1], count).contiguous()
    return torch.searchsorted(ends.contiguous(), tokens, right=True)


def drawn_beside(drawing: Drawing, of: str, read: Reading) -> Tensor:
    """The values that the sequences of the input ``of`` give.

    Raises:
        ValueError: that input has not as many tokens.
    """
    ends = drawing.beside.ends(of)
    found = None if ends is None else read(ends, drawing.shape)
    if found is None:
        raise ValueError(f"{drawing.name} of shape {drawing.shape} has not one value for each token of {of}")
    return found


def fault_beside(values: Tensor, beside: Neighbours, of: str, read: Reading) -> str:
    """``Domain.fault`` of values that the sequences of the input ``of`` give, where that is known."""
    if (ends := beside.ends(of)) is None:
        return ""
    expected = read(ends.to(values.device), values.shape)
    if expected is None:
        return f"has shape {tuple(values.shape)}, expected one value for each token of {of}"
    if not (wrong := values != expected).any():
        return ""
    return f"holds {at(values, wrong)}, expected {int(expected[place(wrong)])} by the sequences of {of}"


def beside_of(values: Tensor, beside: Neighbours, of: str, read: Reading) -> Tensor:
    """What the sequences of the input ``of`` give for a tensor of that shape and dtype; itself where they give none."""
    ends = beside.ends(of)
    found = None if ends is None else read(ends.to(values.device), values.shape)
    return values if found is None else found.to(values.device, values.dtype)
