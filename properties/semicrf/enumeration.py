"""Semi-CRF by enumeration: every labelled segmentation of a short sequence, one after the other, in mpmath.

Independent of the definition, of the recursions and of PyTorch's derivatives: the gradient is a sum of the paths'
probabilities over the segments that they hold, the Hessian a covariance of what two numbers sum to along a path.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from mpmath import mp, mpf
from numpy.typing import NDArray
from torch import Tensor

MOST_PATHS = 300_000

Exact = NDArray[Any]  # of mpf
Segment = tuple[int, int, int, int]  # (t, k, label before, label)


@dataclass(frozen=True)
class Enumeration:
    """All paths of a batch, with their probabilities.

    Attributes:
        log_z: [B] of mpf, natural log units; -inf where every path is forbidden.
        paths: for each sequence (probability, segments) of every path that no -inf forbids.
        shapes: of the float inputs, by name.
        digits: decimal digits that numbers were computed with.
    """

    log_z: Exact
    paths: tuple[tuple[tuple[mpf, tuple[Segment, ...]], ...], ...]
    shapes: Mapping[str, tuple[int, ...]]
    digits: int

    def gradients(self, cotangent: Tensor) -> dict[str, Exact]:
        """Of <cotangent [B], log Z>, by the name of the input and in its shape."""
        return self._spread([[p for p, _ in paths] for paths in self.paths], cotangent)

    def jvp(self, tangents: Mapping[str, Tensor]) -> Exact:
        """[B] derivatives of log Z along tangents by the name of the input."""
        with mp.workdps(self.digits):
            return _exact([mp.fsum(m) for m in self._moved(tangents)])

    def hvp(self, tangents: Mapping[str, Tensor], cotangent: Tensor) -> dict[str, Exact]:
        """The Hessian of <cotangent, log Z> times tangents, by the name of the input."""
        with mp.workdps(self.digits):
            weights = []
            for paths, moved in zip(self.paths, self._moved(tangents), strict=True):
                mean = mp.fsum(moved)
                weights.append([m - p * mean for (p, _), m in zip(paths, moved, strict=True)])
        return self._spread(weights, cotangent)

    def expected_segments(self) -> Exact:
        """[B] expected numbers of segments."""
        with mp.workdps(self.digits):
            return _exact([mp.fsum(p * len(segments) for p, segments in paths) for paths in self.paths])

    def marginals(self, sequence: int) -> dict[Segment, mpf]:
        """The probability of each (t, k, label before, label) of one sequence."""
        found: dict[Segment, mpf] = {}
        with mp.workdps(self.digits):
            for p, segments in self.paths[sequence]:
                for segment in segments:
                    found[segment] = found.get(segment, mpf(0)) + p
        return found

    def _moved(self, tangents: Mapping[str, Tensor]) -> list[list[mpf]]:
        """Probability times the derivative of the score, for each path of each sequence."""
        moved = {name: tensor.detach().double().numpy() for name, tensor in tangents.items()}
        return [
            [p * mp.fsum(_parts(moved, b, segments)) for p, segments in paths] for b, paths in enumerate(self.paths)
        ]

    def _spread(self, weights: list[list[mpf]], cotangent: Tensor) -> dict[str, Exact]:
        """The sum of weight times cotangent over the paths, onto every entry that a path's score reads."""
        found = {name: np.full(shape, mpf(0), dtype=object) for name, shape in self.shapes.items()}
        with mp.workdps(self.digits):
            for b, (paths, own) in enumerate(zip(self.paths, weights, strict=True)):
                scale = mpf(float(cotangent[b]))
                for (_, segments), weight in zip(paths, own, strict=True):
                    for name, place, sign in _entries(self.shapes, b, segments):
                        found[name][place] += sign * scale * weight
        return found


def enumerate_paths(inputs: Mapping[str, Tensor], digits: int = 50) -> Enumeration:
    """All paths of short sequences; inputs by the names of the definition, ``lengths`` [B] among them.

    Raises:
        ValueError: there are more than ``MOST_PATHS`` paths.
    """
    given = {n: t.detach().cpu().double().numpy() for n, t in inputs.items() if t.is_floating_point()}
    labels, longest = given["cum_scores"].shape[2], given["duration_bias"].shape[0]
    log_z, found = [], []
    with mp.workdps(digits):
        for b, length in enumerate(inputs["lengths"].tolist()):
            scores, paths = [], []
            for segments in _segmentations(length, longest, labels):
                parts = _parts(given, b, segments)
                if all(part != -mp.inf for part in parts):
                    scores.append(mp.fsum(parts))
                    paths.append(segments)
                if len(paths) > MOST_PATHS:
                    raise ValueError(
                        f"length {length} with K={longest}, C={labels} has more than {MOST_PATHS} paths; expected "
                        "about T <= 7, K <= 4, C <= 3"
                    )
            weights = [mp.exp(score) for score in scores]
            z = mp.fsum(weights)
            log_z.append(mp.log(z) if z else -mp.inf)
            found.append(tuple((weight / z, segments) for weight, segments in zip(weights, paths, strict=True)))
    return Enumeration(_exact(log_z), tuple(found), {n: x.shape for n, x in given.items()}, digits)


def numbers(exact: Exact) -> Tensor:
    """float64 of an array of mpf."""
    flat = [float(x) for x in np.asarray(exact, dtype=object).reshape(-1)]
    return torch.tensor(flat, dtype=torch.float64).reshape(np.shape(exact))


def _segmentations(length: int, longest: int, labels: int) -> Iterator[tuple[Segment, ...]]:
    """Every path from 0 to ``length``, the label before the first segment included."""
    for durations in _compositions(length, longest):
        for chosen in product(range(labels), repeat=len(durations) + 1):
            starts = [sum(durations[:i]) for i in range(len(durations))]
            yield tuple(
                (t, k, before, label)
                for t, k, before, label in zip(starts, durations, chosen[:-1], chosen[1:], strict=True)
            )


def _compositions(length: int, longest: int) -> Iterator[tuple[int, ...]]:
    if length == 0:
        yield ()
    for first in range(1, min(length, longest) + 1):
        for rest in _compositions(length - first, longest):
            yield (first, *rest)


def _entries(names: Mapping[str, Any], b: int, segments: tuple[Segment, ...]) -> Iterator[tuple[str, Any, int]]:
    """(input, index, sign) of every entry that the score of a path sums."""
    for t, k, before, label in segments:
        yield "cum_scores", (b, t + k, label), 1
        yield "cum_scores", (b, t, label), -1
        yield "duration_bias", (k - 1, label), 1
        if "transition" in names:
            yield "transition", (before, label), 1
        if "transition_by_duration" in names:
            yield "transition_by_duration", (k - 1, before, label), 1
        if "proj_start" in names:
            yield "proj_start", (b, t, label), 1
        if "proj_end" in names:
            yield "proj_end", (b, t + k - 1, label), 1


def _parts(given: Mapping[str, NDArray[np.float64]], b: int, segments: tuple[Segment, ...]) -> list[mpf]:
    """What the score of a path sums, or its derivative where ``given`` are tangents."""
    return [sign * mpf(float(given[name][place])) for name, place, sign in _entries(given, b, segments)]


def _exact(values: list[mpf]) -> Exact:
    found = np.empty(len(values), dtype=object)
    found[:] = values
    return found
