"""Linear-chain CRF in float64: log Z and marginals by the forward algorithm, which knows of no segments.

A chain over positions 1 .. n scores emission[t, y_t] + transition[y_(t-1), y_t] at each, y_0 any label with a score of
its own. Shares nothing with the semi-CRF's recursions, and holds alpha and beta relative to their largest label.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Chain:
    """What the forward algorithm gives for one sequence of n positions.

    Attributes:
        log_z: natural log units; log C where n is 0, -inf where every path is forbidden.
        nodes: [n C] the probability of a label at a position.
        edges: [C C] the expected number of steps from one label to another, that from y_0 included.
    """

    log_z: float
    nodes: Array
    edges: Array


def chain(emission: Array, transition: Array) -> Chain:
    """The chain of emissions [n C] and a transition [C C], from label to label; -inf forbids."""
    count, labels = emission.shape
    alpha, norms = np.zeros((count + 1, labels)), []
    for t in range(count):
        alpha[t + 1] = _lse(alpha[t][:, None] + transition, 0) + emission[t]
        norms.append(_level(alpha[t + 1]))
    log_z = math.fsum([*norms, float(_lse(alpha[count], 0))])
    nodes, edges = np.zeros((count, labels)), np.zeros((labels, labels))
    if log_z == -math.inf or count == 0:
        return Chain(log_z, nodes, edges)
    beta = np.zeros(labels)
    for t in range(count - 1, -1, -1):
        step = alpha[t][:, None] + transition + (emission[t] + beta)  # [from to]
        p = np.exp(step - _lse(step.reshape(-1), 0))  # the sum over all pairs is Z at each position
        nodes[t] = p.sum(0)
        edges += p
        beta = _lse(transition + (emission[t] + beta), 1)
        _level(beta)
    return Chain(log_z, nodes, edges)


def _lse(x: Array, axis: int) -> Array:
    top = x.max(axis, keepdims=True)
    top = np.where(top == -np.inf, 0.0, top)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.exp(x - top).sum(axis)) + np.squeeze(top, axis))


def _level(x: Array) -> float:
    """Make the largest 0, in place, and return what it was; 0 where all are -inf."""
    top = float(x.max())
    if top == -math.inf:
        return 0.0
    x -= top
    return top
