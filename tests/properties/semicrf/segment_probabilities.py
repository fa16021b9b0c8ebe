"""The shipped semi-CRF with one named fault in scores, gradients, products, alpha, beta or marginals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradoracle.model.kernel import Kernel
from tests.properties.faults import edited
from tests.properties.semicrf.segmentations import SHIPPED

Change = Callable[[Tensor, Tensor], Tensor]  # a tensor and the lengths

ONE_PERCENT = 1.01


def _at_length(tensor: Tensor, lengths: Tensor) -> Tensor:
    at = torch.arange(tensor.shape[1])
    return (at == lengths[:, None])[:, :, None]


def _one(tensor: Tensor, place: int, label: int) -> Tensor:
    """[T+1 C] 1 at one place and label, 0 elsewhere."""
    return (torch.arange(tensor.shape[1]) == place)[:, None] & (torch.arange(tensor.shape[2]) == label)


# what is wrong with the gradient of an input: fault -> (input, change)
GRADIENTS: dict[str, tuple[str, Change]] = {
    "dcum of one label one percent large at one place": (
        "cum_scores",
        lambda g, n: g * (1.0 + 0.01 * _one(g, 3, 0)),
    ),
    "last end left out of dcum": ("cum_scores", lambda g, n: g.masked_fill(_at_length(g, n), 0.0)),
    "first start left out of dcum": ("cum_scores", lambda g, n: torch.cat([torch.zeros_like(g[:, :1]), g[:, 1:]], 1)),
    "dcum past the length": ("cum_scores", lambda g, n: g + 1e-9),
    "labels of dcum crossed": ("cum_scores", lambda g, n: g.roll(1, -1)),
    "dtransition transposed": ("transition", lambda g, n: g.transpose(-1, -2)),
    "dtransition of another duration": ("transition", lambda g, n: g.roll(1, 0) if g.dim() == 3 else g),
    "dduration off by one": ("duration_bias", lambda g, n: g.roll(1, 0)),
    "labels of dduration crossed": ("duration_bias", lambda g, n: g.roll(1, 1)),
    "first place left out of dproj_start": (
        "proj_start",
        lambda g, n: torch.cat([torch.zeros_like(g[:, :1]), g[:, 1:]], 1),
    ),
    "dproj_start one place late": ("proj_start", lambda g, n: g.roll(1, 1)),
    "dproj_end one place late": ("proj_end", lambda g, n: g.roll(1, 1)),
    "dproj_end past the length": ("proj_end", lambda g, n: g + 1e-9),
    "dproj_end one percent large": ("proj_end", lambda g, n: ONE_PERCENT * g),
}
SCORES: dict[str, tuple[str, Change]] = {
    "cum_scores clamped": ("cum_scores", lambda x, n: x.clamp(-0.5, 0.5)),
    "steps beyond the range of exp lost": (
        "cum_scores",
        lambda x, n: torch.where(x.diff(dim=1, prepend=x[:, :1]).abs() > 709, torch.nan, x),
    ),
    "cum_scores of one place later": ("cum_scores", lambda x, n: torch.cat([x[:, 1:], x[:, -1:]], 1)),
    "durations off by one": ("duration_bias", lambda x, n: x.roll(1, 0)),
    "transition transposed": ("transition", lambda x, n: x.transpose(-1, -2)),
    "transition of another duration": ("transition", lambda x, n: x.roll(1, 0) if x.dim() == 3 else x),
    "labels of proj_start crossed": ("proj_start", lambda x, n: x.roll(1, -1)),
    "proj_end left out": ("proj_end", lambda x, n: 0 * x),
    "ring of two positions": ("duration_bias", lambda x, n: x if len(x) > 1 else torch.cat([x, x])),
    "a label apart": ("duration_bias", lambda x, n: x + 0.01 * (torch.arange(x.shape[1]) == 0)),
}
# of what forward_backward gives: fault -> (alpha, beta, alpha_norm, beta_norm, log_z changed)
TABLES: dict[str, Callable[[list[Tensor], Tensor], list[Tensor]]] = {
    "alpha one place late": lambda x, n: [x[0].roll(1, 1), *x[1:]],
    "norm of another checkpoint": lambda x, n: [*x[:2], torch.cat([x[2][:, :3], x[2][:, 3:] + 1e-3], 1), *x[3:]],
    "norms in float32": lambda x, n: [*x[:2], x[2].float().double(), x[3].float().double(), *x[4:]],
    "virtual label left out": lambda x, n: [
        torch.cat([x[0][:, :1] - x[0].new_tensor([0.0, 1.0, 0.0]), x[0][:, 1:]], 1),
        *x[1:],
    ],
    "beta past the length": lambda x, n: [x[0], x[1].clamp_min(-1e30), *x[2:]],
}
# of what marginals gives: fault -> (position, boundary, segment changed)
MARGINALS: dict[str, Callable[[list[Tensor]], list[Tensor]]] = {
    "position marginals one percent large": lambda x: [ONE_PERCENT * x[0], *x[1:]],
    "segments of another duration": lambda x: [*x[:2], x[2].roll(1, 2)],
    "position marginals past the length": lambda x: [x[0] + 1e-9, *x[1:]],
    "segments of another place": lambda x: [*x[:2], x[2].roll(1, 1)],
    "labels of segments crossed": lambda x: [*x[:2], x[2].roll(1, 3)],
    "boundaries one place late": lambda x: [x[0], x[1].roll(1, 1), x[2]],
}


def _faulty(fault: str) -> Callable[..., Tensor]:
    """The kernel with a fault in what it reads, or in the gradient that it gives."""

    def call(cum_scores, transition, duration_bias, lengths, *, proj_start=None, proj_end=None, blocks=None) -> Tensor:
        given = {"cum_scores": cum_scores, "transition": transition, "duration_bias": duration_bias}
        given |= {n: t for n, t in (("proj_start", proj_start), ("proj_end", proj_end)) if t is not None}
        if fault in SCORES and SCORES[fault][0] in given:
            name, change = SCORES[fault]
            given[name] = change(given[name], lengths)
        if fault in GRADIENTS and GRADIENTS[fault][0] in given:
            name, change = GRADIENTS[fault]
            given[name] = edited(given[name], lambda g: change(g, lengths))
        log_z = SHIPPED.call(**given, lengths=lengths, blocks=blocks)
        return edited(log_z, lambda g: 2 * g) if fault == "cotangent applied twice" else log_z

    return call


def _products(fault: str) -> Callable[..., Any] | None:
    """An explicit HVP with a fault."""
    if not fault.startswith("hvp"):
        return None

    def hvp(
        inputs: Mapping[str, Tensor], tangents: Any, cotangents: Any, options: Any, blocks: Any
    ) -> tuple[Tensor, ...]:
        leaves = {n: t.detach().requires_grad_(t.is_floating_point()) for n, t in inputs.items()}
        floats = [leaf for leaf in leaves.values() if leaf.requires_grad]
        named = {"transition" if n == "transition_by_duration" else n: leaf for n, leaf in leaves.items()}
        with torch.enable_grad():
            log_z = SHIPPED.call(**named)
            first = torch.autograd.grad(log_z, floats, cotangents["log_z"], create_graph=True)
            moved = [tangents[name] for name, leaf in leaves.items() if leaf.requires_grad]
            found = dict(zip(tangents, torch.autograd.grad(first, floats, moved), strict=True))
        if fault == "hvp without the first place":
            found["cum_scores"][:, 0] = 0.0
        if fault == "hvp of duration_bias one percent large":
            found["duration_bias"] = ONE_PERCENT * found["duration_bias"]
        if fault == "hvp of duration_bias off":
            found["duration_bias"] = found["duration_bias"] + 0.01
        return tuple(found.values())

    return hvp


def _slope(fault: str) -> Callable[..., Any] | None:
    """An explicit JVP that leaves out the tangent of the transition."""
    if fault != "jvp without the transition":
        return None

    def jvp(inputs: Mapping[str, Tensor], tangents: Mapping[str, Tensor], options: Any, blocks: Any) -> Any:
        given = {"transition" if n == "transition_by_duration" else n: t for n, t in inputs.items()}
        moved = {n: t for n, t in tangents.items() if not n.startswith("transition")}

        def call(*floats: Tensor) -> Tensor:
            return SHIPPED.call(**{**given, **dict(zip(moved, floats, strict=True))})

        return torch.func.jvp(call, tuple(given[n] for n in moved), tuple(moved.values()))

    return jvp


def _entries(fault: str) -> dict[str, Any]:
    """The entry points, with a fault of what they give."""

    def forward_backward(inputs: Mapping[str, Tensor], options: Any, blocks: Any) -> Any:
        given = dict(inputs)
        if fault == "beta from T":
            given["lengths"] = torch.full_like(given["lengths"], given["cum_scores"].shape[1] - 1)
            late = SHIPPED.extras["forward_backward"](given, options, blocks)
        found = list(SHIPPED.extras["forward_backward"](inputs, options, blocks))
        if fault == "beta from T":
            found[1], found[3] = late.beta, late.beta_norm
        return TABLES[fault](found, inputs["lengths"]) if fault in TABLES else found

    def marginals(inputs: Mapping[str, Tensor], options: Any, blocks: Any) -> Any:
        found = list(SHIPPED.extras["marginals"](inputs, options, blocks))
        return MARGINALS[fault](found) if fault in MARGINALS else found

    return {"forward_backward": forward_backward, "marginals": marginals}


def kernel(fault: str = "") -> Kernel:
    """The shipped kernel, or one with a fault."""
    return replace(
        SHIPPED,
        name=fault or "correct",
        call=_faulty(fault),
        extras=_entries(fault),
        hvp=_products(fault),
        jvp=_slope(fault),
    )
