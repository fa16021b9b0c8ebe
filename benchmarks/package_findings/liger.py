"""Findings in liger-kernel 0.8.5."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, silu, softmax

from benchmarks.package_findings.by_hand import (
    columns_first,
    finding,
    gradient,
    leaf,
    numbers,
    off,
    refusal,
    size,
    true,
    twice,
)
from gradoracle import cuda_claimed

with cuda_claimed():
    import liger_kernel.transformers.functional as liger
    from liger_kernel.transformers.grpo_loss import triton_grpo_loss

TARGETS = torch.tensor([0, 1, 2])
IGNORED = torch.full((2,), -100)


@finding("liger-cross-entropy-stride")
def strided_logits() -> str:
    """The last stride is not 1, so the forward works on a copy, which does not require grad."""
    x = columns_first(torch.randn(3, 5))
    before, v = x.detach().clone(), true(x)
    liger.liger_cross_entropy(x, TARGETS).backward()
    cross_entropy(v, TARGETS).backward()
    return f"dx {off(x.grad, gradient(v))}; dx equals x: {torch.equal(gradient(x), before)}"


@finding("liger-fused-linear-cross-entropy-weight-only")
def weight_alone() -> str:
    x, w, b = torch.randn(3, 4), leaf(torch.randn(5, 4)), leaf(torch.randn(5))
    v, c = true(w), true(b)
    liger.liger_fused_linear_cross_entropy(x, w, TARGETS, b).backward()
    cross_entropy(x.double() @ v.mT + c, TARGETS).backward()
    return f"x requires no grad: dw {off(w.grad, gradient(v))}, db {off(b.grad, gradient(c))}"


def linear_kl(x: Tensor, w: Tensor, p: Tensor) -> Tensor:
    return kl_div(torch.log_softmax(x @ w.mT, -1), p, reduction="batchmean")


def linear_jsd(x: Tensor, w: Tensor, y: Tensor, u: Tensor) -> Tensor:
    log_q, log_p = torch.log_softmax(x @ w.mT, -1), torch.log_softmax(y @ u.mT, -1)
    log_m = torch.log((log_q.exp() + log_p.exp()) / 2)
    terms = log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)
    return terms.sum() / 2 / len(x)


def scaled_weight_gradient(fused: Callable[..., Tensor], plain: Callable[..., Tensor], *rest: Tensor) -> str:
    """dw of 2 loss, for the same weight in row-major and in column-major memory."""
    x, w = torch.randn(3, 4), torch.randn(5, 4)
    v = true(w)
    (2 * plain(x.double(), v, *(r.double() for r in rest))).backward()
    said = []
    for name, given in (("row-major", leaf(w)), ("column-major", columns_first(w))):
        (2 * fused(leaf(x), given, *rest)).backward()
        said.append(f"{name} w: dw {off(given.grad, gradient(v))}")
    return "; ".join(said)


@finding("liger-fused-linear-kl-div-column-major")
def kl_of_column_major() -> str:
    return scaled_weight_gradient(liger.liger_fused_linear_kl_div, linear_kl, softmax(torch.randn(3, 5), -1))


@finding("liger-fused-linear-jsd-column-major")
def jsd_of_column_major() -> str:
    return scaled_weight_gradient(liger.liger_fused_linear_jsd, linear_jsd, torch.randn(3, 4), torch.randn(5, 4))


@finding("liger-losses-backward-twice")
def losses_twice() -> str:
    x, h, w = leaf(torch.randn(3, 5)), leaf(torch.randn(3, 4)), leaf(torch.randn(5, 4))
    y, u, p = torch.randn(3, 4), torch.randn(5, 4), softmax(torch.randn(3, 5), -1)
    losses = {
        "cross entropy": (liger.liger_cross_entropy(x * 1, TARGETS), x),
        "fused linear cross entropy": (liger.liger_fused_linear_cross_entropy(h, w, TARGETS), h),
        "fused linear KL": (liger.liger_fused_linear_kl_div(h, w, p), h),
        "fused linear JSD": (liger.liger_fused_linear_jsd(h, w, y, u), h),
    }
    return "; ".join(f"{name}: {twice(loss, of)}" for name, (loss, of) in losses.items())


@finding("liger-cross-entropy-loss-scale")
def loss_scale() -> str:
    """The gradient is rounded to float16 in the forward, before the scale of a GradScaler multiplies it."""
    x = torch.tensor([[0.0, -18.0, -1.0], [0.0, -18.0, 1.0]], dtype=torch.float16)
    t, scale = torch.tensor([0, 2]), 16384.0
    a, b, v = leaf(x), leaf(x), true(x)
    (liger.liger_cross_entropy(a, t).float() * scale).backward()
    (cross_entropy(b, t).float() * scale).backward()
    (cross_entropy(v, t) * scale).backward()
    said = (numbers(gradient(g)[:, 1], 3) for g in (a, v, b))
    return "dx[:, 1] {}, true {}, torch in float16 {}".format(*said)


@finding("liger-inputs-overwritten")
def inputs_overwritten() -> str:
    """Gradients are written over inputs, and nothing tells autograd (no ``mark_dirty``)."""
    u, b, z = torch.randn(3, 8), torch.randn(3, 8), torch.randn(3, 8)
    a, v = leaf(u), true(u)
    liger.liger_swiglu(torch.exp(a), leaf(b)).sum().backward()
    (silu(torch.exp(v)) * b.double()).sum().backward()
    c, w = leaf(z), true(z)
    liger.liger_cross_entropy(torch.tanh(c), TARGETS).backward()
    cross_entropy(torch.tanh(w), TARGETS).backward()
    x = leaf(z) * 1
    liger.liger_cross_entropy(x, TARGETS)
    later, right = float(cross_entropy(x, TARGETS)), float(cross_entropy(z.double(), TARGETS))
    s, r = leaf(z), true(z)
    liger.liger_swiglu(s, s).sum().backward()
    (silu(r) * r).sum().backward()
    return (
        f"swiglu(exp(u), b): du {off(a.grad, gradient(v))}; "
        f"cross_entropy(tanh(z)): dz {off(c.grad, gradient(w))}; "
        f"torch's loss of the same logits afterwards {later:.4f}, true {right:.4f}; "
        f"swiglu(x, x): dx {off(s.grad, gradient(r))}"
    )


@finding("liger-norms-overwrite-the-cotangent")
def residual() -> str:
    """z = 2 a + norm(c) with dz = 1: da is 2; the norm's backward runs first and overwrites the dz that both share."""
    ones = torch.ones(8)
    norms = {
        "rms_norm": lambda c: liger.liger_rms_norm(c, leaf(ones), 1e-6),
        "fused_add_rms_norm": lambda c: liger.liger_fused_add_rms_norm(c, torch.randn(3, 8), leaf(ones), 1e-6)[0],
        "modulated_rms_norm": lambda c: liger.liger_modulated_rms_norm(c, leaf(ones), torch.randn(3, 8)),
        "poly_norm": lambda c: liger.liger_poly_norm(c, leaf(torch.ones(3)), leaf(torch.tensor(0.0))),
    }
    said = []
    for name, norm in norms.items():
        a, c = leaf(torch.randn(3, 8)), leaf(torch.randn(3, 8))
        (2 * a + norm(c)).backward(torch.ones(3, 8))
        said.append(f"{name}: da {off(a.grad, torch.full((3, 8), 2.0).double())}")
    return "; ".join(said)


@finding("liger-rope-one-head")
def rope_of_one_head() -> str:
    """With one head, or one position, the transposed tensor is contiguous, and the rotation is done in the caller's."""
    angles = torch.arange(5)[:, None] * 0.5 ** torch.arange(4)
    twice_written = torch.cat([angles, angles], -1)[None]
    said = []
    for heads in (2, 1):
        q, k = torch.randn(1, 2, 5, 8), torch.randn(1, heads, 5, 8)
        before = k.clone()
        liger.liger_rope(q, k, twice_written.cos(), twice_written.sin())
        said.append(f"k of {heads} heads changed by up to {size(k - before)}")
    return "; ".join(said)


@finding("liger-tvd-all-ignored")
def tvd_all_ignored() -> str:
    p, q = (softmax(torch.randn(2, 3), -1) for _ in range(2))
    log_p, log_q = torch.log(p), torch.log(q)
    other = float(liger.liger_jsd(log_p, log_q, IGNORED))
    return f"liger_tvd: {refusal(lambda: liger.liger_tvd(p, q, IGNORED))}; liger_jsd of the same labels: {other}"


@finding("liger-jsd-zero-probability")
def jsd_of_zeros() -> str:
    """A class that one distribution excludes: 0 log 0 is 0."""
    excluding, other = torch.tensor([[0.0, -torch.inf, 1.0]]), torch.tensor([[0.0, 1.0, 0.5]])
    said = []
    for name, x, y in (("student", excluding, other), ("teacher", other, excluding)):
        q, p = softmax(x.double(), -1), softmax(y.double(), -1)
        m = (q + p) / 2
        truth = float((torch.special.xlogy(p, p / m) + torch.special.xlogy(q, q / m)).sum() / 2)
        given = leaf(torch.log_softmax(x, -1))
        loss = liger.liger_jsd(given, torch.log_softmax(y, -1))
        loss.backward()
        found = f"{float(loss.detach())}, dx {numbers(gradient(given), 3)}"
        said.append(f"{name} without class 1: loss {found}, true loss {truth:.4f}")
    return "; ".join(said)


def group_norm_truth(x: Tensor) -> Tensor:
    return torch.nn.functional.group_norm(x.detach().double(), 1, eps=1e-6)


@finding("liger-group-norm-variance")
def group_norm_variance() -> str:
    """E[x^2] - E[x]^2 in the dtype of x."""
    said = []
    for dtype, scale, mean in ((torch.float32, 1, 100), (torch.float32, 1, 3000), (torch.bfloat16, 1, 10),
                               (torch.bfloat16, 1, 100), (torch.float16, 300, 0)):  # fmt: skip
        x = (scale * torch.randn(1, 2, 64) + mean).to(dtype)
        y = liger.liger_group_norm(x, torch.ones(2, dtype=dtype), torch.zeros(2, dtype=dtype), 2, 1, 1e-6)
        said.append(f"{str(dtype)[6:]}, mean {mean}, deviation {scale}: y {off(y, group_norm_truth(x))}")
    return "; ".join(said)


@finding("liger-group-norm-parameter-gradients")
def group_norm_parameters() -> str:
    """One atomic addition for each member of the batch, to a gradient in 16 bits."""
    said = []
    for dtype, batch in ((torch.bfloat16, 1024), (torch.float16, 4096)):
        x, b = torch.randn(batch, 1, 8).to(dtype), leaf(torch.zeros(1, dtype=dtype))
        g = torch.zeros(batch, 1, 8, dtype=dtype)
        g[:, :, 0] = 1
        liger.liger_group_norm(leaf(x), leaf(torch.ones(1, dtype=dtype)), b, 1, 1, 1e-6).backward(g)
        said.append(f"{str(dtype)[6:]}, a batch of {batch}, each adding 1: db {float(gradient(b))}")
    x, g, b = torch.randn(1, 1, 64).half(), torch.randn(1, 1, 64).half(), leaf(torch.zeros(1).half())
    liger.liger_group_norm(leaf(x), leaf(torch.ones(1).half()), b, 1, 1, 1e-6).backward(g)
    truth = g.double().sum()
    found = float(gradient(b)), float(truth), float(truth.bfloat16())
    said.append("float16, one addition: db {:.5f}, true {:.5f}, which in bfloat16 is {:.5f}".format(*found))
    return "; ".join(said)


@finding("liger-poly-norm-overflow")
def poly_norm_overflow() -> str:
    """The sum of x^6 is taken in the dtype of x."""
    said = []
    for scale in (1.0, 5.0, 40.0):
        x = (scale * torch.randn(1, 64)).half()
        y = liger.liger_poly_norm(x, torch.ones(3).half(), torch.tensor(0.0).half(), 1e-6)
        powers = [x.double() ** n for n in (3, 2, 1)]
        truth = torch.stack([u / (u.square().mean(-1, keepdim=True) + 1e-6).sqrt() for u in powers]).sum(0)
        said.append(f"largest |x| {size(x)}: y {off(y, truth)}")
    return "; ".join(said)


@finding("liger-poly-norm-bias-of-one-element")
def poly_norm_bias() -> str:
    x, w, b = leaf(torch.randn(2, 8)), leaf(torch.ones(3)), leaf(torch.zeros(1))
    y = liger.liger_poly_norm(x, w, b)
    return f"forward takes a bias of shape [1]; backward: {refusal(y.sum().backward)}"


@finding("liger-sparsemax-not-shifted")
def sparsemax_of_large() -> str:
    """The scores are summed without subtracting their maximum."""
    said = []
    for scores in ([1e4, 1e4 - 0.3, 0.0], [3e7, 3e7, 0.0]):
        x = torch.tensor([scores])
        v = x[0].double() - x.double().max()
        truth = torch.relu(v - (v[:2].sum() - 1) / 2)  # the first two are the support
        said.append(f"{numbers(scores, 5)}: {numbers(liger.liger_sparsemax(x)[0])}, true {numbers(truth)}")
    return "; ".join(said)


@finding("liger-multi-token-attention-sizes")
def multi_token_sizes() -> str:
    w = torch.randn(1, 1, 3, 3)
    strided = liger.liger_multi_token_attention(leaf(torch.randn(1, 1, 4, 4)), leaf(w), stride=2, padding=1)
    long = torch.randn(1, 1, 1025, 1025)
    return (
        f"stride 2, 4 tokens: forward gives {tuple(strided.shape)}, backward: {refusal(strided.sum().backward)}; "
        f"1025 tokens: {refusal(lambda: liger.liger_multi_token_attention(long, w, padding=1))}"
    )


@finding("liger-grpo-strided-advantages")
def grpo() -> str:
    """The kernel reads element b of the memory of the advantages; logits, ids and log probabilities are checked."""
    logits, old, ids = torch.randn(3, 5, 7), -2 + 0.3 * torch.randn(3, 4), torch.randint(0, 7, (3, 4))
    column = torch.randn(3, 2)[:, 0]
    v, a = true(logits), column.double()[:, None]
    log_p = torch.log_softmax(v[:, :-1], -1).gather(-1, ids[..., None])[..., 0]
    ratio = torch.exp(log_p - old.double())
    truth = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.4) * a).mean()
    said = []
    for name, advantages in (("contiguous", column.contiguous()), ("a column", column)):
        loss, *_ = triton_grpo_loss(
            logits, old, None, ids, advantages, temperature=1.0, beta=0.0, inplace=False, loss_type="grpo", reduce=True
        )
        said.append(f"{name}: loss {float(loss):.4f}, true {float(truth):.4f}")
    return "; ".join(said)


@finding("liger-second-order")
def second_order() -> str:
    """Backwards under ``create_graph``."""
    ones = torch.ones(8)
    functions = {
        "rms_norm": lambda x: liger.liger_rms_norm(x, leaf(ones), 1e-6),
        "layer_norm": lambda x: liger.liger_layer_norm(x, leaf(ones), leaf(ones), 1e-6),
        "softmax": liger.liger_softmax,
        "relu_squared": liger.liger_relu_squared,
        "dyt": lambda x: liger.liger_dyt(x, leaf(torch.ones(1)), leaf(ones), leaf(ones)),
        "cross_entropy": lambda x: liger.liger_cross_entropy(x * 1, TARGETS),
    }
    constant = []
    for name, function in functions.items():
        x = leaf(torch.randn(3, 8))
        (dx,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        constant += [] if dx.requires_grad else [name]
    a = leaf(torch.randn(3, 8))
    v = true(a)
    (da,) = torch.autograd.grad(liger.liger_swiglu(a, torch.ones(3, 8)).sum(), a, create_graph=True)
    (got,) = torch.autograd.grad(da.sum(), a, allow_unused=True)
    (dv,) = torch.autograd.grad(silu(v).sum(), v, create_graph=True)
    (want,) = torch.autograd.grad(dv.sum(), v)
    found = f"da requires grad: {da.requires_grad}, its gradient {off(got, want)}"
    return f"dx has no graph: {', '.join(constant)}; swiglu: {found}"
