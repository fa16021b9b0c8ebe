"""Findings in entmax 1.3, sparsemax 0.1.9, crossentropy-triton 0.1.2 and three packages that leave their tensors.

Accesses outside of a tensor are read from the interpreter's record of addresses, on a GPU by compute-sanitizer; no
property is evaluated.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial

import accelerated_scan.scalar as scans
import crossentropy_triton.crossentropy_tl as causal
import entmax
import jvp_flash_attention.jvp_attention as flash
import sparsemax
import torch
import torch_struct
from torch import Tensor

from benchmarks.package_findings.by_hand import finding, leaf, numbers, off, refusal, size, true, twice
from gradoracle.host import interpreter
from gradoracle.host.interpreter.record import recording

interpreted = interpreter.is_active()
if interpreted:
    os.environ["TRITON_INTERPRET"] = "true"  # adasplash looks for "1", and then defines no kernel
import adasplash.adasplash_no_block_mask as adasplash  # noqa: E402

if interpreted:
    os.environ["TRITON_INTERPRET"] = "1"


def outside(call: Callable[[], object]) -> str:
    """The accesses outside of a tensor during a call, without the path of the source; on a GPU, how the call ended."""
    if not interpreted:
        ended = refusal(call)
        torch.cuda.synchronize()
        return ended
    with recording() as record:
        ended = refusal(call)
    faults = [str(fault).split(" of shape")[0] for fault in record.faults()]
    return f"{'; '.join(faults) or 'no access outside'}" + ("" if ended == "no error" else f"; {ended}")


@finding("entmax-double-backward-at-zero", claimed=False)
def double_backward() -> str:
    """Where p is 0, the derivative of p^(2 - alpha) is infinite, and is multiplied by 0."""
    said = []
    for name, function in (("entmax15", entmax.entmax15), ("entmax_bisect", entmax.entmax_bisect)):
        x = torch.tensor([[-1.0, 1.0, 1.5]], dtype=torch.float64, requires_grad=True)
        p = function(x)
        (dx,) = torch.autograd.grad((p * torch.tensor([1.0, 2.0, 4.0])).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(dx.square().sum(), x)
        h = 1e-6
        differences = []
        for n in range(3):
            sides = []
            for sign in (1, -1):
                y = x.detach().clone()
                y[0, n] += sign * h
                y.requires_grad_()
                (g,) = torch.autograd.grad((entmax.entmax15(y) * torch.tensor([1.0, 2.0, 4.0])).sum(), y)
                sides.append(float(g.square().sum()))
            differences.append((sides[0] - sides[1]) / (2 * h))
        said.append(
            f"{name}: p {numbers(p, 3)}, second gradient {numbers(second)}, by differences {numbers(differences)}"
        )
    return "; ".join(said)


@finding("entmax-bisect-large-scores", claimed=False)
def large_scores() -> str:
    """One score alone has probability 1; the bracket of the threshold is [x - 1, x]."""
    said = []
    for dtype, x in ((torch.float32, 1e7), (torch.float32, 1e8), (torch.float64, 1e16), (torch.float64, 1e17)):
        found = [float(f(torch.tensor([x], dtype=dtype))) for f in (entmax.sparsemax_bisect, entmax.entmax_bisect)]
        said.append(f"{str(dtype)[6:]} {x:g}: {found[0]:g}, {found[1]:g}")
    return "sparsemax_bisect, entmax_bisect of one score, true 1: " + "; ".join(said)


@finding("entmax-budget-bisect-one-head", claimed=False)
def budget() -> str:
    """The number of active entries is squeezed once more after it was summed."""
    said = []
    for heads in (2, 1):
        x = torch.randn(3, heads, 4, dtype=torch.float64, requires_grad=True)
        p = entmax.budget_bisect(x, 2)
        g = torch.randn_like(p)
        (dx,) = torch.autograd.grad(p, x, g)
        active = (p > 0) & (p < 1)
        mean = (g * active).sum(-1, keepdim=True) / active.sum(-1, keepdim=True)
        said.append(f"[3 {heads} 4]: dx {off(dx, torch.where(active, g - mean, 0.0))}")
    return "; ".join(said)


@finding("entmax-losses-with-an-alpha-of-each-row", claimed=False)
def losses_of_rows() -> str:
    x, t = torch.randn(3, 5, dtype=torch.float64), torch.tensor([0, 1, 2])
    rows = entmax.entmax_bisect_loss(x, t, torch.full((3, 1), 1.5, dtype=torch.float64))
    one = entmax.entmax_bisect_loss(x, t, 1.5)
    found = (f"{list(loss.shape)}, sum {float(loss.sum()):.4f}" for loss in (one, rows))
    return "alpha 1.5 for all: {}; for each row: {}".format(*found)


@finding("entmax-losses-of-ignored-targets", claimed=False)
def ignored() -> str:
    x, t = torch.randn(3, 5), torch.tensor([0, -100, 2])
    loss = entmax.Entmax15Loss()
    return f"Entmax15Loss(), whose ignore_index is {loss.ignore_index}, of a target -100: {refusal(lambda: loss(x, t))}"


@finding("entmax-losses-second-order", claimed=False)
def second_order() -> str:
    x, t = torch.randn(2, 5, dtype=torch.float64, requires_grad=True), torch.tensor([0, 1])
    (dx,) = torch.autograd.grad(entmax.entmax15_loss(x, t).sum(), x, create_graph=True)
    v = torch.randn(2, 5, dtype=torch.float64)
    p = entmax.entmax15(x)  # dx = p - e, so its derivative is that of p
    (truth,) = torch.autograd.grad((p * v).sum(), x)
    found = f"{dx.requires_grad}; the largest element of its true derivative times a vector is {size(truth)}"
    return f"dx under create_graph requires grad: {found}"


@finding("crossentropy-triton-all-ignored")
def all_ignored() -> str:
    x = leaf(torch.randn(1, 3, 4))
    loss = causal.CrossEntropyFunction.apply(x, torch.full((1, 3), -100), -100)
    loss.backward()
    same = x.grad is not None and torch.equal(x.grad[:, :-1], x.detach()[:, :-1])
    return f"loss {float(loss.detach())}, dx equals x: {same} (true: 0)"


@finding("crossentropy-triton-backward-twice")
def causal_twice() -> str:
    x = leaf(torch.randn(1, 3, 4))
    return twice(causal.CrossEntropyFunction.apply(x, torch.tensor([[0, 1, 2]]), -100), x)


@finding("sparsemax-matrix-along-the-first-dim", claimed=False)
def first_dim() -> str:
    x = torch.randn(3, 4)
    p = sparsemax.Sparsemax(0)(x)
    vector = refusal(lambda: sparsemax.Sparsemax(0)(x[0]))
    return (
        f"Sparsemax(0) of [3 4]: sums over dim 0 {numbers(p.sum(0))}, over dim 1 {numbers(p.sum(1))}; of [4]: {vector}"
    )


@finding("accelerated-scan-reads-past-states")
def scan() -> str:
    gates, x = leaf(torch.rand(1, 1, 5)), leaf(torch.randn(1, 1, 5))
    return outside(lambda: scans.scan(gates, x).sum().backward())


def heads(length: int, width: int) -> list[Tensor]:
    """q, k and v of one head."""
    return [leaf(torch.randn(1, 1, length, width)) for _ in range(3)]


@finding("adasplash-short-sequences")
def short_sequences() -> str:
    def run(length: int) -> None:
        adasplash.sparse_attn(*heads(length, 16), alpha=1.5).sum().backward()

    return "; ".join(f"T = {length}: {outside(partial(run, length))}" for length in (64, 128))


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return torch.softmax(true(q) @ true(k).mT / q.shape[-1] ** 0.5, -1) @ true(v)


@finding("jvp-flash-attention-incomplete-blocks")
def incomplete_blocks() -> str:
    """The forward accepts every even length from 32."""
    said = []
    for length in (64, 70):
        q, k, v = heads(length, 32)
        found: list[Tensor] = []

        def run(given: list[Tensor], found: list[Tensor]) -> None:
            out = flash.attention(*given)
            found.append(out[0] if isinstance(out, tuple) else out)
            found[0].sum().backward()

        accesses = outside(partial(run, [q, k, v], found))
        said.append(f"T = {length}: o {off(found[0], attention(q, k, v))}; {accesses}")
    return "; ".join(said)


@finding("torch-struct-semi-markov-lengths", claimed=False)
def segments() -> str:
    """log Z of 6 steps in segments of 1 to 3, one label, in a batch beside a shorter sequence."""
    x = torch.randn(2, 6, 4, 1, 1, dtype=torch.float64)
    totals = [torch.zeros((), dtype=torch.float64)]
    for t in range(1, 7):
        totals.append(torch.stack([totals[t - k] + x[0, t - k, k, 0, 0] for k in range(1, min(3, t) + 1)]).logsumexp(0))
    said = [f"alone {float(torch_struct.SemiMarkovCRF(x[:1]).partition):.4f}"]
    for shorter in (6, 5, 3):
        found = torch_struct.SemiMarkovCRF(x, torch.tensor([7, shorter + 1])).partition[0]
        said.append(f"beside one of {shorter} steps {float(found):.4f}")
    return f"{', '.join(said)}; true {float(totals[6]):.4f}"
