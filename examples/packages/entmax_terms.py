"""Sparse mappings onto the simplex: the terms of the definitions of entmax's adapters."""

from __future__ import annotations

import torch

NEWTON = 16  # steps from below; the error squares in each, from a distance of at most 1


def root(z, e):
    """The tau with sum relu(z - tau)^e = 1 along the last dim, and where z > tau.

    z_i > tau if and only if the sum of relu(z_j - z_i)^e is below 1, so that the entries above tau are known before
    it is. With e = 1 and e = 2 it is the root of a polynomial; with others Newton's iteration from max z - 1 rises to
    it, as the sum is convex. The last two steps alone are differentiated: with them the first and second derivatives
    are those of the implicit function.
    """
    above = (torch.relu(z[..., None, :] - z[..., :, None]) ** e_of(e, 2)).sum(-1) < 1
    count = above.to(z.dtype).sum(-1, keepdim=True)
    if isinstance(e, float) and e in (1.0, 2.0):
        mean = torch.where(above, z, 0.0).sum(-1, keepdim=True) / count
        if e == 1.0:
            return mean - 1 / count, above
        spread = torch.where(above, z - mean, 0.0).square().sum(-1, keepdim=True)
        return mean - torch.sqrt((1 - spread) / count), above

    def step(tau, z, e):
        u = torch.where(above, z - tau, 1.0)
        total = torch.where(above, u**e, 0.0).sum(-1, keepdim=True)
        slope = torch.where(above, e * u ** (e - 1), 0.0).sum(-1, keepdim=True)
        return tau + (total - 1) / slope

    fixed_z, fixed_e = z.detach(), e_of(e, 0, detach=True)
    tau = fixed_z.amax(-1, keepdim=True) - 1
    for _ in range(NEWTON):
        tau = step(tau, fixed_z, fixed_e)
    return step(step(tau.detach(), z, e), z, e), above


def e_of(e, dims, *, detach=False):
    """An exponent, a number or a tensor [... 1], of more dims or detached."""
    if isinstance(e, float):
        return e
    e = e.detach() if detach else e
    return e[..., None] if dims else e


def powers(z, tau, above, e):
    """relu(z - tau)^e, with no derivative where that is 0."""
    return torch.where(above, torch.where(above, z - tau, 1.0) ** e, 0.0)


def entmax(x, alpha):
    """The p >= 0 of sum 1 with the largest <x, p> + (1 - sum p^alpha) / (alpha (alpha - 1)) [N of ... N]."""
    z, e = (alpha - 1) * x, 1 / (alpha - 1)
    tau, above = root(z, e)
    return powers(z, tau, above, e)


def normmax(x, alpha):
    """The p >= 0 of sum 1 with the largest <x, p> - ||p||_alpha."""
    tau, above = root(x, alpha / (alpha - 1))
    u = powers(x, tau, above, 1 / (alpha - 1))
    return u / u.sum(-1, keepdim=True)


def budgeted(x, budget):
    """The 0 <= p <= 1 of sum ``budget`` that is nearest to x.

    The p of a threshold tau is clamp(x - tau, 0, 1); that its sum falls in tau tells which entries are 0 and 1.
    """

    def total(tau):
        return torch.clamp(x[..., None, :] - tau[..., :, None], 0, 1).sum(-1)

    one = total(x - 1) <= budget
    active = (total(x) < budget) & ~one
    count = torch.clamp(active.to(x.dtype).sum(-1, keepdim=True), min=1)
    ones = one.to(x.dtype)
    tau = (torch.where(active, x, 0.0).sum(-1, keepdim=True) + ones.sum(-1, keepdim=True) - budget) / count
    return torch.where(active, x - tau, ones)


def power_sum(p, alpha):
    """The sum of p^alpha, with no derivative where p is 0."""
    return torch.where(p > 0, torch.where(p > 0, p, 1.0) ** alpha, 0.0).sum(-1)
