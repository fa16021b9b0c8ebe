"""The state that a chunk of a state space model leaves, shared by groups of heads, and faults that a released one had.

gradoracle check tests/bugs/chunk_state.py:groups_argument_missing
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float32, Int
from torch import Tensor

import gradoracle
from gradoracle.model.domains import IndexDomain
from gradoracle.model.kernel import Kernel
from gradoracle.mutation.bugs import Bugs


@gradoracle.family(
    outputs=("state",),
    dims={
        "B": gradoracle.sizes(1, 2),
        "T": gradoracle.sizes(1, 40),
        "H": gradoracle.sizes(1, 6),
        "G": gradoracle.sizes(1, 6),
        "D": gradoracle.sizes(1, 16),
        "P": gradoracle.sizes(1, 16),
    },
    divides={"G": "H"},
    domains={"sequence": IndexDomain(2)},
)
def chunk_state(
    b: Float[Tensor, "B T G D"],
    x: Float[Tensor, "B T H P"],
    a: Float[Tensor, "B T H"],
    *,
    sequence: Int[Tensor, "B T"] | None = None,
) -> Float32[Tensor, "B H D P"]:
    """Sum of exp(A_T - A_t) b_t^T x_t over t, where A is the sum of -a^2 up to a token and a head has its group's b.

    With sequence, over those t whose sequence is that of the last token.
    """
    total = -a.square().cumsum(1)
    weights = (total[:, -1:] - total).exp()  # [B T H]
    if sequence is not None:
        weights = torch.where((sequence == sequence[:, -1:])[..., None], weights, 0.0)
    heads = b.repeat_interleave(x.shape[2] // b.shape[2], 2)
    return torch.einsum("bthd,bthp->bhdp", weights[..., None] * heads, x)


class ChunkState:
    """Right: float32, one product for all heads, gradients by hand."""

    def __call__(self, b: Tensor, x: Tensor, a: Tensor, *, sequence: Tensor | None = None) -> Tensor:
        """The state [B H D P] in float32."""
        return _ChunkState.apply(self, b, x, a, sequence)

    def weights(self, difference: Tensor, sequence: Tensor | None) -> Tensor:
        """exp(A_T - A_t) of the difference, 0 where a token is of another sequence: [B T H]."""
        return _kept(difference.exp(), sequence)

    def weights_of_db(self, difference: Tensor, sequence: Tensor | None) -> Tensor:
        """The same, in the kernel that makes the gradient of b."""
        return self.weights(difference, sequence)

    def db(self, weights: Tensor, x: Tensor, g: Tensor, groups: int) -> Tensor:
        """[B T G D]."""
        return _db(weights, x, g, None, groups)


class _ChunkState(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own, b, x, a, sequence):
        if x.shape[:2] != b.shape[:2] or x.shape[:3] != a.shape or x.shape[2] % b.shape[2]:
            raise ValueError(f"b, x and a are {b.shape}, {x.shape}, {a.shape}; expected [B T G D], [B T H P], [B T H]")
        weights = own.weights(_difference(a), sequence)
        ctx.save_for_backward(b, x, a, sequence)
        ctx.own = own
        return torch.einsum("bthd,bthp->bhdp", weights[..., None] * _by_head(b, x), x.float())

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        own, (b, x, a, sequence) = ctx.own, ctx.saved_tensors
        difference, heads, values = _difference(a), _by_head(b, x), x.float()
        weights = own.weights(difference, sequence)
        db = own.db(own.weights_of_db(difference, sequence), values, g, b.shape[2])
        dx = torch.einsum("bthd,bhdp->bthp", weights[..., None] * heads, g)
        moved = weights * torch.einsum("bthd,bhdp,bthp->bth", heads, g, values)  # the gradient of A_T - A_t
        moved = torch.cat([moved[:, :1] * 0, moved[:, :-1].cumsum(1)], 1)  # A_T - A_t is the sum over what follows t
        return None, db.to(b.dtype), dx.to(x.dtype), (-2.0 * a.float() * moved).to(a.dtype), None


def _db(weights: Tensor, x: Tensor, g: Tensor, db: Tensor | None = None, groups: int = 1) -> Tensor:
    """[B T groups D] float32 in db, or newly made, of weights [B T H], x [B T H P] and g [B H D P]."""
    by_head = weights[..., None] * torch.einsum("bhdp,bthp->bthd", g, x)
    summed = by_head.unflatten(2, (groups, -1)).sum(3)
    return summed if db is None else db.copy_(summed)


def _difference(a: Tensor) -> Tensor:
    """A_T - A_t, the sum of -a^2 over what follows t: [B T H] float32."""
    steps = -a.float().square()
    return torch.cat([steps[:, 1:].flip(1).cumsum(1).flip(1), steps[:, :1] * 0], 1)


def _kept(weights: Tensor, sequence: Tensor | None) -> Tensor:
    return weights if sequence is None else torch.where((sequence == sequence[:, -1:])[..., None], weights, 0.0)


def _by_head(b: Tensor, x: Tensor) -> Tensor:
    return b.float().repeat_interleave(x.shape[2] // b.shape[2], 2)


class GroupsArgumentMissing(ChunkState):
    """mamba: backward called the function of a gradient with one positional argument missing.

    The number of groups then kept its default of 1: the sum over all heads went to each group.
    """

    def db(self, weights: Tensor, x: Tensor, g: Tensor, groups: int) -> Tensor:
        return _db(weights, x, g).expand(-1, -1, groups, -1)


class NoExpWithSequences(ChunkState):
    """mamba: in the kernel for the gradient of b, the branch for several sequences took x where it expected exp(x)."""

    def weights_of_db(self, difference: Tensor, sequence: Tensor | None) -> Tensor:
        return _kept(difference.exp() if sequence is None else difference, sequence)


def _declared(own: ChunkState, name: str) -> Kernel:
    return gradoracle.kernel(chunk_state, name=name, dtypes=chunk_state.dtypes)(own)


right = _declared(ChunkState(), "right")
groups_argument_missing = _declared(GroupsArgumentMissing(), "groups_argument_missing")
no_exp_with_sequences = _declared(NoExpWithSequences(), "no_exp_with_sequences")

BUGS = Bugs(right)
BUGS.add(groups_argument_missing, "state-spaces/mamba#547", "vjp_matches_the_oracle", "sum", G="2:3")
BUGS.add(no_exp_with_sequences, "state-spaces/mamba#746", "vjp_matches_the_oracle", "term")
