"""The rules of the verdict on one tensor: exact, local, worst case, bias, pooled; and sensitivity.

All of them compare ``kernel - truth`` with what a Budget says that rounding explains. None has a constant to tune:
``LOCAL_SIGMA`` is the one level of significance, the same for a single element, a slope and a pooled square.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradoracle.check.diagnosis.error_location import read, region
from gradoracle.check.spread import spread
from gradoracle.model.derivative import Derivative
from gradoracle.model.error_map import ErrorMap, errormap
from gradoracle.model.errors import forgive
from gradoracle.model.finding import LOCAL_SIGMA, Finding, Outcome, Worst
from gradoracle.model.formats import OF_DTYPES, Format
from gradoracle.model.reason import Reason

TOO_WIDE = "budget too wide"
WIDEST_SENSITIVITY = 0.1
_NO_ROUNDING = 1 + 2.0**-40  # of the arithmetic here
_OF_ONE_ROUNDING = LOCAL_SIGMA / math.sqrt(3)  # unit roundoffs: the budget of storing a value, at most


@dataclass(frozen=True)
class Allowance:
    """What rounding explains of one compared tensor: float64 tensors of its shape.

    Attributes:
        sigma: one standard deviation, per element.
        errors: [R, *shape], the signed errors of the probes.
        worst: every rounding at its worst, where it was asked for.
        floor: the part of sigma that is the underflow floor.
        overflow: True where a declared intermediate overflows in a correct kernel; None where none does.
        radius: how far the truth itself may be off, proven (certified) or from its own budget (float64).
        undecided: True where the truth could not be decided; None where it is decided everywhere.
        before: how far a value may be off before it is stored in 8 bits; None where that is not known.
    """

    sigma: Tensor
    errors: Tensor
    worst: Tensor | None = None
    floor: Tensor | None = None
    overflow: Tensor | None = None
    radius: Tensor | None = None
    undecided: Tensor | None = None
    before: Tensor | None = None


def judge(
    name: str,
    got: Tensor,
    truth: Tensor,
    allowance: Allowance,
    *,
    continuous: bool,
    error: Tensor | None = None,
    scale: Tensor | None = None,
    largest: float | None = None,
    axes: Sequence[str] = (),
    of: str = "",
) -> Finding:
    """Judge one tensor by all rules, in the order exact, local, bias, pooled; the first one broken is the finding.

    Args:
        name: the name of what is compared.
        got: the tensor that the kernel gave, any float dtype.
        truth: float64, the same shape.
        allowance: the errors that rounding explains.
        continuous: whether the inputs come from a continuous random recipe: the rule is local, else worst case.
        error: ``got - truth`` where the caller knows it more precisely than float64 subtraction gives it.
        scale: what sensitivity is relative to; default ``|truth|``. For a relation whose sides cancel, their size.
        largest: the largest finite value of the stored dtype, by default that of ``got``; truths beyond it may be
            infinite there.
        of: the kernel's tensor that it is about, where ``name`` says more than that.
        axes: names of the dims, for the pattern of wrong elements.
    """
    stored = got.dtype
    if largest is None:
        largest = torch.finfo(stored).max
    got = got.detach().to("cpu", torch.float64)
    signed = got - truth if error is None else error
    saturates = stored in OF_DTYPES and OF_DTYPES[stored].saturates
    compared, exact = _exact(name, got, truth, allowance, largest, axes, saturates)
    named = (of,) if of else ()
    if exact is not None:
        return replace(exact, among=named)
    limit = _within(_limit(allowance, continuous), truth, allowance, OF_DTYPES.get(stored))
    if not compared.any():
        return Finding(
            name,
            Outcome.NOT_CHECKED,
            "exact",
            message="no element could be compared",
            undecided=got.numel(),
            among=named,
        )
    size = signed.abs()
    ratio = torch.where(compared & (size > 0), size / limit, torch.zeros_like(size))
    in_sigma = torch.where(compared & (size > 0), size / allowance.sigma, torch.zeros_like(size))
    sensitivity = _sensitivity(limit, truth if scale is None else scale, compared)
    flat = int(ratio.argmax())
    found = Finding(
        name,
        Outcome.HOLDS,
        "local" if continuous else "worst case",
        error=float(ratio.flatten()[flat]),
        error_in_sigma=float(in_sigma.max()),
        sensitivity=sensitivity,
        worst=_worst(flat, got, truth, in_sigma),
        elements=int(compared.sum()),
        undecided=int(got.numel() - compared.sum()),
        among=named,
    )
    if found.error > 1:
        wrong = compared & (ratio > 1)
        return replace(
            found,
            outcome=Outcome.VIOLATED,
            **_seen(wrong, got, truth, axes, limit),
            message=_too_large(int(wrong.sum()), found.elements),
            map=_map(in_sigma, compared, axes, got, truth),
        )
    if continuous:
        own = compared & (allowance.sigma > 0)
        if allowance.floor is not None:  # an element whose budget is the underflow floor shows no relative error
            own &= allowance.sigma > 2 * allowance.floor
        found = spread(found, signed, truth, own, allowance.sigma, allowance.errors)
        if found.outcome is Outcome.VIOLATED:
            return replace(found, map=_map(in_sigma, compared, axes, got, truth))
    if sensitivity is None:
        return replace(found, sensitivity=None, message="the truth is 0 throughout")
    if sensitivity > (widest := widest_sensitivity(stored)):
        reason = f"{TOO_WIDE}: median budget / |truth| is {sensitivity:.2g}, more than {widest:.2g}"
        return replace(found, outcome=Outcome.NOT_CHECKED, message=reason, why=Reason.BUDGET)
    return found


def widest_sensitivity(stored: torch.dtype) -> float:
    """The median budget / |truth| up to which a tensor of a dtype counts as checked.

    A tenth, and as much as storing a value takes where that is more: 0.29 in float8_e4m3fn, 0.58 in float8_e5m2.
    """
    unit = OF_DTYPES[stored].unit_roundoff if stored in OF_DTYPES else 0.0
    return max(WIDEST_SENSITIVITY, _OF_ONE_ROUNDING * unit)


def exactly(
    name: str,
    wrong: Tensor | bool,
    message: str,
    *,
    elements: int = 1,
    lost: bool = False,
    axes: Sequence[str] = (),
    of: str = "",
    call: Derivative | None = None,
    values: tuple[Tensor, Tensor] | None = None,
) -> Finding:
    """A fact that needs no budget: violated where any of ``wrong`` is true.

    Args:
        name: the name of what is compared.
        wrong: bool, the elements that break it.
        message: the mistake, in words.
        elements: the number of elements compared.
        lost: whether they are NaN or infinite where the truth is finite.
        axes: names of the dims of ``wrong``.
        of: the kernel's tensor that it is about, where ``name`` says more than that.
        call: the derivative whose call shows it, where it is about no tensor of the kernel's.
        values: the kernel's values and the true ones, of the shape of ``wrong``, to be shown.
    """
    mask, named = wrong if isinstance(wrong, Tensor) else torch.tensor(wrong), (of,) if of else ()
    if bool(mask.any()):
        index = tuple(int(i) for i in mask.nonzero()[0]) if mask.dim() else ()
        got, true = (math.nan, math.nan) if values is None else (float(each[index]) for each in values)
        worst = Worst(index, got, true, math.inf)
        where = region(mask, axes)
        seen = {"pattern": str(where), "place": str(where), "region": where, "map": _facts(mask, axes)}
        return _fact(name, message, worst, mask.numel(), lost, among=named, call=call, **seen)
    return Finding(name, Outcome.HOLDS, "exact", elements=max(elements, mask.numel()), among=named)


def not_checked(name: str, reason: str) -> Finding:
    """A tensor that was not checked, and why."""
    return Finding(name, Outcome.NOT_CHECKED, "exact", message=reason)


def _exact(
    name: str,
    got: Tensor,
    truth: Tensor,
    allowance: Allowance,
    largest: float,
    axes: Sequence[str],
    saturates: bool,
) -> tuple[Tensor, Finding | None]:
    """The elements that can be compared, and the first broken fact: non-finite values, elements that must be 0.

    Where casts to the stored dtype saturate, its largest number stands for an infinite truth of the same sign.
    """
    representable = truth.isfinite() & (truth.abs() <= largest)
    excused = torch.zeros_like(representable)
    if allowance.overflow is not None:
        excused |= allowance.overflow
    if allowance.undecided is not None:
        excused |= allowance.undecided
    lost = representable & ~got.isfinite() & ~excused
    if lost.any():
        what = "is not finite although the truth is, and no declared intermediate overflows"
        return lost, _violation(name, lost, got, truth, what, axes, lost=True)
    infinite = truth.isinf() & (got != truth) & ~excused
    if saturates:
        infinite &= got != truth.sign() * largest
    if infinite.any():
        return infinite, _violation(name, infinite, got, truth, "differs from an infinite truth", axes)
    missing = truth.isnan() & ~got.isnan() & ~excused
    if missing.any():
        return missing, _violation(name, missing, got, truth, "is a number where the truth is NaN", axes)
    compared = representable & got.isfinite()
    if allowance.undecided is not None:
        compared &= ~allowance.undecided
    zero = compared & (truth == 0) & (allowance.sigma == 0) & (got != 0)
    if allowance.radius is not None:
        zero &= allowance.radius == 0
    if zero.any():
        return zero, _violation(name, zero, got, truth, "must be exactly 0", axes)
    return compared, None


def _too_large(wrong: int, elements: int) -> str:
    return f"{wrong} of {elements} elements {'exceeds its' if wrong == 1 else 'exceed their'} budget"


def _violation(
    name: str, wrong: Tensor, got: Tensor, truth: Tensor, what: str, axes: Sequence[str], lost: bool = False
) -> Finding:
    """The finding of a fact broken at the elements ``wrong``."""
    index = tuple(int(i) for i in wrong.nonzero()[0])
    worst = Worst(index, float(got[index]), float(truth[index]), math.inf)
    message = f"{int(wrong.sum())} of {wrong.numel()} elements: the kernel's value {what}"
    seen = _seen(wrong, got, truth, axes) | {"map": _facts(wrong, axes)}
    return _fact(name, message, worst, wrong.numel(), lost, **seen)


def _fact(name: str, message: str, worst: Worst, elements: int, lost: bool, **seen: Any) -> Finding:
    """The finding of a broken fact, which has no budget."""
    out = math.inf
    return Finding(
        name, Outcome.VIOLATED, "exact", out, out, None, message, worst, elements=elements, lost=lost, **seen
    )


def _facts(wrong: Tensor, axes: Sequence[str]) -> ErrorMap | None:
    """The map of facts, which have no sigma."""
    return _map(torch.where(wrong, math.inf, 0.0), None, axes)


def _map(
    in_sigma: Tensor,
    compared: Tensor | None,
    axes: Sequence[str],
    got: Tensor | None = None,
    truth: Tensor | None = None,
) -> ErrorMap | None:
    """An error map, or None where it cannot be made."""
    try:
        return errormap(in_sigma, compared, axes, got, truth)
    except Exception as error:
        forgive(error)
        return None


def _seen(
    wrong: Tensor, got: Tensor, truth: Tensor, axes: Sequence[str], limit: Tensor | None = None
) -> dict[str, Any]:
    """The fields of a Finding on where and how elements are wrong."""
    found = read(wrong, got, truth, axes, limit)
    return {"pattern": str(found), "place": str(found.region), "region": found.region}


def _limit(allowance: Allowance, continuous: bool) -> Tensor:
    """The largest error that is within budget, per element, the truth's own radius included."""
    if continuous or allowance.worst is None:
        limit = LOCAL_SIGMA * allowance.sigma
    else:
        limit = torch.maximum(
            allowance.worst, LOCAL_SIGMA * (allowance.floor if allowance.floor is not None else 0 * allowance.sigma)
        )
    return limit if allowance.radius is None else limit + allowance.radius


def _within(limit: Tensor, truth: Tensor, allowance: Allowance, stored: Format | None) -> Tensor:
    """The limit of what is stored in 8 bits: a number to which some value that is near enough to the truth is rounded.

    It is the distance of the farther one of them, which no other number of the format has.
    """
    if allowance.before is None or stored is None or stored.width != 8:
        return limit
    near = allowance.before if allowance.radius is None else allowance.before + allowance.radius
    numbers, known = torch.from_numpy(stored.decoded()), truth.isfinite() & (truth.abs() + near <= stored.largest)
    if allowance.overflow is not None:
        known &= ~allowance.overflow
    farthest = torch.zeros_like(truth)
    for end in (truth - near, truth + near):
        bits = stored.encoded(torch.where(known, end, 0.0).contiguous().numpy(), saturates=True)
        farthest = torch.maximum(farthest, (numbers[torch.from_numpy(bits.astype("int64"))] - truth).abs())
    return torch.where(known, torch.minimum(limit, farthest * _NO_ROUNDING), limit)


def _sensitivity(limit: Tensor, scale: Tensor, compared: Tensor) -> float | None:
    """Median of budget / |truth| over the elements with a truth; None where the truth is 0 throughout."""
    scale = scale.abs().expand_as(limit)
    has = compared & (scale > 0) & scale.isfinite()
    return float((limit[has] / scale[has]).median()) if has.any() else None


def _worst(flat: int, got: Tensor, truth: Tensor, in_sigma: Tensor) -> Worst:
    """The worst element with its values."""
    index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), got.shape)) if got.dim() else ()
    return Worst(index, float(got[index]), float(truth[index]), float(in_sigma[index]))
