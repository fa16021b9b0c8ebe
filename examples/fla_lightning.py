r"""Checking a released package's reference: linear attention of fla-core, without normalisation and with scale 1.

    pip install --no-deps fla-core einops
    gradoracle check examples/fla_lightning.py:recurrent --family lightning --dim N=1:512
    gradoracle check examples/fla_lightning.py:chunked --family lightning \
        --contract bfloat16=eager-bf16 --contract float16=eager-fp16

fla puts time before heads, [B N H D]. Its recurrent reference computes in float32, token by token; its chunked one
computes in the dtype of the inputs, has no state, and takes full chunks of 64 tokens only.
"""

from __future__ import annotations

from fla.ops.linear_attn.naive import naive_chunk_linear_attn, naive_recurrent_linear_attn
from torch.nn.functional import pad


def recurrent(q, k, v, *, initial_state=None, return_state=False):
    """fla's reference, token by token."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o, state = naive_recurrent_linear_attn(
        q, k, v, scale=1.0, initial_state=initial_state, output_final_state=return_state
    )
    return (o.transpose(1, 2), state) if return_state else o.transpose(1, 2)


def chunked(q, k, v):
    """fla's reference, chunk by chunk, the last one padded with zeros."""
    n = q.shape[2]
    q, k, v = (pad(x, (0, 0, 0, -n % 64)).transpose(1, 2) for x in (q, k, v))
    return naive_chunk_linear_attn(q, k, v, scale=1.0).transpose(1, 2)[:, :, :n]
