"""Semi-CRF: definition and domain of cases of the log partition function over labelled segmentations (DESIGN 9)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from gradoracle.kernels import semicrf as kernels
from gradoracle.kernels.semicrf.blocks import choose, choose_path
from gradoracle.kernels.semicrf.compilations import compilations, deciding
from gradoracle.properties.semicrf_boundaries import BOUNDARIES
from gradoracle.properties.semicrf_convexity import CONVEXITY
from gradoracle.properties.semicrf_gauges import GAUGES
from gradoracle.properties.semicrf_invariance import INVARIANCES
from gradoracle.properties.semicrf_length import LENGTH
from gradoracle.properties.semicrf_marginals import MARGINALS
from gradoracle.properties.semicrf_scalable import SemiCRF
from gradoracle.properties.semicrf_special_cases import SPECIAL_CASES
from jaxtyping import Float, Float32, Int
from torch import Tensor

from gradoracle.contract import Contract
from gradoracle.dims import sizes
from gradoracle.family import IndexDomain, family
from gradoracle.kernel import Kernel
from gradoracle.signature import cotangent_name


@family(
    outputs=("log_z",),
    dims={
        "B": sizes(1, 3),
        "T": sizes(1, 320, large=131_072, large_on_gpu=1_048_576),
        "C": sizes(1, 4, asked=64),
        "K": sizes(1, 12, asked=1024),
    },
    domains={"lengths": IndexDomain("T", kind="length")},
    joint={
        "forbidden transitions": {"transition": "forbidden:0.3"},
        "forbidden transitions by duration": {"transition_by_duration": "forbidden:0.3"},
        "forbidden durations": {"duration_bias": "forbidden:0.3"},
        "forbidden starts": {"proj_start": "forbidden:0.2"},
        "forbidden ends": {"proj_end": "forbidden:0.2"},
        "every path forbidden": {"duration_bias": "forbidden:1"},
        "no positions": {"lengths": "lowest"},
        "full lengths": {"lengths": "highest"},
    },
    alternatives=[("transition", "transition_by_duration")],
    properties=(*MARGINALS, *BOUNDARIES, *GAUGES, *SPECIAL_CASES, *INVARIANCES, *CONVEXITY, *LENGTH),
    scalable=SemiCRF(),
    # one path, or a short sequence, would leave little to judge; and log Z beyond 1e6 is where a clamp shows
    beside_large={"K": 3, "C": 3, "cum_scores": "normal:10", "lengths": "highest"},
)
def semicrf(
    cum_scores: Float[Tensor, "B T+1 C"],
    transition: Float[Tensor, "C C"] | None,
    transition_by_duration: Float[Tensor, "K C C"] | None,
    duration_bias: Float[Tensor, "K C"],
    lengths: Int[Tensor, "B"],
    *,
    proj_start: Float[Tensor, "B T C"] | None = None,
    proj_end: Float[Tensor, "B T C"] | None = None,
) -> Float32[Tensor, "B"]:
    """log of the sum of exp(score) over all labelled segmentations of 0 .. len, in natural log units; len = 0: log C.

    A segment of label c from t to t + k, 1 <= k <= K, after one of label c' scores cum_scores[t + k, c] -
    cum_scores[t, c] + duration_bias[k - 1, c] + transition[c', c] (or transition_by_duration[k - 1, c', c]) +
    proj_start[t, c] + proj_end[t + k - 1, c]; the first follows each label, with a score of its own. An entry of -inf
    (not in cum_scores) forbids; where that leaves no segmentation the result is -inf and every derivative is 0.
    """
    weights = segment_weights(
        cum_scores, transition, transition_by_duration, duration_bias, proj_start, proj_end
    )  # [B T+1 C T+1 C]
    batch, places, labels = cum_scores.shape
    states = places * labels
    last = torch.arange(places) == lengths[:, None]  # [B T+1]
    goal = last[:, :, None].expand(batch, places, labels).reshape(batch, states, 1).to(cum_scores.dtype)
    system = torch.eye(states, dtype=cum_scores.dtype) - weights.reshape(batch, states, states)
    reached = torch.linalg.solve_triangular(system, goal, upper=True, unitriangular=True)
    z = reached.reshape(batch, places, labels)[:, 0].sum(-1)
    possible = z != 0  # NaN stays NaN
    return torch.where(possible, torch.where(possible, z, 1.0).log(), -torch.inf)


def segment_weights(
    cum_scores: Tensor,
    transition: Tensor | None,
    transition_by_duration: Tensor | None,
    duration_bias: Tensor,
    proj_start: Tensor | None = None,
    proj_end: Tensor | None = None,
) -> Tensor:
    """exp(score) of every segment, [B T+1 C T+1 C] by (from, label before, to, label); 0 where there is none."""
    places, longest = cum_scores.shape[1], duration_bias.shape[0]
    at = torch.arange(places)
    steps = at[None, :] - at[:, None]  # [from to]
    k = (steps - 1).clamp(0, longest - 1)
    score = cum_scores[:, None, :, None, :] - cum_scores[:, :, None, None, :]  # [B from to 1 C]
    score = score + duration_bias[k][:, :, None, :]
    if proj_start is not None:
        score = score + proj_start[:, at.clamp_max(places - 2)][:, :, None, None, :]
    if proj_end is not None:
        score = score + proj_end[:, (at - 1).clamp_min(0)][:, None, :, None, :]
    if transition is not None:
        score = score + transition
    if transition_by_duration is not None:
        score = score + transition_by_duration[k]
    legal = ((steps >= 1) & (steps <= longest))[:, :, None, None]
    return torch.where(legal, score, -torch.inf).exp().permute(0, 1, 3, 2, 4)


def _contract(dtype: str) -> Contract:
    """Everything in float64, in the log domain and relative to checkpoints; results rounded once to the inputs' dtype.

    log Z is float32. Budgets under it are those of ``semicrf_rounded``, at any size: the order of operations of the
    definition, in the linear domain, does not explain what cancels.
    """
    return Contract(
        f"float64 inside {dtype}", dtype, operand="float64", accumulate="float64", elementwise="float64", output=dtype,
        residuals="float64", constants="float64", flush_to_zero=False,
    )  # fmt: skip


def _paths(dims: Mapping[str, int]) -> tuple[str, ...]:
    """The paths that run a problem of these sizes."""
    return kernels.PATHS if dims["K"] * dims["C"] <= kernels.LARGEST_FORCED_STATES else ("sequential",)


def _scheme(inputs: Mapping[str, Tensor], cotangent: Tensor, path: str, chunk: int | None) -> dict[str, Tensor]:
    """log Z and gradients by name, on one path, with a state kept every ``chunk`` positions or as the path chooses."""
    leaves = {name: t.detach().requires_grad_(t.is_floating_point()) for name, t in inputs.items()}
    given = [leaf for name, leaf in leaves.items() if not name.startswith("proj")]
    projections = {name: leaf for name, leaf in leaves.items() if name.startswith("proj")}
    blocks = None if chunk is None else kernels.BLOCKS["medium"]._replace(chunk=chunk)
    with torch.enable_grad():
        log_z = kernels.semicrf(*given, **projections, path=path, blocks=blocks)
    wanted = {cotangent_name(name): leaf for name, leaf in leaves.items() if leaf.requires_grad}
    found = dict(zip(wanted, torch.autograd.grad(log_z, list(wanted.values()), cotangent), strict=True))
    return {"log_z": log_z.detach()} | found


def _entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """An entry point that takes inputs by name, in either form of the transition."""

    def call(inputs: Mapping[str, Tensor], options: Mapping[str, Any], blocks: Any) -> Any:
        named = {"transition" if name == "transition_by_duration" else name: t for name, t in inputs.items()}
        return function(**named, **options, blocks=blocks)

    return call


DTYPES = ("float32", "bfloat16", "float16")


def _tiles(dtype: str, dims: Mapping[str, int], blocks: str, _: int) -> Mapping[str, int]:
    """Positions between two states that are kept."""
    positions, durations, labels = dims["T"], dims["K"], dims["C"]
    path = choose_path(positions, durations, labels)
    chosen = kernels.BLOCKS[blocks] if blocks else choose(path, positions, durations, labels, per_duration=False)
    chunk = chosen.chunk if path == "parallel" else max(chosen.chunk, durations)
    return {"T": chunk, "T+1": chunk}


FAMILY = semicrf
KERNELS = (
    Kernel(
        "semicrf",
        "semicrf",
        kernels.semicrf,
        dtypes=DTYPES,
        contracts={dtype: _contract(dtype) for dtype in DTYPES},
        deterministic=True,
        blocks=dict(kernels.BLOCKS),
        tiles=_tiles,
        extras={
            "paths": _paths,
            "scheme": _scheme,
            "forward_backward": _entry(kernels.forward_backward),
            "marginals": _entry(kernels.marginals),
            "compilations": deciding,  # all of them take a minute a dtype
            "all compilations": compilations,
        },
    ),
)
