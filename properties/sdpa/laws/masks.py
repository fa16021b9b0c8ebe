"""Laws of causal SDPA: which keys a query sees, and that nothing else reaches it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from gradoracle.properties.agreement import differ
from gradoracle.properties.applicability import (
    all_of,
    bidirectional_too,
    causal,
    has_a_later_query,
    small_enough,
    supports,
)
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import Allowance, exactly, judge
from gradoracle.check.evidence import Evidence
from gradoracle.model.contract import LARGEST
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.property import law

FORWARD, VJP = Derivative.FORWARD, Derivative.VJP
DERIVATIVES = {"o": FORWARD, "dq": VJP}


@law(needs=(FORWARD, VJP), applies=all_of(small_enough, causal, has_a_later_query), rank=5)
def causal_prefix(evidence: Evidence) -> Iterator[Finding]:
    """The first queries give the same o and dq whatever comes later, and where nothing comes later.

    Holds because: query i sees keys j <= i + M - T only; others have weight exactly 0. Without the later ones the truth
    is the same. Bits are compared where the kernel claims determinism.
    Catches: a mask that is off by one, masked weights that are not exactly 0, a leak of later keys through m or l.
    Cannot catch: keys that are masked and should not be; the_last_query_sees_every_key does.
    """
    queries, keys = evidence.case.dims["T"], evidence.case.dims["M"]
    blind = max(0, queries - keys)
    rows = min(blind + (queries - blind + 1) // 2, queries - 1)
    prefix = max(0, rows + keys - queries)  # keys that these rows see

    def plain(sample: Sample) -> Sample:
        return sample.with_inputs(**{name: tensor.contiguous() for name, tensor in sample.inputs.items()})

    def change(sample: Sample) -> Sample:
        starts = {"q": rows, "k": prefix, "v": prefix}
        return sample.with_inputs(
            **{n: torch.cat([t[:, :, : starts[n]], -t[:, :, starts[n] :]], 2) for n, t in sample.inputs.items()}
        )

    changed = _rows(evidence.variant("what comes later negated", change), slice(0, rows))
    if evidence.kernel.deterministic:
        same = _rows(evidence.variant("contiguous", plain), slice(0, rows))
        for name, tensor in changed.items():
            wrong = differ(tensor, same[name]).cpu()
            yield exactly(
                f"bits of {name}, later negated", wrong, "depends on what comes later", elements=wrong.numel(), of=name
            )
    yield from _held_to_rows(evidence, changed, slice(0, rows), "what comes later negated")
    if prefix and supports(evidence.kernel, T=rows, M=prefix):
        cut = evidence.variant("without what comes later", lambda s: _cut(s, slice(0, rows), prefix))
        yield from _held_to_rows(evidence, _rows(cut, slice(0, rows)), slice(0, rows), "without what comes later")


@law(needs=(FORWARD, VJP), applies=all_of(small_enough, causal, bidirectional_too), one_in=2, rank=5)
def the_last_query_sees_every_key(evidence: Evidence) -> Iterator[Finding]:
    """The last query gives the o and dq that it gives by itself without a mask.

    Holds because: causal aligns the last query with the last key, so it sees every key.
    Catches: top-left alignment, a diagonal tile that is skipped, a mask that is off by one.
    Cannot catch: masks of other rows; causal_prefix and forward_matches_the_oracle do.
    """
    last = slice(evidence.case.dims["T"] - 1, None)
    alone = evidence.variant(
        "last query alone: ", lambda s: _cut(s, last, evidence.case.dims["M"]).with_options(causal=False)
    )
    for name, derivative in DERIVATIVES.items():
        yield evidence.relate(
            f"{name} of the last query and of it alone",
            lambda whole, alone: whole[:, :, -1:] - alone,
            [(evidence, derivative, name), (alone, derivative, name)],
            scale=lambda whole, alone: torch.maximum(whole[:, :, -1:].abs(), alone.abs()),
        )


def _cut(sample: Sample, rows: slice, keys: int) -> Sample:
    """Some of the queries, with their cotangents, and the first so many keys."""
    inputs = {"q": sample.inputs["q"][:, :, rows], **{n: sample.inputs[n][:, :, :keys] for n in ("k", "v")}}
    return sample.with_inputs(**inputs).with_cotangents(o=sample.cotangents["o"][:, :, rows])


def _rows(evidence: Evidence, rows: slice) -> dict[str, Tensor]:
    """o and dq of some queries."""
    found = evidence.vjp()
    return {name: found[name][:, :, rows] for name in ("o", "dq")}


def _held_to_rows(evidence: Evidence, got: Mapping[str, Tensor], rows: slice, label: str) -> Iterator[Finding]:
    """Judge o and dq of some queries against their truth in the whole sample."""
    for name, tensor in got.items():
        derivative = DERIVATIVES[name]
        truth = evidence.truths(derivative)[name]
        whole = evidence.allowance(derivative, name)
        cut = {
            field: None if (value := getattr(whole, field)) is None else value[..., rows, :]
            for field in ("sigma", "errors", "worst", "floor", "overflow", "radius", "undecided")
        }
        true = truth.value[..., rows, :]
        error = tensor.detach().to("cpu", torch.float64) - true
        yield judge(
            f"{name}, {label}",
            tensor,
            true,
            Allowance(**cut),  # type: ignore[arg-type]
            continuous=evidence.continuous,
            error=error,
            largest=LARGEST[evidence.case.dtype],
            axes=evidence.axes(name),
            of=name,
        )


MASKS = (causal_prefix, the_last_query_sees_every_key)
