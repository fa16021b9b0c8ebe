"""Faults of released linear attentions that work chunk by chunk, each one line of a correct implementation in PyTorch.

    gradoracle check tests/bugs/lightning_chunks.py:states_of_16_bits

All declare that nothing is rounded to 16 bit but the results: under the presets bf16 and fp16, which allow each operand
of a product to be, ``states_of_16_bits`` and ``rounded_before_the_state`` are no faults.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from gradoracle.properties.lightning import FAMILY
from torch import Tensor
from torch.nn.functional import pad

import gradoracle
from gradoracle.model.contract import PRESETS
from gradoracle.model.kernel import Kernel
from gradoracle.mutation.bugs import Bugs

ROWS = 64
DTYPES = ("float32", "bfloat16", "float16")
FLOAT32_INSIDE = {
    preset.dtype: replace(preset, name=f"float32 inside {preset.dtype}", operand="float32", accumulate_block=0.0)
    for preset in (PRESETS["bf16"], PRESETS["fp16"])
}


class Chunked:
    """Right: scores within chunks of 64 rows, states before them; float32 inside, each result rounded once."""

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, *, initial_state: Tensor | None = None, return_state: bool = False
    ) -> Any:
        """o [B H N Dv] in the dtype of q, and on request the state [B H D Dv] in float32."""
        o, state = _Chunked.apply(self, q, k, v, initial_state)
        return (o, state) if return_state else o

    def kept(self, states: Tensor, k: Tensor) -> Tensor:
        """The states [B H chunks D Dv] as they are kept between the pass over chunks and that within them."""
        return states

    def joined(self, intra: Tensor, inter: Tensor, dtype: torch.dtype) -> Tensor:
        """What comes from a row's own chunk and from the state before it, in the dtype of the results."""
        return (intra + inter).to(dtype)

    def initial(self, carried: Tensor, g_state: Tensor) -> Tensor:
        """The gradient of the initial state, from that of the first chunk's, which holds the last state's."""
        return carried

    def returned(self, gradients: tuple[Tensor, ...], d_initial: Tensor | None) -> tuple[Tensor | None, ...]:
        """What autograd is given: for this object, q, k, v and the initial state."""
        return (None, *gradients, d_initial)


class _Chunked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, own, q, k, v, initial_state):
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        qc, kc, vc = (_chunks(x.to(dtype)) for x in (q, k, v))
        first = torch.zeros((*q.shape[:2], q.shape[3], v.shape[3]), dtype=dtype, device=q.device)
        first = first if initial_state is None else initial_state.to(dtype)
        before, state = _carried(kc.mT @ vc, first)
        before = own.kept(before, k)
        ctx.save_for_backward(q, k, v, before)
        ctx.own, ctx.given = own, initial_state is not None
        o = own.joined(torch.tril(qc @ kc.mT) @ vc, qc @ before, q.dtype)
        return _rows(o, q), state.to(torch.float32)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g, g_state):
        own, (q, k, v, before) = ctx.own, ctx.saved_tensors
        dtype = q.dtype
        qc, kc, vc, gc = (_chunks(x.to(before.dtype)) for x in (q, k, v, g))
        after, d_initial = _carried((qc.mT @ gc).flip(2), g_state.to(before.dtype))
        after = own.kept(after.flip(2), k)
        scores, d_scores = torch.tril(qc @ kc.mT), torch.tril(gc @ vc.mT)
        dq = own.joined(d_scores @ kc, gc @ before.mT, dtype)
        dk = own.joined(d_scores.mT @ qc, vc @ after.mT, dtype)
        dv = own.joined(scores.mT @ gc, kc @ after, dtype)
        d_initial = own.initial(d_initial, g_state).to(torch.float32) if ctx.given else None
        return own.returned(tuple(_rows(x, q) for x in (dq, dk, dv)), d_initial)


def _chunks(x: Tensor) -> Tensor:
    """[B H chunks ROWS .], the last one filled up with zeros."""
    return pad(x, (0, 0, 0, -x.shape[2] % ROWS)).unflatten(2, (-1, ROWS))


def _rows(x: Tensor, like: Tensor) -> Tensor:
    """[B H N .] of [B H chunks ROWS .]."""
    return x.flatten(2, 3)[:, :, : like.shape[2]].contiguous()


def _carried(products: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """The states before each chunk, [B H chunks D Dv], and the one after the last."""
    sums = torch.cat([first[:, :, None], products], 2).cumsum(2)
    return sums[:, :, :-1], sums[:, :, -1]


class StatesOf16Bits(Chunked):
    """flash-linear-attention: the states between chunks were allocated in the dtype of k although float32 was meant.

    In 16 bit each chunk then reads a rounded state, and the longer the sequence the more that loses.
    """

    def kept(self, states: Tensor, k: Tensor) -> Tensor:
        return states.to(k.dtype).to(states.dtype)


class RoundedBeforeTheState(Chunked):
    """lightning-attention 2 without decay: one kernel stored what comes from a row's own chunk in bfloat16.

    A second kernel read it back and added what comes from the state, so that it was rounded twice, the first time at
    its own size however small the sum is.
    """

    def joined(self, intra: Tensor, inter: Tensor, dtype: torch.dtype) -> Tensor:
        return (intra.to(dtype).to(inter.dtype) + inter).to(dtype)


class LastStateTwice(Chunked):
    """flash-linear-attention: the gradient of the final state entered where the pass over chunks began.

    The kernel that summed up the parts of the gradients added it again.
    """

    def initial(self, carried: Tensor, g_state: Tensor) -> Tensor:
        return carried + g_state


class OneGradientTooFew(Chunked):
    """flash-linear-attention: without an optional argument, backward returned one None less than forward has inputs."""

    def returned(self, gradients: tuple[Tensor, ...], d_initial: Tensor | None) -> tuple[Tensor | None, ...]:
        return (None, *gradients) if d_initial is None else (None, *gradients, d_initial)


class WrongNumberOfGradients(Chunked):
    """mamba: backward returned one gradient less than forward has arguments, whichever were given."""

    def returned(self, gradients: tuple[Tensor, ...], d_initial: Tensor | None) -> tuple[Tensor | None, ...]:
        return (*gradients, d_initial)


def _declared(own: Chunked, name: str) -> Kernel:
    return gradoracle.kernel(FAMILY, name=name, contracts=FLOAT32_INSIDE, dtypes=DTYPES)(own)


chunked = _declared(Chunked(), "chunked")
states_of_16_bits = _declared(StatesOf16Bits(), "states_of_16_bits")
rounded_before_the_state = _declared(RoundedBeforeTheState(), "rounded_before_the_state")
last_state_twice = _declared(LastStateTwice(), "last_state_twice")
one_gradient_too_few = _declared(OneGradientTooFew(), "one_gradient_too_few")
wrong_number_of_gradients = _declared(WrongNumberOfGradients(), "wrong_number_of_gradients")

FLA = "fla-org/flash-linear-attention"

BUGS = Bugs(chunked, "lightning")
BUGS.add(states_of_16_bits, f"{FLA}@8641906e", "forward_matches_the_oracle", "dtype", N="65:100")
BUGS.add(
    rounded_before_the_state,
    "OpenNLPLab/lightning-attention@lightning_attn2_no_decay",
    "vjp_matches_the_oracle",
    "dtype",
    N="65:100",
)
BUGS.add(last_state_twice, f"{FLA}@c3f16354", "the_gradient_of_the_initial_state_is_q_g", "sum")
BUGS.add(one_gradient_too_few, f"{FLA}#245", "declared_support_is_accepted")
BUGS.add(wrong_number_of_gradients, "state-spaces/mamba@ddce0c1", "declared_support_is_accepted")
