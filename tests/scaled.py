"""A small family with one correct kernel and many wrong ones: what test_check.py and test_bad_input.py check."""

from __future__ import annotations

import ctypes
import os
import sys
import time

import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle


@gradoracle.family(
    dims={"B": gradoracle.sizes(1, 5), "N": gradoracle.sizes(1, 40)}, dtypes=("float32",), outputs=("y",)
)
def scaled(x: Float[Tensor, "B N"], w: Float[Tensor, "N"]) -> Float[Tensor, "B N"]:
    """x * w."""
    return x * w


kernel = gradoracle.kernel(scaled, deterministic=True)


@kernel
def right(x, w):
    return x * w


@kernel
def hangs(x, w):
    while x.shape[-1] > 7:
        time.sleep(0.1)
    return x * w


@kernel
def takes_half_a_second(x, w):
    time.sleep(0.5)
    return x * w


@kernel
def is_wronger_in_longer_rows(x, w):
    return x * w * (1 + 2.0**-28 * x.shape[1] ** 4)


@kernel
def segfaults(x, w):
    if x.shape[-1] > 7:
        ctypes.string_at(0)
    return x * w


@kernel
def leaves_at_once(x, w):
    if x.shape[-1] > 7:
        os._exit(3)
    return x * w


@kernel
def crashes_in_two_ways(x, w):
    if x.shape[-1] > 7:
        raise (KeyError if x.shape[-1] > 12 else IndexError)("too long")
    return x * w


@kernel
def exits(x, w):
    if x.shape[-1] > 7:
        sys.exit(5)
    return x * w


@kernel
def raises_index_error(x, w):
    if x.shape[-1] > 7:
        raise IndexError("row 8 of 7")
    return x * w


@kernel
def loses_the_device(x, w):
    if x.shape[-1] > 7:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    return x * w


@kernel
def refuses_all(x, w):
    raise ValueError("x must be somebody else's")


@kernel
def refuses_odd(x, w):
    if x.shape[-1] % 2:
        raise ValueError("N must be even")
    return x * w


@kernel
def lacks_memory(x, w):
    raise torch.OutOfMemoryError("tried to allocate 9 TiB")


@kernel
def gives_another_shape(x, w):
    return (x * w).unsqueeze(0)


@kernel
def gives_another_dtype(x, w):
    return (x * w).double()


@kernel
def gives_no_gradient_of_w(x, w):
    return x * w.detach()


@gradoracle.kernel(scaled, claims=("forward", "vjp"))
def gives_no_gradient(x, w):
    return (x * w).detach()


@kernel
def gives_nan(x, w):
    return x * w * float("nan")


@kernel
def loses_its_tail(x, w):
    return torch.where(torch.arange(x.shape[-1]) < 8, x * w, torch.nan)


@kernel
def gives_a_list_of_numbers(x, w):
    return (x * w).tolist()


@kernel
def gives_nothing(x, w):
    return None


@kernel
def gives_too_few(x, w):
    return ()


@kernel
def gives_too_many(x, w):
    return x * w, x


@kernel
def changes_its_input(x, w):
    result = x * w
    w.data.mul_(2)
    return result


@kernel
def differs_from_run_to_run(x, w):
    return x * w * (1 + 1e-7 * torch.randint(2, x.shape))


class _Product(torch.autograd.Function):
    """The correct product with an explicit backward and JVP; subclasses spoil one of them."""

    @staticmethod
    def forward(x, w):
        return x * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum(0)

    @staticmethod
    def jvp(ctx, tx, tw):
        x, w = ctx.saved_tensors
        return tx * w + x * tw


class _Unwritten(_Product):
    @staticmethod
    def forward(x, w):
        y = torch.empty(x.shape, dtype=x.dtype)
        y[:, :-1] = (x * w)[:, :-1]
        return y


class _Beside(_Product):
    @staticmethod
    def forward(x, w):
        y = torch.empty(x.shape, dtype=x.dtype)
        y.as_strided((1,), (1,), y.storage_offset() + y.numel()).fill_(3.0)
        return y.copy_(x * w)


class _WrongBackward(_Product):
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w, (g * x).sum(0) * (1 + 1e-4)


class _CrashInJvp(_Product):
    @staticmethod
    def jvp(ctx, tx, tw):
        os._exit(9)


@kernel
def leaves_memory_unwritten(x, w):
    return _Unwritten.apply(x, w)


@kernel
def writes_beside_its_tensor(x, w):
    return _Beside.apply(x, w)


@kernel
def has_a_wrong_backward(x, w):
    return _WrongBackward.apply(x, w)


@kernel
def crashes_in_jvp(x, w):
    return _CrashInJvp.apply(x, w)
