"""Attention: what properties of queries and keys share: the scale, who sees whom, keys that can be shifted exactly,
and the results of the first or the last queries alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from gradoracle.properties.agreement import derivative_of
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import Allowance, judge
from gradoracle.check.evidence import Evidence
from gradoracle.model import layouts
from gradoracle.model.case import Case
from gradoracle.model.finding import Finding
from gradoracle.model.formats import FORMATS


def scale_of(sample: Sample) -> float:
    """The factor of q k^T: the option, or 1 / sqrt(D)."""
    scale = sample.options["scale"]
    return 1 / math.sqrt(sample.inputs["q"].shape[-1]) if scale is None else float(scale)


def seen(queries: int, keys: int, causal: bool) -> Tensor:
    """[T] how many keys each query sees."""
    if not causal:
        return torch.full((queries,), keys)
    return (torch.arange(queries) + keys - queries + 1).clamp(0, keys)


def coarse_keys(k: Tensor, dtype: str) -> tuple[Tensor | None, float]:
    """Keys on a grid so coarse that keys and shifted keys are held exactly, and the shift (a power of two)."""
    largest = float(k.double().abs().max())
    shift = 2.0 ** (math.frexp(largest)[1] - 2) if largest > 0 else 1.0  # a quarter to a half of the largest
    if 4 * (largest + shift) > FORMATS[dtype].largest:
        return None, shift
    grid = max(8 * shift * 2.0 ** -FORMATS[dtype].bits, FORMATS[dtype].smallest_subnormal)
    return ((k.double() / grid).round() * grid).to(k.dtype), max(shift, grid)


def with_ones_in_keys(sample: Sample) -> Sample:
    """The sample with 1 in the last feature of all keys and 0 in that of all queries: no score depends on it."""

    def filled(name: str, value: float) -> Tensor:
        changed = sample.inputs[name].clone(memory_format=torch.contiguous_format)
        changed[..., -1] = value
        return changed

    return sample.with_inputs(q=filled("q", 0.0), k=filled("k", 1.0))


def first_queries(case: Case) -> tuple[int, int]:
    """How many queries of a causal case count as the first ones, about half of those that see a key, and their keys."""
    queries, keys = case.dims["T"], case.dims["M"]
    blind = max(0, queries - keys)
    rows = min(blind + (queries - blind + 1) // 2, queries - 1)
    return rows, max(0, rows + keys - queries)


def contiguous(sample: Sample) -> Sample:
    """The sample with queries, keys and values that lie as results do: contiguous, their addresses aligned."""
    return sample.with_inputs(**{n: layouts.aligned(t) for n, t in sample.inputs.items() if n in ("q", "k", "v")})


def later_negated(sample: Sample, rows: int, keys: int) -> Sample:
    """The sample with queries from ``rows`` on, and keys and values from ``keys`` on, negated; contiguous."""
    starts = {"q": rows, "k": keys, "v": keys}
    return sample.with_inputs(
        **{
            n: torch.cat([t[:, :, : starts[n]], -t[:, :, starts[n] :]], 2)
            for n, t in sample.inputs.items()
            if n in starts
        }
    )


def rows_of(evidence: Evidence, names: Sequence[str], rows: slice) -> dict[str, Tensor]:
    """Some queries' rows of tensors of the VJP, [B, H, T, ...]."""
    found = evidence.vjp()
    return {name: found[name][:, :, rows] for name in names}


def of_queries(rows: slice, dims: int) -> tuple[Any, ...]:
    """The index of some queries' rows in a tensor [.., B, H, T, ...] that has ``dims`` dims from B on."""
    return (..., rows, *[slice(None)] * (dims - 3))


def allowed(whole: Allowance, at: tuple[Any, ...]) -> Allowance:
    """What rounding explains of some elements of a tensor."""
    fields = ("sigma", "errors", "worst", "floor", "overflow", "radius", "undecided")
    return replace(whole, **{name: value[at] for name in fields if (value := getattr(whole, name)) is not None})


def held_to_rows(evidence: Evidence, got: Mapping[str, Tensor], rows: slice, label: str) -> Iterator[Finding]:
    """Judge some queries' rows of tensors [B, H, T, ...] against their truth in the whole sample."""
    for name, tensor in got.items():
        derivative = derivative_of(evidence, name)
        at = of_queries(rows, tensor.dim())
        yield judge(
            f"{name}, {label}",
            tensor,
            evidence.truths(derivative)[name].value[at],
            allowed(evidence.allowance(derivative, name), at),
            continuous=evidence.continuous,
            largest=FORMATS[evidence.dtype(name)].largest,
            axes=evidence.axes(name),
            of=name,
        )


def last_query_equals(evidence: Evidence, alone: Evidence, names: Sequence[str]) -> Iterator[Finding]:
    """Relate tensors of the last query to those of evidence that has this query alone."""
    for name in names:
        derivative = derivative_of(evidence, name)
        yield evidence.relate(
            f"{name} of the last query and of it alone",
            lambda whole, alone: whole[:, :, -1:] - alone,
            [(evidence, derivative, name), (alone, derivative, name)],
            scale=lambda whole, alone: torch.maximum(whole[:, :, -1:].abs(), alone.abs()),
        )
