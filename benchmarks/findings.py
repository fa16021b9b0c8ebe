"""The figures of docs/findings.md about PyTorch's SDPA on the CPU, measured again.

`python benchmarks/findings.py`
"""

from __future__ import annotations

import torch
from gradoracle.properties.sdpa import FAMILY
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from gradoracle.cases.sample import build
from gradoracle.check.evidence import Evidence
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.model.case import Case, Draw
from gradoracle.model.derivative import Derivative
from gradoracle.model.kernel import Kernel
from gradoracle.oracle.truth import Oracle

DIMS = {"B": 1, "H": 2, "T": 64, "M": 128, "D": 64, "Dv": 64}
FUSED = Kernel("PyTorch's default", "sdpa", scaled_dot_product_attention, options={"scale": (), "causal": ()})


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The formula in float64, at D = 4."""
    return torch.softmax(q.double() @ k.double().mT / 2, -1) @ v.double()


def lengths_that_differ() -> None:
    """K and v of different M: which keys are used, and in which memory they lie."""
    generator = torch.Generator().manual_seed(0)
    q, storage, v = (torch.randn(1, 1, n, 4, generator=generator) for n in (3, 7, 7))
    k = storage[:, :, :5]
    given = scaled_dot_product_attention(q, k, v)
    off = float((given - attention(q, storage, v)).abs().max())
    print(f"k of 5 rows, v of 7: no error; o is the attention over 7 rows of k's memory, to {off:.0e}")
    storage[:, :, 5:] = 100.0
    moved = float((scaled_dot_product_attention(q, k, v) - given).abs().max())
    print(f"    what lies behind k's 5 rows changed, k itself not: o moves by {moved:.2g}")
    given = scaled_dot_product_attention(q, k, v[:, :, :2])
    off = float((given - attention(q, k[:, :, :2], v[:, :, :2])).abs().max())
    print(f"k of 5 rows, v of 2: no error; o is the attention over the first 2 keys, to {off:.0e}")


def log_sum_exp() -> None:
    """The log-sum-exp that the flash kernel keeps for its backward, with all logits near 0."""
    generator = torch.Generator().manual_seed(0)
    wide = [torch.randn(1, 1, n, 64, generator=generator) for n in (8, 4096, 4096)]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        q, k, v = ((x * s).to(dtype) for x, s in zip(wide, (1e-3, 1e-3, 1.0), strict=True))
        kept = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)[1]
        off = (kept.double() - torch.logsumexp(q.double() @ k.double().mT / 8, -1)).flatten()
        print(f"kept log-sum-exp, {str(dtype)[6:]}: off by {float(off.min()):.1e} to {float(off.max()):.1e}")


def evidence_of(dtype: str, recipe: str) -> Evidence:
    """PyTorch's default on one case, with q sampled by the recipe, and its certified truth."""
    case = Case("sdpa", DIMS, dtype, draws={"q": Draw(recipe)})
    return Evidence(case, build(case, FAMILY.signature), KernelRunner(FAMILY, FUSED), Oracle(FAMILY, "certified"))


def against_certified(evidence: Evidence, algorithm: str) -> str:
    """Each gradient against certified truth: worst element in sigma of an algorithm's budget, and errors as a whole."""
    truths, got = evidence.truths(Derivative.VJP), evidence.vjp()
    budgets = evidence.budgets(Derivative.VJP, algorithm)
    found = []
    for name in evidence.names(Derivative.VJP):
        error, sigma, size = truths[name].error(got[name]), budgets[name].sigma, truths[name].value.norm()
        worst, off, explained = (error.abs() / sigma).max(), error.norm() / size, sigma.norm() / size
        found.append(f"{name} {float(worst):4.3g} ({float(off):.0e} of {float(explained):.0e})")
    return "  ".join(found)


def from_a_rounded_output(evidence: Evidence) -> str:
    """All of the backward in float64, but z = rowsum(dO * O) from an O that is rounded to the dtype."""
    sample = evidence.sample
    q, k, v = (t.double() for t in sample.inputs.values())
    (g,) = (t.double() for t in sample.cotangents.values())
    p = torch.softmax(q @ k.mT * DIMS["D"] ** -0.5, -1)  # [B H T M]
    o = (p @ v).to(getattr(torch, evidence.case.dtype)).double()
    dq = (p * (g @ v.mT - (g * o).sum(-1, keepdim=True))) @ k * DIMS["D"] ** -0.5
    truth, budget = evidence.truths(Derivative.VJP)["dq"], evidence.budgets(Derivative.VJP, "definition")["dq"]
    return f"dq {float((truth.error(dq).abs() / budget.sigma).max()):4.3g}"


def main() -> None:
    print(f"torch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}\n")
    lengths_that_differ()
    print()
    log_sum_exp()
    print(
        "\nagainst certified truth, T = 64, M = 128, D = 64: worst element in sigma "
        "(relative error in the 2-norm, of sigma's)"
    )
    for dtype in ("bfloat16", "float16"):
        for recipe in ("normal:1e-3", "normal:1", "normal:8"):
            evidence = evidence_of(dtype, recipe)
            for algorithm in ("definition", "flash"):
                said = against_certified(evidence, algorithm)
                print(f"{dtype:8}  q ~ {recipe:11}  {algorithm:10}  {said}")
            print(f"{dtype:8}  q ~ {recipe:11}  float64, z from a rounded O  {from_a_rounded_output(evidence)}")


if __name__ == "__main__":
    main()
