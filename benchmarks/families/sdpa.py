"""SDPA's rows of ``gradoracle bench sdpa``: the kernels against PyTorch's backends, a verdict against gradcheck."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from gradoracle.kernels import sdpa as kernels
from gradoracle.properties.sdpa import FAMILY, KERNELS
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from gradoracle.cases.sample import build
from gradoracle.check.evidence import Evidence
from gradoracle.execution.bench import Row, Watch, Work
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.kernel import Kernel
from gradoracle.oracle.truth import Oracle

from . import works
from .oracle import certified_vjp
from .record import recorded_vjp


def _by(backend: SDPBackend) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """PyTorch's SDPA with one backend; all [B, H, T or M, D]."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v)

    return attention


TORCH = Kernel("PyTorch math", "sdpa", _by(SDPBackend.MATH), options={"scale": (), "causal": ()})
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "mem-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
OURS, SPLIT = "gradoracle", "gradoracle bf16x6"
SMALL = {"B": 1, "H": 2, "T": 33, "M": 65, "D": 32, "Dv": 32}


def rows(device: str, seconds: float | None = None) -> Iterator[Row]:
    """On CUDA the rows of the kernels; on the CPU those of the oracle, the record of accesses and gradcheck.

    ``seconds`` limits each gradcheck.
    """
    if device == "cuda":
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            yield from _first_order(dtype, 4, 16, 4096, 64)
        for dtype in (torch.bfloat16, torch.float32):
            yield from _second_order(dtype, 4, 16, 2048, 64)
        yield from _first_order(torch.bfloat16, 4, 16, 4096, 128)
    else:
        yield certified_vjp(FAMILY, SMALL)
        yield recorded_vjp(FAMILY, KERNELS[0], {"B": 2, "H": 4, "T": 257, "M": 257, "D": 64, "Dv": 64})
        yield _verdict_against_gradcheck("PyTorch's math kernel", TORCH, seconds)
        yield _verdict_against_gradcheck("the shipped kernel", KERNELS[0], seconds)


def _tensors(dtype: torch.dtype, *shape: int) -> list[Tensor]:
    """q, k, v, a cotangent and three tangents of one shape."""
    generator = torch.Generator("cuda").manual_seed(0)
    return [torch.randn(shape, device="cuda", dtype=torch.float32, generator=generator).to(dtype) for _ in range(7)]


def _ours(dtype: torch.dtype) -> dict[str, str]:
    """The names of our entries, and the precision of their dots."""
    return {OURS: "ieee"} | ({SPLIT: "bf16x6"} if dtype == torch.float32 else {})


def _first_order(dtype: torch.dtype, B: int, H: int, T: int, D: int) -> Iterator[Row]:
    q, k, v, g, *_ = _tensors(dtype, B, H, T, D)
    label = f"{str(dtype)[6:]} B{B} H{H} T{T} M{T} D{D}"

    def ours_forward(precision: str) -> Work:
        return partial(kernels.forward, q, k, v, precision=precision)

    def ours_backward(precision: str) -> Work:
        o, m, l = kernels.forward(q, k, v, precision=precision)
        return lambda: kernels.backward(q, k, v, g, m, l, o=o, precision=precision)

    ours = _ours(dtype)
    forward: dict[str, Callable[[], Work]] = {who: partial(ours_forward, how) for who, how in ours.items()}
    forward |= {who: partial(works.forward, _by(backend), (q, k, v)) for who, backend in BACKENDS.items()}
    yield Row(f"sdpa forward {label}", forward, floating_point_operations=4.0 * B * H * T * T * D, ours=tuple(ours))
    backward: dict[str, Callable[[], Work]] = {who: partial(ours_backward, how) for who, how in ours.items()}
    backward |= {who: partial(works.backward, _by(backend), (q, k, v), g) for who, backend in BACKENDS.items()}
    yield Row(f"sdpa backward {label}", backward, floating_point_operations=10.0 * B * H * T * T * D, ours=tuple(ours))


def _second_order(dtype: torch.dtype, B: int, H: int, T: int, D: int) -> Iterator[Row]:
    q, k, v, g, tq, tk, tv = _tensors(dtype, B, H, T, D)
    label = f"{str(dtype)[6:]} B{B} H{H} T{T} M{T} D{D}"

    inputs, tangents = (q, k, v), (tq, tk, tv)

    def ours_jvp(precision: str) -> Work:
        return partial(kernels.jvp, *inputs, *tangents, precision=precision)

    def ours_hvp(precision: str) -> Work:
        return partial(kernels.hvp, *inputs, g, *tangents, precision=precision)

    ours = _ours(dtype)
    jvp: dict[str, Callable[[], Work]] = {who: partial(ours_jvp, how) for who, how in ours.items()}
    jvp |= {who: partial(works.jvp, _by(backend), inputs, tangents) for who, backend in BACKENDS.items()}
    yield Row(f"sdpa JVP {label}", jvp, ours=tuple(ours))
    hvp: dict[str, Callable[[], Work]] = {who: partial(ours_hvp, how) for who, how in ours.items()}
    hvp |= {who: partial(works.hvp, _by(backend), inputs, g, tangents) for who, backend in BACKENDS.items()}
    yield Row(f"sdpa {works.HVP} {label}", hvp, ours=tuple(ours))


def _small(dtype: str) -> Case:
    return Case("sdpa", SMALL, dtype)


def _verdict_against_gradcheck(whose: str, kernel: Kernel, seconds: float | None) -> Row:
    """Forward and all VJPs of a kernel, judged in float32 and float64, against gradcheck, which needs float64.

    Each verdict has its own oracle, so that nothing is traced before. gradcheck calls the kernel twice for each element
    of the inputs, and its backward twice for each element of the output.
    """

    def verdict(dtype: str) -> list[Finding]:
        sample = build(_small(dtype), FAMILY.signature)
        evidence = Evidence(_small(dtype), sample, KernelRunner(FAMILY, kernel), Oracle(FAMILY))
        return [*evidence.compare(Derivative.FORWARD), *evidence.compare(Derivative.VJP)]

    def gradcheck(who: str, fast: bool) -> Work:
        sample = build(_small("float64"), FAMILY.signature)
        leaves = [t.detach().requires_grad_() for t in sample.inputs.values()]
        elements = sum(t.numel() for t in (*sample.inputs.values(), *sample.cotangents.values()))

        def work() -> bool:
            watch = Watch(who, 0 if fast else 2 * elements, seconds)

            def backward(_: Tensor) -> None:
                watch.count()

            def watched(*inputs: Tensor) -> Tensor:
                watch.count()
                o: Tensor = kernel.call(*inputs)
                if o.requires_grad:
                    o.register_hook(backward)
                return o

            return torch.autograd.gradcheck(watched, leaves, fast_mode=fast)

        return work

    def passes(result: bool) -> str:
        return "passes" if result else "fails"

    fast, slow = "gradcheck, fast mode", "gradcheck, defaults"
    ours = {f"{OURS} ({dtype})": dtype for dtype in ("float32", "float64")}
    return Row(
        f"a verdict on {whose}, B1 H2 T33 M65 D32: forward and all VJPs, tracing included",
        {
            **{who: partial(partial, verdict, dtype) for who, dtype in ours.items()},
            fast: partial(gradcheck, fast, True),
            slow: partial(gradcheck, slow, False),
        },
        describe={**dict.fromkeys(ours, _said), fast: passes, slow: passes},
        ours=tuple(ours),
    )


def _said(findings: list[Finding]) -> str:
    """``o holds, dq holds ...``."""
    return " ".join(f"{finding.tensor} {finding.outcome.value}" for finding in findings)
