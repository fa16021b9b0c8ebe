"""Signatures: what annotations say is what is read, and what they do not say is an error that names the parameter."""

from __future__ import annotations

import pytest
from jaxtyping import Bool, Float, Int
from torch import Tensor

from gradoracle.model.signature import OptionSpec, read_signature


def attention(
    q: Float[Tensor, "B H T D"],
    lengths: Int[Tensor, "B"],
    *,
    sinks: Float[Tensor, "H"] | None = None,
    scale: float | None = None,
    causal: bool = False,
) -> tuple[Float[Tensor, "B H T+1 D"], Float[Tensor, "B H T"]]: ...


def test_inputs_outputs_and_options_are_read():
    signature = read_signature(attention, outputs=("o", "lse"), options={"scale": (0.5, None)})
    assert [(s.name, s.kind, s.optional, s.keyword) for s in signature.inputs] == [
        ("q", "float", False, False),
        ("lengths", "int", False, False),
        ("sinks", "float", True, True),
    ]
    assert [s.name for s in signature.outputs] == ["o", "lse"]
    assert [(o.name, o.default, o.values) for o in signature.options] == [
        ("scale", None, (None, 0.5)),
        ("causal", False, (False, True)),
    ]
    assert signature.dims == ("B", "H", "T", "D")
    assert signature.outputs[0].shape({"B": 2, "H": 3, "T": 4, "D": 5}) == (2, 3, 5, 5)
    assert [s.name for s in signature.primals] == ["q", "sinks"]


@pytest.mark.parametrize(
    ("option", "right", "wrong", "expected"),
    [
        (OptionSpec("causal", False, (False, True)), (True, False), (1, "yes", None), "true or false"),
        (OptionSpec("scale", None, (None, 0.5)), (None, 2, 0.1), (True, "x"), "null or a number"),
        (OptionSpec("mode", "a", ("a", "b")), ("c",), (0, None), "a string"),
        (OptionSpec("scale", None, (None,)), (None, 0.5, "x"), (), ""),
    ],
)
def test_an_option_wants_values_of_the_types_that_are_known(option, right, wrong, expected):
    assert [option.expected(value) for value in right] == [""] * len(right)
    assert [option.expected(value) for value in wrong] == [expected] * len(wrong)


def test_names_of_outputs_have_a_default():
    assert [s.name for s in read_signature(attention).outputs] == ["out0", "out1"]


def unannotated(x, y: Float[Tensor, "N"]) -> Float[Tensor, "N"]: ...


def unreturned(x: Float[Tensor, "N"]): ...


def rooted(x: Float[Tensor, "B T D**2"]) -> Float[Tensor, "B T D"]: ...


def broadcast(x: Float[Tensor, "T"]) -> Float[Tensor, "#B T"]: ...


def composed(x: Float[Tensor, "*batch T 2*D"], m: Bool[Tensor, "T"]) -> Float[Tensor, "*batch T//2 3"]: ...


def test_dims_may_be_expressions_and_a_starred_name_is_any_number_of_dims():
    found = read_signature(composed)
    assert found.dims == ("batch0", "batch1", "batch2", "T", "D")
    assert found.spreads == {"*batch": ("batch0", "batch1", "batch2")}
    sizes = {"T": 6, "D": 5}
    for batch in ({}, {"batch0": 4}, {"batch0": 1, "batch1": 2}, {"batch0": 3, "batch1": 1, "batch2": 2}):
        assert found.inputs[0].shape(sizes | batch) == (*batch.values(), 6, 10)
        assert found.outputs[0].shape(sizes | batch) == (*batch.values(), 3, 3)
        assert found.at(sizes | batch).inputs[0].dims == (*batch, "T", "2*D")
        assert found.at(sizes | batch).dims == (*batch, "T", "D") and not found.at(sizes | batch).spreads
    assert found.at().dims == found.dims and found.inputs[1].shape(sizes) == (6,)
    assert (found.inputs[1].kind, found.inputs[1].dtype) == ("int", "bool")


def test_a_signature_without_a_starred_name_is_the_same_in_every_case():
    found = read_signature(attention)
    assert found.at({"B": 1}) is found and found.spreads == {}


def starred_and_named(x: Float[Tensor, "*batch T"], y: Float[Tensor, "batch1"]) -> Float[Tensor, "*batch T"]: ...


@pytest.mark.parametrize(
    ("function", "keywords", "words"),
    [
        (rooted, {}, r"the dims \"B T D\*\*2\" of x of rooted have 'D\*\*2', which is invalid; expected names"),
        (broadcast, {}, r"the dims \"#B T\" of out of broadcast have '#B', which is invalid"),
        (starred_and_named, {}, r"starred_and_named has a dim 'batch1', as one of \*batch is called"),
        (unannotated, {}, "parameter 'x' of unannotated"),
        (unreturned, {}, "the return of unreturned must be annotated"),
        (attention, {"outputs": ("o",)}, "returns 2 tensors, but 1 output names"),
        (attention, {"options": {"dropout": (0.1,)}}, "no such keyword-only option"),
    ],
)
def test_what_cannot_be_read_is_named(function, keywords, words):
    with pytest.raises(TypeError, match=words):
        read_signature(function, **keywords)
