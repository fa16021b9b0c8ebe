"""Lightning: definition, domain of cases, laws and kernels of causal linear attention without decay (DESIGN 9)."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from gradoracle.kernels import lightning as kernels
from gradoracle.kernels.lightning.blocks import choose
from gradoracle.kernels.lightning.compilations import compilations
from gradoracle.properties.lightning_algorithms import ALGORITHMS, chunks_of
from gradoracle.properties.lightning_causality import CAUSALITY
from gradoracle.properties.lightning_identities import IDENTITIES
from gradoracle.properties.lightning_multilinearity import MULTILINEARITY
from gradoracle.properties.lightning_state import STATE
from gradoracle.properties.lightning_symmetries import SYMMETRIES
from gradoracle.properties.tile_shapes import TILE_SHAPES
from jaxtyping import Float, Float32
from torch import Tensor
from torch.nn.functional import pad

from gradoracle.case import Sample
from gradoracle.dims import sizes
from gradoracle.family import family
from gradoracle.kernel import Kernel

LONGEST_LITERAL = 512  # rows up to which all scores q k^T are written down
PIECE = 64  # rows, of longer sequences


@family(
    outputs=("o", "state"),
    optional_outputs={"state": "return_state"},
    dims={
        "B": sizes(1, 3),
        "H": sizes(1, 4),
        "N": sizes(1, 320, large=131_072),
        "D": sizes(1, 128),
        "Dv": sizes(1, 128),
    },
    joint={
        "positive": {"q": "positive", "k": "positive", "v": "positive", "do": "positive"},
        "state that cancels": {"q": "alternating", "k": "alternating", "v": "positive", "do": "alternating"},
        "large initial state": {"initial_state": "normal:1000", "q": "normal", "k": "normal", "v": "normal"},
        "large negative state": {"q": "tiny:1e-4", "k": "positive:100", "v": "largemean:-300", "do": "tiny:1e-3"},
        "state that q hardly reads": {"q": "alternating", "initial_state": "largemean:10", "k": "normal"},
    },
    algorithms=ALGORITHMS,
    properties=(*IDENTITIES, *STATE, *CAUSALITY, *SYMMETRIES, *MULTILINEARITY, *TILE_SHAPES),
)
def lightning(
    q: Float[Tensor, "B H N D"],
    k: Float[Tensor, "B H N D"],
    v: Float[Tensor, "B H N Dv"],
    *,
    initial_state: Float32[Tensor, "B H D Dv"] | None = None,
    return_state: bool = False,
) -> tuple[Float[Tensor, "B H N Dv"], Float32[Tensor, "B H D Dv"]]:
    """o_i = q_i S0 + sum over j <= i of (q_i . k_j) v_j, and on request the state S0 + sum over j of k_j^T v_j.

    Scores are written down for N <= 512; longer sequences are summed by pieces, in memory linear in N.
    """
    o = literal(q, k, v) if q.shape[2] <= LONGEST_LITERAL else by_pieces(q, k, v)
    if initial_state is not None:
        o = o + q @ initial_state
    if not return_state:
        return o  # type: ignore[return-value]
    state = k.transpose(-1, -2) @ v
    return o, state if initial_state is None else initial_state + state


def literal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """tril(q k^T) v: [B H N Dv] of q, k [B H N D] and v [B H N Dv]."""
    return torch.tril(q @ k.transpose(-1, -2)) @ v


def by_pieces(q: Tensor, k: Tensor, v: Tensor, rows: int = PIECE) -> Tensor:
    """The same as ``literal``: scores within pieces of ``rows`` rows, and k^T v of all earlier pieces."""
    length = q.shape[2]
    pieces = -(-length // rows)
    missing = pieces * rows - length
    q, k, v = (pad(x, (0, 0, 0, missing)).unflatten(2, (pieces, rows)) for x in (q, k, v))
    sums = (k.transpose(-1, -2) @ v).cumsum(2)  # [B H pieces D Dv]
    earlier = pad(sums[:, :, :-1], (0, 0, 0, 0, 1, 0))
    return (literal(q, k, v) + q @ earlier).flatten(2, 3)[:, :, :length]


def _fits(dtype: str, dims: Mapping[str, int]) -> Collection[str]:
    """The block configurations that every pass can run on this device."""
    return kernels.fitting(getattr(torch, dtype))


def _algorithm(dtype: str, sample: Sample, blocks: str) -> str:
    """The order of roundings of the configuration that is forced, or else chosen."""
    chosen = kernels.BLOCKS[blocks] if blocks else choose(getattr(torch, dtype), sample.inputs["q"].shape[2])
    return chunks_of(chosen.chunk)


def _tiles(dtype: str, dims: Mapping[str, int], blocks: str, _: int) -> Mapping[str, int]:
    """Rows of a chunk."""
    chosen = kernels.BLOCKS[blocks] if blocks else choose(getattr(torch, dtype), dims["N"])
    return {"N": chosen.chunk}


FAMILY = lightning
KERNELS = (
    Kernel(
        "lightning",
        "lightning",
        kernels.lightning,
        dtypes=("float32", "bfloat16", "float16"),
        algorithm=_algorithm,
        deterministic=True,
        blocks=dict(kernels.BLOCKS),
        fits=_fits,
        tiles=_tiles,
        extras={
            "compilations": compilations,
            "chunk_axes": ("CHUNK",),
            "feature_axes": ("WIDTH", "BLOCK_VALUE"),
        },
    ),
)
