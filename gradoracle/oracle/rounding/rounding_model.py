"""Rounding model: the error that one rounding adds to a quantity under a contract, in variance, probes and bound.

Below the smallest normal number of a format errors are absolute, or values flush to 0; above its largest one they
overflow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from gradoracle.model.contract import Contract, representable
from gradoracle.model.formats import FEW_BITS, FORMATS
from gradoracle.oracle.rounding import adversarial
from gradoracle.oracle.rounding.effects import multiplied_by
from gradoracle.oracle.rounding.probes import EVEN_SPREAD, Dice, mixed, rounding_errors
from gradoracle.oracle.rounding.quantity import FAR, LEAST_SQUARE, Quantity, bounded, plus, reach, where_finite

_KEYED_APART = 0.618  # weight of the terms' sizes in the key of a sum; any number that is not round will do
_KEY_BITS = 30  # finer keys are not distinguished: the float64 contract is probed with magnified units
_POLYNOMIAL_BITS = 3  # the error of a cubic between two powers of two changes sign about that often
SUM_BITS = 12  # sums of nearly equal terms err alike, even if the sums differ by more than a rounding
_OPERAND = 1
_FLUSH = 2
_LOST_EARLY = 4  # exponentials that flush to zero also lose the last two binades of normal numbers
SQUARABLE = 2.0**-510  # squares of smaller half-widths underflow in the variances, which are float64


def half_spacing(size: Tensor, unit: float) -> Tensor:
    """Half the distance between neighbours of a format with unit roundoff ``unit`` at magnitudes ``size``."""
    _, exponent = torch.frexp(size)
    return torch.ldexp(torch.where(size > 0, unit, 0.0).to(size.dtype), exponent - 1)


def held_by(value: Tensor, bits: int) -> bool:
    """Whether every number is one of a format of ``bits`` bits (its range is not considered)."""
    significand, _ = torch.frexp(value)
    scaled = significand * 2.0**bits
    return bool((scaled == scaled.round()).all())


def hash_of(number: float) -> int:
    """The place of a constant: the same number is rounded once, wherever it is used."""
    return mixed(*float(number).as_integer_ratio())


def dropped_terms(terms: Tensor, dim: int | list[int], unit: float) -> Tensor | None:
    """The terms below a ``unit`` of the sum of all sizes over ``dim``, the others 0; None where there are none.

    To nearest, such a term may not change a partial sum of that size: the sum errs by it and always to the same side,
    where the rounding of a larger term is as often up as down.
    """
    size = terms.abs()
    small = (size < unit * torch.nan_to_num(size, nan=0.0, posinf=0.0).sum(dim, keepdim=True)) & (size > 0)
    return torch.where(small, terms, 0.0) if bool(small.any()) else None


class Products(NamedTuple):
    """The products of a sum: their number, the sum of their squares and, for a bound, that of their sizes."""

    terms: Tensor | float
    squares: Tensor
    sizes: Tensor | None


@dataclass(frozen=True)
class Low:
    """Values below the smallest normal number of their format.

    Attributes:
        where: True for them.
        spacing: of the subnormal numbers.
        flush: whether they may become 0 instead.
        mean_square: of the absolute error; 0 elsewhere. None if it was not requested.
        bound: of the absolute error; 0 elsewhere. None if it was not requested.
    """

    where: Tensor
    spacing: float
    flush: bool
    mean_square: Tensor | None
    bound: Tensor | None

    def replace(self, noise: Tensor, carried: Tensor, factors: Tensor, sampled: Tensor) -> None:
        """Write the errors of such values into ``noise`` [R, *shape].

        They are those of rounding ``carried`` ([*shape] or [R, *shape]) times a factor to a multiple of the spacing, or
        of flushing it to 0.
        """
        runs, places = noise.view(len(noise), -1), self.where.expand(noise.shape[1:]).reshape(-1).nonzero()[:, 0]
        if self.spacing == FORMATS["float64"].smallest_subnormal:  # float64 arithmetic has rounded them already
            runs[:, places] = 0.0
            return
        every = len(places) == runs.shape[1]
        carried = carried.expand_as(noise).reshape(len(noise), -1)
        carried = carried if every else carried[:, places]
        step = self.spacing / factors.view(-1, 1)
        lost = (carried / step).round_().mul_(step)
        if self.flush:
            lost = torch.where(sampled.view(-1, 1) > 0, 0.0, lost)
        lost = lost.sub_(carried)
        if every:
            runs.copy_(lost)
        else:
            runs[:, places] = lost


class Roundoff:
    """Adds roundings to quantities.

    Args:
        contract: the formats.
        dice: the random numbers of the probes; None if none are run.
        worst: whether bounds are kept.
        magnify: the factor by which all units are larger in probes (docs/background/budgets.md, the float64 contract).
        variances: whether variances are kept.
    """

    def __init__(
        self, contract: Contract, dice: Dice | None, worst: bool, magnify: float = 1.0, variances: bool = True
    ) -> None:
        self.contract, self.dice, self.worst, self.magnify, self.variances = contract, dice, worst, magnify, variances
        self.node: Node | None = None
        self.fixed = False
        self.overflowing: dict[Node, list[tuple[int | None, Tensor]]] = {}

    def committed(
        self,
        q: Quantity,
        half_width: Tensor,
        *,
        key: Tensor,
        bits: int,
        place: int,
        bound: Tensor | None = None,
        low: Low | None = None,
        shift: Tensor | None = None,
        single: bool = False,
        along: int = -1,
    ) -> Quantity:
        """``q`` with one more error per element, uniform in +-``half_width`` (+-``bound`` at worst).

        Args:
            q: the quantity with its errors so far.
            half_width: the half-width of the error, absolute.
            key: the key: equal ones err alike; for a format of few bits, the value in each probe is the key.
            bits: keys equal to this many bits err alike.
            place: distinct places err independently.
            bound: the largest error; default ``half_width``.
            low: where the value is below the smallest normal number of its format; there the error is absolute.
            shift: the mean of the error (truncation) at most, in addition; a probe has a share of it (``Dice.cut``).
            single: whether it is the error of one rounding, not of many.
            along: the dim over which values are summed next, if known.
        """
        finite = where_finite(q.value)
        if finite is not None:
            half_width = torch.where(finite, half_width, 0.0)
            bound = None if bound is None else torch.where(finite, bound, 0.0)
            shift = None if shift is None else torch.where(finite, shift, 0.0)
        if self.contract.elementwise == "float64":
            half_width = torch.where(half_width > 0, half_width.clamp_min(SQUARABLE), half_width)
        variance, floor, worst, probes = q.variance, q.floor, q.worst, q.probes
        if self.variances:
            own_floor = None if low is None else low.mean_square
            moved = None if shift is None else shift.square()
            variance = plus(variance, half_width.square() / 3, own_floor, moved)
            floor = plus(floor, own_floor)
        if self.worst:
            moved = None if shift is None else 2 * shift.abs()
            worst = plus(worst, half_width if bound is None else bound, None if low is None else low.bound, moved)
        if self.dice is not None:
            width = torch.copysign(half_width * ((1.0 if single else EVEN_SPREAD) * self.magnify), key)
            factors, carried = self.dice.factors(place), q.value if probes is None else probes
            plain = low is None and shift is None
            few = single and bits <= FEW_BITS
            own = few and probes is not None
            key = carried if own else key  # the few significands that an earlier rounding left may lean one way
            noise = rounding_errors(key, min(bits, _KEY_BITS), factors, width, carried if plain else None, each=own)
            if few:
                part = None if variance is None else (half_width.square() / 3, variance)
                adversarial.redraw(noise, self.dice, key, bits, width, carried if plain else None, along, part)
            if shift is not None:
                noise = noise.add_(self.dice.cut(shift.dim()) * (shift * self.magnify))
            if low is not None:
                low.replace(noise, carried, factors, self.dice.constant(mixed(place, _FLUSH)))
            probes = noise if plain else noise.add_(carried)
        return replace(q, variance=variance, floor=floor, worst=worst, probes=probes, held=None)

    def noise(self, key: Tensor, width: Tensor, place: int, bits: int = _KEY_BITS) -> Tensor:
        """[R, *shape] errors of variance ``width``^2 / 3, functions of ``key`` in the elementwise format."""
        assert self.dice is not None
        bits = min(FORMATS[self.contract.elementwise].bits, bits)
        signed = torch.copysign(width * (EVEN_SPREAD * self.magnify), key)
        return rounding_errors(key, bits, self.dice.factors(place), signed)

    def shared(self, q: Quantity, sensitivity: Tensor, place: int) -> Quantity:
        """``q`` with the error of a rounded constant, u times ``sensitivity``: one for all elements of a probe."""
        unit = FORMATS[self.contract.constants].unit_roundoff
        sensitivity = torch.nan_to_num(sensitivity, nan=0.0, posinf=0.0, neginf=0.0)
        variance, worst, probes = q.variance, q.worst, q.probes
        if self.variances:
            variance = plus(variance, (unit * sensitivity).square() / 3)
        if self.worst:
            worst = plus(worst, unit * sensitivity.abs())
        if self.dice is not None:
            sampled = self.dice.constant(place).view(-1, *[1] * sensitivity.dim())
            noise = sampled * (unit * self.magnify * sensitivity)
            probes = noise.add_(q.value if probes is None else probes)
        return replace(q, variance=variance, worst=worst, probes=probes, held=None)

    @property
    def literal(self) -> float:
        """The unit roundoff of constants where it is not that of operations, whose errors include it otherwise."""
        unit = FORMATS[self.contract.constants].unit_roundoff
        return unit if self.contract.rounds and unit > FORMATS[self.contract.elementwise].unit_roundoff else 0.0

    def constant(self, q: Quantity, number: float, sensitivity: Tensor) -> Quantity:
        """``q`` with the error of the literal ``number``, unless its format holds it exactly."""
        if not self.contract.rounds or representable(number, self.contract.constants):
            return q
        return self.shared(q, sensitivity, hash_of(number))

    def known(self, q: Quantity) -> str | None:
        """The format that holds ``q`` if it follows from the source alone: every kernel has exactly this value."""
        if not self.fixed or not (q.variance is q.probes is q.worst is None):
            return None
        held = None
        used = (self.contract.constants, self.contract.elementwise, self.contract.dtype)
        for name in sorted(used, key=lambda name: FORMATS[name].bits):
            if held_by(q.value, FORMATS[name].bits):
                held = held or name
            elif name != self.contract.dtype:
                return None
        return held

    def factor(self, q: Quantity, number: float) -> Quantity:
        """``q``, multiplied by ``number``: exact only if its root is too, since a scale may be applied as two roots."""
        format_ = self.contract.constants
        if not self.contract.rounds:
            return q
        if representable(number, format_) and representable(math.sqrt(abs(number)), format_):
            return q
        return replace(self.shared(q, q.value, hash_of(number)), held=q.held)

    def elementwise(
        self,
        q: Quantity,
        place: int,
        units: float | Tensor = 1.0,
        bound_units: float | Tensor | None = None,
        summands: Sequence[Quantity] = (),
    ) -> Quantity:
        """``q`` as the result of an operation with a relative error of at most ``units`` unit roundoffs.

        ``summands``: the two terms, if it is their sum; where one is 0 in every kernel, the sum is the other.
        """
        dtype = self.contract.elementwise
        q, size = bounded(q), q.value.abs()
        self.check_overflow(q, size, dtype, rounds_once=bool(summands), terms=summands)
        unit = FORMATS[dtype].unit_roundoff
        exact = isinstance(units, float) and units == 1.0
        bound = None
        if self.worst:
            largest = size if q.worst is None else size + q.worst
            bound = largest * (unit * (units if bound_units is None else bound_units))
        width = size * (units * unit)
        for term in summands:
            none = reach(term) == 0
            width = torch.where(none, 0.0, width)
            bound = None if bound is None else torch.where(none, 0.0, bound)
        return self.committed(
            q, width, key=q.value, bits=FORMATS[dtype].bits, place=place, bound=bound,
            low=self.underflow(q, size, dtype), single=exact,
        )  # fmt: skip

    def running_sum(
        self,
        q: Quantity,
        squares: Tensor,
        terms: Tensor | float,
        largest: Tensor | None,
        place: int,
        in_order: Tensor | None = None,
        products: bool = False,
        dropped: Tensor | None = None,
        unit: float | None = None,
    ) -> Quantity:
        """``q`` as a running sum of ``terms`` terms; ``squares`` sums their squares, ``largest`` their sizes.

        The partial sums are a random walk and a drift: u^2/3 (t/2 sum x^2 + t/3 (sum x)^2). Terms that are not in
        random order (a ramp) drift further: ``in_order`` is the sum of the squared partial sums along straight lines
        between some of them, and the walk between two of them is t/6 sum x^2 (docs/background/budgets.md).
        ``products``: the terms are products, each of which is rounded if it is subnormal; a sum of numbers that the
        format holds is exact there. ``dropped``: the sum of the terms that are too small to change a partial sum
        (``dropped_terms``), all of which a kernel may lose. ``unit``: the unit roundoff of
        tensor cores that keep fewer bits than the contract's format has; each term is then what they add at a time.
        """
        dtype, block = self.contract.accumulate, self.contract.accumulate_block if unit is None else 1.0
        unit = FORMATS[dtype].unit_roundoff if unit is None else unit
        q, size = bounded(q), q.value.abs()
        self.check_overflow(q, size, dtype)
        scale = (terms / 2 * squares).add_(q.value.square().mul_(terms / 3))
        if in_order is not None:
            scale = torch.maximum(scale, (terms / 6 * squares).add_(in_order))
        scale = scale.sqrt_()
        bound = None if largest is None else largest * (unit * terms)
        shift = None
        if block:  # each step cuts the partial sum, which is half the sum on average
            shift = q.value * (-unit / 2 * (terms / block + 1))
        if dropped is not None:  # a kernel rounds sums that are no dot to nearest, and may drop more than a cut takes
            cut = torch.zeros_like(dropped) if shift is None else shift
            more = dropped.abs() > cut.abs()
            shift = torch.where(more, -dropped, cut)
            if bound is not None:  # `committed` adds twice the shift, which the bound holds already
                bound = torch.where(more, bound - 2 * dropped.abs(), bound).clamp_min(0.0)
        key = (_KEYED_APART * scale).add_(size).copysign_(q.value)
        return self.committed(
            q, scale * unit, key=key, bits=min(FORMATS[dtype].bits, SUM_BITS), place=place, bound=bound,
            low=self.underflow(q, size, dtype, squares > 0, Products(terms, squares, largest) if products else None),
            shift=shift,
        )  # fmt: skip

    def onto_others(
        self,
        q: Quantity,
        parts: Tensor,
        others: Sequence[Tensor],
        terms: Sequence[int],
        largest: Tensor | None,
        place: int,
    ) -> Quantity:
        """``q`` as the sum of ``parts`` [n, *shape] in one accumulator, beyond the error of each in its own.

        Each of the t terms of a part p is rounded at the sum so far, a, and not at the part alone: the squares of the
        partial sums grow by t (a^2 + a p) along a straight line from a to a + p, and by t a^2 if terms of both signs
        are mixed; the larger counts. ``others``: a, [n, *shape], for each order of the parts; the worse counts.
        """
        dtype = self.contract.accumulate
        unit = FORMATS[dtype].unit_roundoff
        counts = torch.tensor(terms, dtype=torch.float64).view(-1, *[1] * q.value.dim())
        squares = [(counts * (a.square() + (a * parts).clamp_min(0.0))).sum(0) for a in others]
        scale = torch.stack(squares).amax(0).sqrt()
        shift = None
        if self.contract.accumulate_block:
            cuts = torch.stack([(counts * a).sum(0) for a in others]) * (-unit / self.contract.accumulate_block)
            shift = cuts.gather(0, cuts.abs().argmax(0, keepdim=True))[0]
        key = torch.copysign(q.value.abs() + _KEYED_APART * scale, q.value)
        return self.committed(
            q, scale * unit, key=key, bits=min(FORMATS[dtype].bits, SUM_BITS), place=place,
            bound=None if largest is None else largest * (unit * sum(terms)), shift=shift,
        )  # fmt: skip

    def stored(
        self,
        q: Quantity,
        dtype: str,
        place: int,
        truncate: bool = False,
        spacing: bool = False,
        may_be_zero: bool | None = None,
        operand: int | None = None,
        before: float = 1.0,
        along: int = -1,
    ) -> Quantity:
        """``q`` as stored in ``dtype``; unchanged if its format holds it exactly.

        Args:
            q: the quantity.
            dtype: the format's name.
            place: distinct places err independently.
            truncate: cut instead of rounding to nearest.
            spacing: the half-width is half the spacing at the value, not u |value|: for results returned as they are,
                without an unknown factor.
            may_be_zero: whether a value of 0 is 0 in every kernel; None: if ``q`` has no error.
            operand: the argument of the operator that it is; None: its result.
            before: the last factor of ``q``.
            along: the dim over which it is summed next, if known.
        """
        if not self.contract.rounds:
            return q
        size = q.value.abs()
        if q.held is not None and FORMATS[q.held].unit_roundoff >= FORMATS[dtype].unit_roundoff:
            if FORMATS[dtype].largest < FORMATS[q.held].largest:
                self.check_overflow(q, size, dtype, operand, before)
            narrower = FORMATS[q.held].smallest_subnormal < FORMATS[dtype].smallest_subnormal
            return self.scaled_down(q, place, dtype) if narrower else q
        self.check_overflow(q, size, dtype, operand, before)
        unit = FORMATS[dtype].unit_roundoff
        width = half_spacing(size, unit) if spacing else size * unit
        if q.variance is not None and not spacing:  # an algorithm's exp(0) is 1 in any format
            width = torch.where((size == 1) & (q.variance == 0), 0.0, width)
        bound = None
        if self.worst:  # the stored value may lie in the next binade, where the spacing doubles
            reach = size if q.worst is None else size + q.worst
            bound = (half_spacing(reach, unit) if spacing else reach * unit) * (2.0 if truncate else 1.0)
        erring = plus(q.variance, q.worst)
        may_be = None if erring is None else (size > 0) | (erring > 0)
        if may_be_zero is not None:
            may_be = None if may_be_zero else torch.ones_like(size, dtype=torch.bool)
        q = self.committed(
            q, width, key=q.value, bits=FORMATS[dtype].bits, place=place, bound=bound,
            low=self.underflow(q, size, dtype, may_be), shift=-unit * q.value if truncate else None,
            single=True, along=along,
        )  # fmt: skip
        return replace(q, held=dtype)

    def fast_exp(self, q: Quantity, place: int) -> Quantity:
        """``q`` as the result of a fast exponential: a power of two times a polynomial with a smooth error."""
        if not self.contract.rounds or not self.contract.fast_exp:
            return q
        return self.committed(
            q, q.value.abs() * self.contract.fast_exp, key=q.value, bits=_POLYNOMIAL_BITS, place=place, single=True
        )

    def given(self, q: Quantity, place: int) -> Quantity:
        """``q`` as an input: exact if the contract rounds none; hardware that flushes to 0 reads subnormals as 0."""
        if self.contract.inputs:
            return self.stored(q, self.contract.inputs, place)
        if not self.contract.flush_to_zero or not FORMATS[self.contract.dtype].flushes:
            return q
        return self.scaled_down(q, place)

    def scaled_down(self, q: Quantity, place: int, dtype: str | None = None) -> Quantity:
        """``q``, exact in the format that holds it, or in ``dtype``, except where it is subnormal there."""
        held = q.held
        if not self.contract.rounds or held is None or (low := self.underflow(q, q.value.abs(), dtype or held)) is None:
            return q
        q = self.committed(q, torch.zeros_like(q.value), key=q.value, bits=1, place=place, low=low)
        return replace(q, held=held)

    def operand(self, q: Quantity, position: int, along: int) -> Quantity:
        """``q`` as argument ``position`` of a product over its dim ``along``; uses of one value share its rounding."""
        place = mixed(q.place, _OPERAND)
        before = multiplied_by(self.node.args[position]) if self.node is not None else 1.0
        return self.stored(
            q, self.contract.operand, place, self.contract.truncate, operand=position, before=before, along=along
        )

    def underflow(
        self, q: Quantity, size: Tensor, dtype: str, may_be: Tensor | None = None, products: Products | None = None
    ) -> Low | None:
        """Where ``q`` is below the smallest normal number of ``dtype``, or may flush, with the error there.

        The error of a value far below the spacing is the value, not half the spacing. In a sum of products each product
        is rounded, and whatever a step flushes is lost; sums of numbers that the format holds are exact.

        Args:
            q: the quantity.
            size: of its value.
            dtype: the format's name.
            may_be: where a kernel's value may be nonzero; None: where the value is.
            products: the products that it is the sum of, each of which is rounded.

        Returns:
            None if it is nowhere.
        """
        normal, spacing = FORMATS[dtype].smallest_normal, FORMATS[dtype].smallest_subnormal
        if not size.numel() or float(size.min()) >= normal * _LOST_EARLY:
            return None
        flush = self.contract.flush_to_zero and FORMATS[dtype].flushes
        limit = normal * (_LOST_EARLY if flush else 1)
        low = size < limit
        low &= (size > 0) if may_be is None else may_be
        if not low.any():
            return None
        terms, squares, sizes = Products(1.0, torch.zeros(()), None) if products is None else products
        mean_square = bound = None
        if self.variances:
            mean_square = size.square() if q.variance is None else size.square().add_(q.variance)
            if flush:
                mean_square = mean_square + squares.clamp_max(terms * limit**2)
            else:
                mean_square = (mean_square + squares).clamp_max(terms * spacing**2 / 12)
            mean_square = torch.where(low, mean_square.clamp_min(LEAST_SQUARE), 0.0)
        if self.worst and flush:
            bound = (size if q.worst is None else size + q.worst).clamp_min(spacing / 2)
            bound = bound if sizes is None else bound + sizes.clamp_max(terms * limit)
        elif self.worst:
            bound = torch.ones_like(size) * (terms * spacing / 2)
        bound = None if bound is None else torch.where(low, bound, 0.0)
        return Low(low, spacing, flush, mean_square, bound)

    def check_overflow(
        self,
        q: Quantity,
        size: Tensor,
        dtype: str,
        operand: int | None = None,
        before: float = 1.0,
        rounds_once: bool = False,
        terms: Sequence[Quantity] = (),
    ) -> None:
        """Note where a declared intermediate, with its budget, exceeds the range of its format.

        Args:
            q: the quantity.
            size: of its value.
            dtype: the format's name.
            operand: the argument of the operator that it is; None: its result.
            before: a factor that a correct kernel may multiply by after the product instead; the larger of the two
                counts.
            rounds_once: whether it exceeds the range only beyond the middle to where the next number would be.
            terms: the terms of the sum that it is, each a number of the format with any error.
        """
        if self.node is None or not self.variances or not size.numel():
            return
        format_, by = FORMATS[dtype], before if 0 < before < 1 else 1.0
        size, variance = size / by, None if q.variance is None else q.variance / by**2
        largest = float(size.max()) + (0.0 if variance is None else FAR * math.sqrt(float(variance.max())))
        if largest < format_.largest / 2:
            return
        furthest = size if variance is None else size + FAR * variance.sqrt()
        if terms:
            erring = [(term.value.abs(), term.variance) for term in terms if term.variance is not None]
            moved = [torch.minimum(FAR * e.sqrt(), (format_.largest - x).clamp_min(0.0)) for x, e in erring]
            furthest = torch.minimum(furthest, sum(moved, size))
        margin = format_.unit_roundoff * (0.5 if rounds_once else -4)
        found = (furthest > format_.largest * (1 + margin)) & size.isfinite()
        if bool(found.any()):
            self.overflowing.setdefault(self.node, []).append((operand, found))
