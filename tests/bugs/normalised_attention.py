"""Linear attention that is divided by its normaliser, time before heads, and faults that a released one had.

gradoracle check tests/bugs/normalised_attention.py:scale_without_normaliser
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.model.kernel import Kernel
from gradoracle.mutation.bugs import Bugs

BLOCK = 16


@gradoracle.family(
    outputs=("o",),
    dims={
        "B": gradoracle.sizes(1, 2),
        "T": gradoracle.sizes(1, 40),
        "H": gradoracle.sizes(1, 3),
        "D": gradoracle.sizes(2, 24),  # with 1 the queries cancel
        "Dv": gradoracle.sizes(1, 40),
    },
)
def normalised(
    q: Float[Tensor, "B T H D"], k: Float[Tensor, "B T H D"], v: Float[Tensor, "B T H Dv"]
) -> Float[Tensor, "B T H Dv"]:
    """o_t = sum over s <= t of w_ts v_s / sum of w_ts, where w_ts = (1 + q_t^2) . (1 + k_s^2)."""
    fq, fk, v = (x.transpose(1, 2) for x in (1 + q.square(), 1 + k.square(), v))
    past = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool).tril()
    weights = torch.where(past, fq @ fk.transpose(-1, -2), 0.0)
    return ((weights @ v) / weights.sum(-1, keepdim=True)).transpose(1, 2)


@triton.jit
def sums_kernel(weights, v, numerator, z, T, DV, ONE_WRITES_Z: tl.constexpr, TIME: tl.constexpr, BLOCK: tl.constexpr):
    """Write numerator [BH T DV] = weights [BH T T] @ v [BH T DV] and z [BH T], the sums of weights along their rows.

    A program has one of BH and one block of DV.
    """
    head = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    t, s, e = tl.arange(0, TIME), tl.arange(0, TIME), part * BLOCK + tl.arange(0, BLOCK)
    weight = tl.load(
        weights + head * T * T + t[:, None] * T + s[None, :], mask=(t < T)[:, None] & (s < T)[None, :], other=0.0
    )
    values = tl.load(
        v + head * T * DV + s[:, None] * DV + e[None, :], mask=(s < T)[:, None] & (e < DV)[None, :], other=0.0
    )
    found = tl.dot(weight, values, input_precision="ieee")
    tl.store(numerator + head * T * DV + t[:, None] * DV + e[None, :], found, mask=(t < T)[:, None] & (e < DV)[None, :])
    if part == 0 or not ONE_WRITES_Z:
        tl.store(z + head * T + t, tl.sum(weight, 1), mask=t < T)


class _Sums(torch.autograd.Function):
    """numerator [BH T Dv] and z [BH T] of weights [BH T T] and v [BH T Dv], float32."""

    @staticmethod
    def forward(ctx, weights, v, one_writes_z):
        ctx.save_for_backward(weights, v)
        weights, v = weights.contiguous(), v.contiguous()
        (heads, time, _), dv = weights.shape, v.shape[2]
        numerator, z = torch.empty_like(v), torch.empty((heads, time), device=v.device)
        sums_kernel[(heads, triton.cdiv(dv, BLOCK))](
            weights, v, numerator, z, time, dv,
            ONE_WRITES_Z=one_writes_z, TIME=max(16, triton.next_power_of_2(time)), BLOCK=BLOCK,
        )  # fmt: skip
        return numerator, z

    @staticmethod
    def backward(ctx, g, g_z):
        weights, v = ctx.saved_tensors
        return g @ v.mT + g_z[..., None], weights.mT @ g, None


class Normalised:
    """Right: float32 inside; the normaliser from sums of keys over time, or from the kernel that sums values."""

    one_writes_z = True

    def __call__(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """o [B T H Dv] in the dtype of q."""
        fq, fk = (1 + x.float().square() for x in (q, k))
        weights = torch.tril(torch.einsum("bthd,bshd->bhts", fq, fk) * self.scale(q))
        numerator, z = self.sums(weights.flatten(0, 1), v.float().transpose(1, 2).flatten(0, 1), fq, fk)
        o = numerator.unflatten(0, weights.shape[:2]).transpose(1, 2) / z[..., None]
        return o.to(q.dtype)

    def scale(self, q: Tensor) -> float:
        """What weights are multiplied by on the way to values."""
        return 1.0

    def sums(self, weights: Tensor, v: Tensor, fq: Tensor, fk: Tensor) -> tuple[Tensor, Tensor]:
        """The numerator [BH T Dv] and the normaliser [B T H]."""
        return weights @ v, (fq * self.keys(fk)).sum(-1)

    def keys(self, fk: Tensor) -> Tensor:
        """Sums of keys [B T H D] over time, up to each token."""
        return fk.cumsum(1)


class InOneKernel(Normalised):
    """Right: the kernel that sums values by blocks of channels writes the normaliser too, once."""

    def sums(self, weights: Tensor, v: Tensor, fq: Tensor, fk: Tensor) -> tuple[Tensor, Tensor]:
        numerator, z = _Sums.apply(weights, v, self.one_writes_z)
        return numerator, z.unflatten(0, (fq.shape[0], fq.shape[2])).transpose(1, 2)


class EveryBlockWritesZ(InOneKernel):
    """flash-linear-attention: the programs of all blocks of values stored the normaliser to one place."""

    one_writes_z = False


class CumsumOverHeads(Normalised):
    """flash-linear-attention: keys were summed over the last axis but one, which had become that of heads."""

    def keys(self, fk: Tensor) -> Tensor:
        return fk.cumsum(-2)


class ScaleWithoutNormaliser(Normalised):
    """flash-linear-attention: the default scale D^-1/2 was applied in the kernel and not in the normaliser."""

    def scale(self, q: Tensor) -> float:
        return q.shape[-1] ** -0.5


def _declared(own: Normalised, name: str) -> Kernel:
    return gradoracle.kernel(normalised, name=name, dtypes=normalised.dtypes)(own)


right = _declared(Normalised(), "right")
in_one_kernel = _declared(InOneKernel(), "in_one_kernel")
every_block_writes_z = _declared(EveryBlockWritesZ(), "every_block_writes_z")
cumsum_over_heads = _declared(CumsumOverHeads(), "cumsum_over_heads")
scale_without_normaliser = _declared(ScaleWithoutNormaliser(), "scale_without_normaliser")

FLA = "fla-org/flash-linear-attention"

BUGS = Bugs(right)
BUGS.add(
    every_block_writes_z, f"{FLA}#1018", "programs_of_a_launch_do_not_race", "access", right=in_one_kernel, Dv="17:40"
)
BUGS.add(cumsum_over_heads, f"{FLA}#594", "forward_matches_the_oracle", "transpose")
BUGS.add(scale_without_normaliser, f"{FLA}#130", "forward_matches_the_oracle", "ratio")
