"""Works: rows to time, and the calls that they time, of a function of float tensors and of its derivatives.

``function`` comes first, so that rows share the rest by ``functools.partial``. What is set up here is not timed.
Tensors are asked for in calls (``Given``), so that rows can be listed where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from kernel_speed.stopwatch import Factory, Work
from torch import Tensor

from .truth import Truth

HVP = "exact HVP (forward and backward included)"
SCANNED = (512, 1024, 2048, 4096, 8192, 16_384, 32_768, 65_536)  # queries, keys or positions of a scan
COMPILED_AT = (512, 2048, 8192, 32_768)  # of these, those at which a peer is compiled for each shape
LARGEST_SCORES = 18 << 30  # bytes of float32 scores that a peer may store
ON_TENSOR_CORES = "bf16x6"  # the precision of float32 dots by products of bfloat16 parts
Function = Callable[..., Tensor]
Tensors = Sequence[Tensor]
Given = Callable[[], Tensors]


class TooLarge(Exception):
    """A peer is not asked for this work; the message says why."""


@dataclass(frozen=True)
class Row:
    """One piece of work on a device, the implementations to compare, and what a floor of its time is made of.

    Attributes:
        work: such as "sdpa forward bfloat16 B4 H16 T4096 M4096 D64".
        entries: name -> factory; ours first, then peers. A factory returns the call that is timed, so that set-up
            (a forward before a backward) is not.
        ours: the entries that are ours; peers are compared with each.
        family: its name.
        derivative: "forward", "backward", "forward and backward", "JVP" or ``HVP``.
        dtype: of the inputs, as "bfloat16".
        dims: as they stand in ``work``.
        operations: of floating point, in the work.
        moved: bytes that any implementation moves: each input read once, each output written once.
        arithmetic: name -> what an entry multiplies in, if not in the dtype: "tf32", "tf32x3", "bf16x6", "float64".
        ready: the entries that compile nothing when they are first called.
        truth: what results are compared with; None: nothing.
        scan: "both" where the work is a point of a plot too, "only" where it is that alone.
    """

    work: str
    entries: Mapping[str, Factory]
    ours: tuple[str, ...]
    family: str
    derivative: str
    dtype: str
    dims: Mapping[str, int]
    operations: float
    moved: float
    arithmetic: Mapping[str, str]
    ready: frozenset[str]
    truth: Truth | None
    scan: str = ""


def row(
    family: str,
    derivative: str,
    dtype: torch.dtype,
    dims: Mapping[str, int],
    entries: Mapping[str, Factory],
    *,
    operations: float,
    moved: float,
    arithmetic: Mapping[str, str] | None = None,
    ready: Iterable[str] = (),
    ours: tuple[str, ...] = (),
    truth: Truth | None = None,
) -> Row:
    """A row whose ``work`` is "FAMILY DERIVATIVE DTYPE B4 H16 ..."; ``ours``: the first entry, where none is named."""
    kind = str(dtype).removeprefix("torch.")
    sizes = " ".join(f"{dim}{size}" for dim, size in dims.items())
    return Row(
        f"{family} {derivative} {kind} {sizes}",
        entries,
        ours=ours or (next(iter(entries)),),
        family=family,
        derivative=derivative,
        dtype=kind,
        dims=dims,
        operations=operations,
        moved=moved,
        arithmetic=arithmetic or {},
        ready=frozenset(ready),
        truth=truth,
    )


class Normal:
    """Tensors of normal values (``Given``), the same at every call, made at the first."""

    def __init__(self, shapes: Sequence[Sequence[int]], dtype: torch.dtype, device: str, seed: int = 0) -> None:
        self.shapes, self.dtype, self.device, self.seed = shapes, dtype, device, seed
        self.factors = (1.0,) * len(shapes)
        self.drawn: Tensors = []

    def __call__(self) -> Tensors:
        if not self.drawn:
            generator = torch.Generator(self.device).manual_seed(self.seed)
            drawn = (torch.randn(tuple(shape), device=self.device, generator=generator) for shape in self.shapes)
            self.drawn = [values.to(self.dtype) for values in drawn]
        return [x if factor == 1 else x * factor for x, factor in zip(self.drawn, self.factors, strict=True)]

    @contextmanager
    def scaled(self, *factors: float) -> Iterator[None]:
        """Tensors are that times their values, in calls meanwhile; those without a factor as they are."""
        before = self.factors
        self.factors = (*factors, *before[len(factors) :])
        try:
            yield
        finally:
            self.factors = before


def columns(given: Normal) -> Given:
    """The same tensors [B, H, N, .] laid out as [B, N, H, .], once for all calls."""

    @cache
    def made(_: tuple[float, ...]) -> Tensors:
        return [x.transpose(1, 2).contiguous() for x in given()]

    return lambda: made(given.factors)


def forward(function: Function, inputs: Given) -> Work:
    given = inputs()

    def call() -> Tensor:
        with torch.no_grad():
            return function(*given)

    return call


def backward(function: Function, inputs: Given, g: Given) -> Work:
    """The VJP of ``g`` alone."""
    leaves, (cotangent,) = _leaves(inputs()), g()
    out = function(*leaves)
    return lambda: torch.autograd.grad(out, leaves, cotangent, retain_graph=True)


def forward_and_backward(function: Function, inputs: Given, g: Given) -> Work:
    leaves, (cotangent,) = _leaves(inputs()), g()
    return lambda: torch.autograd.grad(function(*leaves), leaves, cotangent)


def jvp(function: Function, inputs: Given, tangents: Given) -> Work:
    return partial(torch.func.jvp, function, tuple(inputs()), tuple(tangents()))


def hvp(function: Function, inputs: Given, g: Given, tangents: Given) -> Work:
    """The gradient of <tangents, VJP of ``g``>, with the forward and the backward that it needs."""
    leaves, (cotangent,), moved = _leaves(inputs()), g(), tangents()

    def call() -> object:
        first = torch.autograd.grad(function(*leaves), leaves, cotangent, create_graph=True)
        return torch.autograd.grad(first, leaves, moved)

    return call


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.compile`` of a function for the shapes of one row, once; nothing that was compiled before counts.

    Several shapes of one function would be compiled for any shape, and from the eighth on not at all.
    """

    @cache
    def made() -> Callable[..., Any]:
        from torch._functorch import config as functorch
        from torch._inductor import config as inductor

        torch._dynamo.reset()
        inductor.autotune_local_cache = False  # what another process found, beside others, is not taken over
        functorch.donated_buffer = False  # a backward that is called again and again keeps what it reads
        return torch.compile(function, dynamic=False)

    return lambda *given: made()(*given)


def compiled_jvp(function: Function, inputs: Given, tangents: Given) -> Factory:
    """``jvp`` as one compiled function."""
    whole = compiled(lambda given, moved: torch.func.jvp(function, given, moved))
    return lambda: partial(whole, tuple(inputs()), tuple(tangents()))


def compiled_hvp(function: Function, inputs: Given, g: Given, tangents: Given) -> Factory:
    """The HVP as one compiled function, forward over reverse: what is compiled has no double backward."""

    def gradients(cotangent: Tensor, *given: Tensor) -> Any:
        return torch.func.vjp(function, *given)[1](cotangent)

    whole = compiled(lambda given, cotangent, moved: torch.func.jvp(partial(gradients, cotangent), given, moved)[1])
    return lambda: partial(whole, tuple(inputs()), g()[0], tuple(tangents()))


def unless_large(factory: Factory, scores: float) -> Factory:
    """A factory of a peer that stores ``scores`` scores, refused where they are more than ``LARGEST_SCORES``."""

    def made() -> Work:
        if 4 * scores > LARGEST_SCORES:
            raise TooLarge(f"not run: {4 * scores / (1 << 30):.0f} GiB of float32 scores would be stored")
        return factory()

    return made


def switched(factory: Factory, switch: Callable[[bool], object], state: Callable[[], bool]) -> Factory:
    """A factory whose set-up and calls run with one of PyTorch's switches on."""

    def on(work: Callable[[], Any]) -> Any:
        before = state()
        switch(True)
        try:
            return work()
        finally:
            switch(before)

    return lambda: partial(on, on(factory))


def _leaves(inputs: Tensors) -> list[Tensor]:
    return [x.detach().requires_grad_() for x in inputs]
