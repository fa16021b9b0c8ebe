"""The semi-CRF's rows: the kernels against torch-semimarkov's recursion and one by PyTorch's operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

import torch
from gradoracle.kernels import semicrf as kernels
from gradoracle.properties.semicrf.readings import recursion as recursion
from kernel_speed.stopwatch import Work
from torch import Tensor

from . import truth, works

OURS, LOOP = "gradoracle", "torch eager, position by position"
RECURSION, PACKAGE = "torch-semimarkov's recursion", "flash-semicrf"
LENGTHS = (1024, 4096, 16_384, 65_536, 262_144, 1_048_576)  # T of a scan
LONGEST_LOOP = 1000  # T
LONGEST_STEPS = 820_000  # positions times durations that a peer takes one after the other
NAMES = ("cum_scores", "transition", "duration_bias", "lengths")
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


def _package(cum: Tensor, transition: Tensor, bias: Tensor, lengths: Tensor) -> Tensor:
    """log Z by the package that torch-semimarkov is named today."""
    from flash_semicrf.streaming import semi_crf_streaming_forward

    return semi_crf_streaming_forward(  # type: ignore[no-any-return]
        cum, transition, bias, lengths, len(bias), use_triton=True
    )


def _recursion(cum: Tensor, transition: Tensor, bias: Tensor, lengths: Tensor) -> Tensor:
    from . import semimarkov

    return semimarkov.log_z(cum, transition, bias)


def rows() -> Iterator[works.Row]:
    for B, T, K, C in ((1, 100_000, 8, 4), (4, 10_000, 32, 24), (4, 1_000, 32, 24), (1, 1_048_576, 3, 2)):
        yield from timed(B, T, K, C)


def scans() -> Iterator[works.Row]:
    """Forward and backward of one sequence over T, on both paths of the kernels."""
    for K, C, longest in ((8, 4, 1_048_576), (32, 24, 262_144)):
        for T in (each for each in LENGTHS if each <= longest):
            yield from (row for row in timed(1, T, K, C) if row.derivative == "forward and backward")


def timed(B: int, T: int, K: int, C: int, device: str = "cuda") -> Iterator[works.Row]:
    """Every derivative of log Z of full lengths.

    Operations are those of the recursion: at each position the sum over the labels before, C C, and over the durations,
    K C, a multiplication and an addition each; in backward those of alpha, of beta and of what they give together; for
    tangents twice as many.
    """

    @cache
    def made() -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return _inputs(B, T, K, C, device)

    def inputs() -> works.Tensors:
        return made()[:3]

    @cache
    def tangents() -> works.Tensors:
        return [torch.randn_like(x) for x in inputs()]

    def g() -> works.Tensors:
        return [torch.linspace(0.5, 1.5, B, device=device)]

    def of_floats(function: Function) -> works.Function:
        return lambda *floats: function(*floats, made()[3])

    once, table = 2.0 * B * T * C * (C + K), 4.0 * B * (T + 1) * C
    for derivative, how, times, tables in (
        ("forward", partial(works.forward, inputs=inputs), 1, 1),
        ("forward and backward", partial(works.forward_and_backward, inputs=inputs, g=g), 3, 2),
        ("JVP", partial(works.jvp, inputs=inputs, tangents=tangents), 2, 2),
        (works.HVP, partial(works.hvp, inputs=inputs, g=g, tangents=tangents), 6, 3),
    ):
        entries: dict[str, works.Factory] = {OURS: partial(how, of_floats(kernels.semicrf))}
        if derivative.startswith("forward"):
            for who, peer in ((RECURSION, _recursion), (PACKAGE, _package)):
                entries[who] = _unless_long(partial(how, of_floats(peer)), T, K)
        if derivative.startswith("forward") and T <= LONGEST_LOOP:
            entries[LOOP] = partial(how, of_floats(_loop))
        yield works.row(
            "semicrf",
            derivative,
            torch.float32,
            {"B": B, "T": T, "K": K, "C": C},
            entries,
            operations=times * once,
            moved=tables * table,
            arithmetic={who: "float64" for who in (OURS, RECURSION, PACKAGE)},
            ready=(LOOP,),
            truth=truth.Truth(
                truth.names(derivative, "log Z", ("cum", "transition", "bias")),
                partial(partial, _exact, derivative, made, tangents, g),
                part=truth.whole,
            ),
        )


def _exact(derivative: str, made: Callable[[], works.Tensors], tangents: works.Given, g: works.Given) -> list[Tensor]:
    """A derivative of all sequences by the float64 recursion, on the CPU."""
    given = dict(zip(NAMES, made(), strict=True))
    moved = dict(zip(NAMES, tangents(), strict=False))
    if derivative in ("forward", "JVP"):
        return [recursion.log_z(given), *([recursion.jvp(given, moved)] if derivative == "JVP" else [])]
    found = recursion.hvp(given, moved, g()[0]) if derivative == works.HVP else recursion.gradients(given, g()[0])
    return [found[name] for name in NAMES[:3]]


def _unless_long(factory: works.Factory, T: int, K: int) -> works.Factory:
    """A factory of a peer that makes one step after the other, refused where a call would take many seconds."""

    def made() -> Work:
        if T * K > LONGEST_STEPS:
            raise works.TooLarge(f"not run: {T * K} steps, one after the other; at most {LONGEST_STEPS} are timed")
        return factory()

    return made
