"""Kernels that take integers of a domain for more than they are, are caught; correct ones hold on the same cases.

Where a narrower domain makes the assumption true, the same kernel holds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
from jaxtyping import Float, Int, Int32
from torch import Tensor

import gradoracle
from gradoracle import (
    Bits,
    BlockTable,
    Distinct,
    IndexDomain,
    Lengths,
    Mask,
    Offsets,
    Permutation,
    Positions,
    Seed,
    Segments,
)
from gradoracle.cases.stream import stream
from gradoracle.model.domains import Domain
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel
from gradoracle.model.verdict import Status
from tests.properties.judging import PROPERTIES
from tests.properties.toys import judged

SMALL = gradoracle.sizes(1, 6)
TOKENS = gradoracle.sizes(1, 40)
JUDGES = ("forward_matches_the_oracle", "vjp_matches_the_oracle")


def packed_mean(x: Float[Tensor, "T D"], cu: Int32[Tensor, "N+1"]) -> Float[Tensor, "N D"]:
    """The mean of each sequence; 0 of an empty one."""
    t = torch.arange(x.shape[0])
    inside = (t >= cu[:-1, None]) & (t < cu[1:, None])  # [N T]
    return (inside.to(x.dtype) @ x) / (cu.diff().clamp(min=1))[:, None]


def mean_by_loop(x: Tensor, cu: Tensor) -> Tensor:
    return torch.stack([x[a:b].sum(0) / max(b - a, 1) for a, b in pairwise(cu.tolist())])


def mean_without_empty_sequences(x: Tensor, cu: Tensor) -> Tensor:
    """Leaves what it has for the sequence before in the row of an empty one."""
    found: list[Tensor] = []
    for a, b in pairwise(cu.tolist()):
        found.append(x[a:b].mean(0) if b > a or not found else found[-1])
    return torch.stack(found).nan_to_num(0.0)


def experts(x: Float[Tensor, "T D"], w: Float[Tensor, "E D"], ends: Int32[Tensor, "E"]) -> Float[Tensor, "T D"]:
    """Each token times the weights of its expert."""
    own = (torch.arange(x.shape[0])[:, None] >= ends[None, :]).sum(1)
    return x * w[own]


def experts_by_loop(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    starts = [0, *ends.tolist()]
    return torch.cat([x[a:b] * w[e] for e, (a, b) in enumerate(pairwise(starts))])


def experts_begin_at_their_ends(x: Tensor, w: Tensor, ends: Tensor) -> Tensor:
    """Reads the offsets as if a 0 were in front of them."""
    own = (torch.arange(x.shape[0])[:, None] >= ends[None, 1:]).sum(1)
    return x * w[own]


def counted_experts(x: Float[Tensor, "T D"], w: Float[Tensor, "E D"], sizes: Int[Tensor, "E"]) -> Float[Tensor, "T D"]:
    own = (torch.arange(x.shape[0])[:, None] >= sizes.cumsum(0)[None, :]).sum(1)
    return x * w[own]


def counted_by_repeat(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
    return x * w.repeat_interleave(sizes, 0)


def experts_with_tokens_alone(x: Tensor, w: Tensor, sizes: Tensor) -> Tensor:
    """Numbers the experts that have tokens, and gives them the first weights."""
    return x * w.repeat_interleave(sizes[sizes > 0], 0) if len(w) == (sizes > 0).sum() else x * w[
        torch.arange(int((sizes > 0).sum())).repeat_interleave(sizes[sizes > 0])
    ]  # fmt: skip


def ragged_sum(x: Float[Tensor, "B T"], lengths: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    return torch.where(torch.arange(x.shape[1]) < lengths[:, None], x * x, 0.0).sum(1)


def ragged_by_loop(x: Tensor, lengths: Tensor) -> Tensor:
    return torch.stack([(row[:n] ** 2).sum() for row, n in zip(x, lengths.tolist(), strict=True)])


def ragged_of_one_token_at_least(x: Tensor, lengths: Tensor) -> Tensor:
    return ragged_by_loop(x, lengths.clamp(min=1))


def starts(x: Float[Tensor, "T"], seq: Int[Tensor, "T"]) -> Float[Tensor, "T"]:
    """Each token times 1 more than the number of its segment."""
    return x * (1.0 + seq)


def starts_counted(x: Tensor, seq: Tensor) -> Tensor:
    """Counts changes of the number, so that a missing segment is not one."""
    changes = seq.diff(prepend=seq[:1]) != 0
    return x * (1.0 + changes.cumsum(0))


def rotated(x: Float[Tensor, "T D"], pos: Int[Tensor, "T"]) -> Float[Tensor, "T D"]:
    return x * torch.cos(0.1 * pos.to(x.dtype))[:, None]


def rotated_by_tables(x: Tensor, pos: Tensor) -> Tensor:
    return x * torch.cos(0.1 * torch.arange(len(x), dtype=torch.float64))[pos][:, None].to(x.dtype)


def rotated_in_one_sequence(x: Tensor, pos: Tensor) -> Tensor:
    return rotated_by_tables(x, torch.arange(len(x)))


def scattered(x: Float[Tensor, "T D"], order: Int[Tensor, "T"]) -> Float[Tensor, "T D"]:
    """Row t of x in row order[t]."""
    places = order[None, :] == torch.arange(x.shape[0])[:, None]
    return places.to(x.dtype) @ x


def scattered_by_index(x: Tensor, order: Tensor) -> Tensor:
    return torch.zeros_like(x).index_copy(0, order, x)


def scattered_without_the_last(x: Tensor, order: Tensor) -> Tensor:
    return torch.zeros_like(x).index_copy(0, order[:-1], x[:-1])


def gathered(x: Tensor, order: Tensor) -> Tensor:
    """The inverse permutation, the same of the identity and of the reverse."""
    return x[order]


def best(x: Float[Tensor, "B V"], top: Int[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    return x.gather(1, top)


def best_in_order(x: Tensor, top: Tensor) -> Tensor:
    """Walks along the row, and so gives the chosen in the order of the row."""
    return x.gather(1, top.sort(1)[0])


def best_by_assignment(x: Tensor, top: Tensor) -> Tensor:
    """Its backward stores one gradient for each value: the last of those that name it twice."""
    return _Stored.apply(x, top)


class _Stored(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.shape = x.shape
        return x.gather(1, index)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return g.new_zeros(ctx.shape).scatter(1, index, g), None


def paged(pool: Float[Tensor, "P S"], table: Int32[Tensor, "B M"]) -> Float[Tensor, "B M"]:
    return (pool * pool)[table].sum(-1)


def paged_by_loop(pool: Tensor, table: Tensor) -> Tensor:
    return torch.stack([torch.stack([(pool[int(n)] ** 2).sum() for n in row]) for row in table])


def paged_in_order(pool: Tensor, table: Tensor) -> Tensor:
    """Takes the blocks of a sequence for neighbours, from its first on."""
    step = torch.arange(table.shape[1])
    return paged(pool, (table[:, :1] + step) % len(pool))


def paged_stored(pool: Tensor, table: Tensor) -> Tensor:
    """Its backward stores the gradient of a block, instead of adding to it."""
    return _StoredBlocks.apply(pool, table)


class _StoredBlocks(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, pool: Tensor, table: Tensor) -> Tensor:
        ctx.save_for_backward(pool, table)
        return paged(pool, table)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        pool, table = ctx.saved_tensors
        found = torch.zeros_like(pool)
        for block, own in zip(table.reshape(-1).tolist(), g.reshape(-1), strict=True):
            found[block] = 2 * own * pool[block]
        return found, None


def cached(pool: Float[Tensor, "P S"], used: Int[Tensor, "B"], table: Int32[Tensor, "B M"]) -> Float[Tensor, "B"]:
    """The sum over the tokens of each sequence."""
    size = pool.shape[1]
    token = torch.arange(table.shape[1] * size)
    place = table.long().clamp(min=0).repeat_interleave(size, 1) * size + token % size
    return torch.where(token < used[:, None], pool.reshape(-1)[place], 0.0).sum(1)


def cached_by_loop(pool: Tensor, used: Tensor, table: Tensor) -> Tensor:
    size = pool.shape[1]
    return torch.stack(
        [
            torch.stack([pool.reshape(-1)[:0].sum(), *(pool[int(row[t // size]), t % size] for t in range(n))]).sum()
            for n, row in zip(used.tolist(), table, strict=True)
        ]
    )


def cached_by_whole_blocks(pool: Tensor, used: Tensor, table: Tensor) -> Tensor:
    size = pool.shape[1]
    return cached(pool, (used + size - 1) // size * size, table)


def masked(x: Float[Tensor, "B T"], mask: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    return torch.where(mask > 0, x * x, 0.0)


def masked_by_length(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(torch.arange(x.shape[1]) < mask.sum(1, keepdim=True), x * x, 0.0)


def averaged(x: Float[Tensor, "B T"], mask: Int[Tensor, "B T"]) -> Float[Tensor, "B"]:
    """The mean of what counts, 0 where nothing does."""
    return torch.where(mask > 0, x, 0.0).sum(1) / mask.sum(1).clamp(min=1)


def averaged_of_some(x: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask > 0, x, 0.0).sum(1) / mask.sum(1)


def dropped(x: Float[Tensor, "T"], seed: Int[Tensor, "1"]) -> Float[Tensor, "T"]:
    """A hash of all bits of the seed keeps a token or not."""
    mixed = (seed ^ (seed >> 32)) + torch.arange(x.shape[0])
    return torch.where((mixed ^ (mixed >> 3)) % 2 == 0, x, 0.0)


def dropped_by_32_bits(x: Tensor, seed: Tensor) -> Tensor:
    return dropped(x, seed & 0x7FFFFFFF)


def unpacked(x: Float[Tensor, "T"], packed: Int32[Tensor, "T"]) -> Float[Tensor, "T"]:
    """Times the highest of eight fields of four bits."""
    return x * ((packed >> 28) & 15)


def unpacked_with_its_sign(x: Tensor, packed: Tensor) -> Tensor:
    return x * (packed >> 28)


def loss(x: Float[Tensor, "B V"], target: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
    chosen = torch.log_softmax(x, -1).gather(1, target.clamp_min(0)[:, None])[:, 0]
    return torch.where(target == -100, 0.0, -chosen)


def loss_of_all(x: Tensor, target: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(x, target.clamp_min(0), reduction="none")


def loss_of_torch(x: Tensor, target: Tensor) -> Tensor:
    return torch.nn.functional.cross_entropy(x, target, reduction="none", ignore_index=-100)


@dataclass(frozen=True)
class Row:
    """A definition with the domains of its inputs, a kernel that is right, and one that assumes more.

    Attributes:
        narrow: domains in which the assumption is true; {}: there are none.
    """

    definition: Callable[..., Tensor]
    domains: dict[str, Domain]
    right: Callable[..., Tensor]
    wrong: Callable[..., Tensor]
    narrow: dict[str, Domain]


PAGES: dict[str, Domain] = {"used": Lengths("M*S"), "table": BlockTable("P", lengths="used", block="S")}
ROWS = [
    Row(packed_mean, {"cu": Offsets("T")}, mean_by_loop, mean_without_empty_sequences, {"cu": Offsets("T", minimum=1)}),
    Row(experts, {"ends": Offsets("T", leading=False)}, experts_by_loop, experts_begin_at_their_ends, {}),
    Row(
        counted_experts,
        {"sizes": Lengths("T", total=True)},
        counted_by_repeat,
        experts_with_tokens_alone,
        {"sizes": Lengths("T", minimum=1, total=True)},
    ),
    Row(
        ragged_sum,
        {"lengths": Lengths("T")},
        ragged_by_loop,
        ragged_of_one_token_at_least,
        {"lengths": Lengths("T", minimum=1)},
    ),
    Row(starts, {"seq": Segments("T")}, starts, starts_counted, {}),
    Row(rotated, {"pos": Positions()}, rotated_by_tables, rotated_in_one_sequence, {}),
    Row(scattered, {"order": Permutation("T")}, scattered_by_index, scattered_without_the_last, {}),
    Row(scattered, {"order": Permutation("T")}, scattered_by_index, gathered, {}),
    Row(best, {"top": Distinct("V")}, best, best_in_order, {"top": Distinct("V", sorted=True)}),
    Row(best, {"top": IndexDomain("V")}, best, best_by_assignment, {"top": Distinct("V")}),
    Row(paged, {"table": BlockTable("P")}, paged_by_loop, paged_in_order, {}),
    Row(paged, {"table": BlockTable("P", shared=True)}, paged_by_loop, paged_stored, {"table": BlockTable("P")}),
    Row(cached, PAGES, cached_by_loop, cached_by_whole_blocks, {}),
    Row(masked, {"mask": Mask()}, masked, masked_by_length, {"mask": Mask(prefix=True)}),
    Row(averaged, {"mask": Mask()}, averaged, averaged_of_some, {"mask": Mask(some=True)}),
    Row(dropped, {"seed": Seed()}, dropped, dropped_by_32_bits, {"seed": IndexDomain(1 << 31)}),
    Row(unpacked, {"packed": Bits(32)}, unpacked, unpacked_with_its_sign, {"packed": IndexDomain(1 << 31)}),
    Row(loss, {"target": IndexDomain("V", ignore=-100)}, loss_of_torch, loss_of_all, {"target": IndexDomain("V")}),
]
IDS = [row.wrong.__name__ for row in ROWS]


def family_of(row: Row, domains: dict[str, Domain]) -> Family:
    every = {"T": TOKENS, "P": gradoracle.sizes(1, 24), "D": SMALL}
    read: Family = gradoracle.family(row.definition, domains=domains)
    dims = {dim: every.get(dim, SMALL) for dim in read.signature.dims}
    words = "".join(each for domain in domains.values() for each in domain.source if each.isalnum())
    name = f"{row.definition.__name__}_{words}"  # another oracle for other domains
    found: Family = gradoracle.family(row.definition, name=name, domains=domains, dims=dims)
    return found


def statuses(family: Family, call: Callable[..., Tensor]) -> set[Status]:
    """The verdicts on the outputs and the gradients in 24 cases."""
    kernel = Kernel(call.__name__, family.name, call)
    cases = stream(family, kernel, dtypes=("float32",), examples=24)
    return {judged(PROPERTIES[name], kernel, case, family).status for case in cases for name in JUDGES}


@pytest.mark.parametrize("row", ROWS, ids=IDS)
def test_a_kernel_that_assumes_more_is_caught_where_a_correct_one_holds(row: Row) -> None:
    family = family_of(row, row.domains)
    assert Status.HOLDS in statuses(family, row.right) <= {Status.HOLDS, Status.NOT_CHECKED}
    assert Status.VIOLATED in statuses(family, row.wrong)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.narrow], ids=[i for i, r in zip(IDS, ROWS, strict=True) if r.narrow]
)
def test_it_holds_in_a_domain_where_that_is_true(row: Row) -> None:
    family = family_of(row, row.narrow)
    assert Status.HOLDS in statuses(family, row.wrong) <= {Status.HOLDS, Status.NOT_CHECKED}
