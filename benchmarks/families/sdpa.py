"""SDPA's rows: the kernels against PyTorch's backends, compiled operators and jvp_flash_attention."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from gradoracle.kernels import sdpa as kernels
from kernel_speed.stopwatch import Work
from torch import Tensor
from torch.backends.cuda import allow_fp16_bf16_reduction_math_sdp as allow_reduction
from torch.backends.cuda import fp16_bf16_reduction_math_sdp_allowed as reduction_allowed
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from . import truth, works


def _by(backend: SDPBackend) -> works.Function:
    """PyTorch's SDPA with one backend; all [B, H, T or M, D]."""

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v)

    return attention


def eager(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """o [B, H, T, D] by operators that store every score, for torch.compile, which may know better."""
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v


def _flex(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return flex_attention(q, k, v)  # type: ignore[no-any-return]


def _jvp_flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    from jvp_flash_attention.jvp_attention import JVPAttn

    return JVPAttn.fwd_dual(q, k, v)  # type: ignore[no-any-return]


BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cuDNN": SDPBackend.CUDNN_ATTENTION,
    "mem-efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
OURS, SPLIT = "gradoracle", f"gradoracle {works.ON_TENSOR_CORES}"
REDUCED, TF32 = "math, 16-bit reduction", "math, TF32"
COMPILED, FLEX, JVP_FLASH = "torch.compile", "flex_attention", "jvp_flash_attention"
READY = (*BACKENDS, REDUCED, TF32)
IN_FLOAT32 = {SPLIT: "bf16x6", "mem-efficient": "tf32x3", TF32: "tf32", JVP_FLASH: "tf32"}
TOKENS = 262_144  # B H T of a scan


def rows() -> Iterator[works.Row]:
    half = (torch.bfloat16, torch.float16)
    for dtype, width in [*((dtype, width) for width in (64, 128) for dtype in half), (torch.float32, 64)]:
        yield from first_order(dtype, 4, 16, 4096, width)
    for dtype in (torch.bfloat16, torch.float32):
        yield from second_order(dtype, 4, 16, 2048, 64)


def scans() -> Iterator[works.Row]:
    """Forward and backward over T, B H T fixed: 16 heads, fewer where one batch member has more tokens than that."""
    for T in works.SCANNED:
        heads = min(16, TOKENS // T)
        others = () if T in works.COMPILED_AT else (COMPILED, FLEX)
        yield from first_order(torch.bfloat16, TOKENS // T // heads, heads, T, 64, without=(JVP_FLASH, *others))


def _ours(dtype: torch.dtype) -> dict[str, str]:
    """The names of our entries, and the precision of their dots."""
    return {OURS: "ieee"} | ({SPLIT: works.ON_TENSOR_CORES} if dtype == torch.float32 else {})


def _peers(dtype: torch.dtype, how: Callable[[works.Function], Work], scores: float) -> dict[str, works.Factory]:
    """PyTorch's backends; the one that stores scores also with the switch of PyTorch that makes it faster."""
    found: dict[str, works.Factory] = {who: partial(how, _by(backend)) for who, backend in BACKENDS.items()}
    math = found["math"] = works.unless_large(found["math"], scores)
    if dtype == torch.float32:
        matmul = torch.backends.cuda.matmul
        found[TF32] = works.switched(math, partial(setattr, matmul, "allow_tf32"), lambda: matmul.allow_tf32)
    else:
        found[REDUCED] = works.switched(math, allow_reduction, reduction_allowed)
    return found


def first_order(
    dtype: torch.dtype, B: int, H: int, T: int, D: int, device: str = "cuda", without: tuple[str, ...] = ()
) -> Iterator[works.Row]:
    """Forward and backward of q, k, v [B H T D]."""
    inputs = works.Normal([(B, H, T, D)] * 3, dtype, device)
    g = works.Normal([(B, H, T, D)], dtype, device, seed=1)
    ours = _ours(dtype)
    dot, scores = 2.0 * B * H * T * T * D, 1.0 * B * H * T * T
    tensor = 1.0 * B * H * T * D * dtype.itemsize

    def ours_forward(precision: str) -> Work:
        return partial(kernels.forward, *inputs(), precision=precision)

    def ours_backward(precision: str) -> Work:
        (q, k, v), (cotangent,) = inputs(), g()
        o, m, l = kernels.forward(q, k, v, precision=precision)
        return lambda: kernels.backward(q, k, v, cotangent, m, l, o=o, precision=precision)

    for derivative, own, how, dots, tensors in (
        ("forward", ours_forward, partial(works.forward, inputs=inputs), 2, 4),
        ("backward", ours_backward, partial(works.backward, inputs=inputs, g=g), 5, 7),
    ):
        entries: dict[str, works.Factory] = {who: partial(own, precision) for who, precision in ours.items()}
        entries |= _peers(dtype, how, scores)
        entries[COMPILED] = works.unless_large(partial(how, works.compiled(eager)), scores)
        entries[FLEX] = partial(how, works.compiled(_flex))
        entries[JVP_FLASH] = partial(how, _jvp_flash)
        exact = truth.of_scores(derivative, how, eager, inputs, "o", "qkv")
        yield _row(derivative, dtype, (B, H, T, D), entries, dots * dot, tensors * tensor, exact, without)


def second_order(dtype: torch.dtype, B: int, H: int, T: int, D: int, device: str = "cuda") -> Iterator[works.Row]:
    """JVP and exact HVP of q, k, v [B H T D]."""
    inputs = works.Normal([(B, H, T, D)] * 3, dtype, device)
    g = works.Normal([(B, H, T, D)], dtype, device, seed=1)
    tangents = works.Normal([(B, H, T, D)] * 3, dtype, device, seed=2)
    ours = _ours(dtype)
    dot, scores = 2.0 * B * H * T * T * D, 1.0 * B * H * T * T
    tensor = 1.0 * B * H * T * D * dtype.itemsize

    def ours_jvp(precision: str) -> Work:
        return partial(kernels.jvp, *inputs(), *tangents(), precision=precision)

    def ours_hvp(precision: str) -> Work:
        return partial(kernels.hvp, *inputs(), *g(), *tangents(), precision=precision)

    forward_mode = partial(works.jvp, inputs=inputs, tangents=tangents)
    entries: dict[str, works.Factory] = {who: partial(ours_jvp, precision) for who, precision in ours.items()}
    entries |= _peers(dtype, forward_mode, scores)
    entries[COMPILED] = works.compiled_jvp(eager, inputs, tangents)
    entries[JVP_FLASH] = partial(forward_mode, _jvp_flash)
    exact = truth.of_scores("JVP", forward_mode, eager, inputs, "o", "qkv")
    yield _row("JVP", dtype, (B, H, T, D), entries, 6 * dot, 8 * tensor, exact)

    mixed = partial(works.hvp, inputs=inputs, g=g, tangents=tangents)
    entries = {who: partial(ours_hvp, precision) for who, precision in ours.items()}
    entries |= _peers(dtype, mixed, scores)
    entries[COMPILED] = works.compiled_hvp(eager, inputs, g, tangents)
    entries[JVP_FLASH] = partial(mixed, _jvp_flash)
    exact = truth.of_scores(works.HVP, mixed, eager, inputs, "o", "qkv")
    yield _row(works.HVP, dtype, (B, H, T, D), entries, 10 * dot, 10 * tensor, exact)


def _row(
    derivative: str,
    dtype: torch.dtype,
    sizes: tuple[int, int, int, int],
    entries: dict[str, works.Factory],
    operations: float,
    moved: float,
    exact: truth.Truth,
    without: tuple[str, ...] = (),
) -> works.Row:
    """A row; its dots are those that no implementation does without, each counted once.

    Forward: S, PV. Backward: S, dP, dV, dQ, dK. JVP: S, the two of S', PV, P'V, Pv'. HVP: S, the two of S', dP, dP',
    two each of Hq and Hk, Hv.
    """
    B, H, T, D = sizes
    return works.row(
        "sdpa",
        derivative,
        dtype,
        {"B": B, "H": H, "T": T, "M": T, "D": D},
        {who: factory for who, factory in entries.items() if who not in without},
        operations=operations,
        moved=moved,
        arithmetic=IN_FLOAT32 if dtype == torch.float32 else {},
        ready=READY,
        ours=tuple(_ours(dtype)),
        truth=exact,
    )
