"""The semi-CRF by hand in eager PyTorch: log-domain recursions in any dtype, normalised at every step."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


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


def two_sided(inputs: Mapping[str, Tensor], cotangent: Tensor, *, shift: int = 0) -> dict[str, Tensor]:
    """log Z and gradients by forward and backward in the inputs' dtype, as a kernel has them; norms in float64.

    ``shift``: a fault: durations are read so many places off.
    """
    cum, duration = inputs["cum_scores"], inputs["duration_bias"].roll(shift, 0)
    table = inputs["transition"] if "transition" in inputs else inputs["transition_by_duration"]
    (batch, places, labels), longest = cum.shape, len(duration)
    tables = table.expand(longest, labels, labels) if table.dim() == 2 else table
    none = torch.zeros_like(cum[:, 1:])
    start, end = inputs.get("proj_start", none), inputs.get("proj_end", none)

    def edges(t: int) -> Tensor:  # [B k c' c] of the segments that begin at t
        reach = min(longest, places - 1 - t)
        score = cum[:, t + 1 : t + 1 + reach] - cum[:, t, None] + duration[:reach]
        score = score + start[:, t, None] + end[:, t : t + reach]
        return score[:, :, None] + tables[:reach]

    alpha, norms = [torch.zeros_like(cum[:, 0])], [torch.zeros(batch, dtype=torch.float64)]
    for t in range(1, places):
        parts = [
            torch.logsumexp(
                (alpha[t - k] + (norms[t - k] - norms[t - 1])[:, None].to(cum.dtype))[:, :, None] + e[:, k - 1], 1
            )
            for k in range(1, min(longest, t) + 1)
            for e in (edges(t - k),)
        ]
        new = torch.logsumexp(torch.stack(parts, 1), 1)
        top = new.amax(-1)
        alpha.append(new - top[:, None])
        norms.append(norms[-1] + top.double())
    beta = [torch.zeros_like(cum[:, 0])] * places
    after = [torch.zeros(batch, dtype=torch.float64)] * places
    log_z = norms[-1] + torch.logsumexp(alpha[-1], -1).double()
    found = {f"d{n}": torch.zeros_like(x) for n, x in inputs.items() if x.is_floating_point()}
    kind = "dtransition" if table.dim() == 2 else "dtransition_by_duration"
    for t in range(places - 2, -1, -1):
        score = edges(t)
        reach = score.shape[1]
        ahead = torch.stack([beta[t + k] for k in range(1, reach + 1)], 1)  # [B k C]
        shifts = torch.stack([after[t + k] for k in range(1, reach + 1)], 1)  # [B k]
        ahead = ahead + (shifts - after[t + 1][:, None]).to(cum.dtype)[:, :, None]
        score = score + ahead[:, :, None]
        new = torch.logsumexp(score.transpose(1, 2).flatten(2), 2)
        top = new.amax(-1)
        beta[t], after[t] = new - top[:, None], after[t + 1] + top.double()
        offset = (norms[t] + after[t + 1] - log_z).to(cum.dtype)
        p = (alpha[t][:, None, :, None] + score + offset[:, None, None, None]).exp() * cotangent[:, None, None, None]
        segments = p.sum(2)
        found["dcum_scores"][:, t + 1 : t + 1 + reach] += segments
        found["dcum_scores"][:, t] -= segments.sum(1)
        found["dduration_bias"][:reach] += segments.sum(0)
        if table.dim() == 2:
            found[kind] += p.sum((0, 1))
        else:
            found[kind][:reach] += p.sum(0)
        if "proj_start" in inputs:
            found["dproj_start"][:, t] = segments.sum(1)
            found["dproj_end"][:, t : t + reach] += segments
    found["dduration_bias"] = found["dduration_bias"].roll(-shift, 0)
    return {"log_z": log_z.float()} | found


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
