"""What the findings share: a list of them, leaves, errors, and how one is run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from gradoracle import cuda_claimed
from gradoracle.host import interpreter

Finding = Callable[[], str]
FINDINGS: dict[str, tuple[Finding, bool]] = {}


def place(device: str) -> None:
    """Let what is imported from here on run there: Triton interpreted on the CPU, or every new tensor on the GPU."""
    if device == "cpu":
        interpreter.activate()
    else:
        torch.set_default_device(device)


def finding(name: str, claimed: bool = True) -> Callable[[Finding], Finding]:
    """Add a function under a name, which is the anchor of docs/findings.md too.

    Args:
        name: of the finding.
        claimed: whether a CUDA device is claimed, without which the package refuses to run its Triton kernels.
    """

    def add(function: Finding) -> Finding:
        FINDINGS[name] = function, claimed
        return function

    return add


def shown(name: str) -> str:
    """What the finding says; the random numbers are the same in each."""
    function, claimed = FINDINGS[name]
    torch.manual_seed(0)
    with cuda_claimed(claimed):
        return function()


def leaf(x: Tensor) -> Tensor:
    """A copy that requires grad."""
    return x.detach().clone().requires_grad_()


def true(x: Tensor) -> Tensor:
    """The same numbers in float64, contiguous and requiring grad."""
    return x.detach().double().contiguous().requires_grad_()


def columns_first(x: Tensor) -> Tensor:
    """The same matrix in column-major memory."""
    return x.detach().t().contiguous().t().requires_grad_()


def gradient(x: Tensor) -> Tensor:
    """Its gradient, which is there."""
    assert x.grad is not None
    return x.grad


def off(given: Tensor | None, truth: Tensor) -> str:
    """The largest error and the largest true value."""
    if given is None:
        return f"None (largest true value {size(truth)})"
    return f"off by {float((given.detach().double() - truth.detach()).abs().max()):.2g} of {size(truth)}"


def size(x: Tensor) -> str:
    """The largest absolute value."""
    return f"{float(x.detach().abs().max()):.2g}"


def numbers(x: Tensor | Iterable[float], digits: int = 4) -> str:
    """Numbers in brackets."""
    values: Sequence[float] = x.detach().double().flatten().tolist() if isinstance(x, Tensor) else list(x)
    return "[" + ", ".join(f"{value:.{digits}g}" for value in values) + "]"


def twice(loss: Tensor, x: Tensor) -> str:
    """The gradient of 2 loss by a backward, and again by a second one of the same graph."""
    first, second = (torch.autograd.grad(2 * loss, x, retain_graph=True)[0].clone() for _ in range(2))
    return f"second backward gives {float((second / first).nanmedian()):.3g} times the first"


def refusal(call: Callable[[], object]) -> str:
    """The error that a call raises, in one line."""
    try:
        call()
    except Exception as error:  # whatever a package raises
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    return "no error"
