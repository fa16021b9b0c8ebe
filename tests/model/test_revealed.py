"""Inputs that a kernel reveals: what the kernel and its function are given, and what a declaration may name."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle
from gradoracle.model.description import described, kernel_of


@gradoracle.family(
    domains={"rows": gradoracle.IndexDomain("M"), "seed": gradoracle.IndexDomain(9), "late": gradoracle.IndexDomain(9)}
)
def shuffled(
    x: Float[Tensor, "M N"],
    rows: Int[Tensor, "M"],
    seed: Int[Tensor, ""],
    *,
    bias: Float[Tensor, "N"] | None = None,
    late: Int[Tensor, "M"] | None = None,
    scale: float = 1.0,
    shift: float = 0.0,
) -> Float[Tensor, "M N"]:
    """x in another order of rows, which the kernel makes of the seed."""
    return x[rows] * scale + shift


def order(x, seed, *, bias=None, scale=1.0, blocks=None):
    return torch.arange(x.shape[0]).flip(0) + (0 if bias is None else 10) + (100 if blocks else 0) + int(scale)


@gradoracle.kernel(shuffled, reveals={"rows": order}, blocks={"wide": 7})
def flipped(x, seed, *, bias=None, scale=1.0, blocks=None):
    return x.flip(0) * scale


def test_the_kernel_is_given_all_but_what_it_reveals() -> None:
    x, rows, seed = torch.randn(3, 2), torch.zeros(3, dtype=torch.int64), torch.tensor(1)
    assert flipped.revealed == ("rows",)
    assert torch.equal(flipped(x, rows, seed, scale=2.0), 2 * x.flip(0))
    assert flipped.options == {"shift": (), "late": ()}
    assert flipped.notes == ("flipped reveals rows, which the definition is then given",)


def test_the_function_gets_inputs_options_and_blocks_as_the_kernel_does() -> None:
    x, seed = torch.randn(3, 2), torch.tensor(1)
    given = {"x": x, "rows": torch.zeros(3, dtype=torch.int64), "seed": seed}
    reveal = flipped.extras["revealed rows"]
    assert reveal(given, {"scale": 2.0, "shift": 3.0}, None).tolist() == [4, 3, 2]
    assert reveal({**given, "bias": x[0]}, {"scale": 0.0}, 7).tolist() == [112, 111, 110]
    assert reveal(given, {}, None).dtype is torch.float64


def test_what_it_reveals_is_known_where_the_kernel_is_not() -> None:
    asked = kernel_of(described(flipped), lambda kernel, what, arguments: None)
    assert asked.revealed == ("rows",) and asked.blocks.keys() == {"wide"}


@pytest.mark.parametrize("name", ["x", "late", "order"])
def test_only_an_integer_input_of_every_case_can_be_revealed(name: str) -> None:
    expected = f"kernel k: reveals names {name} of family shuffled; expected some of its integer inputs rows, seed"
    with pytest.raises(ValueError) as raised:
        gradoracle.kernel(shuffled, name="k", reveals={name: order})(order)
    assert str(raised.value) == expected


def test_a_function_that_does_not_take_what_the_kernel_takes_is_refused() -> None:
    with pytest.raises(TypeError, match=r"expected the inputs \(x, seed\) positionally"):
        gradoracle.kernel(shuffled, reveals={"rows": lambda x, rows, seed: rows})(lambda x, seed: x)
    with pytest.raises(TypeError, match=r"expected the inputs \(x, seed\) positionally"):
        gradoracle.kernel(shuffled, reveals={"rows": order})(lambda x, rows, seed: x)
