"""Semi-CRF, certified: forward-backward in the linear domain in balls (Arb), log Z and all gradients with proven radii.

Balls have unbounded exponents, so the textbook recursion needs no logarithm, no normalisation and no checkpoint, at any
length; every ball holds the true number, so its radius proves the digits. What -inf forbids is the exact ball 0, which
is never divided by. Shares no code with the float64 recursion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gradoracle.oracle.exact.certified import Balls, enclosed
from gradoracle.oracle.exact.enclosure import Enclosure

try:
    from flint import arb
except ImportError:
    arb = None

SPARE_BITS = 96  # beyond those that rounding errors of all steps may take
Numbers = NDArray[Any]  # of balls
Rows = list[list[Any]]  # [T+1][C] of balls


@dataclass(frozen=True)
class Certified:
    """log Z [B] and the gradients of <cotangent, log Z> by the name of the input, with proven radii."""

    log_z: Enclosure
    gradients: dict[str, Enclosure]
    bits: int


def certify(inputs: Mapping[str, Tensor], cotangent: Tensor | None = None, bits: int | None = None) -> Certified:
    """log Z and all gradients in balls.

    Args:
        inputs: by the names of the definition; read exactly.
        cotangent: [B]; ones by default.
        bits: of precision; by default as many as keep relative radii near 2^-96 at this length.

    Raises:
        Unavailable: python-flint is missing.
    """
    scores = {n: t.detach().to("cpu", torch.float64).numpy() for n, t in inputs.items() if t.is_floating_point()}
    batch, places, _ = scores["cum_scores"].shape
    longest = len(scores["duration_bias"])
    bits = bits or SPARE_BITS + 2 * (places * longest).bit_length()
    field = Balls(bits)
    weights = [1.0] * batch if cotangent is None else cotangent.detach().double().tolist()
    with field.context():
        zero = arb(0)
        found = {name: np.full(x.shape, zero, dtype=object) for name, x in scores.items()}
        log_z = np.empty(batch, dtype=object)
        shared = _Shared(scores, found)
        for b, length in enumerate(inputs["lengths"].tolist()):
            log_z[b] = _sequence(shared, b, int(length), arb(weights[b]))
    gradients = {name: enclosed(numbers, field) for name, numbers in found.items()}
    return Certified(enclosed(log_z, field), gradients, bits)


class _Shared:
    """Scores as given, what is exponentiated once for all sequences, and the arrays that gradients are added to."""

    def __init__(self, scores: Mapping[str, NDArray[np.float64]], found: Mapping[str, Numbers]) -> None:
        self.scores, self.found = scores, found
        self.durations = _weights(scores["duration_bias"])  # [K][C]
        name = "transition" if "transition" in scores else "transition_by_duration"
        tables = scores[name].reshape(-1, *scores[name].shape[-2:])
        self.tables = [_weights(table) for table in tables]  # [J][C][C]
        self.by_table = found[name].reshape(tables.shape)  # a view
        self.by_duration = found["duration_bias"]


def _weights(scores: NDArray[np.float64]) -> Rows:
    return [[_weight(x) for x in row] for row in scores.tolist()]


def _weight(score: float) -> Any:
    return arb(0) if score == float("-inf") else arb(score).exp()


def _sequence(shared: _Shared, b: int, length: int, cotangent: Any) -> Any:
    """log Z of one sequence; its share of the gradients is added to the arrays."""
    labels = len(shared.durations[0])
    up, down = _ends(shared, b, length)
    one = len(shared.tables) == 1
    alpha, enter = (_forward if one else _forward_by_duration)(shared, length, up, down)
    z = _sum(alpha[length])
    if z == 0:
        return arb.neg_inf()
    if length:
        passed = [[x / z * cotangent for x in row] for row in alpha]  # gradients are linear in it: one division each
        back = _backward if one else _backward_by_duration
        starts, ends = back(shared, length, passed, [[x / z * cotangent for x in row] for row in enter], up, down)
        cum = shared.found["cum_scores"][b]
        for t in range(length + 1):
            for c in range(labels):
                cum[t, c] = ends[t][c] - starts[t][c]
        if "proj_start" in shared.found:
            shared.found["proj_start"][b, :length] = starts[:length]
        if "proj_end" in shared.found:
            shared.found["proj_end"][b, :length] = ends[1 : length + 1]
    return z.log()


def _ends(shared: _Shared, b: int, length: int) -> tuple[Rows, Rows]:
    """exp of what a segment's end and its start score, [T+1][C] each."""
    up = _weights(shared.scores["cum_scores"][b, : length + 1])
    down = [[1 / x for x in row] for row in up]
    if "proj_end" in shared.scores:
        ends = _weights(shared.scores["proj_end"][b, :length])
        up[1:] = [[x * y for x, y in zip(*rows, strict=True)] for rows in zip(up[1:], ends, strict=True)]
    if "proj_start" in shared.scores:
        starts = _weights(shared.scores["proj_start"][b, :length])
        down[:-1] = [[x * y for x, y in zip(*rows, strict=True)] for rows in zip(down[:-1], starts, strict=True)]
    return up, down


def _forward(shared: _Shared, length: int, up: Rows, down: Rows) -> tuple[Rows, Rows]:
    """alpha, and enter[t][c]: the weight of all paths to t with what a start of c at t weighs."""
    durations, table = shared.durations, shared.tables[0]
    labels, longest = range(len(table)), len(durations)
    columns = [[table[b][c] for b in labels] for c in labels]
    alpha, enter = [[arb(1) for _ in labels]], []
    for t in range(length + 1):
        if t:
            recent = range(1, min(longest, t) + 1)
            alpha.append([up[t][c] * _sum([enter[t - k][c] * durations[k - 1][c] for k in recent]) for c in labels])
        own = alpha[t]
        enter.append([down[t][c] * _sum([x * y for x, y in zip(own, columns[c], strict=True)]) for c in labels])
    return alpha, enter


def _forward_by_duration(shared: _Shared, length: int, up: Rows, down: Rows) -> tuple[Rows, Rows]:
    """The same for a transition of each duration; ``enter`` is the weight of a start alone, of no path."""
    durations, tables = shared.durations, shared.tables
    labels, longest = range(len(durations[0])), len(durations)
    both = [[[tables[k][b][c] * durations[k][c] for b in labels] for c in labels] for k in range(longest)]
    alpha = [[arb(1) for _ in labels]]
    for t in range(1, length + 1):
        row = []
        for c in labels:
            parts = []
            for k in range(1, min(longest, t) + 1):
                inside = _sum([x * y for x, y in zip(alpha[t - k], both[k - 1][c], strict=True)])
                parts.append(inside * down[t - k][c])
            row.append(up[t][c] * _sum(parts))
        alpha.append(row)
    return alpha, []


def _backward(shared: _Shared, length: int, alpha: Rows, enter: Rows, up: Rows, down: Rows) -> tuple[Rows, Rows]:
    """What begins and what ends with each label at each t, [T+1][C]; adds to the gradients of both tables."""
    durations, table = shared.durations, shared.tables[0]
    labels, longest = range(len(table)), len(durations)
    by_table, by_duration = shared.by_table[0], shared.by_duration
    zero = arb(0)
    starts, ends = [[zero for _ in labels] for _ in range(length + 1)], [[zero for _ in labels]] * (length + 1)
    after: Rows = [[]] * (length + 1)  # up beta
    after[length], ends[length] = list(up[length]), list(alpha[length])
    for t in range(length - 1, -1, -1):
        leave = []
        for c in labels:
            parts = [durations[k - 1][c] * after[t + k][c] for k in range(1, min(longest, length - t) + 1)]
            own, total = enter[t][c], _sum(parts)
            for k, part in enumerate(parts):
                by_duration[k, c] += own * part
            starts[t][c] = own * total
            leave.append(down[t][c] * total)
        beta = [_sum([x * y for x, y in zip(table[b], leave, strict=True)]) for b in labels]
        for b in labels:
            for c in labels:
                by_table[b, c] += alpha[t][b] * table[b][c] * leave[c]
        if t:
            ends[t] = [x * y for x, y in zip(alpha[t], beta, strict=True)]
        after[t] = [x * y for x, y in zip(up[t], beta, strict=True)]
    return starts, ends


def _backward_by_duration(
    shared: _Shared, length: int, alpha: Rows, enter: Rows, up: Rows, down: Rows
) -> tuple[Rows, Rows]:
    """The same for a transition of each duration."""
    durations, tables = shared.durations, shared.tables
    labels, longest = range(len(durations[0])), len(durations)
    zero = arb(0)
    starts, ends = [[zero for _ in labels] for _ in range(length + 1)], [[zero for _ in labels]] * (length + 1)
    after: Rows = [[]] * (length + 1)
    after[length], ends[length] = list(up[length]), list(alpha[length])
    for t in range(length - 1, -1, -1):
        beta = [zero for _ in labels]
        for k in range(1, min(longest, length - t) + 1):
            for c in labels:
                rest = down[t][c] * durations[k - 1][c] * after[t + k][c]
                total = zero
                for b in labels:
                    part = tables[k - 1][b][c] * rest
                    beta[b] += part
                    share = alpha[t][b] * part
                    shared.by_table[k - 1, b, c] += share
                    total += share
                shared.by_duration[k - 1, c] += total
                starts[t][c] += total
        if t:
            ends[t] = [x * y for x, y in zip(alpha[t], beta, strict=True)]
        after[t] = [x * y for x, y in zip(up[t], beta, strict=True)]
    return starts, ends


def _sum(parts: list[Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
