"""The semi-CRF as a kernel in float32 has it, for long sequences: forward and backward in the log domain, by numba.

Numbers are relative to norms in float64, which are taken at each position. The faults are those that only long
sequences or large scores show, and one in the index of durations.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradoracle.model.machine_code import jitted

single = np.float32
FAULTS = ("", "norms in float32", "scores cut at 1e6", "durations one off")
LARGEST = 1e6  # what the seeds cut scores and log Z at


@jitted
def _log_sum(terms: Any, count: int) -> Any:
    top = terms[:count].max()
    if top == -np.inf:
        return top
    total = single(0.0)
    for i in range(count):
        total = single(total + single(math.exp(single(terms[i] - top))))
    return single(top + single(math.log(total)))


@jitted
def _norm(norm: float, short: bool) -> float:
    return np.float64(single(norm)) if short else norm


@jitted
def _bounded(norm: float, cut: bool) -> float:
    return min(max(norm, -LARGEST), LARGEST) if cut else norm


@jitted
def _run(cum: Any, tr: Any, dur: Any, short: bool, cut: bool, dcum: Any, dtr: Any, ddur: Any) -> float:
    last, labels, longest = len(cum) - 1, cum.shape[1], len(dur)
    shape = (last + 1, labels)
    alpha, enter = np.zeros(shape, single), np.zeros(shape, single)
    beta, leave = np.zeros(shape, single), np.zeros(shape, single)
    ahead, back = np.zeros(last + 1), np.zeros(last + 1)
    terms = np.zeros(max(longest, labels), single)
    for t in range(last + 1):
        if t > 0:
            reach = min(longest, t)
            for c in range(labels):
                for k in range(1, reach + 1):
                    score = single(single(cum[t, c] - cum[t - k, c]) + dur[k - 1, c])
                    terms[k - 1] = single(score + single(enter[t - k, c] + single(ahead[t - k] - ahead[t - 1])))
                alpha[t, c] = _log_sum(terms, reach)
            top = alpha[t].max()
            ahead[t] = _bounded(_norm(ahead[t - 1] + top, short), cut)
            for c in range(labels):
                alpha[t, c] = single(alpha[t, c] - top)
        for c in range(labels):
            for b in range(labels):
                terms[b] = single(alpha[t, b] + tr[b, c])
            enter[t, c] = _log_sum(terms, labels)
    log_z = ahead[last] + _log_sum(alpha[last], labels)
    for t in range(last - 1, -1, -1):
        reach = min(longest, last - t)
        for c in range(labels):
            for k in range(1, reach + 1):
                score = single(single(cum[t + k, c] - cum[t, c]) + dur[k - 1, c])
                terms[k - 1] = single(score + single(beta[t + k, c] + single(back[t + k] - back[t + 1])))
            leave[t, c] = _log_sum(terms, reach)
        for b in range(labels):
            for c in range(labels):
                terms[c] = single(tr[b, c] + leave[t, c])
            beta[t, b] = _log_sum(terms, labels)
        top = beta[t].max()
        back[t] = _bounded(_norm(back[t + 1] + top, short), cut)
        for b in range(labels):
            beta[t, b] = single(beta[t, b] - top)
    for t in range(last + 1):
        for c in range(labels):
            total = single(0.0)
            for k in range(1, min(longest, last - t) + 1):
                score = single(single(cum[t + k, c] - cum[t, c]) + dur[k - 1, c])
                norm = single(ahead[t] + back[t + k] - log_z)
                p = single(math.exp(single(single(score + single(enter[t, c] + beta[t + k, c])) + norm)))
                total = single(total + p)
                ddur[k - 1, c] += p
            ends = single(0.0)
            if t > 0:
                norm = single(ahead[t] + back[t] - log_z)
                ends = single(math.exp(single(single(alpha[t, c] + beta[t, c]) + norm)))
            dcum[t, c] = single(ends - total)
            for b in range(labels if t < last else 0):
                norm = single(ahead[t] + back[t + 1] - log_z)
                dtr[b, c] += math.exp(single(single(single(alpha[t, b] + tr[b, c]) + leave[t, c]) + norm))
    return log_z


def run(inputs: Mapping[str, Tensor], cotangent: Tensor, fault: str = "") -> dict[str, Tensor]:
    """log Z and gradients by the engine's names; full lengths, [C, C] transition, no projections, float32."""
    cum, tr, dur = (inputs[name].detach().numpy() for name in ("cum_scores", "transition", "duration_bias"))
    shift = int(fault == "durations one off")
    dur = np.ascontiguousarray(np.roll(dur, shift, 0))
    dcum, dtr, ddur = np.zeros_like(cum), np.zeros(tr.shape), np.zeros(dur.shape)
    logs = []
    for b, weight in enumerate(cotangent.double().tolist()):
        pairs, durations = np.zeros(tr.shape), np.zeros(dur.shape)
        given = (np.ascontiguousarray(cum[b]), np.ascontiguousarray(tr), dur)
        logs.append(_run(*given, fault == FAULTS[1], fault == FAULTS[2], dcum[b], pairs, durations))
        dcum[b] *= single(weight)
        dtr += weight * pairs
        ddur += weight * durations
    ddur = np.roll(ddur, -shift, 0)
    found = {"log_z": np.array(logs), "dcum_scores": dcum, "dtransition": dtr, "dduration_bias": ddur}
    return {name: torch.from_numpy(np.ascontiguousarray(x)).float() for name, x in found.items()}


class Single(torch.autograd.Function):
    """``run`` as autograd sees it, for kernels under test."""

    @staticmethod
    def forward(ctx: Any, cum: Tensor, tr: Tensor, dur: Tensor, fault: str) -> Tensor:
        ctx.save_for_backward(cum, tr, dur)
        ctx.fault = fault
        return run({"cum_scores": cum, "transition": tr, "duration_bias": dur}, torch.ones(len(cum)), fault)["log_z"]

    @staticmethod
    def backward(ctx: Any, *g: Tensor) -> Any:
        inputs = dict(zip(("cum_scores", "transition", "duration_bias"), ctx.saved_tensors, strict=True))
        found = run(inputs, g[0], ctx.fault)
        return found["dcum_scores"], found["dtransition"], found["dduration_bias"], None
