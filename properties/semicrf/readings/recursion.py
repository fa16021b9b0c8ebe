"""Semi-CRF in float64 at any length: log Z, gradients, JVP and HVP by forward-backward with exact exponents.

Shares nothing with the definition but the mathematics, and nothing with the kernels. Relative errors of a weight are
about 1e-16 times the square root of the number of steps: 1e-13 at T = 1 048 576, 1e-6 of the rounding of a float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from gradoracle.properties.semicrf.readings import scaled as scaled
from numpy.typing import NDArray
from torch import Tensor

from gradoracle.model.machine_code import HAS_NUMBA

Array = NDArray[Any]

MOST_WITHOUT_NUMBA = 2_000_000  # segments with their labels: about a minute of plain Python
_NOT_TOLD_APART = 2.0**-50  # 8 roundings: alpha, beta, exponentials, two products and a quotient, in both masses
_EXACT = np.zeros(scaled.WORST)
_TABLES = ("transition", "transition_by_duration")


@dataclass(frozen=True)
class ForwardBackward:
    """alpha, beta [B T+1 C] relative to their norms: the sum over the labels is 1; 0 past the length.

    ``alpha_norm``, ``beta_norm`` [B T+1] are the logarithms of the sums, so that log alpha is log(alpha) + alpha_norm;
    -inf where all is forbidden and past the length. ``log_z`` [B]. All float64, natural log units.
    """

    alpha: Tensor
    alpha_norm: Tensor
    beta: Tensor
    beta_norm: Tensor
    log_z: Tensor


@dataclass(frozen=True)
class Marginals:
    """Probabilities, float64, 0 past the length and where every path is forbidden.

    Attributes:
        segment: [B T K C] of a segment of label c from t to t + k, at [t, k - 1].
        start: [B T C] that a segment of label c begins at t.
        end: [B T C] that one ends at t + 1.
        boundary: [B T+1] that t is a boundary; 1 at 0 and at the length.
    """

    segment: Tensor
    start: Tensor
    end: Tensor
    boundary: Tensor


@dataclass(frozen=True)
class Pass:
    """What one run of the recursion gave: gradients (or the Hessian's products) of <cotangent, log Z> by input.

    ``ends`` [B T C] are the probabilities that a segment of c ends at t + 1 (or their derivatives along the tangents),
    without the cotangent. ``masses`` are the gradients without their signs: the sums of what was added and of what was
    subtracted. ``squares`` are the sums of squares of what was added up, for inputs that all positions share.
    """

    log_z: Tensor
    jvp: Tensor
    gradients: dict[str, Tensor]
    ends: Tensor
    masses: dict[str, Tensor]
    squares: dict[str, Tensor]


def log_z(inputs: Mapping[str, Tensor]) -> Tensor:
    """[B] float64 log partition functions; inputs by the names of the definition.

    Raises:
        ValueError: a score beyond ``LARGEST_SCORE`` in magnitude, or more work than plain Python can do.
    """
    problem = Problem(inputs)
    return torch.tensor([problem.sequence(b).log_z for b in range(problem.batch)], dtype=torch.float64)


def gradients(inputs: Mapping[str, Tensor], cotangent: Tensor) -> dict[str, Tensor]:
    """Of <cotangent [B], log Z>, float64 by the name of the input; raises as ``log_z``."""
    return run(Problem(inputs), cotangent).gradients


def jvp(inputs: Mapping[str, Tensor], tangents: Mapping[str, Tensor]) -> Tensor:
    """[B] derivatives of log Z along tangents by the name of the input; raises as ``log_z``."""
    problem = Problem(inputs, tangents)
    return torch.tensor([problem.sequence(b).z[2] for b in range(problem.batch)], dtype=torch.float64)


def hvp(inputs: Mapping[str, Tensor], tangents: Mapping[str, Tensor], cotangent: Tensor) -> dict[str, Tensor]:
    """The Hessian of <cotangent, log Z> times tangents, exact: derivatives of both recursions; raises as ``log_z``."""
    return run(Problem(inputs, tangents), cotangent).gradients


def forward_backward(inputs: Mapping[str, Tensor]) -> ForwardBackward:
    """alpha and beta of every sequence; raises as ``log_z``."""
    problem = Problem(inputs)
    found: list[tuple[Array, Array]] = []
    logs = []
    for b in range(problem.batch):
        one = problem.sequence(b)
        one.run_back()
        found += [_normalised(*one.alpha[:2], one.length), _normalised(*one.beta[:2], one.length)]
        logs.append(one.log_z)
    (alpha, alpha_norm), (beta, beta_norm) = (map(np.stack, zip(*found[i::2], strict=True)) for i in (0, 1))
    tensors = (torch.from_numpy(x) for x in (alpha, alpha_norm, beta, beta_norm))
    return ForwardBackward(*tensors, torch.tensor(logs, dtype=torch.float64))


def marginals(inputs: Mapping[str, Tensor]) -> Marginals:
    """Probabilities of segments, starts, ends and boundaries; memory O(B T K C); raises as ``log_z``."""
    problem = Problem(inputs)
    shape = (problem.batch, problem.steps, problem.longest, problem.labels)
    segment, start, end = np.zeros(shape), np.zeros((*shape[:2], shape[3])), np.zeros((*shape[:2], shape[3]))
    boundary = np.zeros((problem.batch, problem.steps + 1))
    for b in range(problem.batch):
        one = problem.sequence(b)
        begun, ended = one.masses(np.zeros_like(problem.tables), np.zeros_like(problem.durations), segment[b])
        start[b], end[b] = begun[:-1], ended[1:]
        boundary[b] = ended.sum(-1)
        boundary[b, 0] = 1.0 if one.z[0] > 0 else 0.0
    return Marginals(*(torch.from_numpy(x) for x in (segment, start, end, boundary)))


def _difference(ended: Array, begun: Array) -> Array:
    """ended - begun [T+1 C], 0 where they differ by less than the last roundings of the two alone.

    What the recursion errs by before these only adds to that, so a smaller difference has no correct digit, and 0
    is no further from the truth. Larger ones may be noise, too; their radius is the budget's in units of float64.
    """
    difference = ended - begun
    return np.where(np.abs(difference) <= _NOT_TOLD_APART * (np.abs(ended) + np.abs(begun)), 0.0, difference)


def _of_one_label(length: int, steps: int, dual: bool) -> Array:
    """[T+1 1] ended - begun of one label: all that ends at a place begins there, but at 0 and at the length."""
    found = np.zeros((steps + 1, 1))
    found[0], found[length] = (0.0, 0.0) if dual or not length else (-1.0, 1.0)
    return found


def run(problem: Problem, cotangent: Tensor, worst: Array = _EXACT) -> Pass:
    """Gradients of <cotangent [B], log Z>, or the Hessian's products where the problem has tangents.

    Args:
        problem: the inputs.
        cotangent: [B].
        worst: the largest errors of a kernel (``semicrf_scaled.WORST`` numbers), which are added to the derivatives
            along the tangents; none by default.
    """
    found = {name: np.zeros(shape) for name, shape in problem.shapes.items()}
    sizes = {name: np.zeros(shape) for name, shape in problem.shapes.items()}
    tables, durations = np.zeros_like(problem.tables), np.zeros_like(problem.durations)
    all_tables, all_durations = np.zeros_like(tables), np.zeros_like(durations)
    logs, moved, exact = [], [], bool(worst[0] == 0.0)
    ends = np.zeros((problem.batch, problem.steps, problem.labels))
    for b, weight in enumerate(cotangent.detach().double().tolist()):
        one = problem.sequence(b, worst)
        own_tables, own_durations = np.zeros_like(tables), np.zeros_like(durations)
        if exact and one.fixed:  # then all that is counted is 0 or 1, and derivatives are 0
            logs.append(one.log_z)
            moved.append(one.z[2])
            continue
        begun, ended = one.masses(own_tables, own_durations)
        for total, signless, own in ((tables, all_tables, own_tables), (durations, all_durations, own_durations)):
            half = len(total) // 2
            total[:half] += weight * own[:half]
            total[half:] += weight**2 * own[half:]
            signless[:half] += abs(weight) * own[:half]
        single = exact and problem.labels == 1 and math.isfinite(one.log_z)
        changes = _of_one_label(one.length, problem.steps, one.dual) if single else _difference(ended, begun)
        found["cum_scores"][b] = weight * changes
        ends[b] = ended[1:]
        sizes["cum_scores"][b] = abs(weight) * (ended + begun)
        for name, mass in (("proj_start", begun[:-1]), ("proj_end", ended[1:])):
            if name in found:
                found[name][b], sizes[name][b] = weight * mass, abs(weight) * mass
        logs.append(one.log_z)
        moved.append(one.z[2])
    squares = {}
    for name, total, signless in ((problem.table, tables, all_tables), ("duration_bias", durations, all_durations)):
        half, shape = len(total) // 2, problem.shapes[name]
        found[name], sizes[name] = total[:half].reshape(shape), signless[:half].reshape(shape)
        squares[name] = total[half:].reshape(shape)
    log_z, slope = (torch.tensor(numbers, dtype=torch.float64) for numbers in (logs, moved))
    return Pass(log_z, slope, _tensors(found), torch.from_numpy(ends), _tensors(sizes), _tensors(squares))


class Problem:
    """The inputs of a batch as float64 arrays, with the tangents where there are any."""

    def __init__(self, inputs: Mapping[str, Tensor], tangents: Mapping[str, Tensor] | None = None) -> None:
        self.scores = {n: _array(t) for n, t in inputs.items() if t.is_floating_point()}
        self.lengths = [int(n) for n in inputs["lengths"].tolist()]
        self.tangents = None if tangents is None else {n: _array(t) for n, t in tangents.items()}
        self.batch, places, self.labels = self.scores["cum_scores"].shape
        self.steps, self.longest = places - 1, len(self.scores["duration_bias"])
        (self.table,) = (name for name in _TABLES if name in self.scores)
        self.shapes = {name: x.shape for name, x in self.scores.items()}
        self._require()
        self.kinds = self.scores[self.table].reshape(-1, self.labels, self.labels)
        self.tables = np.zeros((2 * len(self.kinds), *self.kinds.shape[1:]))
        self.durations = np.zeros((2 * self.longest, self.labels))

    def of(self, group: Mapping[str, Array] | None, name: str, b: int | None = None) -> Array:
        """One input, or its tangent, of sequence ``b``; without rows where there is none."""
        if group is None or name not in group:
            return np.zeros((0, self.labels))
        return group[name] if b is None else group[name][b]

    def sequence(self, b: int, worst: Array = _EXACT) -> Sequence:
        """The recursion of one sequence, run forward."""
        return Sequence(self, b, worst)

    def _require(self) -> None:
        for name, x in self.scores.items():
            finite = np.abs(x[np.isfinite(x)])
            if finite.size and float(finite.max()) > scaled.LARGEST_SCORE:
                raise ValueError(
                    f"{name} holds {float(finite.max()):.3g}; the float64 recursion takes scores up to "
                    f"{scaled.LARGEST_SCORE:.3g} in magnitude"
                )
        work = sum(self.lengths) * self.longest * self.labels * (1 if self.table == "transition" else self.labels)
        if not HAS_NUMBA and work > MOST_WITHOUT_NUMBA:
            raise ValueError(
                f"the float64 recursion over {work:.1e} segments needs numba, which is not installed; "
                'install the extra "fast" (numba, gmpy2), or choose smaller sizes'
            )


class Sequence:
    """One sequence: its weights, alpha, and on request beta; each a list [m, e, log derivative]."""

    def __init__(self, problem: Problem, b: int, worst: Array) -> None:
        self.problem, self.worst, self.length = problem, worst, problem.lengths[b]
        self.dual = problem.tangents is not None
        of, labels, steps = problem.of, problem.labels, problem.steps
        self.own = [of(problem.scores, name, b) for name in ("cum_scores", "proj_start", "proj_end")]
        self.dur = problem.scores["duration_bias"]
        self.tr = self._table(problem.scores[problem.table], of(problem.tangents, problem.table), (-1, labels, labels))
        self.du = self._table(self.dur, of(problem.tangents, "duration_bias"), self.dur.shape)
        cum, start, end = self.own
        moved = [of(problem.tangents, name, b) for name in ("cum_scores", "proj_start", "proj_end")]
        self.up = self._product(cum, end, moved[0], moved[2], 1)
        self.down = self._product(-cum, start, -moved[0], moved[1], 0)
        self.alpha, self.enter = self._state(), self._state()
        with np.errstate(all="ignore"):
            scaled.forward(self.length, *self._scores, *self.alpha, *self.enter)
        self.z = self._total()
        self.log_z = _log(self.z[0], int(self.z[1]))
        self.beta: list[Array] = []
        self._shape = (steps + 1, labels)

    @property
    def _scores(self) -> tuple[Any, ...]:
        cum, start, end = self.own
        return (cum, self.dur, start, end, self.worst, *self.tr, *self.du, *self.up, *self.down)

    @property
    def fixed(self) -> bool:
        """Whether the products of a Hessian are exactly 0, there being one path alone."""
        if not self.dual or not math.isfinite(self.log_z):
            return False
        _, start, end = self.own
        scores = (self.problem.kinds, self.dur, start, end)
        some = self.dur.size == 1 or any(np.isneginf(each).any() for each in scores)  # all paths are there otherwise
        return some and bool(scaled.paths(self.length, *scores) == 1)

    def run_back(self) -> None:
        """Beta, what follows a start, and beta times the weight of an end."""
        self.beta, self.leave, self.after = self._state(), self._state(), self._state()
        with np.errstate(all="ignore"):
            scaled.backward(self.length, *self._scores, *self.beta, *self.leave, *self.after)

    def masses(self, by_table: Array, by_duration: Array, segments: Array | None = None) -> tuple[Array, Array]:
        """(begun, ended) [T+1 C], with sums added to ``by_table`` and ``by_duration`` (``semicrf_scaled.masses``)."""
        begun, ended = np.zeros(self._shape), np.zeros(self._shape)
        if self.z[0] == 0.0 or self.length == 0:
            return begun, ended
        self.run_back()
        if self.worst[0] > 0.0:
            self._loosen()
        each = np.zeros((0, 1, 1)) if segments is None else segments
        cum, start, end = self.own
        with np.errstate(all="ignore"):
            scaled.masses(
                self.length, cum, self.dur, start, end, self.worst, *self.tr, *self.du, *self.down,
                *self.alpha, *self.enter, *self.beta, *self.leave, *self.after, self.z, begun, ended, by_table,
                by_duration, each,
            )  # fmt: skip
        return begun, ended

    def _loosen(self) -> None:
        """Add to the derivatives what a kernel rounds where it multiplies weights into a share, at its worst.

        In logarithms: a + b, (a + b) + c, a norm n and p = a + b + c + n are rounded, and |n| is no more than |p| and
        |a + b + c| together, so all are off by at most u (3 |a| + 3 |b| + 2 |c| + 2 |p|). a, b, c are alpha or what
        enters, beta or what leaves, relative to the largest label, and a segment's score (``scaled.masses`` adds it)
        or a transition. ``scaled.share`` adds 2 |p|, share by share.
        """
        of, unit = logs_of, 3.0 * float(self.worst[0])
        alpha, beta = of(self.alpha), of(self.beta)
        top, last = (np.nan_to_num(x.max(-1, keepdims=True), neginf=0.0) for x in (alpha, beta))
        after = last[np.minimum(np.arange(len(last)) + 1, len(last) - 1)]  # leave is relative to the next norm
        with np.errstate(all="ignore"):
            into = of(self.enter) - of(self.down)  # enter has the start's score in it, which a kernel adds later
            near = [alpha - top, into - top, beta - last, beta - last, of(self.leave) - after]
        for state, logs in zip((self.alpha, self.enter, self.beta, self.after, self.leave), near, strict=True):
            state[2] = state[2] + unit * np.nan_to_num(np.abs(logs), posinf=0.0)
        self.tr[2] = self.tr[2] + unit * np.nan_to_num(np.abs(of(self.tr)), posinf=0.0)

    def _table(self, scores: Array, moved: Array, shape: tuple[int, ...]) -> list[Array]:
        flat = scores.reshape(-1)
        m, e = np.zeros(len(flat)), np.zeros(len(flat), np.int64)
        with np.errstate(all="ignore"):
            scaled.tables(flat, m, e)
        d = moved.reshape(shape) if self.dual else np.zeros([0] * len(shape))
        return [m.reshape(shape), e.reshape(shape), np.ascontiguousarray(d)]

    def _product(self, main: Array, extra: Array, moved: Array, moved_extra: Array, first: int) -> list[Array]:
        """exp(main) [T+1 C], times exp(extra) [T C] from row ``first`` on."""
        m, e, d = self._table(main, moved.copy(), main.shape)
        rows = slice(first, first + len(extra))
        if len(extra):
            by, at, _ = self._table(extra, np.zeros_like(extra), extra.shape)
            m[rows] *= by
            e[rows] += at
            if self.dual:
                d[rows] += moved_extra
        return [m, e, d]

    def _state(self) -> list[Array]:
        shape = (self.problem.steps + 1, self.problem.labels)
        d = np.zeros(shape if self.dual else (0, 0))
        return [np.zeros(shape), np.zeros(shape, np.int64), d]

    def _total(self) -> Array:
        m, e, w = 0.0, 0, 0.0
        last = self.length
        for c in range(self.problem.labels):
            by = float(self.alpha[0][last, c])
            d = float(self.alpha[2][last, c]) if self.dual else 0.0
            m, e, w = scaled.plus(m, e, w, by, int(self.alpha[1][last, c]), by * d)
        return np.array([m, float(e), w / m if m > 0 else 0.0])


def logs_of(weights: list[Array]) -> Array:
    """Logarithms of weights (m, e, ...); -inf where they are 0."""
    with np.errstate(all="ignore"):
        logs: Array = np.log(weights[0]) + weights[1] * math.log(2.0)
    return logs


def _log(m: float, e: int) -> float:
    if m == 0.0:
        return -math.inf
    if not math.isfinite(m):
        return m
    return scaled.log_of(m, e)


def _normalised(m: Array, e: Array, length: int) -> tuple[Array, Array]:
    """Weights [T+1 C] divided by their sum over the labels, and the logarithms of the sums [T+1]."""
    top = np.where(m > 0, e, np.iinfo(np.int64).min // 2).max(-1, keepdims=True)
    with np.errstate(all="ignore"):
        inside = np.ldexp(m, np.clip(e - top, -2000, 2000))
        total = inside.sum(-1)
        relative = np.where(total[:, None] > 0, inside / total[:, None], 0.0)
        logs = np.where(total > 0, np.log(total) + top[:, 0] * math.log(2.0), -np.inf)
    relative[length + 1 :], logs[length + 1 :] = 0.0, -np.inf
    return relative, logs


def _tensors(arrays: Mapping[str, Array]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(x)) for name, x in arrays.items()}


def _array(tensor: Tensor) -> Array:
    return np.ascontiguousarray(tensor.detach().to("cpu", torch.float64).numpy())
