"""Properties of SDPA under powers of two: what scales with what, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from gradoracle.properties.agreement import differ
from gradoracle.properties.applicability import all_of, exact_operands, small_enough
from gradoracle.properties.exactness import smallest_exact, times
from gradoracle.properties.sdpa.scores import Scores, scores_overflow

from gradoracle.check.acceptance import exactly, not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.formats import FORMATS
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import property

FORWARD, VJP = Derivative.FORWARD, Derivative.VJP
DERIVATIVES = {"o": FORWARD, "dq": VJP, "dk": VJP, "dv": VJP}
QUARTER = 0.25


def _free_scale(case: Case, kernel: Kernel) -> str | None:
    return "the kernel does not take every scale" if "scale" in kernel.options else None


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, exact_operands, _free_scale), one_in=3, rank=3)
def the_scale_folds_into_q(evidence: Evidence) -> Iterator[Finding]:
    """With scale 1/4, o, dk and dv equal those of q / 4 with scale 1, and dq is a quarter of its dq.

    Holds because: S is the same, and a power of two changes no rounding short of underflow: bit for bit where the
    kernel claims determinism.
    Catches: a scale that forward or backward ignores, or that dq or dk omits or applies twice.
    Cannot catch: the default scale; forward_matches_the_oracle does.
    """
    quarter = times(evidence.sample.inputs["q"], QUARTER)
    if quarter is None:
        yield not_checked("o", "q / 4 is not exact")
        return
    scaled = evidence.variant("scale 1/4", lambda s: s.with_options(scale=QUARTER))
    folded = evidence.variant("q / 4, scale 1", lambda s: s.with_inputs(q=quarter).with_options(scale=1.0))
    yield from _multiples(evidence, scaled, folded, {"o": 1.0, "dq": QUARTER, "dk": 1.0, "dv": 1.0})


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, exact_operands), one_in=5, rank=2)
def scaling_q_up_and_k_down_leaves_o(evidence: Evidence) -> Iterator[Finding]:
    """With 2 q and k / 2, o and dv are unchanged, dq is halved and dk doubled.

    Holds because: S is the same, and a power of two changes no rounding short of underflow: bit for bit where the
    kernel claims determinism.
    Catches: a threshold, a clamp or a precomputed scale that depends on q or k alone.
    Cannot catch: anything that depends on S alone; forward_matches_the_oracle does.
    """
    q, k = times(evidence.sample.inputs["q"], 2.0), times(evidence.sample.inputs["k"], 0.5)
    if q is None or k is None:
        yield not_checked("o", "2 q or k / 2 is not exact")
        return
    changed = evidence.variant("2 q, k / 2", lambda s: s.with_inputs(q=q, k=k))
    yield from _multiples(evidence, changed, evidence, {"o": 1.0, "dq": 0.5, "dk": 2.0, "dv": 1.0})


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, exact_operands), one_in=5, rank=2)
def doubling_the_values_doubles_o(evidence: Evidence) -> Iterator[Finding]:
    """With 2 v, dv is unchanged, and o, dq and dk are doubled (not in float16, where dS underflows).

    Holds because: o and dS are linear in v, and a power of two changes no rounding short of underflow: bit for bit
    where the kernel claims determinism.
    Catches: a clamp, a threshold or a loss of scale that depends on values.
    Cannot catch: anything linear in v; forward_matches_the_oracle does.
    """
    v = times(evidence.sample.inputs["v"], 2.0)
    if v is None:
        yield not_checked("o", "2 v overflows")
        return
    factors = {"o": 2.0, "dv": 1.0}
    if evidence.case.dtype != "float16":
        factors |= {"dq": 2.0, "dk": 2.0}
    yield from _multiples(evidence, evidence.variant("2 v", lambda s: s.with_inputs(v=v)), evidence, factors)


def _multiples(
    evidence: Evidence, changed: Evidence, plain: Evidence, factors: Mapping[str, float]
) -> Iterator[Finding]:
    """Each tensor of one variant is a power of two times that of another: in bits, or to rounding."""
    if scores_overflow(Scores(changed.sample), evidence.contract):
        yield not_checked("o", "a score overflows")
        return
    for name, factor in factors.items():
        label = f"{name} times {factor:g}" if factor != 1 else name
        if not evidence.kernel.deterministic:
            yield evidence.relate(
                label,
                lambda a, b, factor=factor: a - factor * b,
                [(changed, DERIVATIVES[name], name), (plain, DERIVATIVES[name], name)],
                scale=lambda a, b: a.abs(),
            )
            continue
        got, other = changed.vjp()[name].double(), plain.vjp()[name].double()
        expected = factor * other
        exact = torch.minimum(expected.abs(), other.abs()) >= smallest_exact(evidence.case.dtype)
        fits = expected.abs() <= FORMATS[evidence.case.dtype].largest / 2
        if not bool((exact & fits).any()):
            yield not_checked(label, "every element may have underflowed or overflowed")
            continue
        wrong = (differ(got, expected) & exact & fits).cpu()
        message, compared = "is not scaled by exactly the power of two", int((exact & fits).sum())
        yield exactly(label, wrong, message, elements=compared, of=name)


SCALINGS = (the_scale_folds_into_q, scaling_q_up_and_k_down_leaves_o, doubling_the_values_doubles_o)
