"""The shipped kernels of the semi-CRF, as properties call them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from gradoracle.kernels import semicrf as kernels
from gradoracle.kernels.semicrf.blocks import choose, choose_path
from gradoracle.kernels.semicrf.compilations import compilations, deciding
from torch import Tensor

from gradoracle.model.contract import Contract
from gradoracle.model.kernel import Kernel
from gradoracle.model.signature import cotangent_name

DTYPES = ("float32", "bfloat16", "float16")


def _contract(dtype: str) -> Contract:
    """Everything in float64, in the log domain and relative to checkpoints; results rounded once to the inputs' dtype.

    log Z is float32. Budgets under it are those of ``readings.rounded``, at any size: the order of operations of the
    definition, in the linear domain, does not explain what cancels.
    """
    return Contract(
        f"float64 inside {dtype}", dtype, operand="float64", accumulate="float64", elementwise="float64", output=dtype,
        residuals="float64", constants="float64", flush_to_zero=False,
    )  # fmt: skip


def _paths(dims: Mapping[str, int]) -> tuple[str, ...]:
    """The paths that run a problem of these sizes."""
    return kernels.PATHS if dims["K"] * dims["C"] <= kernels.LARGEST_FORCED_STATES else ("sequential",)


def _scheme(
    inputs: Mapping[str, Tensor], cotangent: Tensor, path: str, chunk: int | None, *_: Any
) -> dict[str, Tensor]:
    """log Z and gradients by name, on one path, with a state kept every ``chunk`` positions or as the path chooses."""
    leaves = {name: t.detach().requires_grad_(t.is_floating_point()) for name, t in inputs.items()}
    given = [leaf for name, leaf in leaves.items() if not name.startswith("proj")]
    projections = {name: leaf for name, leaf in leaves.items() if name.startswith("proj")}
    blocks = None if chunk is None else kernels.BLOCKS["medium"]._replace(chunk=chunk)
    with torch.enable_grad():
        log_z = kernels.semicrf(*given, **projections, path=path, blocks=blocks)
    expected = {cotangent_name(name): leaf for name, leaf in leaves.items() if leaf.requires_grad}
    found = dict(zip(expected, torch.autograd.grad(log_z, list(expected.values()), cotangent), strict=True))
    return {"log_z": log_z.detach()} | found


def _entry(function: Callable[..., Any]) -> Callable[..., Any]:
    """An entry point that takes inputs by name, in either form of the transition."""

    def call(inputs: Mapping[str, Tensor], options: Mapping[str, Any], blocks: Any) -> Any:
        named = {"transition" if name == "transition_by_duration" else name: t for name, t in inputs.items()}
        return function(**named, **options, blocks=blocks)

    return call


def _tiles(dtype: str, dims: Mapping[str, int], blocks: str, _: int, arguments: Mapping[str, Any]) -> Mapping[str, int]:
    """Positions between two states that are kept."""
    positions, durations, labels = dims["T"], dims["K"], dims["C"]
    path = choose_path(positions, durations, labels)
    chosen = kernels.BLOCKS[blocks] if blocks else choose(path, positions, durations, labels, per_duration=False)
    chunk = chosen.chunk if path == "parallel" else max(chosen.chunk, durations)
    return {"T": chunk, "T+1": chunk}


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
