"""The semi-CRF's rows of ``gradoracle bench semicrf``: its kernels on a GPU; without one, its oracles at length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from gradoracle.kernels import semicrf as kernels
from gradoracle.properties.semicrf import FAMILY, KERNELS
from gradoracle.properties.semicrf.readings import balls as balls
from gradoracle.properties.semicrf.readings import recursion as recursion
from torch import Tensor

from gradoracle.execution.bench import Row, Work

from . import works
from .record import recorded_vjp

OURS, LOOP = "gradoracle", "torch eager, position by position"
READ, CERTIFIED = (1, 131_072, 8, 4), (1, 100_000, 3, 2)
"""B, T, K and C of the problems for the float64 recursion and for balls."""
RECORDED = {"B": 2, "T": 513, "K": 8, "C": 4}
Function = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def _inputs(B: int, T: int, K: int, C: int, device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """cum_scores [B T+1 C] of a random walk, transition [C C], duration_bias [K C], float32; full lengths [B]."""
    generator = torch.Generator().manual_seed(0)
    steps = torch.randn(B, T, C, generator=generator)
    cum = torch.cat([torch.zeros(B, 1, C), steps.cumsum(1)], 1)
    transition, bias = torch.randn(C, C, generator=generator), torch.randn(K, C, generator=generator)
    return cum.to(device), transition.to(device), bias.to(device), torch.full((B,), T, device=device)


def _loop(cum: Tensor, transition: Tensor, bias: Tensor, lengths: Tensor) -> Tensor:
    """log Z [B] of full lengths: a logsumexp over K and C at each position, by operators and autograd."""
    alphas = [torch.zeros_like(cum[:, 0])]  # [B C] by the label before
    for t in range(1, cum.shape[1]):
        longest = min(t, len(bias))
        before = torch.stack(alphas[-longest:][::-1], 1)  # [B k C], the nearest first
        before = torch.logsumexp(before[:, :, :, None] + transition, 2)
        score = cum[:, t, None] - cum[:, t - longest : t].flip(1) + bias[:longest]
        alphas.append(torch.logsumexp(before + score, 1))
    return torch.logsumexp(alphas[-1], 1)


def rows(device: str, seconds: float | None = None) -> Iterator[Row]:
    """On CUDA the rows of the kernels; on the CPU those of the oracles and of the record of accesses."""
    if device != "cuda":
        yield from _oracles()
        yield recorded_vjp(FAMILY, KERNELS[0], RECORDED, ["transition"])
        return
    for B, T, K, C, loop in (
        (1, 100_000, 8, 4, False),
        (4, 10_000, 32, 24, False),
        (4, 1_000, 32, 24, True),
        (1, 1_048_576, 3, 2, False),
    ):
        yield from _timed(B, T, K, C, loop)


def _timed(B: int, T: int, K: int, C: int, loop: bool) -> Iterator[Row]:
    *inputs, lengths = _inputs(B, T, K, C, "cuda")
    g = torch.linspace(0.5, 1.5, B, device="cuda")
    tangents = [torch.randn_like(x) for x in inputs]

    def of_floats(function: Function) -> works.Function:
        return lambda *floats: function(*floats, lengths)

    for what, how, peer in (
        ("forward", partial(works.forward, inputs=inputs), True),
        ("forward and backward", partial(works.forward_and_backward, inputs=inputs, g=g), True),
        ("JVP", partial(works.jvp, inputs=inputs, tangents=tangents), False),
        (works.HVP, partial(works.hvp, inputs=inputs, g=g, tangents=tangents), False),
    ):
        entries: dict[str, Callable[[], Work]] = {OURS: partial(how, of_floats(kernels.semicrf))}
        if peer and loop:
            entries[LOOP] = partial(how, of_floats(_loop))
        yield Row(f"semicrf {what} float32 B{B} T{T} K{K} C{C}", entries)


def _oracles() -> Iterator[Row]:
    """log Z and all gradients of one sequence, by the float64 recursion and in balls."""

    def float64() -> Work:
        named = dict(zip(("cum_scores", "transition", "duration_bias", "lengths"), _inputs(*READ, "cpu"), strict=True))
        return lambda: recursion.gradients(named, torch.ones(1))

    def in_balls() -> Work:
        names = ("cum_scores", "transition", "duration_bias", "lengths")
        named = dict(zip(names, _inputs(*CERTIFIED, "cpu"), strict=True))
        return lambda: balls.certify(named, torch.ones(1))

    def radius(found: balls.Certified) -> str:
        widest = max(float(ball.radius.max()) for ball in (found.log_z, *found.gradients.values()))
        return f"proven radius at most {widest:.0e}"

    for what, (B, T, K, C), how, said in (
        ("float64 reading", READ, float64, {}),
        ("certified reading", CERTIFIED, in_balls, {OURS: radius}),
    ):
        yield Row(f"{what} of log Z and all gradients, semicrf B{B} T{T} K{K} C{C}", {OURS: how}, describe=said)
