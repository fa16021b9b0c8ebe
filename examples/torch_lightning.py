r"""Checking linear attention in plain PyTorch: from the full matrix of scores, and chunk by chunk.

    gradoracle check examples/torch_lightning.py:quadratic --family lightning
    gradoracle check examples/torch_lightning.py:chunked --family lightning \
        --contract bfloat16=eager-bf16 --contract float16=eager-fp16

Eager operators store each result in the dtype of the inputs, which in 16 bits is a precision contract of its own:
``quadratic`` declares it, ``chunked`` takes it from the command line. Lightning is also checked on sequences of more
than 100 000 tokens, whose matrix fits no memory. ``quadratic`` declares the lengths up to which the definition is the
same matrix, so that its budgets are those of this order of sums.
"""

from __future__ import annotations

import torch
from gradoracle.properties.lightning import FAMILY
from torch.nn.functional import pad

import gradoracle
from gradoracle import PRESETS

EAGER = {"bfloat16": PRESETS["eager-bf16"], "float16": PRESETS["eager-fp16"]}


@gradoracle.kernel(FAMILY, dims={"N": gradoracle.sizes(1, 512)}, contracts=EAGER)
def quadratic(q, k, v, *, initial_state=None, return_state=False):
    """o = tril(q k^T) v + q S0 and, on request, the state S0 + k^T v in float32."""
    o = torch.tril(q @ k.mT) @ v
    if initial_state is not None:
        o = o + (q.float() @ initial_state).to(o.dtype)
    return (o, _state(k, v, initial_state)) if return_state else o


def chunked(q, k, v, *, initial_state=None, return_state=False, rows=64):
    """The same in chunks of 64 rows: scores within a chunk, and the state before it in float32."""
    n = q.shape[2]
    qc, kc, vc = (pad(x, (0, 0, 0, -n % rows)).unflatten(2, (-1, rows)) for x in (q, k, v))  # [B H chunks rows .]
    sums = (kc.mT.float() @ vc.float()).cumsum(2)
    before = pad(sums[:, :, :-1], (0, 0, 0, 0, 1, 0))  # [B H chunks D Dv]
    if initial_state is not None:
        before = before + initial_state[:, :, None]
    o = torch.tril(qc @ kc.mT) @ vc + (qc.float() @ before).to(q.dtype)
    o = o.flatten(2, 3)[:, :, :n]
    return (o, _state(k, v, initial_state)) if return_state else o


def _state(k, v, initial_state):
    """[B H D Dv] float32: the state after the last token."""
    state = k.mT.float() @ v.float()
    return state if initial_state is None else initial_state + state
