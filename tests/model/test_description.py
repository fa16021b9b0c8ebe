"""A kernel as described: the same declarations, and functions that are asked for where they are."""

from __future__ import annotations

import inspect
import json
from dataclasses import replace
from typing import Any

import pytest

from gradoracle.execution.device import prepare
from gradoracle.model.derivative import Derivative
from gradoracle.model.description import Description, described, kernel_of
from gradoracle.model.dims import Sizes
from gradoracle.model.errors import UsageError
from gradoracle.model.location import place_of
from gradoracle.model.serialize import from_plain, to_plain
from gradoracle.project.target import shipped

prepare("cpu")  # before kernels are imported, which tests of this process share


def through(own: Description) -> Description:
    return from_plain(Description, json.loads(json.dumps(to_plain(own))))


def never(kernel: str, what: str, arguments: tuple[Any, ...]) -> Any:
    raise AssertionError(f"{what} of {kernel} was asked for")


@pytest.mark.parametrize("family", ["sdpa", "lse", "lightning", "gated_delta", "semicrf"])
def test_a_shipped_kernel_comes_through_as_it_is(family: str) -> None:
    (kernel,) = shipped()[family].kernels
    own = described(kernel)
    assert through(own) == own
    made = kernel_of(own, never)
    for field in ("name", "family", "contracts", "dtypes", "dims", "options", "deterministic", "claims", "outside"):
        assert getattr(made, field) == getattr(kernel, field), field
    assert list(made.blocks) == list(kernel.blocks) and made.extras.keys() == kernel.extras.keys()
    assert [getattr(made, each.value) is None for each in Derivative if each is not Derivative.FORWARD] == [
        getattr(kernel, each.value) is None for each in Derivative if each is not Derivative.FORWARD
    ]
    assert list(inspect.signature(made.call).parameters) == list(inspect.signature(kernel.call).parameters)
    assert place_of(made.call) == place_of(kernel.call) and described(made) == own


def test_functions_are_asked_for_on_plain_values() -> None:
    (kernel,) = shipped()["lightning"].kernels

    def ask(name: str, what: str, arguments: tuple[Any, ...]) -> Any:
        own = kernel.extras[what[6:]] if what.startswith("extra ") else getattr(kernel, what)
        return own(*json.loads(json.dumps(arguments)))

    made = kernel_of(through(described(kernel)), ask)
    assert made.fits is not None and kernel.fits is not None
    assert list(made.fits("float16", {"D": 32, "Dv": 32})) == list(kernel.fits("float16", {"D": 32, "Dv": 32}))
    asked = "float16", {"q": (2, 3, 33, 2)}, next(iter(kernel.blocks))
    assert made.algorithm_of(*asked) == kernel.algorithm_of(*asked)
    assert made.tiles_of("float16", {"N": 33}, "", 0) == kernel.tiles_of("float16", {"N": 33}, "", 0)


@pytest.mark.parametrize(
    ("what", "given"),
    [
        *(("algorithm", each) for each in ({"chunks": 1}, 3, None)),
        *(("tiles", each) for each in ("text", {"N": "8"}, {"N": True}, {"N": 0}, [8])),
        *(("fits", each) for each in (3, ["wide", 1], "wide")),
    ],
)
def test_what_a_function_should_not_give_is_one_sentence(what: str, given: Any) -> None:
    (kernel,) = shipped()["lightning"].kernels
    own = replace(described(kernel), asked=(what,))
    made = getattr(kernel_of(own, lambda kernel, what, arguments: given), what)
    with pytest.raises(UsageError, match=f"{what} of kernel {own.name} gives .*; expected "):
        made("float16", {"N": 3})


def test_what_is_no_description_is_refused() -> None:
    (kernel,) = shipped()["sdpa"].kernels
    own = to_plain(described(replace(kernel, dims={"D": Sizes(multiple=16)})))
    own["dims"]["D"]["multiple"] = "sixteen"
    with pytest.raises(ValueError, match="multiple"):
        from_plain(Description, own)
