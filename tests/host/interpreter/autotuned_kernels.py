"""Small autotuned kernels, for the interpreter: what they store shows which configuration ran."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": 16, "TAG": 1}), triton.Config({"BLOCK": 8, "TAG": 2}, num_warps=1)]
SUMS = [triton.Config({"BLOCK": 4}), triton.Config({"BLOCK": 16})]
hooked = []


def without_16(configs, named, **others):
    return [config for config in configs if config.kwargs["BLOCK"] != 16]


def hook(named, reset_only=False):
    hooked.append(reset_only)


@triton.autotune(CONFIGS, key=["n"], pre_hook=hook)
@triton.jit
def tagged(o, n, BLOCK: tl.constexpr, TAG: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, i * 10 + TAG, mask=i < n)


@triton.autotune(CONFIGS, key=["n"], prune_configs_by={"early_config_prune": without_16}, warmup=1, rep=1)
@triton.heuristics({"EVEN": lambda named: named["n"] % 8 == 0})
@triton.jit
def pruned(o, n, BLOCK: tl.constexpr, TAG: tl.constexpr, EVEN: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, i * 10 + TAG, mask=i < n)


@triton.autotune(SUMS, key=["n"], reset_to_zero=["o"], cache_results=True)
@triton.jit
def added(x, o, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(o, tl.sum(tl.load(x + i, mask=i < n, other=0.0)))


def grid(n):
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def stored(kernel, n=20):
    """What a tagged kernel stores."""
    o = torch.zeros(n, dtype=torch.int64)
    kernel[grid(n)](o, n)
    return o.tolist()


def summed(n=20, start=0.0):
    """The sum of 1..n by blocks, added to what the output held where the autotuner does not reset it."""
    o = torch.full((1,), start)
    added[grid(n)](torch.arange(1, n + 1, dtype=torch.float32), o, n)
    return o.item()
