"""Seen: integers of an example call, and the domain that they obey where chance does not explain it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gradoracle.model.dims import dim_names
from gradoracle.model.domains.bits import Bits
from gradoracle.model.domains.block_table import BlockTable
from gradoracle.model.domains.distinct import Distinct, repeated
from gradoracle.model.domains.domain import Domain, Neighbours
from gradoracle.model.domains.lengths import Lengths
from gradoracle.model.domains.offsets import Offsets
from gradoracle.model.domains.permutation import Permutation
from gradoracle.model.domains.positions import Positions
from gradoracle.model.domains.seed import Seed
from gradoracle.model.domains.segments import Segments

CHANCE = 0.01  # that random integers of the same range obey, too
_SEED = 1 << 16


@dataclass(frozen=True)
class Guess:
    """A domain that all values obey.

    Attributes:
        domain: the domain.
        chance: that integers drawn at random from the same range obey it, too; 1 where another domain may be meant.
        beyond: dims that may bound the values as well, which the tokens are never more than.
        numbered: whether the bound is a number of the example, and some dim may be meant.
    """

    domain: Domain
    chance: float
    beyond: tuple[str, ...] = ()
    numbered: bool = False


@dataclass(frozen=True)
class Seen:
    """One integer input of an example call.

    Attributes:
        values: the tensor.
        dims: its dims.
        sizes: the sizes of all dims of the example.
        floats: the dims of each input of floats.
        beside: the other integer inputs whose domains are known.
    """

    values: Tensor
    dims: tuple[str, ...]
    sizes: Mapping[str, int]
    floats: tuple[tuple[str, ...], ...]
    beside: Neighbours

    @property
    def shared(self) -> frozenset[str]:
        """The dims that some input of floats has."""
        return frozenset(name for dims in self.floats for name in _names(dims))

    @property
    def whole(self) -> Tensor:
        """The values as int64."""
        return self.values.long()

    @property
    def rows(self) -> int:
        """How many rows, along the last dim, there are."""
        return self.values.numel() // self.values.shape[-1]

    @property
    def row(self) -> int:
        """How many values a row has."""
        return self.values.shape[-1]

    @property
    def high(self) -> int:
        """The largest value."""
        return int(self.whole.max())

    @property
    def above(self) -> tuple[str, ...]:
        """The dims that are larger than every value."""
        return tuple(dim for dim, size in self.sizes.items() if size > self.high)

    @property
    def bound(self) -> str:
        """The dim that bounds the values: the one that they reach up to, or the only larger one; "" if unclear."""
        reached = [dim for dim in self.above if self.sizes[dim] == self.high + 1]
        found = reached if len(reached) == 1 else self.above
        return found[0] if len(found) == 1 else ""

    @property
    def tables(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The dims that positions may index, such as the rows of a table: those shorter than the tokens, the others.

        They are dims of inputs without tokens, and of none with them.
        """
        tokens = {name for dim in self.dims for name in dim_names(dim)}
        beside = {name for dims in self.floats if tokens & _names(dims) for name in _names(dims)}
        others = [dim for dim in self.above if dim in self.shared - tokens - beside]
        shorter = tuple(dim for dim in others if self.sizes[dim] < self.values.numel())
        return shorter, tuple(dim for dim in others if dim not in shorter)

    def obeys(self, domain: Domain) -> bool:
        """Whether all values lie in a domain."""
        return not domain.fault(self.values, self.sizes, self.beside)


def _names(dims: tuple[str, ...]) -> set[str]:
    return {name for dim in dims for name in dim_names(dim)}


def guesses(seen: Seen) -> list[Guess]:
    """The domains that the values obey and the shape allows, the most telling first; none of plain indices."""
    made = [_of_width(seen), _seed(seen)]
    if seen.values.dim() and seen.values.numel() > 1:
        made += [_by_offsets(seen, Positions), _by_offsets(seen, Segments)]
        if not int(seen.whole.min()) < 0 and seen.row > 1:
            made += [_segments(seen), _positions(seen), _permutation(seen), _blocks(seen), _distinct(seen)]
            made += [_ends(seen), _counts(seen)]
    return [guess for guess in made if guess is not None]


def is_counting(values: Tensor) -> bool:
    """Whether each row is 0, 1, 2 and so on, which is a permutation, positions of one sequence, or an index."""
    return bool((values.long() == torch.arange(values.shape[-1], device=values.device)).all())


def _of_width(seen: Seen) -> Guess | None:
    """Values that span at least half of what the dtype can hold, beyond the size of any dim."""
    if seen.values.dtype is torch.bool:
        return None
    own = torch.iinfo(seen.values.dtype)
    low, high = int(seen.whole.min()), seen.high
    spans = (high >= 1 << 7 and not seen.above) if own.min == 0 else (low < 0 and high - low >= 1 << (own.bits - 2))
    return Guess(Bits(own.bits), 0.0) if spans and seen.values.numel() > 1 else None


def _seed(seen: Seen) -> Guess | None:
    """One large number."""
    return Guess(Seed(), 0.0) if seen.values.numel() == 1 and seen.high >= _SEED and not seen.above else None


def _by_offsets(seen: Seen, kind: type[Positions] | type[Segments]) -> Guess | None:
    """What the offsets of another input say of each token."""
    short, beyond = seen.tables
    for name, domain in seen.beside.domains.items():
        if domain.is_read_as("offsets") and name in seen.beside.values and not (kind is Positions and short):
            own = kind(of=name)
            if not seen.obeys(own):
                continue
            if kind is Positions and len(beyond) == 1:
                return Guess(Positions(beyond[0], of=name), 0.0)
            return Guess(own, 0.0, beyond if kind is Positions else ())
    return None


def _segments(seen: Seen) -> Guess | None:
    """From 0, rising by at most 1, with several tokens in some segment, as many as floats have."""
    steps = seen.whole.diff(dim=-1)
    fits = bool((seen.whole[..., 0] == 0).all() and ((steps == 0) | (steps == 1)).all()) and seen.high > 0
    if not fits or seen.dims[-1] not in seen.shared or is_counting(seen.values):
        return None
    ways = math.comb(seen.row - 1, seen.high) / float(seen.high + 1) ** seen.row
    return Guess(Segments(seen.bound or seen.high + 1), ways**seen.rows, numbered=not seen.bound)


def _positions(seen: Seen) -> Guess | None:
    """Runs from 0 by 1, as many as floats have tokens."""
    if seen.dims[-1] not in seen.shared or seen.high == 0 or not seen.obeys(Positions()):
        return None
    ways = 2.0 ** (seen.row - 1) / float(seen.high + 1) ** seen.row
    short, beyond = seen.tables
    chance = 1.0 if is_counting(seen.values) else ways**seen.rows
    if len(short) + len(beyond) == 1:
        return Guess(Positions((*short, *beyond)[0]), chance)
    return Guess(Positions(seen.high + 1 if short else ""), chance, beyond, bool(short))


def _permutation(seen: Seen) -> Guess | None:
    own = Permutation(seen.dims[-1])
    if not seen.obeys(own):
        return None
    chance = math.exp(seen.rows * (math.lgamma(seen.row + 1) - seen.row * math.log(seen.row)))
    return Guess(own, 1.0 if is_counting(seen.values) else chance)


def _blocks(seen: Seen) -> Guess | None:
    """Rows of indices into one dim, none of which occurs twice."""
    if seen.values.dim() != 2 or not seen.bound or repeated(seen.whole.reshape(-1)):
        return None
    return Guess(BlockTable(seen.bound), _apart(seen.values.numel(), seen.sizes[seen.bound]))


def _distinct(seen: Seen) -> Guess | None:
    """Several rows of indices into one dim, distinct in each row."""
    if seen.values.dim() < 2 or not seen.bound or repeated(seen.whole):
        return None
    chance = _apart(seen.row, seen.sizes[seen.bound]) ** seen.rows
    ascend = bool((seen.whole.diff(dim=-1) > 0).all())
    ordered = ascend and math.exp(-seen.rows * math.lgamma(seen.row + 1)) < CHANCE
    return Guess(Distinct(seen.bound, sorted=ordered), chance)


def _apart(count: int, among: int) -> float:
    """The chance that so many random values are all different."""
    if count > among:
        return 0.0
    return math.exp(math.lgamma(among + 1) - math.lgamma(among - count + 1) - count * math.log(among))


def _ends(seen: Seen) -> Guess | None:
    """Rising, the last one the size of a dim of floats."""
    bounds = [dim for dim in seen.shared if seen.sizes.get(dim) == seen.high]
    if seen.values.dim() != 1 or len(bounds) != 1 or not seen.obeys(Offsets(bounds[0], leading=False)):
        return None
    return Guess(Offsets(bounds[0], leading=False), 1 / math.factorial(seen.row))


def _counts(seen: Seen) -> Guess | None:
    """Adding up to the size of a dim of floats; chance may always have it so."""
    bounds = [dim for dim in seen.shared if seen.sizes.get(dim) == int(seen.whole.sum())]
    if seen.values.dim() != 1 or len(bounds) != 1:
        return None
    return Guess(Lengths(bounds[0], total=True), 1.0)
