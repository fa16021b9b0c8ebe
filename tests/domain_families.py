"""Families with an input of every domain: packed tokens, and a batch of ragged rows that share a pool of blocks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Bool, Float, Int, Int32, UInt8
from torch import Tensor

import gradoracle
from gradoracle.model.domains import Neighbours
from gradoracle.model.family import Family

_SMALL = gradoracle.sizes(1, 6)


def _chosen(x: Tensor, index: Tensor) -> Tensor:
    """x[index] of each row: [B T], [B K] -> [B K]."""
    return x.gather(1, index.long())


@gradoracle.family(
    outputs=("o",),
    dims={"T": gradoracle.sizes(1, 40), "D": gradoracle.sizes(1, 5), "N": _SMALL, "E": _SMALL},
    domains={
        "cu": gradoracle.Offsets("T"),
        "seq": gradoracle.Segments(of="cu"),
        "pos": gradoracle.Positions(of="cu"),
        "order": gradoracle.Permutation("T"),
        "ends": gradoracle.Offsets("T", leading=False),
        "sizes": gradoracle.Lengths("T", total=True),
        "group": gradoracle.Segments(of="sizes"),
        "seed": gradoracle.Seed(),
        "packed": gradoracle.Bits(32),
        "bytes_": gradoracle.Bits(8),
    },
)
def tokens(
    x: Float[Tensor, "T D"],
    cu: Int32[Tensor, "N+1"],
    seq: Int[Tensor, "T"],
    pos: Int32[Tensor, "T"],
    order: Int[Tensor, "T"],
    ends: Int32[Tensor, "E"],
    sizes: Int[Tensor, "E"],
    group: Int[Tensor, "T"],
    seed: Int[Tensor, "1"],
    packed: Int32[Tensor, "D"],
    bytes_: UInt8[Tensor, "D"],
) -> Float[Tensor, "T D"]:
    """Each token less the first of its sequence, scaled by its position, its expert and some bits; another token."""
    first = cu.long()[seq]
    o = x - 0.5 * x[first]
    o = o * (1.0 + 0.125 * (pos % 4)[:, None])
    expert = (torch.arange(x.shape[0])[:, None] >= ends[None, :]).sum(1)
    o = o * (1.0 + 0.25 * (expert % 3)[:, None]) + 0.5 * (group % 2)[:, None]
    o = o + 0.25 * x[order]
    bits = ((packed >> 28) & 7) + (bytes_ >> 7) + (seed % 2)
    return o * (1.0 + 0.125 * bits)


@gradoracle.family(
    outputs=("o", "p"),
    dims={"B": gradoracle.sizes(1, 4), "T": gradoracle.sizes(1, 20), "V": _SMALL, "K": _SMALL, "M": _SMALL,
          "P": gradoracle.sizes(1, 24), "S": gradoracle.sizes(1, 4)},
    domains={
        "best": gradoracle.Distinct("V"),
        "kept": gradoracle.Distinct("V", sorted=True),
        "used": gradoracle.Lengths("M*S"),
        "table": gradoracle.BlockTable("P", lengths="used", block="S"),
        "every": gradoracle.BlockTable("P", shared=True),
        "ids": gradoracle.Segments("K"),
        "place": gradoracle.Positions("T"),
        "mask": gradoracle.Mask(some=True),
        "padding": gradoracle.Mask(prefix=True),
        "turn": gradoracle.Permutation("K"),
    },
)  # fmt: skip
def ragged(
    x: Float[Tensor, "B V"],
    y: Float[Tensor, "B T"],
    pool: Float[Tensor, "P S"],
    best: Int[Tensor, "B K"],
    kept: Int32[Tensor, "B K"],
    used: Int[Tensor, "B"],
    table: Int32[Tensor, "B M"],
    every: Int[Tensor, "B M"],
    ids: Int[Tensor, "B T"],
    place: Int[Tensor, "B T"],
    mask: Bool[Tensor, "B T"],
    padding: Int[Tensor, "B T"],
    turn: Int[Tensor, "K"],
) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B T"]]:
    """The chosen of each row plus what the pool has for it; and masked numbers scaled by segment and place."""
    size = pool.shape[1]
    token = torch.arange(table.shape[1] * size)
    block = table.long().clamp(min=0).repeat_interleave(size, 1)
    own = pool.reshape(-1)[block * size + token % size]  # [B M*S]
    summed = torch.where(token < used[:, None], own, 0.0).sum(1, keepdim=True)
    shared = pool[every.clamp(min=0)].sum((1, 2))[:, None]
    o = _chosen(x, best) + 0.5 * _chosen(x, kept) + summed + 0.125 * shared
    p = torch.where(mask, y, 0.25 * y) * (1.0 + 0.125 * (ids % 3)) * (1.0 + 0.0625 * (place % 4))
    return o[:, turn], p + padding * y * y


@gradoracle.family(
    outputs=("o",),
    dims={"B": gradoracle.sizes(1, 4), "T": gradoracle.sizes(1, 12), "N": _SMALL, "M": gradoracle.sizes(1, 60)},
    domains={
        "cu": gradoracle.Offsets("B*T"),
        "seq": gradoracle.Segments(of="cu"),
        "pos": gradoracle.Positions("M", of="cu"),
    },
    together=[("cu", "seq", "pos")],
)
def flat(
    x: Float[Tensor, "B T"],
    table: Float[Tensor, "M"],
    *,
    cu: Int32[Tensor, "N+1"] | None = None,
    seq: Int[Tensor, "B T"] | None = None,
    pos: Int[Tensor, "B T"] | None = None,
) -> Float[Tensor, "B T"]:
    """Tokens of all rows packed together, scaled by a table at their positions, or tokens alone."""
    if cu is None or seq is None or pos is None:
        return x * table[0]
    first = x.reshape(-1)[cu.long()[seq]]
    return (x - 0.5 * first) * table[pos]


FAMILIES: dict[str, Family] = {"tokens": tokens, "ragged": ragged, "flat": flat}


def faults(family: Family, inputs: Mapping[str, Tensor], sizes: Mapping[str, int]) -> list[str]:
    """What is wrong with integers of a family, by the domains."""
    beside = Neighbours(family.domains, inputs)
    own = ((name, domain) for name, domain in family.domains.items() if name in inputs)
    found = {name: domain.fault(inputs[name], sizes, beside) for name, domain in own}
    return [f"{name} {fault}" for name, fault in found.items() if fault]


def sizes_of(family: Family, inputs: Mapping[str, Tensor]) -> dict[str, int]:
    """The size of each dim that a tensor has by its name, or as one more."""
    found: dict[str, int] = {}
    for spec in (spec for spec in family.signature.inputs if spec.name in inputs):
        for dim, size in zip(spec.dims, inputs[spec.name].shape, strict=True):
            if dim.isidentifier():
                found[dim] = size
            elif dim.endswith("+1"):
                found[dim[:-2]] = size - 1
    return found
