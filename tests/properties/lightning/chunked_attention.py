"""Correct lightning kernels in PyTorch for the validity of budgets: chunked, and the quadratic form."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

Scan = Callable[..., tuple[Tensor, Tensor]]


def chunked_scan(
    x: Tensor, y: Tensor, z: Tensor, initial: Tensor | None, dtype: torch.dtype, chunk: int
) -> tuple[Tensor, Tensor]:
    """(out, last state) in float32, chunk by chunk; operands that are no inputs are rounded to ``dtype``."""

    def operand(t: Tensor) -> Tensor:
        return t.to(dtype).float()

    x, y, z = x.float(), y.float(), z.float()
    state = torch.zeros(*y.shape[:2], y.shape[3], z.shape[3]) if initial is None else initial.float()
    out = []
    for first in range(0, x.shape[2], chunk):
        xc, yc, zc = (t[:, :, first : first + chunk] for t in (x, y, z))
        out.append(xc @ operand(state) + operand(torch.tril(xc @ yc.mT)) @ zc)
        state = state + yc.mT @ zc
    return torch.cat(out, 2), state


def token_by_token(
    x: Tensor, y: Tensor, z: Tensor, initial: Tensor | None, dtype: torch.dtype, chunk: int
) -> tuple[Tensor, Tensor]:
    """The same in float32 alone, with a state that is updated by one token after the other, as a recurrence does."""
    x, y, z = x.float(), y.float(), z.float()
    state = torch.zeros(*y.shape[:2], y.shape[3], z.shape[3]) if initial is None else initial.float()
    out = []
    for i in range(x.shape[2]):
        state = state + y[:, :, i, :, None] * z[:, :, i, None, :]
        out.append(x[:, :, i : i + 1] @ state)
    return torch.cat(out, 2), state


def term_by_term(
    x: Tensor, y: Tensor, z: Tensor, initial: Tensor | None, dtype: torch.dtype, chunk: int
) -> tuple[Tensor, Tensor]:
    """The same in chunks, with one fused multiply-add after another, as a GPU does where it has no tensor cores.

    What a row takes from the state is added to what it has from its chunk, term by term.
    """
    x, y, z = x.float(), y.float(), z.float()
    state = torch.zeros(*y.shape[:2], y.shape[3], z.shape[3]) if initial is None else initial.float()
    out = []
    for first in range(0, x.shape[2], chunk):
        xc, yc, zc = (t[:, :, first : first + chunk] for t in (x, y, z))
        scores = torch.tril(multiply_add(xc, yc.mT)).to(dtype).float()
        out.append(multiply_add(xc, state.to(dtype).float(), multiply_add(scores, zc)))
        state = multiply_add(yc.mT, zc, state)
    return torch.cat(out, 2), state


def multiply_add(a: Tensor, b: Tensor, total: Tensor | None = None) -> Tensor:
    """total + a b in float32, rounded after each term; the products are exact in float64."""
    if total is None:
        total = torch.zeros(*a.shape[:3], b.shape[3])
    for k in range(a.shape[3]):
        total = (total.double() + a[..., k, None].double() * b[:, :, k, None].double()).float()
    return total


def on_tensor_cores(restarts: bool) -> Scan:
    """The same with the sums of the state cut as tensor cores cut them.

    ``restarts``: each chunk has an accumulator of its own, which is added to the state; else there is one for all rows.
    """

    def scan(
        x: Tensor, y: Tensor, z: Tensor, initial: Tensor | None, dtype: torch.dtype, chunk: int
    ) -> tuple[Tensor, Tensor]:
        out, none = chunked_scan(x, y, z, initial, dtype, chunk)[0], torch.zeros(*y.shape[:2], y.shape[3], z.shape[3])
        state = none if initial is None else initial.float()
        for first in range(0, x.shape[2], chunk):
            yc, zc = (t[:, :, first : first + chunk] for t in (y, z))
            state = state + cut_product(yc.mT, zc, none) if restarts else cut_product(yc.mT, zc, state)
        return out, state

    return scan


def cut_product(a: Tensor, b: Tensor, total: Tensor, block: int = 16) -> Tensor:
    """total + a b in float32; a block of exact products is added at a time, and what float32 cannot hold is cut off."""
    for k in range(0, a.shape[3], block):
        own = total.double() + a[..., k : k + block].double() @ b[:, :, k : k + block].double()
        mantissa, exponent = torch.frexp(own)
        total = torch.ldexp(torch.trunc(mantissa * 2.0**24), exponent - 24).float()
    return total


def quadratic_scan(
    x: Tensor, y: Tensor, z: Tensor, initial: Tensor | None, dtype: torch.dtype, chunk: int
) -> tuple[Tensor, Tensor]:
    """The same with all scores at once."""
    out = torch.tril(x.float() @ y.float().mT).to(dtype).float() @ z.float()
    state = y.float().mT @ z.float()
    if initial is None:
        return out, state
    return out + x.float() @ initial.to(dtype).float(), state + initial.float()


def right(
    scan: Scan, q: Tensor, k: Tensor, v: Tensor, initial: Tensor | None, g: Tensor, g_state: Tensor | None,
    *, chunk: int = 64, slip: float = 0.0,
) -> dict[str, Tensor]:  # fmt: skip
    """o, the state and all gradients by name, each stored once; gradients times 1 + slip before that."""
    dtype = q.dtype

    def transposed(state: Tensor | None) -> Tensor | None:
        return None if state is None else state.mT

    rows = q.shape[2]
    filled = -rows % chunk  # rows of 0, so that chunks start at row 0 in both directions

    def backwards(x: Tensor, y: Tensor, z: Tensor, start: Tensor | None) -> tuple[Tensor, Tensor]:
        turned = [pad(t, (0, 0, 0, filled)).flip(2) for t in (x, y, z)]
        out, state = scan(*turned, start, dtype, chunk)
        return out.flip(2)[:, :, :rows], state

    o, state = scan(q, k, v, initial, dtype, chunk)
    dq, _ = scan(g, v, k, transposed(initial), dtype, chunk)
    dk, _ = backwards(v, g, q, transposed(g_state))
    dv, dinitial = backwards(k, q, g, g_state)
    found = {"o": o.to(dtype), **({"state": state} if g_state is not None else {})}
    found |= {name: (t * (1 + slip)).to(dtype) for name, t in (("dq", dq), ("dk", dk), ("dv", dv))}
    return found | ({"dinitial_state": dinitial * (1 + slip)} if initial is not None else {})
