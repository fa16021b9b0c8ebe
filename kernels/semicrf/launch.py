"""The one place that launches a kernel: what it takes is named once, and each kernel picks what it knows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..launching import launching
from .guardrails import Problem

STRIDED = ("cum", "start", "end", "tcum", "tstart", "tend")
STRIDES = tuple(f"{name}_{axis}" for name in STRIDED for axis in "btc")
TABLES = (
    "transition", "ttransition", "duration", "tduration", "states", "tstates", "far", "tfar", "xs", "txs", "ys", "tys",
    "operators", "toperators", "finals", "tfinals", "norms", "log_z", "tlog_z", "alpha", "talpha", "enter", "tenter",
    "beta", "tbeta", "alpha_norms", "beta_norms", "g", "tg", "partials", "pair_partials",
)  # fmt: skip
RESULTS = ("dcum", "dstart", "dend", "probabilities")
SCALARS = (
    "B", "T", "C", "K", "sources", "chunks", "first", "length", "steps", "window", "origin", "kept", "per_k", "per_in",
    "per_out", "starts", "ends", "keeps_x", "keeps_y", "size", "wants_z", "count", "alpha_kept", "beta_kept", "tiles",
    "wants_cum", "wants_start", "wants_end", "wants_transition",
)  # fmt: skip

UNSPECIALISED: dict[str, list[str]] = {
    "do_not_specialize": [*STRIDES, *SCALARS],
    "do_not_specialize_on_alignment": [*STRIDED, *TABLES, *RESULTS, "lengths"],
}
"""Options of triton.jit by which one compiled kernel serves every dim, stride and pointer."""

Given = Sequence[Any]  # cum_scores, transition, duration_bias, proj_start, proj_end


def arguments(problem: Problem, given: Given, lengths: torch.Tensor, moved: Given | None = None) -> dict[str, Any]:
    """Return what every kernel may take, by name: inputs with their strides, their tangents, dims.

    Shared parameters are widened to float64 here. A tangent that is None is zero.
    """
    cum, transition, duration, start, end = given
    absent = torch.zeros(1, dtype=torch.float64, device=problem.device)
    named: dict[str, Any] = {name: absent for name in (*TABLES, *RESULTS)}
    strided = {"cum": cum, "start": start, "end": end}
    if moved is not None:
        for name, tensor, primal in (("tcum", moved[0], cum), ("tstart", moved[3], start), ("tend", moved[4], end)):
            if primal is not None:
                strided[name] = primal.new_zeros(1).expand(primal.shape) if tensor is None else tensor
        named["ttransition"] = _wide(torch.zeros_like(transition) if moved[1] is None else moved[1])
        named["tduration"] = _wide(torch.zeros_like(duration) if moved[2] is None else moved[2])
    for name in STRIDED:
        tensor = strided.get(name)
        named[name] = cum if tensor is None else tensor
        strides = (0, 0, 0) if tensor is None else tensor.stride()
        named.update({f"{name}_{axis}": stride for axis, stride in zip("btc", strides, strict=True)})
    named |= {
        "transition": _wide(transition),
        "duration": _wide(duration),
        "lengths": lengths.clamp(0, problem.positions).to(torch.int64).contiguous(),
        "B": problem.batch,
        "T": problem.positions,
        "C": problem.labels,
        "K": problem.durations,
        "chunks": problem.chunks,
        "length": problem.chunk,
        "first": 0,
        "origin": -1,
        "per_k": problem.labels**2 if problem.per_duration else 0,
        "per_in": problem.labels,
        "per_out": 1,
        "starts": int(start is not None),
        "ends": int(end is not None),
        "keeps_x": 0,
        "keeps_y": 0,
        "kept": 1,
        "sources": 1,
    }
    return named


def launch(kernel: Any, problem: Problem, programs: int, named: Mapping[str, Any], **constants: Any) -> None:
    """Launch a kernel with the arguments that it names.

    Raises:
        ValueError: where the blocks need more shared memory or registers than the GPU has.
    """
    taken = {name: named[name] for name in kernel.arg_names if name in named}
    blocks = problem.blocks
    sizes = f"K = {problem.durations}, C = {problem.labels}"
    with launching(kernel, problem.device, problem.dtype, blocks, sizes):
        kernel[(programs,)](**taken, **constants, num_warps=blocks.num_warps, num_stages=blocks.num_stages)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float64).contiguous()
