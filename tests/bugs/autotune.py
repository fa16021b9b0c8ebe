"""Faults of autotuned kernels that write where they read: what trials and later calls find in their memory.

    gradoracle check tests/bugs/autotune.py:reset_while_tuning

Triton times each configuration by running it on the caller's tensors. Its interpreter has no GPU to time on, and
gradoracle's tries them where a property asks for it.
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

CONFIGS = [triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})]


@gradoracle.family(outputs=("y",), dims={"B": gradoracle.sizes(1, 8), "N": gradoracle.sizes(1, 200)})
def update(c: Float[Tensor, "B"], x: Float[Tensor, "B N"]) -> Float[Tensor, "B"]:
    """c / 2 plus the sum of x."""
    return c / 2 + x.sum(-1)


@triton.jit
def added(x, y, N, BLOCK: tl.constexpr):
    """Add the sums of x [B N] to y [B] float32. A program has a row and a block of it."""
    row, n = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y + row, tl.sum(tl.load(x + row * N + n, mask=n < N, other=0.0).to(tl.float32)))


@triton.jit
def in_place(x, y, N, BLOCK: tl.constexpr):
    """Make y [B] float32 its half plus the sums of x [B N]. A program has a row."""
    row = tl.program_id(0).to(tl.int64)
    total = tl.load(y + row) / 2
    for first in range(0, N, BLOCK):
        n = first + tl.arange(0, BLOCK)
        total += tl.sum(tl.load(x + row * N + n, mask=n < N, other=0.0).to(tl.float32))
    tl.store(y + row, total)


@triton.jit
def halved(y, B, BLOCK: tl.constexpr):
    """Halve y [B] float32 in place. A program has a block."""
    b = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + b, tl.load(y + b, mask=b < B) / 2, mask=b < B)


added_reset = triton.autotune(CONFIGS, key=["N"], reset_to_zero=["y"])(added)
added_unreset = triton.autotune(CONFIGS, key=["N"])(added)
in_place_restored = triton.autotune(CONFIGS, key=["N"], restore_value=["y"])(in_place)
in_place_unrestored = triton.autotune(CONFIGS, key=["N"])(in_place)
halved_restored = triton.autotune(CONFIGS, key=["B"], restore_value=["y"])(halved)
halved_unrestored = triton.autotune(CONFIGS, key=["B"])(halved)


class Added:
    """Right: sums added to zeros, which each trial begins with too."""

    tuned = added_reset

    def __call__(self, c: Tensor, x: Tensor) -> Tensor:
        """y [B] in the dtype of c."""
        if c.shape != x.shape[:1] or x.dim() != 2 or c.dtype != x.dtype or x.device != c.device or x.is_meta:
            raise ValueError(
                f"c and x are {c.dtype} {c.shape} and {x.dtype} {x.shape}; expected one dtype, [B] and [B N]"
            )
        if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise ValueError(f"x is of {x.dtype}; expected float32, bfloat16 or float16")
        return _Update.apply(self, c, x)

    def workspace(self, c: Tensor) -> Tensor:
        """[B] float32, to which sums are added."""
        return torch.zeros(c.shape, dtype=torch.float32, device=c.device)

    def run(self, c: Tensor, x: Tensor) -> Tensor:
        """y [B] float32; x contiguous."""
        sums = self.workspace(c)
        self.tuned[lambda meta: (x.shape[0], triton.cdiv(x.shape[1], meta["BLOCK"]))](x, sums, x.shape[1])
        return c.float() / 2 + sums


class InPlace(Added):
    """Right: a copy of c is updated in place, and each trial puts it back."""

    tuned = in_place_restored

    def run(self, c: Tensor, x: Tensor) -> Tensor:
        y = c.to(torch.float32, copy=True)
        self.tuned[(x.shape[0],)](x, y, x.shape[1])
        return y


class Halved(Added):
    """Right: a copy of c is halved in place, and each trial puts it back."""

    tuned = halved_restored

    def run(self, c: Tensor, x: Tensor) -> Tensor:
        y = c.to(torch.float32, copy=True)
        self.tuned[lambda meta: (triton.cdiv(len(y), meta["BLOCK"]),)](y, len(y))
        return y + x.float().sum(-1)


class _Update(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own, c, x):
        ctx.shape = x.shape
        return own.run(c.contiguous(), x.contiguous()).to(c.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return None, g / 2, g[:, None].expand(ctx.shape)


class ResetWhileTuning(Added):
    """Triton, as flash-semicrf met it: reset_to_zero clears a workspace in trials and not when a key is known.

    The workspace of atomic sums was left as allocated, so that the first call was right and later ones off by 1e23.
    """

    def workspace(self, c: Tensor) -> Tensor:
        return torch.empty(c.shape, dtype=torch.float32, device=c.device)


class SumsOfAllTrials(Added):
    """Triton: an output of atomic_add under autotune holds the sums of all trials after the first call."""

    tuned = added_unreset


class CacheOfAllTrials(InPlace):
    """flash-linear-attention: an autotuned kernel updated a cache in place, once in each trial."""

    tuned = in_place_unrestored


class InPlaceWhileTuning(Halved):
    """Triton: an autotuned kernel that overwrites its input gives another result in the call that tunes it."""

    tuned = halved_unrestored


def _declared(own: Added, name: str) -> Kernel:
    return gradoracle.kernel(update, name=name)(own)


right, right_in_place, right_halved = (
    _declared(Added(), "right"),
    _declared(InPlace(), "right_in_place"),
    _declared(Halved(), "right_halved"),
)
reset_while_tuning = _declared(ResetWhileTuning(), "reset_while_tuning")
sums_of_all_trials = _declared(SumsOfAllTrials(), "sums_of_all_trials")
cache_of_all_trials = _declared(CacheOfAllTrials(), "cache_of_all_trials")
in_place_while_tuning = _declared(InPlaceWhileTuning(), "in_place_while_tuning")

_TRIED = "trials_of_an_autotuner_leave_nothing_behind"

BUGS = Bugs(right)
BUGS.add(reset_while_tuning, "triton-lang/triton#7181", "nothing_is_loaded_before_it_is_written", "stale")
BUGS.add(sums_of_all_trials, "triton-lang/triton#4217", _TRIED, "stale")
BUGS.add(cache_of_all_trials, "fla-org/flash-linear-attention@ca89d201", _TRIED, "stale", right=right_in_place)
BUGS.add(in_place_while_tuning, "triton-lang/triton#6547", _TRIED, "stale", right=right_halved)
