"""Properties of SDPA about the row statistics m and l that a forward keeps, and about JVPs that hold them frozen.

Kernels show them through extra entry points (``Kernel.extras``); without one, its properties do not apply::

    stats(inputs, options, blocks) -> (o, m, l)                          m, l [B, H, T], natural log units
    jvp_frozen(inputs, tangents, statistics, options, blocks) -> tangent of o; statistics: (m, l) or None
    backward(inputs, cotangents, statistics, options, blocks) -> (dq, dk, dv)
    backward_from_output(inputs, cotangents, (m, l, o), options, blocks) -> (dq, dk, dv); judged with backward
    jvp_from_statistics(inputs, tangents, statistics, options, blocks) -> (o, tangent of o)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from gradoracle.properties.agreement import compared, double
from gradoracle.properties.applicability import small_enough
from gradoracle.properties.attention import allowed, of_queries
from gradoracle.properties.sdpa.scores import Scores, score_tangent, softmax
from torch import Tensor

from gradoracle.check.acceptance import exactly, judge, not_checked
from gradoracle.check.error_relation import Part
from gradoracle.check.evidence import Evidence
from gradoracle.execution.kernel_runner import Tensors
from gradoracle.model import layouts
from gradoracle.model.call import Held
from gradoracle.model.contract import default_contract
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding, Outcome
from gradoracle.model.property import property

FORWARD, VJP, JVP = Derivative.FORWARD, Derivative.VJP, Derivative.JVP
_LAYOUTS = ("contiguous", "transposed", "sliced", "strided")  # of m and l, from case to case
LARGEST_EXPONENT = 60.0  # of a stale exp(S - m): beyond it float32 and the formats of operands overflow


def statistics(evidence: Evidence) -> dict[str, Part]:
    """The kernel's m and l with their truths: m = max_j S, l = sum_j exp(S - m); -inf and 0 where no key is seen."""
    scores, residuals = Scores(evidence.sample), evidence.contract.residuals
    visible, scale = scores.visible, scores.scale
    sees = visible.any(-1)

    def program(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        s = torch.where(visible, q @ k.transpose(-1, -2) * scale, -torch.inf)
        m = s.amax(-1)
        level = torch.where(sees, m, 0.0)[..., None]
        return m, torch.exp(s - level).sum(-1)

    defined = evidence.define("m and l", program, [scores.q, scores.k], [residuals, residuals])
    kept = _kept(evidence)
    return {
        name: Part(name, kept[name], truth.value, allowance)
        for name, (truth, allowance) in zip("ml", defined, strict=True)
    }


def _kept(evidence: Evidence) -> Tensors:
    """The forward's o, m and l."""
    rows = evidence.sample.cotangents["o"].shape[:-1]
    return evidence.entry("stats", {**evidence.shapes(FORWARD), "m": rows, "l": rows})


@property(needs=(FORWARD,), extras=("stats",), applies=small_enough, rank=5)
def the_saved_statistics_are_those_of_the_scores(evidence: Evidence) -> Iterator[Finding]:
    """The m that forward saves equals the largest score of each row, and l the sum of exp(S - m).

    Holds because: by definition; both are compared with their own truth, within their own budget.
    Catches: a padded or masked key in m or l, base-2 units, a running sum that is not rescaled, a lower bound as m.
    Cannot catch: a wrong o with correct m and l; stats_rebuild_p does.
    """
    for part in statistics(evidence).values():
        yield _judged(part, evidence, ("B", "H", "T"))


@property(needs=(FORWARD,), extras=("stats",), applies=small_enough, rank=5)
def l_lies_between_one_and_the_number_of_keys(evidence: Evidence) -> Iterator[Finding]:
    """The l that forward saves is at least 1 and at most the number of keys that the query sees, exactly.

    Holds because: the largest score adds exp(0) = 1, no key adds more, and rounding to nearest keeps order.
    Catches: an m that is not a score of the row (l below 1), or is below one (l above the number of keys); padded keys.
    Cannot catch: a wrong l within the bounds; the_saved_statistics_are_those_of_the_scores does.
    """
    scores = Scores(evidence.sample)
    kept, rows = _kept(evidence), slice(scores.first, None)
    m, l = (double(kept[name][:, :, rows]) for name in "ml")
    finite = m.isfinite() | ~torch.tensor(bool(scores.p.isfinite().all()))  # a score may overflow
    wrong = ~((l >= 1) & (l <= scores.seen[rows])) & finite
    yield exactly("l", wrong, "is not between 1 and the number of keys that the query sees")


@property(needs=(FORWARD,), extras=("stats",), applies=small_enough, one_in=2, rank=5)
def stats_rebuild_p(evidence: Evidence) -> Iterator[Finding]:
    """P = exp(S - m) / l from the kernel's m and l has rows that sum to 1, and P V equals the kernel's o.

    Holds because: that is what a backward rebuilds P from.
    Catches: m and l that do not belong together, or to o: stale, of another tile, m of one scale and l of another.
    Cannot catch: a backward that does not use them; ones_transposed_dv_equals_ones_transposed_g does.
    """
    scores = Scores(evidence.sample)
    rows = slice(scores.first, None)
    rebuilt = _rebuild(scores.visible[rows], scores.scale)
    kept = [_of_rows(part, rows) for part in statistics(evidence).values()]
    o = _of_rows(evidence.part(FORWARD, "o"), rows)
    q, k, v = scores.q[:, :, rows], scores.k, scores.v
    size = scores.p[:, :, rows] @ v.abs()
    yield evidence.relate(
        "rowsum of exp(S - m) / l, less 1",
        lambda m, l, q, k: rebuilt(m, l, q, k).sum(-1) - 1.0,
        kept,
        scale=lambda m, l, q, k: torch.ones_like(m),
        constants=[q, k],
    )
    yield evidence.relate(
        "o - exp(S - m) / l v",
        lambda m, l, o, q, k, v, size: o - rebuilt(m, l, q, k) @ v,
        [*kept, o],
        scale=lambda m, l, o, q, k, v, size: size,
        constants=[q, k, v, size],
    )


def _of_rows(part: Part, rows: slice) -> Part:
    """A part for some of the queries."""
    at = of_queries(rows, part.got.dim())
    return Part(part.name, part.got[at], part.true[at], allowed(part.allowance, at))


@property(needs=(VJP,), extras=("stats", "backward"), applies=small_enough, one_in=4, rank=3)
def backward_from_the_saved_statistics_is_the_vjp(evidence: Evidence) -> Iterator[Finding]:
    """The explicit backward, given the m and l, or m, l and o, of the forward in any layout, returns the VJP.

    Holds because: the derivatives of m and l are in the formula: dS = P (dP - z) is that of the softmax as a whole.
    Catches: an explicit entry point that exchanges arguments, ignores an option or the m, l and o it is given, or
    assumes that they are contiguous.
    Cannot catch: errors that it shares with autograd's backward; vjp_matches_the_oracle does.
    """
    kept, layout = _laid_out(evidence, "m", "l", "o")
    for entry, given in (("backward", kept[:2]), ("backward_from_output", kept)):
        if entry not in evidence.kernel.extras:
            continue
        got = evidence.entry(entry, evidence.shapes(VJP), tuple(evidence.sample.cotangents.values()), given)
        source = "m and l" if len(given) == 2 else "m, l and o"
        yield from compared(evidence, got, f" from {source}, {layout}", (VJP,))


@property(needs=(FORWARD, JVP), extras=("stats", "jvp_from_statistics"), applies=small_enough, one_in=4, rank=3)
def jvp_from_the_saved_statistics_is_the_jvp(evidence: Evidence) -> Iterator[Finding]:
    """The explicit JVP, given the m and l of the forward in any layout, returns the JVP, and o rebuilt from them.

    Holds because: P = e^(S - m) / l is the softmax, whoever computed m and l, and o = P V.
    Catches: an o that is rebuilt wrongly, or from statistics assumed contiguous; a wrong separate pass for given m and
    l.
    Cannot catch: errors that it shares with the JVP that computes m and l; jvp_matches_the_oracle does.
    """
    laid, layout = _laid_out(evidence, "m", "l")
    yield from compared(evidence, _from_statistics(evidence, laid), f" from m and l, {layout}", (FORWARD, JVP))


def _from_statistics(evidence: Evidence, given: tuple[Tensor | Held, ...], key: str = "") -> Tensors:
    """o and its tangent from given m and l."""
    tangents = tuple(evidence.sample.tangents.values())
    return evidence.entry("jvp_from_statistics", evidence.shapes(FORWARD, JVP), tangents, given, key=key)


def _laid_out(evidence: Evidence, *names: str) -> tuple[tuple[Tensor | Held, ...], str]:
    """Some of the forward's o, m and l in a layout, another from case to case, and its name."""
    layout = _LAYOUTS[evidence.case.seed // 11 % len(_LAYOUTS)]
    kept = _kept(evidence)
    return tuple(_held(evidence, name, layouts.apply(kept[name], layout)) for name in names), layout


def _held(evidence: Evidence, name: str, tensor: Tensor) -> Tensor | Held:
    """One of o, m and l as the kernel holds it: o in the dtype of the inputs, m and l in that of residuals."""
    own = evidence.case.dtype
    return evidence.held(tensor, own if name == "o" else default_contract(own).residuals)


def frozen(evidence: Evidence) -> Part:
    """The kernel's JVP with m and l frozen: P' = P * S', o' = P' V + P v', with its truth."""
    scores = Scores(evidence.sample)
    visible, scale = scores.visible, scores.scale

    def program(*args: Tensor) -> tuple[Tensor]:
        q, k = args[:2]
        p = softmax(q @ k.transpose(-1, -2) * scale, visible)
        return (_frozen_tangent(p, scale, *args),)

    args = [*evidence.sample.inputs.values(), *evidence.sample.tangents.values()]
    ((truth, allowance),) = evidence.define("frozen jvp", program, args)
    return Part("frozen jvp.o", _with_frozen(evidence, None), truth.value, allowance)


def _with_frozen(evidence: Evidence, given: tuple[Tensor | Held, ...] | None, key: str = "") -> Tensor:
    """The tangent of o with given m and l frozen; None: the forward's."""
    tangents = tuple(evidence.sample.tangents.values())
    return evidence.entry("jvp_frozen", evidence.shapes(JVP), tangents, given, key=key)["jvp.o"]


def _frozen_tangent(
    p: Tensor, scale: float, q: Tensor, k: Tensor, v: Tensor, tq: Tensor, tk: Tensor, tv: Tensor
) -> Tensor:
    return (p * score_tangent(q, k, tq, tk, scale)) @ v + p @ tv


def _centred_tangent(
    p: Tensor, scale: float, q: Tensor, k: Tensor, v: Tensor, tq: Tensor, tk: Tensor, tv: Tensor
) -> Tensor:
    s_tangent = score_tangent(q, k, tq, tk, scale)
    return (p * (s_tangent - (p * s_tangent).sum(-1, keepdim=True))) @ v + p @ tv


def _judged(part: Part, evidence: Evidence, axes: tuple[str, ...], of: str = "") -> Finding:
    """Judge a part by its own truth and budget."""
    return judge(part.name, part.got, part.true, part.allowance, continuous=evidence.continuous, axes=axes, of=of)


@property(needs=(JVP,), extras=("jvp_frozen",), applies=small_enough, one_in=3, rank=6)
def frozen_stats_jvp_vs_autograd_gap(evidence: Evidence) -> Iterator[Finding]:
    """The frozen-stats JVP differs from the true one by a known gap: JVP - JVP_frozen = -rowsum(P * S') * O.

    Holds because: the true P' is P * (S' - rowsum(P * S')): centring is the derivative of m and l. Frozen, P' = P * S'.
    The centred JVP is the true one (the seed says otherwise), so it is compared with the oracle, and the frozen one
    with its own definition.
    Catches: the two modes swapped, a JVP centred by a wrong mean, a frozen JVP that is centred.
    Cannot catch: errors that both modes and o share; jvp_matches_the_oracle does.
    """
    scores, part = Scores(evidence.sample), frozen(evidence)
    yield _judged(part, evidence, evidence.axes("jvp.o"), "jvp.o")
    for finding in evidence.compare(JVP):
        yield replace(finding, tensor=f"centred {finding.tensor}", among=finding.named)
    visible, factor = scores.visible, scores.scale

    def shift(o: Tensor, q: Tensor, k: Tensor, tq: Tensor, tk: Tensor) -> Tensor:
        p = softmax(q @ k.transpose(-1, -2) * factor, visible)
        return (p * score_tangent(q, k, tq, tk, factor)).sum(-1, keepdim=True) * o

    yield evidence.relate(
        "jvp.o - frozen jvp.o + rowsum(P S') o",
        lambda true, frozen, o, *exact: true - frozen + shift(o, *exact),
        [evidence.part(JVP, "jvp.o"), part, evidence.part(FORWARD, "o")],
        scale=lambda true, frozen, o, *exact: true.abs() + frozen.abs() + shift(o, *exact).abs(),
        constants=[scores.q, scores.k, scores.tensor("tangents", "q"), scores.tensor("tangents", "k")],
    )


@property(needs=(JVP,), extras=("stats", "jvp_frozen"), applies=small_enough, one_in=4, rank=5)
def frozen_stats_jvp_of_stale_statistics(evidence: Evidence) -> Iterator[Finding]:
    """With the m and l of another sample (q half a tangent back) the frozen JVP is that of P = exp(S - m) / l.

    Holds because: it is defined for any m and l. How far the rows of the stale P are from 1, and so how far from any
    derivative that tangent is, is reported.
    Catches: a kernel that computes its own m and l instead of using those given, or normalises P again.
    Cannot catch: errors in m and l themselves; the_saved_statistics_are_those_of_the_scores does.
    """
    yield _of_stale_statistics(
        evidence, "frozen jvp.o", _frozen_tangent, lambda given: _with_frozen(evidence, given, " stale")
    )


@property(needs=(JVP,), extras=("stats", "jvp_from_statistics"), applies=small_enough, one_in=4, rank=5)
def jvp_of_stale_statistics(evidence: Evidence) -> Iterator[Finding]:
    """With the m and l of another sample (q half a tangent back) the JVP is that of P = exp(S - m) / l, centred.

    Holds because: P' = P * (S' - rowsum(P * S')) is defined for any P. The rows of the stale P do not sum to 1, so that
    rowsum(P * S') is no mean.
    Catches: a centre that is a mean, P normalised again, m and l computed instead of those given.
    Cannot catch: errors in m and l themselves; the_saved_statistics_are_those_of_the_scores does.
    """
    yield _of_stale_statistics(
        evidence, "jvp.o", _centred_tangent, lambda given: _from_statistics(evidence, given, " stale")["jvp.o"]
    )


def _of_stale_statistics(
    evidence: Evidence, name: str, tangent: Callable[..., Tensor], call: Callable[[tuple[Tensor | Held, ...]], Tensor]
) -> Finding:
    """Judge ``call((m, l))`` by ``tangent(P, scale, q, k, v, tq, tk, tv)`` with the m and l of another sample."""
    before = evidence.variant(
        "half a tangent back: ", lambda s: s.with_inputs(q=torch.sub(s.inputs["q"], s.tangents["q"], alpha=0.5))
    )
    if not all(t.isfinite().all() for t in before.sample.inputs.values()):
        return not_checked(name, "the sample of the stale statistics overflows")
    kept, scores = _kept(before), Scores(evidence.sample)
    rows, scale = slice(scores.first, None), scores.scale
    visible = scores.visible[rows]
    m_seen, l_seen = (double(kept[name][:, :, rows]) for name in "ml")
    rebuild = _rebuild(visible, scale)
    exponents = torch.where(visible, scores.q[:, :, rows] @ scores.k.transpose(-1, -2) * scale, -torch.inf)
    if not bool((exponents - m_seen[..., None]).max() < LARGEST_EXPONENT):
        return not_checked(name, f"exp(S - m) of stale m overflows: S - m is above {LARGEST_EXPONENT:g}")

    def program(*args: Tensor) -> tuple[Tensor]:
        *primals, m, l = args
        return (tangent(rebuild(m, l, *primals[:2]), scale, *primals),)

    inputs, tangents = evidence.sample.inputs, evidence.sample.tangents
    args = [inputs["q"][:, :, rows], inputs["k"], inputs["v"]]
    args += [tangents["q"][:, :, rows], tangents["k"], tangents["v"], m_seen, l_seen]
    ((truth, allowance),) = evidence.define(f"stale {name}", program, args)
    stale = call(tuple(_held(evidence, name, kept[name]) for name in "ml"))
    part = Part(f"{name} of stale m, l", stale[:, :, rows], truth.value, allowance)
    finding = _judged(part, evidence, evidence.axes("jvp.o"), "jvp.o")
    if finding.outcome is Outcome.HOLDS:
        sums = rebuild(m_seen, l_seen, scores.q[:, :, rows], scores.k).sum(-1)
        note = f"rows of the stale P sum to {float(sums.min()):.3g} .. {float(sums.max()):.3g}"
        finding = replace(finding, message=note)
    return finding


def _rebuild(visible: Tensor, scale: float) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """P = exp(S - m) / l of m, l, q and k."""

    def p(m: Tensor, l: Tensor, q: Tensor, k: Tensor) -> Tensor:
        s = torch.where(visible, q @ k.transpose(-1, -2) * scale, -torch.inf)
        return torch.exp(s - m[..., None]) / l[..., None]

    return p


STATISTICS = (
    the_saved_statistics_are_those_of_the_scores,
    l_lies_between_one_and_the_number_of_keys,
    stats_rebuild_p,
    backward_from_the_saved_statistics_is_the_vjp,
    jvp_from_the_saved_statistics_is_the_jvp,
    frozen_stats_jvp_vs_autograd_gap,
    frozen_stats_jvp_of_stale_statistics,
    jvp_of_stale_statistics,
)
