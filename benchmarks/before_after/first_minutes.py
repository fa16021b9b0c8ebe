"""A kernel that nothing declares, its reference and an example: the first five minutes."""

from __future__ import annotations

import torch


def reference(x, w):
    """Each row divided by its root mean square, times w."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


def kernel(x, w):
    """The same, in another order."""
    return x * w / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)


def inputs():
    """One example of the arguments."""
    return torch.randn(4, 96), torch.randn(96)


if __name__ == "__main__":
    import gradoracle

    x, w = (tensor.requires_grad_() for tensor in inputs())
    print(gradoracle.gradcheck(kernel, (x, w), reference=reference))
