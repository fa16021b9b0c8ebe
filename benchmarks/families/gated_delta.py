"""Rows of the gated delta rule: the kernels against flash-linear-attention, if installed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial

import torch
from gradoracle.kernels import gated_delta as kernels
from torch import Tensor

from . import truth, works

OURS, TF32 = "gradoracle", "gradoracle tf32"
FLA = "fla chunk"
TOKENS = 65_536  # B T of a scan
CHUNK = 64  # positions of the truth that are solved for at a time


class Sequences:
    """q, k [B H T D], v [B H T Dv], g and beta [B H T] (``Given``), the same at every call, made at the first.

    Keys have length 1; g is the logarithm of a sigmoid and beta a sigmoid, as layers of gated delta nets make them: at
    the median a row keeps 0.88 of the state, and adds half of what the state is off by.
    """

    def __init__(self, B: int, H: int, T: int, D: int, dtype: torch.dtype, device: str) -> None:
        self.shape, self.width, self.dtype, self.device = (B, H, T), D, dtype, device
        self.made: Sequence[Tensor] = []

    def __call__(self) -> Sequence[Tensor]:
        if not self.made:
            generator = torch.Generator(self.device).manual_seed(0)
            drawn = [
                torch.randn((*self.shape, *width), device=self.device, generator=generator)
                for width in ((self.width,), (self.width,), (self.width,), (), ())
            ]
            q, k, v, g, beta = drawn
            k, g, beta = torch.nn.functional.normalize(k, dim=-1), torch.nn.functional.logsigmoid(g + 2), beta.sigmoid()
            self.made = [*(x.to(self.dtype) for x in (q, k, v)), g, beta.to(self.dtype)]
        return self.made


def columns(given: works.Given) -> works.Given:
    """The same tensors [B, H, T, ...] laid out as [B, T, H, ...], once for all calls."""
    return cache(lambda: [x.transpose(1, 2).contiguous() for x in given()])


def chunk_of_fla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """o of flash-linear-attention's `chunk_gated_delta_rule`; all [B, T, H, ...], the layout that it expects."""
    from fla.ops.common import chunk_o
    from fla.ops.gated_delta_rule import chunk_gated_delta_rule

    # It refuses its backward under Triton before 3.7.1 on Hopper, where that gives wrong results (its issue 640); timed
    # all the same, and the error is printed.
    chunk_o.TRITON_ABOVE_3_7_1 = True

    return chunk_gated_delta_rule(q, k, v, g, beta)[0]  # type: ignore[no-any-return]


def chunked(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """o [B, H, T, Dv] by operators, `CHUNK` positions at a time: a triangular system gives their updates."""
    scale, parts = q.shape[-1] ** -0.5, []
    state = torch.zeros_like(k[..., :1, :].transpose(-1, -2) @ v[..., :1, :])
    for queries, keys, values, decays, rates in zip(*(x.split(CHUNK, 2) for x in (q, k, v, g, beta)), strict=True):
        total = decays.cumsum(-1)
        between = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
        start = total.exp()[..., None]
        system = torch.eye(len(total[0, 0]), dtype=q.dtype, device=q.device)
        system = system + (rates[..., None] * between * (keys @ keys.transpose(-1, -2))).tril(-1)
        updates = torch.linalg.solve_triangular(
            system, rates[..., None] * (values - start * (keys @ state)), upper=False, unitriangular=True
        )
        scores = between * (queries @ keys.transpose(-1, -2))
        parts.append(scale * (start * (queries @ state) + scores @ updates))
        until = (total[..., -1:] - total).exp()[..., None]
        state = start[..., -1:, :] * state + (until * keys).transpose(-1, -2) @ updates
    return torch.cat(parts, -2)


def rows() -> Iterator[works.Row]:
    for T in (4096, 8192):
        for width in (64, 128):
            yield from timed(torch.bfloat16, 4, 16, T, width)
    yield from timed(torch.float16, 4, 16, 8192, 64)
    yield from timed(torch.float32, 4, 16, 8192, 64)
    yield from timed(torch.bfloat16, 1, 4, 131_072, 64)


def scans() -> Iterator[works.Row]:
    """Every derivative over T, B T fixed, 16 heads."""
    for T in works.SCANNED:
        yield from timed(torch.bfloat16, TOKENS // T, 16, T, 64)


def timed(dtype: torch.dtype, B: int, H: int, T: int, D: int, device: str = "cuda") -> Iterator[works.Row]:
    """Forward, backward, and both in one, of q, k, v [B H T D], g and beta [B H T].

    Operations are those of the recursion, position by position, each of 2 D Dv: in forward two products with the state
    and an update of it; in backward the same again, without the output, two updates of its cotangent, and five
    products.
    """
    inputs, g = Sequences(B, H, T, D, dtype, device), works.Normal([(B, H, T, D)], dtype, device, seed=1)
    others = columns(inputs)
    ours = {OURS: "ieee"} | ({TF32: "tf32"} if dtype == torch.float32 else {})
    product, tensor = 2.0 * B * H * T * D * D, 1.0 * B * H * T * D * dtype.itemsize
    series = B * H * T * (4.0 + dtype.itemsize)
    of_g = {"g": g}, {"g": works.columns(g)}
    for derivative, work, own, theirs, products, tensors in (
        ("forward", works.forward, {}, {}, 3, 4),
        ("backward", works.backward, *of_g, 9, 7),
        ("forward and backward", works.forward_and_backward, *of_g, 12, 8),
    ):
        how = partial(work, inputs=inputs, **own)
        entries: dict[str, works.Factory] = {
            who: partial(how, partial(kernels.gated_delta, precision=precision)) for who, precision in ours.items()
        }
        entries[FLA] = partial(work, chunk_of_fla, inputs=others, **theirs)
        yield works.row(
            "gated_delta",
            derivative,
            dtype,
            {"B": B, "H": H, "T": T, "D": D, "Dv": D},
            entries,
            operations=products * product,
            moved=tensors * tensor + (1 if derivative == "forward" else 2) * series,
            arithmetic={TF32: "tf32"},
            ours=tuple(ours),
            truth=truth.Truth(
                truth.names(derivative, "o", ("q", "k", "v", "g", "beta")),
                truth.exact(how, chunked),
                parts={FLA: lambda x: x[:1, :, : truth.HEADS].transpose(1, 2)},
            ),
        )
