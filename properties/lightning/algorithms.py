"""Algorithms of lightning: a chunked kernel's own order of roundings, for budgets only and never as truth.

Each is a program of primals, tangents and cotangents in the engine's order: q, k, v and, where it is there, the initial
state S0; then their tangents; then the cotangents of o and, where it is returned, of the state. It gives exactly what
the definition gives. Within a chunk the scores x y^T are an operand; before it the float32 sum of y^T z is. How long a
chunk is decides which of the two is rounded for a pair of tokens, and for some inputs one of them is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from gradoracle.oracle.rounding.annotations import accumulated, running_sums

CHUNKS = (64, 16, 32, 128, 256, 512, 1)  # rows, the usual one first; 1 is a recurrence


class _Inputs(NamedTuple):
    """q, k [B H N D], v [B H N Dv] and the initial state [B H D Dv] or None; or the tangents of these."""

    q: Tensor
    k: Tensor
    v: Tensor
    initial: Tensor | None


@dataclass(frozen=True)
class Chunked:
    """A kernel that walks over a sequence in chunks of so many rows, the first from row 0 on in both directions."""

    rows: int

    def forward(self, *tensors: Tensor, return_state: bool = False) -> tuple[Tensor, ...]:
        """(o, [state]) of (q, k, v, [S0])."""
        q, k, v, initial = _inputs(tensors)
        o = self.scan(q, k, v, initial)
        return (o, state_after(k, v, initial)) if return_state else (o,)

    def vjp(self, *tensors: Tensor, return_state: bool = False) -> tuple[Tensor, ...]:
        """(o, [state], dq, dk, dv, [dS0]) of (q, k, v, [S0], do, [dstate]).

        With g and dS the cotangents of o and of the state: dq is the scan of g, v, k from S0^T; backwards in time dk is
        that of v, g, q from dS^T and dv that of k, q, g from dS; dS0 is dS + q^T g.
        """
        primals, (g, last) = _split(tensors, 1, return_state)
        q, k, v, initial = _inputs(primals)
        dq = self.scan(g, v, k, _transposed(initial))
        dk = self.scan(v, g, q, _transposed(last), backwards=True)
        dv = self.scan(k, q, g, last, backwards=True)
        gradients = (dq, dk, dv, state_after(q, g, last))
        return (*self.forward(*primals, return_state=return_state), *gradients[: len(primals)])

    def jvp(self, *tensors: Tensor, return_state: bool = False) -> tuple[Tensor, ...]:
        """(o', [state']) of (q, k, v, [S0], q', k', v', [S0'])."""
        half = len(tensors) // 2
        own, moved = _inputs(tensors[:half]), _inputs(tensors[half:])
        o = self.tangent_scan(own[:3], moved[:3], own.initial, moved.initial)
        return (o, tangent_after(own[1:3], moved[1:3], moved.initial)) if return_state else (o,)

    def hvp(self, *tensors: Tensor, return_state: bool = False) -> tuple[Tensor, ...]:
        """(hq, hk, hv, [hS0]) of (q, k, v, [S0], q', k', v', [S0'], do, [dstate]): tangents of the scans of the VJP."""
        both, (g, last) = _split(tensors, 2, return_state)
        half = len(both) // 2
        (q, k, v, initial), (tq, tk, tv, tinitial) = _inputs(both[:half]), _inputs(both[half:])
        hq = self.tangent_scan((g, v, k), (None, tv, tk), _transposed(initial), _transposed(tinitial))
        hk = self.tangent_scan((v, g, q), (tv, None, tq), _transposed(last), None, backwards=True)
        hv = self.tangent_scan((k, q, g), (tk, tq, None), last, None, backwards=True)
        return (hq, hk, hv, state_after(tq, g, None))[:half]

    def scan(self, x: Tensor, y: Tensor, z: Tensor, initial: Tensor | None, backwards: bool = False) -> Tensor:
        """[B H N E] x_i S0 + sum over j <= i of (x_i . y_j) z_j, for x, y [B H N D], z [B H N E] and S0 [B H D E].

        ``backwards``: over j >= i.
        """
        length = x.shape[2]
        x, y, z = (self._chunks(t, backwards) for t in (x, y, z))
        parts = [torch.tril(x @ y.transpose(-1, -2)) @ z]
        before = _before(y.transpose(-1, -2) @ z, initial, y.shape[3])
        if before is not None:
            parts.append(x @ before)
        return _rows(parts, [y.shape[3], x.shape[4]], length, backwards)

    def tangent_scan(
        self,
        own: Sequence[Tensor],
        moved: Sequence[Tensor | None],
        initial: Tensor | None,
        tinitial: Tensor | None,
        backwards: bool = False,
    ) -> Tensor:
        """The tangent of ``scan`` of (x, y, z) in one pass; a tangent that is None is 0 and adds nothing."""
        length = own[0].shape[2]
        x, y, z = (self._chunks(t, backwards) for t in own)
        tx, ty, tz = (None if t is None else self._chunks(t, backwards) for t in moved)
        state = _before(y.transpose(-1, -2) @ z, initial, y.shape[3])
        rows, features = y.shape[3:]
        sums = [a.transpose(-1, -2) @ b for a, b in ((ty, z), (y, tz)) if a is not None and b is not None]
        tangent = _before(_sum(sums, rows), tinitial, len(sums) * rows)
        scores = [a @ b.transpose(-1, -2) for a, b in ((tx, y), (x, ty)) if a is not None and b is not None]
        parts = [torch.tril(_sum(scores, features)) @ z]
        if tz is not None:
            parts.append(torch.tril(x @ y.transpose(-1, -2)) @ tz)
        terms = [rows] * len(parts)
        parts += [a @ b for a, b in ((tx, state), (x, tangent)) if a is not None and b is not None]
        return _rows(parts, [*terms, features, features], length, backwards)

    def _chunks(self, t: Tensor, backwards: bool) -> Tensor:
        """[B H N .] -> [B H chunks rows .], in the direction of time, the last chunk filled up with zeros."""
        length = t.shape[2]
        count = -(-length // self.rows)
        rows = min(self.rows, length)
        t = pad(t, (0, 0, 0, count * rows - length))
        return (t.flip(2) if backwards else t).unflatten(2, (count, rows))


def state_after(y: Tensor, z: Tensor, initial: Tensor | None) -> Tensor:
    """[B H D E] S0 + sum over j of y_j^T z_j."""
    sums = y.transpose(-1, -2) @ z
    if initial is None:
        return sums
    return running_sums(torch.stack([initial, sums]), 0, y.shape[2])[1]


def tangent_after(own: Sequence[Tensor], moved: Sequence[Tensor], tinitial: Tensor | None) -> Tensor:
    """[B H D E] the tangent of ``state_after`` of (y, z)."""
    (y, z), (ty, tz) = own, moved
    return state_after(torch.cat([ty, y], 2), torch.cat([z, tz], 2), tinitial)


def _rows(parts: Sequence[Tensor], terms: Sequence[int], length: int, backwards: bool) -> Tensor:
    """The sum of products [B H chunks rows E] of so many ``terms``, in one accumulator, as [B H N E] in their order."""
    o = parts[0] if len(parts) == 1 else accumulated(parts, terms[: len(parts)])
    o = o.flatten(2, 3)
    return (o.flip(2) if backwards else o)[:, :, :length]


def _before(sums: Tensor, initial: Tensor | None, terms: int) -> Tensor | None:
    """[B H chunks D E] the state before each chunk, of the sums over each; None where it is 0 throughout."""
    earlier = sums[:, :, :-1]
    if initial is not None:
        return running_sums(torch.cat([initial[:, :, None], earlier], 2), 2, terms)
    return pad(running_sums(earlier, 2, terms), (0, 0, 0, 0, 1, 0)) if sums.shape[2] > 1 else None


def _sum(products: Sequence[Tensor], terms: int) -> Tensor:
    """The sum of products of so many ``terms`` each, in one accumulator."""
    return products[0] if len(products) == 1 else accumulated(products, [terms] * len(products))


def _transposed(state: Tensor | None) -> Tensor | None:
    return None if state is None else state.transpose(-1, -2)


def _inputs(tensors: Sequence[Tensor]) -> _Inputs:
    q, k, v, *rest = tensors
    return _Inputs(q, k, v, rest[0] if rest else None)


def _split(
    tensors: Sequence[Tensor], groups: int, return_state: bool
) -> tuple[Sequence[Tensor], tuple[Tensor, Tensor | None]]:
    """Primals (and tangents), and the cotangents of o and of the state, None where it is not returned."""
    inputs = len(tensors) - 1 - return_state
    if inputs not in (3 * groups, 4 * groups):
        raise TypeError(f"{len(tensors)} tensors were given, expected {groups} times q, k, v and S0, and cotangents")
    return tensors[:inputs], (tensors[inputs], tensors[-1] if return_state else None)


def chunks_of(rows: int) -> str:
    """The name of the algorithm of a kernel with chunks of so many rows."""
    return f"chunks of {rows}"


ALGORITHMS = {
    chunks_of(each.rows): {"forward": each.forward, "vjp": each.vjp, "jvp": each.jvp, "hvp": each.hvp}
    for each in map(Chunked, CHUNKS)
}
