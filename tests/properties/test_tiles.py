"""The tiles that shipped kernels declare for maps of errors are those that their launches have."""

from __future__ import annotations

import pytest
import torch
from gradoracle.kernels.semicrf import guardrails
from jaxtyping import Float
from torch import Tensor

import gradoracle
from gradoracle.model.kernel import Kernel
from gradoracle.project.target import resolve

DIMS = {
    "sdpa": {"B": 1, "H": 2, "T": 300, "M": 70, "D": 32, "Dv": 16},
    "lse": {"B": 1, "H": 2, "G": 1, "T": 300, "M": 70, "D": 32},
    "lightning": {"B": 1, "H": 2, "N": 300, "D": 32, "Dv": 16},
    "gated_delta": {"B": 1, "H": 2, "T": 300, "D": 32, "Dv": 16},
    "semicrf": {"B": 1, "T": 300, "C": 3, "K": 4},
}
ROWS = {"sdpa": ("T", "M"), "lse": ("T", "M"), "lightning": ("N",), "gated_delta": ("T",), "semicrf": ("T", "T+1")}


def kernel(name: str) -> Kernel:
    (found,) = resolve(name).kernels
    return found


@pytest.mark.parametrize("name", DIMS)
def test_each_configuration_has_tiles_of_the_dims_that_it_cuts(name: str) -> None:
    own = kernel(name)
    for blocks in ("", *own.blocks):
        for dtype in ("float32", "bfloat16"):
            for order in (0, 1, 2):
                tiles = own.tiles_of(dtype, DIMS[name], blocks, order)
                assert set(tiles) == set(ROWS[name]) and all(size >= 1 for size in tiles.values())


@pytest.mark.parametrize("name", ["sdpa", "lse"])
def test_a_forced_tile_is_the_configurations_own(name: str) -> None:
    own = kernel(name)
    for blocks, sizes in own.blocks.items():
        assert own.tiles_of("float32", DIMS[name], blocks, 1) == {"T": sizes.query, "M": sizes.key}


def test_the_semi_crf_keeps_a_state_where_its_tiles_end() -> None:
    own = kernel("semicrf")
    for positions, durations, labels in ((300, 4, 3), (300, 40, 5), (40, 4, 3), (2000, 200, 2)):
        for blocks in ("", *own.blocks):
            given = {
                "cum_scores": torch.zeros(1, positions + 1, labels),
                "transition": torch.zeros(labels, labels),
                "duration_bias": torch.zeros(durations, labels),
                "lengths": torch.tensor([positions]),
            }
            problem = guardrails.check(*given.values(), blocks=own.blocks.get(blocks))
            dims = {"B": 1, "T": positions, "C": labels, "K": durations}
            assert min(own.tiles_of("float32", dims, blocks, 1)["T"], positions) == problem.chunk


def test_a_kernel_from_outside_may_declare_its_tiles() -> None:
    @gradoracle.family
    def twice(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
        """2 x."""
        return 2 * x

    tiled = gradoracle.kernel(twice, tiles={"N": 64})(lambda x: 2 * x)
    assert tiled.tiles_of("float32", {"B": 1, "N": 100}, "", 1) == {"N": 64}
    assert gradoracle.kernel(twice)(lambda x: 2 * x).tiles_of("float32", {"B": 1, "N": 100}, "", 1) == {}
