"""What a family declares of random numbers: names that it has, in words, and which tensors then have no truth."""

from __future__ import annotations

from typing import Any

import pytest
from jaxtyping import Float, Int
from torch import Tensor

import gradoracle
from gradoracle.model.family import Family
from gradoracle.model.randomness import Randomness


def made(**declared: Any) -> Family:
    @gradoracle.family(outputs=("o", "s"), domains={"seed": gradoracle.IndexDomain(9)}, random=Randomness(**declared))
    def drop(
        x: Float[Tensor, "N"], seed: Int[Tensor, ""], *, p: float = 0.5
    ) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]:
        return x, x

    found: Family = drop
    return found


def test_it_is_kept_with_the_family_and_said_in_words() -> None:
    assert made(seed="seed").random == Randomness("seed")
    assert Randomness("seed").words == "random numbers come from seed"
    said = Randomness("key", drop="p", shown="o", rounded="s", mean=True).words
    assert said == (
        "random numbers come from key; elements are dropped with probability p, and o shows which; s is rounded at "
        "random; the definition gives the mean over seeds, so a call is judged by what it shows"
    )
    assert "no tensor shows which" in Randomness("key", drop="p").words
    assert "a call is judged by relations alone" in Randomness("key", mean=True).words
    assert made(seed="p").random == Randomness("p")  # an option is a seed, too


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        ({"seed": "key"}, "family drop: random has seed='key'; expected one of its integer inputs and options seed, p"),
        ({"seed": ""}, "random has seed=''; expected one of its integer inputs"),
        ({"seed": "x"}, "random has seed='x'; expected one of"),
        ({"seed": "seed", "drop": "q"}, "random has drop='q'; expected one of its options p"),
        ({"seed": "seed", "drop": "p", "shown": "x"}, "has shown='x'; expected one of its float outputs and integer"),
        ({"seed": "seed", "rounded": "x"}, "random has rounded='x'; expected one of its float outputs o, s"),
        ({"seed": "seed", "shown": "o"}, "Randomness has shown='o' and no drop; expected the option"),
        ({"seed": "seed", "levels": 1}, "Randomness has 1 levels; expected 2 or more"),
    ],
)
def test_a_declaration_that_does_not_fit_is_refused_in_a_sentence(declared: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError) as raised:
        made(**declared)
    assert says in str(raised.value)


def test_which_tensors_have_no_truth() -> None:
    assert Randomness("seed", mean=True).without_truth("o") and Randomness("seed", mean=True).without_truth("")
    rounding = Randomness("seed", rounded="o")
    assert rounding.without_truth("o") and not rounding.without_truth("do") and not rounding.without_truth("")
    assert not Randomness("seed", drop="p", shown="o").without_truth("o")
