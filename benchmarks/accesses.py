"""Memory accesses of Triton kernels of released packages, recorded on the CPU (docs/findings.md).

pip install --no-deps lightning-attn==0.0.5 liger-kernel==0.8.5
python benchmarks/accesses.py
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from importlib.metadata import version

import torch
from torch import Tensor

from gradoracle.host import interpreter
from gradoracle.host.guard_memory import poisoned

interpreter.activate()
from gradoracle.host.interpreter.record import recording  # noqa: E402


def normal(*shape: int) -> Tensor:
    """Numbers that require grad."""
    return torch.randn(*shape, requires_grad=True)


def lightning(module: str, name: str, *decay: Tensor) -> Callable[[], None]:
    """Forward and backward of a function of lightning-attn at N = 257, D = 64, Dv = 32; only D fills a tile."""
    function = getattr(importlib.import_module(f"lightning_attn.ops.triton.{module}"), name)

    def run() -> None:
        o = function(normal(1, 2, 257, 64), normal(1, 2, 257, 64), normal(1, 2, 257, 32), *decay)
        o.backward(torch.randn_like(o))

    return run


def liger(module: str, name: str, *inputs: object) -> Callable[[], None]:
    """Forward and backward of a function of Liger, at sizes that are not powers of two."""
    function = getattr(importlib.import_module(f"liger_kernel.ops.{module}"), name)

    def run() -> None:
        found = function.apply(*inputs)
        first = found[0] if isinstance(found, tuple) else found
        torch.autograd.backward([first], [torch.randn_like(first)])

    return run


def report(kernel: str, run: Callable[[], None]) -> None:
    """Print the first wrong access of each kind in the launches of a run."""
    with poisoned() as memory, recording(memory.unwritten) as record:
        memory.watch = record.watch
        run()
    print(f"{kernel}: {record.launches} launches, {len(record.faults())} faults")
    for fault in record.faults():
        print(f"    {fault}")


def main() -> None:
    """Print one line for each kernel and for each wrong access."""
    print(", ".join(f"{name} {version(name)}" for name in ("torch", "triton", "lightning-attn", "liger-kernel")))
    torch.manual_seed(0)
    labels = torch.tensor([0, 36, -100, 3, 7])
    angles = torch.randn(1, 5, 16), torch.randn(1, 5, 16)
    report("lightning_attn2", lightning("lightning_attn2", "lightning_attn2", torch.tensor([0.1, 0.2])))
    report("lightning_attn2_no_decay", lightning("lightning_attn2_no_decay", "lightning_attn2_no_decay"))
    report("liger cross entropy", liger("cross_entropy", "LigerCrossEntropyFunction", normal(5, 37), labels, None))
    report("liger softmax", liger("softmax", "LigerSoftmaxFunction", normal(5, 37)))
    report("liger swiglu", liger("swiglu", "LigerSiLUMulFunction", normal(5, 37), normal(5, 37)))
    report("liger rope", liger("rope", "LigerRopeFunction", normal(2, 4, 5, 16), normal(2, 2, 5, 16), *angles))


if __name__ == "__main__":
    main()
