"""The semi-CRF by hand in eager PyTorch: log-domain recursions in any dtype, with norms, and their faults."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from gradoracle.model.contract import PRESETS
from gradoracle.model.kernel import Kernel

FAULTS = ("norm lost once", "norms in float32", "beta norms of the position before")


def log_z(inputs: Mapping[str, Tensor], *, shift: int = 0, norms: bool = True) -> Tensor:
    """[B] float64 log Z: alpha in the inputs' dtype, less its largest value at each step, those summed in float64.

    Args:
        inputs: by the names of the definition; sequences as long as T.
        shift: a fault: durations are read so many places off.
        norms: whether alpha is held relative to its largest value; else it grows as log Z does.
    """
    cum, duration = inputs["cum_scores"], inputs["duration_bias"].roll(shift, 0)
    table = inputs["transition"] if "transition" in inputs else inputs["transition_by_duration"]
    batch, places, labels = cum.shape
    longest = len(duration)
    tables = table.expand(longest, labels, labels) if table.dim() == 2 else table
    start, end = inputs.get("proj_start"), inputs.get("proj_end")
    ring = cum.new_full((batch, longest, labels), -torch.inf)  # alpha at t - 1, t - 2, ...
    ring = torch.cat([cum.new_zeros(batch, 1, labels), ring[:, 1:]], 1)
    norm = torch.zeros(batch, dtype=torch.float64)
    alpha = ring[:, 0]
    for t in range(1, places):
        reach = min(longest, t)
        before = cum[:, t - reach : t].flip(1)
        edge = cum[:, t, None] - before + duration[:reach]
        if start is not None:
            edge = edge + start[:, t - reach : t].flip(1)
        if end is not None:
            edge = edge + end[:, t - 1, None]
        inside = torch.logsumexp(ring[:, :reach, :, None] + tables[:reach], 2)
        alpha = torch.logsumexp(inside + edge, 1)
        top = alpha.detach().amax(-1, keepdim=True) if norms else torch.zeros_like(alpha[:, :1])
        norm = norm + top[:, 0].double()
        alpha = alpha - top
        ring = torch.cat([alpha[:, None], ring[:, : longest - 1] - top[:, None]], 1)
    return norm + torch.logsumexp(alpha, -1).double()


def gradients(inputs: Mapping[str, Tensor], cotangent: Tensor, *, shift: int = 0) -> dict[str, Tensor]:
    """log Z as float32, and the gradients of <cotangent, log Z>, by the engine's names."""
    leaves = {n: t.detach().requires_grad_() if t.is_floating_point() else t for n, t in inputs.items()}
    result = log_z(leaves, shift=shift)
    expected = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    found = torch.autograd.grad(result, list(expected.values()), cotangent.double())
    return {"log_z": result.detach().float()} | {f"d{n}": g for n, g in zip(expected, found, strict=True)}


class Tables:
    """Alpha and beta of a problem in the inputs' dtype, relative to norms in float64 that are taken at each position.

    Sequences are as long as T. ``fault``: one of ``FAULTS``, in the norms.
    """

    def __init__(self, inputs: Mapping[str, Tensor], fault: str = "") -> None:
        self.cum, self.dur, self.fault = inputs["cum_scores"], inputs["duration_bias"], fault
        table = inputs["transition"] if "transition" in inputs else inputs["transition_by_duration"]
        (self.batch, self.places, labels), self.longest = self.cum.shape, len(self.dur)
        self.tables = table.expand(self.longest, labels, labels) if table.dim() == 2 else table
        none = torch.zeros_like(self.cum[:, 1:])
        self.start, self.end = inputs.get("proj_start", none), inputs.get("proj_end", none)
        self.alpha, self.ahead = self._forward()
        self.log_z = self.ahead[-1] + torch.logsumexp(self.alpha[-1], -1).double()
        self._backward()

    def _edges(self, t: int) -> Tensor:  # [B k c' c] of the segments that begin at t
        reach = min(self.longest, self.places - 1 - t)
        score = self.cum[:, t + 1 : t + 1 + reach] - self.cum[:, t, None] + self.dur[:reach]
        score = score + self.start[:, t, None] + self.end[:, t : t + reach]
        return score[:, :, None] + self.tables[:reach]

    def _settled(self, logs: Tensor, before: Tensor, step: int) -> tuple[Tensor, Tensor]:
        top = logs.amax(-1)
        norm = before + top.double()
        if self.fault == "norms in float32":
            norm = norm.float().double()
        if self.fault == "norm lost once" and step == self.places // 2:
            norm = before
        return logs - top[:, None], norm

    def _forward(self) -> tuple[list[Tensor], list[Tensor]]:
        alpha, norms = [torch.zeros_like(self.cum[:, 0])], [torch.zeros(self.batch, dtype=torch.float64)]
        edges: list[Tensor] = []
        for t in range(1, self.places):
            edges.append(self._edges(t - 1))
            parts = [
                (alpha[t - k] + (norms[t - k] - norms[-1])[:, None].to(self.cum.dtype))[:, :, None]
                + edges[t - k][:, k - 1]
                for k in range(1, min(self.longest, t) + 1)
            ]
            new, norm = self._settled(torch.logsumexp(torch.cat(parts, 1), 1), norms[-1], t)
            alpha.append(new)
            norms.append(norm)
        return alpha, norms

    def _backward(self) -> None:
        last = self.places - 1
        self.beta = [torch.zeros_like(self.cum[:, 0])] * self.places
        self.back = [torch.zeros(self.batch, dtype=torch.float64)] * self.places
        for t in range(last - 1, -1, -1):
            logs = torch.logsumexp(self._from(t).transpose(1, 2).flatten(2), 2)
            self.beta[t], self.back[t] = self._settled(logs, self.back[t + 1], last - t)

    def _from(self, t: int) -> Tensor:
        """[B k c' c] the segments that begin at t with all that follows them, relative to the norm at t + 1."""
        score = self._edges(t)
        ahead = [
            self.beta[t + k] + (self.back[t + k] - self.back[t + 1])[:, None].to(self.cum.dtype)
            for k in range(1, score.shape[1] + 1)
        ]
        return score + torch.stack(ahead, 1)[:, :, None]

    def gradients(self, inputs: Mapping[str, Tensor], cotangent: Tensor) -> dict[str, Tensor]:
        """The gradients of <cotangent, log Z>, by the engine's names."""
        found = {f"d{n}": torch.zeros_like(x) for n, x in inputs.items() if x.is_floating_point()}
        for t in range(self.places - 2, -1, -1):
            offset = (self.ahead[t] + self.back[t + 1] - self.log_z).to(self.cum.dtype)
            logs = self.alpha[t][:, None, :, None] + self._from(t) + offset[:, None, None, None]
            p = logs.exp() * cotangent[:, None, None, None]
            segments, reach = p.sum(2), p.shape[1]
            found["dcum_scores"][:, t + 1 : t + 1 + reach] += segments
            found["dcum_scores"][:, t] -= segments.sum(1)
            found["dduration_bias"][:reach] += segments.sum(0)
            if "transition" in inputs:
                found["dtransition"] += p.sum((0, 1))
            else:
                found["dtransition_by_duration"][:reach] += p.sum(0)
            if "proj_start" in inputs:
                found["dproj_start"][:, t] = segments.sum(1)
                found["dproj_end"][:, t : t + reach] += segments
        return found

    def forward_backward(self) -> tuple[Tensor, ...]:
        """alpha, beta [B T+1 C], their norms [B T+1], log Z [B]; float32, and float64 norms and log Z."""
        back = torch.stack(self.back, 1)
        if self.fault == "beta norms of the position before":
            back = back.roll(1, 1)
        return torch.stack(self.alpha, 1), torch.stack(self.beta, 1), torch.stack(self.ahead, 1), back, self.log_z

    def marginals(self) -> tuple[Tensor, Tensor, Tensor]:
        """position [B T C], boundary [B T+1], segment [B T K C] probabilities in float32."""
        labels, steps = self.cum.shape[2], self.places - 1
        segment = torch.zeros(self.batch, steps, self.longest, labels)
        position, boundary = torch.zeros(self.batch, steps, labels), torch.ones(self.batch, self.places)
        for t in range(steps):
            score = self._edges(t)
            for k in range(1, score.shape[1] + 1):
                norm = (self.ahead[t] + self.back[t + k] - self.log_z).float()
                logs = self.alpha[t][:, :, None] + score[:, k - 1] + self.beta[t + k][:, None] + norm[:, None, None]
                segment[:, t, k - 1] = logs.exp().sum(1)
                position[:, t : t + k] += segment[:, t, k - 1, None]
            boundary[:, t] = segment[:, t].sum((1, 2))
        return position, boundary, segment


def two_sided(inputs: Mapping[str, Tensor], cotangent: Tensor, *, shift: int = 0) -> dict[str, Tensor]:
    """log Z and gradients by forward and backward in the inputs' dtype, as a kernel has them; norms in float64.

    ``shift``: a fault: durations are read so many places off.
    """
    own = Tables({**inputs, "duration_bias": inputs["duration_bias"].roll(shift, 0)})
    found = {"log_z": own.log_z.float()} | own.gradients(inputs, cotangent)
    return found | {"dduration_bias": found["dduration_bias"].roll(-shift, 0)}


def products(inputs: Mapping[str, Tensor], tangents: Mapping[str, Tensor], cotangent: Tensor) -> dict[str, Tensor]:
    """JVP by forward mode over the recursion, and HVP by forward over reverse, by the engine's names."""
    names = [name for name, t in inputs.items() if t.is_floating_point()]

    def value(*floats: Tensor) -> Tensor:
        return log_z({**inputs, **dict(zip(names, floats, strict=True))}).float()

    def pull(*floats: Tensor) -> tuple[Tensor, ...]:
        return torch.func.vjp(value, *floats)[1](cotangent)  # type: ignore[no-any-return]

    own, moved = tuple(inputs[n] for n in names), tuple(tangents[n] for n in names)
    slope = torch.func.jvp(value, own, moved)[1]
    second = torch.func.jvp(pull, own, moved)[1]
    return {"jvp.log_z": slope} | {f"hvp.{n}": x for n, x in zip(names, second, strict=True)}


def called(**options: Any) -> Callable[..., Tensor]:
    """``log_z`` with some options as a kernel has it: in float32, of the arguments of the definition."""

    def call(cum_scores: Tensor, transition: Tensor, duration_bias: Tensor, lengths: Tensor, **given: Any) -> Tensor:
        name = "transition" if transition.dim() == 2 else "transition_by_duration"
        projections = {own: x for own, x in given.items() if x is not None}
        inputs = {"cum_scores": cum_scores, name: transition, "duration_bias": duration_bias, "lengths": lengths}
        return log_z(inputs | projections, **options).float()

    return call


def with_tables(fault: str = "") -> Kernel:
    """A kernel of float32 inside that shows alpha, beta and marginals; ``fault``: one of ``FAULTS`` in them."""

    def tables(inputs: Mapping[str, Tensor], options: Any, blocks: Any) -> tuple[Tensor, ...]:
        return Tables(inputs, fault).forward_backward()

    def marginals(inputs: Mapping[str, Tensor], options: Any, blocks: Any) -> tuple[Tensor, ...]:
        return Tables(inputs, fault).marginals()

    return Kernel(
        fault or "float32 inside", "semicrf", called(), dtypes=("float32",), contracts={"float32": PRESETS["ieee32"]},
        extras={"forward_backward": tables, "marginals": marginals},
    )  # fmt: skip
