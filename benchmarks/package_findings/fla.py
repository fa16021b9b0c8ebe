"""Findings in fla-core 0.6.0."""

from __future__ import annotations

import math
from collections.abc import Sequence

import mpmath
import torch
from fla.modules.activations import logsigmoid
from fla.modules.causal_conv1d import causal_conv1d
from fla.modules.fused_cross_entropy import ops as cross_entropies
from fla.modules.fused_kl_div import ops as divergences
from fla.modules.fused_linear_cross_entropy import ops as linear_cross_entropies
from fla.modules.layernorm import layer_norm_linear
from fla.ops import (
    chunk_abc,
    chunk_lightning_attn,
    chunk_mesa_net,
    chunk_simple_gla,
    fused_chunk_based,
    fused_recurrent_comba,
    fused_recurrent_delta_rule,
    fused_recurrent_kda,
    fused_recurrent_precond_kda,
    fused_recurrent_rwkv6,
    parallel_based,
    parallel_path_attn,
    parallel_simple_gla,
    parallel_wall_attn,
)
from fla.ops.comba.naive import naive_chunk_comba, naive_recurrent_comba
from fla.ops.hgrn import chunk_hgrn
from torch import Tensor
from torch.nn.functional import logsigmoid as log_sigmoid
from torch.nn.functional import normalize

from benchmarks.package_findings.by_hand import finding, gradient, leaf, numbers, off, refusal, size, true, twice


def one_head(length: int, *widths: int) -> list[Tensor]:
    """Random tensors [1 T 1 width]."""
    return [torch.randn(1, length, 1, width) for width in widths]


def each(names: Sequence[str], given: Sequence[Tensor | None], truth: Sequence[Tensor]) -> str:
    """The errors of several tensors."""
    return ", ".join(f"{name} {off(a, b)}" for name, a, b in zip(names, given, truth, strict=True))


def gates(x: Tensor) -> Tensor:
    return log_sigmoid(x)


@finding("fla-rwkv6-drops-the-cotangent-of-the-state")
def rwkv6_state() -> str:
    r, k, v, w, u = *one_head(4, 16, 16, 16, 16), torch.randn(1, 16)
    state = torch.randn(1, 1, 16, 16)
    given = [leaf(t) for t in (r, k, v, gates(w), u, state)]
    plain = [true(t) for t in given]
    o, last = fused_recurrent_rwkv6(*given[:5], 1.0, given[5], True)
    _, b, c, g, bonus, s = plain
    outputs = []
    for t in range(4):
        kv = b[0, t, 0, :, None] * c[0, t, 0]
        outputs.append(plain[0][0, t, 0] @ (s[0, 0] + bonus[0, :, None] * kv))
        s = (g[0, t, 0].exp()[:, None] * s[0, 0] + kv)[None, None]
    ref = torch.stack(outputs)[None, :, None]
    said = []
    for name, out, true_out in (("o", o, ref), ("final state", last, s)):
        cotangent = torch.randn_like(out)
        got = torch.autograd.grad(out, given[1:4], cotangent, retain_graph=True)
        want = torch.autograd.grad(true_out, plain[1:4], cotangent.double(), retain_graph=True)
        said.append(f"of {name}: {each(('dk', 'dv', 'dw'), got, want)}")
    return "; ".join(said)


@finding("fla-fused-recurrent-delta-rule-state")
def delta_rule_state() -> str:
    """A backward with an initial state that requires no gradient, or that is copied because it is not contiguous."""
    q, k, v = one_head(4, 16, 16, 16)
    beta, state = torch.rand(1, 4, 1), torch.randn(1, 1, 16, 16)
    said = []
    for name, initial in (
        ("that requires grad", leaf(state)),
        ("that requires none", state),
        ("that is transposed", leaf(state).mT),
    ):
        given = [leaf(t) for t in (q, normalize(k, dim=-1), v, beta)]
        o, _ = fused_recurrent_delta_rule(*given, initial_state=initial, output_final_state=True)
        said.append(f"initial state {name}: {refusal(o.sum().backward)}")
    return "; ".join(said)


@finding("fla-lightning-final-state")
def lightning() -> str:
    """The last head of H decays by e^(-8 (H - 1) / H); a final state multiplies e^(decay (T - 64)) and its inverse."""
    bad: dict[int, list[int]] = {}
    for heads in (2, 8):
        for length in range(1, 129, 3):
            q = torch.randn(1, length, heads, 16)
            if chunk_lightning_attn(q, q, q, 0, 4, output_final_state=True)[1].isnan().any():
                bad.setdefault(heads, []).append(length)
    return "; ".join(f"{heads} heads: NaN for T in {spans(lengths)}" for heads, lengths in bad.items())


def spans(lengths: list[int]) -> str:
    """Lengths as ranges."""
    step = lengths[1] - lengths[0]
    found: list[list[int]] = []
    for n in lengths:
        if found and n - found[-1][1] == step:
            found[-1][1] = n
        else:
            found.append([n, n])
    return ", ".join(f"{a} to {b}" for a, b in found) + (f" in steps of {step}" if step > 1 else "")


@finding("fla-abc-states")
def abc() -> str:
    """S_t of slots whose weights e^s are divided by their cumulative sum."""
    said = []
    for length in (1, 37, 64):
        k, v, s, q = one_head(length, 16, 16, 8, 16)
        given = [leaf(t) for t in (q, k, v, s)]
        before = leaf(torch.randn(1, 1, 16, 8)), leaf(torch.randn(1, 1, 8, 16))
        o, last = chunk_abc(*given, initial_state=before, output_final_state=True)
        z = s[0, :, 0].double().exp().cumsum(0)  # [T M]
        weights = s[0, :, 0].double().exp() / z[-1]
        keys = k[0, :, 0].double().mT @ weights + before[0][0, 0].double() * (z[0] / z[-1])
        grads = torch.autograd.grad(o.sum(), [given[3], *before], allow_unused=True)
        said.append(
            f"T = {length}: final keys {off(last[0][0, 0], keys)}, requires grad: {last[0].requires_grad}, "
            f"gradients of the initial states: {[g if g is None else size(g) for g in grads[1:]]}"
        )
    return "; ".join(said)


def abc_outputs(given: Sequence[Tensor], keys: Tensor, values: Tensor) -> Tensor:
    """o [T V] of ABC attention, from its definition; q, k, v, s and the states in float64, of one head."""
    q, k, v, s = given
    z = s.exp().cumsum(0)
    rows = []
    for t in range(len(q)):
        w = s[: t + 1].exp() / z[t]
        first = z[0] / z[t]
        p = torch.softmax(q[t] @ (k[: t + 1].mT @ w + keys * first) * q.shape[-1] ** -0.5, -1)
        rows.append(p @ (w.mT @ v[: t + 1] + first[:, None] * values))
    return torch.stack(rows)


@finding("fla-abc-gradient-of-the-slots")
def abc_slots() -> str:
    said = []
    for states in (False, True):
        q, k, v, s = one_head(5, 16, 16, 16, 8)
        keys, values = (states * torch.randn(1, 1, *shape) for shape in ((16, 8), (8, 16)))
        given, do = [leaf(t) for t in (q, k, v, s)], torch.randn(1, 5, 1, 16)
        o, _ = chunk_abc(*given, initial_state=(keys, values))
        plain = [true(t[0, :, 0]) for t in given]
        ref = abc_outputs(plain, keys[0, 0].double(), values[0, 0].double())
        (got,) = torch.autograd.grad(o, given[3], do)
        (want,) = torch.autograd.grad(ref, plain[3], do[0, :, 0].double())
        said.append(
            f"{'random' if states else 'zero'} initial states: o {off(o[0, :, 0], ref)}, ds {off(got[0, :, 0], want)}"
        )
    return "; ".join(said)


@finding("fla-causal-conv1d-final-state")
def convolution() -> str:
    said = []
    for length in (3, 4, 70):
        x, weight = leaf(torch.randn(1, length, 3)), torch.randn(3, 4)
        before, cotangent = torch.randn(1, 3, 4), torch.randn(1, 3, 4)
        _, last = causal_conv1d(x, weight, None, None, before, output_final_state=True)
        (got,) = torch.autograd.grad(last, x, cotangent)
        v = true(x)
        (want,) = torch.autograd.grad(torch.cat([before.double(), v.mT], -1)[..., -4:], v, cotangent.double())
        said.append(f"T = {length}, W = 4: dx {off(got, want)}")
    return "; ".join(said)


@finding("fla-chunk-hgrn-state")
def hgrn() -> str:
    x, g, before = leaf(torch.randn(1, 5, 4)), leaf(gates(torch.randn(1, 5, 4))), leaf(torch.randn(1, 4))
    o, last = chunk_hgrn(x, g, before, output_final_state=True)
    plain = [true(t) for t in (x, g, before)]
    h, rows = plain[2], []
    for t in range(5):
        h = plain[1][:, t].exp() * h + plain[0][:, t]
        rows.append(h)
    said = []
    for name, out, ref in (("o", o, torch.stack(rows, 1)), ("final state", last, h)):
        got = torch.autograd.grad(out.sum(), [x, g, before], retain_graph=True, allow_unused=True)
        want = torch.autograd.grad(ref.sum(), plain, retain_graph=True)
        said.append(f"of {name}: {each(('dx', 'dg', 'dinitial_state'), got, want)}")
    return "; ".join(said)


@finding("fla-second-outputs-without-gradient")
def second_outputs() -> str:
    """Outputs that require grad, whose cotangents the backward does not use."""
    q, k, v, w = (leaf(t) for t in one_head(6, 16, 16, 16, 16))
    g = leaf(gates(torch.randn(1, 6, 1)))
    _, a = parallel_simple_gla(q, k, v, g, output_attentions=True)
    (got,) = torch.autograd.grad(a.sum(), q)
    decay = torch.exp(g.double().cumsum(1)[0] - g.double().cumsum(1)[0].mT).tril()
    d, e = true(q), k.detach().double()
    (want,) = torch.autograd.grad((d[0, :, 0] @ e[0, :, 0].mT * decay.detach() / 4).sum(), d)
    beta = leaf(torch.sigmoid(torch.randn(1, 6, 1)))
    _, cache = parallel_path_attn(q, k, v, normalize(w, dim=-1), beta, use_cache=True)
    (of_cache,) = torch.autograd.grad(cache.sum(), k)
    return (
        f"parallel_simple_gla's attentions require grad: {a.requires_grad}, dq {off(got, want)}; "
        f"parallel_path_attn's k_cache requires grad: {cache.requires_grad}, dk is {size(of_cache)}, "
        f"while the cache depends on k"
    )


@finding("fla-recurrent-kda-without-gradient")
def kda() -> str:
    q, k, v, g = (leaf(t) for t in one_head(4, 16, 16, 16, 16))
    beta = leaf(torch.sigmoid(torch.randn(1, 4, 1)))
    o, _ = fused_recurrent_kda(q, k, v, gates(g), beta)
    g_atk, beta_atk = gates(torch.randn(1, 4, 1)), torch.sigmoid(torch.randn(1, 4, 1))
    p = fused_recurrent_precond_kda(q, k, v, gates(g), g_atk, beta_atk, beta)[0]
    return (
        f"all inputs require grad; fused_recurrent_kda's output requires it: {o.requires_grad}; "
        f"fused_recurrent_precond_kda's: {p.requires_grad}"
    )


@finding("fla-comba-references")
def comba() -> str:
    q, k, v, p = one_head(64, 16, 16, 16, 16)
    k, p = normalize(k, dim=-1), normalize(p, dim=-1)
    g, beta = gates(torch.randn(1, 64, 1)), torch.sigmoid(torch.randn(1, 64, 1))
    named = {"q": q, "k": k, "v": v, "p": p, "g": g, "beta": beta}
    first, second = (naive(**named)[0] for naive in (naive_recurrent_comba, naive_chunk_comba))
    o, _ = fused_recurrent_comba(**named)
    return (
        f"naive_chunk_comba against naive_recurrent_comba: o {off(second, first)}; "
        f"fused_recurrent_comba against it: o {off(o, first)}, against naive_chunk_comba: o {off(o, second)}"
    )


@finding("fla-wall-attention-strong-decay")
def wall() -> str:
    """Every token of every channel decays by e^-c."""
    said = []
    for c, length in ((2.0, 64), (3.0, 64), (5.0, 64), (8.0, 16), (8.0, 33)):
        q, k, v = (leaf(t) for t in one_head(length, 16, 16, 16))
        g = leaf(torch.full((1, length, 1, 16), -c))
        o, do = parallel_wall_attn(q, k, v, g), torch.randn(1, length, 1, 16)
        a, b, w = (true(t[0, :, 0]) for t in (q, k, v))
        age = torch.arange(length).double()[:, None] - torch.arange(length).double()
        scores = torch.where(age >= 0, a @ b.mT / 4 * torch.exp(-c * age.clamp(min=0)), -torch.inf)
        ref = torch.softmax(scores, -1) @ w
        (got,) = torch.autograd.grad(o, k, do)
        (want,) = torch.autograd.grad(ref, b, do[0, :, 0].double())
        said.append(f"c = {c:g}, T = {length}: o {off(o[0, :, 0], ref)}, dk {off(got[0, :, 0], want)}")
    return "; ".join(said)


def conjugate_gradients(matrix: Tensor, q: Tensor, added: float) -> Tensor:
    """matrix^-1 q by 30 steps that add a number to both divisors, as the mesa layer's do; in float64."""
    x, r = torch.zeros_like(q), q.clone()
    p, size_of_r = r.clone(), r @ r
    for _ in range(30):
        step = size_of_r / (p @ matrix @ p + added)
        x, r = x + step * p, r - step * (matrix @ p)
        p, size_of_r = r + r @ r / (size_of_r + added) * p, r @ r
    return x


@finding("fla-mesa-net-conjugate-gradients")
def mesa() -> str:
    """One token: o = H^T (G + diag(lamb))^-1 q, with q and k of unit norm."""
    q, k = (normalize(torch.randn(1, 1, 1, 16), dim=-1) for _ in range(2))
    v, beta, gate = torch.randn(1, 1, 1, 16), torch.rand(1, 1, 1), log_sigmoid(torch.randn(1, 1, 1))
    root, values, lamb = torch.randn(16, 16), torch.randn(1, 1, 16, 16), torch.full((1, 16), 0.3)
    before = {"h_kk_init": (root @ root.mT / 16)[None, None], "h_kv_init": values}
    o, _, _ = chunk_mesa_net(q, k, v, gate, beta, lamb, **before, output_final_state=True)
    key, value, query = (t.double().flatten() for t in (k, v, q))
    decay, weight = float(gate.exp()), float(beta)
    matrix = decay * (root.double() @ root.double().mT / 16) + weight * torch.outer(key, key) + 0.3 * torch.eye(16)
    state = decay * values.double()[0, 0] + weight * torch.outer(key, value)
    truth = torch.linalg.solve(matrix, query) @ state
    added = {name: conjugate_gradients(matrix, query, each) @ state for name, each in (("1e-5", 1e-5), ("0", 1e-300))}
    by_hand = ", ".join(f"{name} added: {off(value, truth)}" for name, value in added.items())
    return f"o {off(o.flatten(), truth)}; the same steps in float64, {by_hand}"


@finding("fla-fused-chunk-based-bfloat16")
def based() -> str:
    """The same gradients by two operations with one definition, for a cotangent far from 0."""
    q, k, v = (torch.randn(1, 32, 1, 16).bfloat16() for _ in range(3))
    g = (100 + torch.randn(1, 32, 1, 16)).bfloat16()
    a, b, c = (true(t) for t in (q, k, v))
    scores = a[0, :, 0] @ b[0, :, 0].mT / 4
    ref = (1 + scores + scores.square() / 2).tril() @ c[0, :, 0]
    want = torch.autograd.grad(ref, (a, b, c), g.double()[0, :, 0])
    said = []
    for operation in (fused_chunk_based, parallel_based):
        given = [leaf(t) for t in (q, k, v)]
        got = torch.autograd.grad(operation(*given, use_norm=False), given, g)
        said.append(f"{operation.__name__}: {each(('dq', 'dk', 'dv'), got, want)}")
    return "; ".join(said)


@finding("fla-gated-norm-linear-overflow")
def norm_linear() -> str:
    """Layer norm, then a linear layer in float16, whose weight times the cotangent is above 65504; x is one number."""
    x, g = leaf(torch.tensor([[2.0]]).half()), torch.tensor([[1000.0]]).half()
    weight, bias, linear = torch.ones(1).half(), torch.zeros(1).half(), torch.full((1, 1), 100.0).half()
    layer_norm_linear(x, weight, bias, linear, None).backward(g)
    return f"layer_norm_linear, weight 100, cotangent 1000: dx {numbers(gradient(x))}, true 0"


@finding("fla-logsigmoid")
def large_logsigmoid() -> str:
    said = []
    for x in (10.0, 16.0, 17.0, 20.0):
        t = leaf(torch.tensor([x]))
        y = logsigmoid(t)
        y.sum().backward()
        value, slope = -mpmath.log1p(mpmath.exp(-x)), 1 / (1 + mpmath.exp(x))
        got = float(y), float(gradient(t))
        said.append(f"x = {x:g}: y, dx {numbers(got)}, true {numbers((float(value), float(slope)))}")
    return "; ".join(said)


@finding("fla-losses-backward-twice")
def losses_twice() -> str:
    x, w, t = leaf(torch.randn(4, 16)), leaf(torch.randn(9, 16)), torch.tensor([0, 1, 2, 3])
    linear = linear_cross_entropies.fused_linear_cross_entropy_loss(x, t, w)
    kl = divergences.fused_kl_div_loss(x, torch.randn(4, 16), w, torch.randn(9, 16))
    default = cross_entropies.cross_entropy_loss(x * 1, t)[0].sum()
    return (
        f"fused linear cross entropy: {twice(linear, x)}; fused KL: {twice(kl, x)}; cross entropy: {twice(default, x)}"
    )


@finding("fla-silent-zero-double-backward")
def second_order() -> str:
    """d/dq of the sum of dq^2 of o's sum of squares is not 0: o is linear in q."""
    q, k, v = (leaf(t) for t in one_head(6, 16, 16, 16))
    g = gates(torch.randn(1, 6, 1))
    o = chunk_simple_gla(q, k, v, g)[0]
    (dq,) = torch.autograd.grad(o.square().sum(), q, create_graph=True)
    decay = torch.exp(g.double().cumsum(1)[0] - g.double().cumsum(1)[0].mT).tril()
    p, a, b = true(q), k.detach().double()[0, :, 0], v.detach().double()[0, :, 0]
    ref = (p[0, :, 0] @ a.mT * decay / math.sqrt(16)) @ b
    (dp,) = torch.autograd.grad(ref.square().sum(), p, create_graph=True)
    (want,) = torch.autograd.grad(dp.square().sum(), p)
    if not dq.requires_grad:
        return f"chunk_simple_gla: dq has no graph although create_graph was asked; true second gradient {size(want)}"
    (got,) = torch.autograd.grad(dq.square().sum(), q, allow_unused=True)
    return f"chunk_simple_gla: d/dq of |dq|^2 {off(got, want)}"
