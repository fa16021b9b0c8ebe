"""Linear layer and cross entropy at once: logits in chunks of rows, and the gradients made in the forward.

gradoracle check examples/modern/linear_cross_entropy.py:right --dtype float32
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle

CHUNK = 4


@gradoracle.family(
    dims={"N": gradoracle.sizes(1, 11), "D": gradoracle.sizes(1, 12), "V": gradoracle.sizes(2, 40)},
    domains={"labels": gradoracle.IndexDomain("V", ignore=-100)},
)
def linear_cross_entropy(
    x: Float[Tensor, "N D"], w: Float[Tensor, "V D"], labels: Int[Tensor, "N"]
) -> Float[Tensor, ""]:
    """The sum of -log softmax(x w^T)[label] over the rows that are not ignored."""
    surprise = -torch.log_softmax(x @ w.T, -1)
    chosen = torch.arange(w.shape[0]) == labels[:, None]
    return torch.where(chosen, surprise, 0.0).sum()


@triton.jit
def _loss(LOGITS, LABELS, LOSS, V, BUG: tl.constexpr, BLOCK: tl.constexpr):
    """The loss of a row; its logits become their gradient."""
    row = tl.program_id(0)
    v = tl.arange(0, BLOCK)
    label = tl.load(LABELS + row)
    logits = tl.load(LOGITS + row * V + v, v < V, float("-inf")).to(tl.float32)
    m = tl.max(logits)
    p = tl.exp(logits - m)
    total = tl.sum(p)
    own = tl.sum(tl.where(v == label, logits, 0.0))
    kept = label != -100
    tl.store(LOSS + row, tl.where(kept, m + tl.log(total) - own, 0.0))
    d = p / total - tl.where(v == label, 1.0, 0.0)
    d = d if BUG else tl.where(kept, d, 0.0)
    tl.store(LOGITS + row * V + v, d.to(LOGITS.dtype.element_ty), v < V)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w, labels, bug):
        dx, dw = torch.empty_like(x, memory_format=torch.contiguous_format), torch.zeros_like(w, dtype=torch.float32)
        loss = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
        labels = labels.contiguous()
        for start in range(0, x.shape[0], CHUNK):
            rows = slice(start, start + CHUNK)
            logits = x[rows].float() @ w.float().T
            _loss[(logits.shape[0],)](
                logits, labels[rows], loss[rows], w.shape[0], bug, triton.next_power_of_2(w.shape[0])
            )
            dx[rows] = logits @ w.float()
            dw += logits.T @ x[rows].float()
        ctx.save_for_backward(dx, dw.to(w.dtype))
        return loss.sum().to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        dx, dw = ctx.saved_tensors
        return dx * g, dw * g, None, None


@gradoracle.kernel(linear_cross_entropy)
def right(x, w, labels):
    return _LinearCrossEntropy.apply(x, w, labels, False)


@gradoracle.kernel(linear_cross_entropy)
def wrong(x, w, labels):
    """Rows that are ignored have a gradient."""
    return _LinearCrossEntropy.apply(x, w, labels, True)
