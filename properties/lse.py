"""LSE: definition, domain of cases and laws of the log-sum-exp of attention scores (DESIGN 9)."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import torch
from gradoracle.kernels import lse as kernels
from gradoracle.kernels.lse.blocks import choose
from gradoracle.kernels.lse.compilations import compilations
from gradoracle.properties.lse_backwards import BACKWARDS
from gradoracle.properties.lse_laws import IDENTITIES
from gradoracle.properties.lse_masks import MASKS
from gradoracle.properties.lse_symmetries import SYMMETRIES
from jaxtyping import Float, Float32, Int
from torch import Tensor

from gradoracle.dims import sizes
from gradoracle.family import IndexDomain, family
from gradoracle.kernel import Kernel
from gradoracle.signature import cotangent_name


@family(
    outputs=("lse",),
    dims={
        "B": sizes(1, 3),
        "H": sizes(1, 4),
        "G": sizes(1, 4),
        "T": sizes(1, 320, large=131_072),
        "M": sizes(1, 320),
        "D": sizes(1, 256),
    },
    options={"scale": (None, 0.25, 1.0), "causal": (False, True), "softcap": (None, 2.0, 30.0)},
    domains={"q_segments": IndexDomain(3), "kv_segments": IndexDomain(3)},
    joint={
        "logits 1e4": {"q": "normal:100", "k": "normal:100"},
        "peaked": {"q": "normal:8", "k": "normal:1"},
        "positive": {"q": "positive", "k": "positive", "dlse": "positive"},
        "sinks that take nothing": {"sinks": "forbidden:0.5"},
    },
    divides={"G": "H"},
    together=[("q_segments", "kv_segments")],
    properties=(*IDENTITIES, *MASKS, *SYMMETRIES, *BACKWARDS),
)
def lse(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B G M D"],
    *,
    sinks: Float[Tensor, "H"] | None = None,
    q_segments: Int[Tensor, "B T"] | None = None,
    kv_segments: Int[Tensor, "B M"] | None = None,
    scale: float | None = None,
    causal: bool = False,
    softcap: float | None = None,
) -> Float32[Tensor, "B H T"]:
    """log(e^sink + sum over the keys that a query sees of e^score), in natural log units; -inf where there is no term.

    A sink of -inf is none. A score is scale q k^T, capped to softcap tanh(score / softcap). Query head h reads key head
    h // (H // G). A query sees the keys of its own segment; causal aligns the last query with the last key.
    """
    b, heads, queries, width = q.shape
    groups, keys = k.shape[1:3]
    factor = 1 / math.sqrt(width) if scale is None else scale
    grouped = q.reshape(b, groups, heads // groups * queries, width)
    s = (grouped @ k.transpose(-1, -2) * factor).reshape(b, heads, queries, keys)
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    visible = torch.ones(1, 1, queries, keys, dtype=torch.bool)
    if causal:
        visible = visible & (torch.arange(keys)[None, :] <= torch.arange(queries)[:, None] + (keys - queries))
    if q_segments is not None and kv_segments is not None:
        visible = visible & (q_segments[:, None, :, None] == kv_segments[:, None, None, :])
    terms, sees = torch.where(visible, s, -torch.inf), visible.any(-1, keepdim=True)
    if sinks is not None:  # a term that every row has
        sink = sinks[None, :, None, None].expand(b, heads, queries, 1)
        terms, sees = torch.cat([terms, sink], -1), sees | (sink != -torch.inf)
    terms = torch.where(sees, terms, 0.0)  # no row of -inf alone reaches the logsumexp
    return torch.where(sees[..., 0], torch.logsumexp(terms, -1), -torch.inf)


def _backward(
    inputs: Mapping[str, Tensor], cotangent: Tensor, options: Mapping[str, Any], blocks: Any, which: str
) -> dict[str, Tensor]:
    """Gradients by name, from the backward of that name, whatever its workspace."""
    leaves = {n: t.detach().requires_grad_(t.is_floating_point()) for n, t in inputs.items()}
    named = {name: leaf for name, leaf in leaves.items() if name not in ("q", "k")}
    with torch.enable_grad():
        result = kernels.lse(
            leaves["q"], leaves["k"], **named, **options, blocks=blocks, backward=which, workspace_limit=1 << 40
        )
    wanted = {cotangent_name(name): leaf for name, leaf in leaves.items() if leaf.requires_grad}
    return dict(zip(wanted, torch.autograd.grad(result, list(wanted.values()), cotangent), strict=True))


def _fits(dtype: str, dims: Mapping[str, int]) -> Collection[str]:
    """The block configurations that every pass can run on this device."""
    return kernels.fitting(getattr(torch, dtype), dims["D"])


def _tiles(dtype: str, dims: Mapping[str, int], blocks: str, _: int) -> Mapping[str, int]:
    """Rows of a tile of queries and of one of keys."""
    own = choose(getattr(torch, dtype), dims["D"], dims["T"], dims["M"])
    chosen = kernels.BLOCKS[blocks] if blocks else own
    return {"T": chosen.query, "M": chosen.key}


FAMILY = lse
KERNELS = (
    Kernel(
        "lse",
        "lse",
        kernels.lse,
        dtypes=("float32", "bfloat16", "float16"),
        deterministic=True,
        blocks=dict(kernels.BLOCKS),
        fits=_fits,
        tiles=_tiles,
        extras={"compilations": compilations, "backward": _backward},
    ),
)
