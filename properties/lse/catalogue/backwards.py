"""Properties of LSE's two backwards: fused, with partial gradients of q summed afterwards, and separate kernels."""

from __future__ import annotations

from collections.abc import Iterator

from gradoracle.properties.agreement import agree
from gradoracle.properties.applicability import small_enough
from torch import Tensor

from gradoracle.check.evidence import Evidence
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.property import PropertyKind, property
from gradoracle.model.severity import Severity


def _gradients(evidence: Evidence, which: str, run: str = "") -> dict[str, Tensor]:
    (cotangent,) = evidence.sample.cotangents.values()
    return evidence.entry("backward", evidence.shapes(Derivative.VJP), cotangent, which, key=f" {which}{run}")


@property(needs=(Derivative.VJP,), extras=("backward",), applies=small_enough)
def fused_equals_separate(evidence: Evidence) -> Iterator[Finding]:
    """The fused backward and the separate kernels give the same gradients, within the rounding of both.

    Holds because: both are the VJP of one function; they differ in the order in which dq is summed.
    Catches: a partial dq that is not filled where a tile is skipped, summed twice or into other rows, a tile that only
    one of the two skips. vjp_matches_the_oracle sees it for the backward that the kernel chooses.
    Cannot catch: errors that both share; vjp_matches_the_oracle does.
    """
    yield from agree(evidence, _gradients(evidence, "fused"), _gradients(evidence, "separate"), label=", fused")


@property(
    needs=(Derivative.VJP,),
    extras=("backward",),
    applies=small_enough,
    one_in=4,
    kind=PropertyKind.REPETITION,
    severity=Severity.WRONG,
)
def fused_gives_the_same_bits_again(evidence: Evidence) -> Iterator[Finding]:
    """The fused backward, run twice, gives the same bits.

    Holds because: partial gradients are summed in the order of the keys, without atomics.
    Catches: atomic additions, a workspace that is not fully written, a sum in undefined order.
    Cannot catch: a wrong sum that is the same each time; fused_equals_separate does.
    """
    once, again = _gradients(evidence, "fused"), _gradients(evidence, "fused", ", again")
    yield from agree(evidence, again, once, exact=True, label=", again")


BACKWARDS = (fused_equals_separate, fused_gives_the_same_bits_again)
