"""Families and kernels as a user declares them, and the sentence for each mistake."""

from __future__ import annotations

import pytest
import torch
from jaxtyping import Float, Float8e4m3fn, Float8e4m3fnuz, Float32, Int, UInt8
from torch import Tensor

import gradoracle
from gradoracle.model.kernel import accepted_options


@gradoracle.family(outputs=("y",), dims={"N": gradoracle.multiples(8)}, options={"scale": (1.0, 2.0)})
def scaled(
    x: Float[Tensor, "B N"], w: Float[Tensor, "N"], *, scale: float = 1.0, flip: bool = False
) -> Float[Tensor, "B N"]:
    """X * w * scale."""
    return x * w * scale


def test_a_family_is_its_definition_with_a_domain():
    x, w = torch.ones(2, 8), torch.full((8,), 3.0)
    assert torch.equal(scaled(x, w, scale=2.0), x * 6)
    assert scaled.name == "scaled"
    assert 16 in scaled.dims["N"]
    assert 12 not in scaled.dims["N"]
    assert 7 in scaled.dims["B"]


def test_bare_decorators_work():
    @gradoracle.family
    def double(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        return 2 * x

    @gradoracle.kernel(double, deterministic=True)
    def mine(x):
        return x + x

    assert (double.name, mine.name, mine.family) == ("double", "mine", "double")
    assert mine.deterministic and mine.outside
    assert mine.contract("bfloat16").name == "bf16"


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"dims": {"Q": gradoracle.sizes(1, 2)}}, r"dims \['Q'\] do not occur"),
        ({"dtypes": ("float8",)}, r"dtypes \['float8'\] are unknown"),
        ({"joint": {"both": {"z": "normal"}}}, r"joint recipe 'both' names \['z'\]"),
        ({"beside_large": {"Z": 3}}, r"beside_large names \['Z'\], which are neither dims nor tensors of it"),
    ],
)
def test_a_family_that_does_not_fit_its_definition_says_so(keywords, words):
    with pytest.raises(ValueError, match=words):
        gradoracle.family(scaled.definition, **keywords)


def test_an_integer_input_needs_a_domain():
    def pick(x: Float[Tensor, "N"], i: Int[Tensor, "B"]) -> Float[Tensor, "B"]:
        return x[i]

    with pytest.raises(ValueError, match=r"integer inputs \['i'\] need a domain"):
        gradoracle.family(pick)
    assert gradoracle.family(pick, domains={"i": gradoracle.IndexDomain("N")}).domains["i"].bound == "N"


def test_an_index_domain_knows_its_kinds():
    sizes = {"T": 7}
    highest = {
        kind: gradoracle.IndexDomain("T", kind=kind).highest(sizes) for kind in ("index", "length", "cu_seqlens")
    }
    assert highest == {"index": 6, "length": 7, "cu_seqlens": 7} and gradoracle.IndexDomain("T+1").highest(sizes) == 7
    with pytest.raises(ValueError, match="kind 'lengths'; expected one of index, length, cu_seqlens"):
        gradoracle.IndexDomain("T", kind="lengths")
    with pytest.raises(ValueError, match="offsets"):
        gradoracle.IndexDomain("T", kind="cu_seqlens", ignore=-1)


def test_outputs_of_integers_stand_apart():
    def largest(x: Float[Tensor, "B N"]) -> tuple[Int[Tensor, "B"], Float[Tensor, "B"]]:
        return tuple(x.max(-1))[::-1]

    found = gradoracle.family(largest, outputs=("i", "y"))
    assert [spec.name for spec in found.signature.outputs] == ["y"]
    assert found.signature.all_returned({}) == ("i", "y") and len(found(torch.ones(2, 3))) == 2
    (y,) = found.definition(torch.ones(2, 3))
    assert y.dtype is torch.float32


def test_options_are_passed_where_the_signature_names_them():
    assert accepted_options(scaled, lambda x, w, *, scale=1.0, flip=False: x) == ({}, ())
    assert accepted_options(scaled, lambda *tensors, **options: tensors[0]) == ({}, ())
    assert accepted_options(scaled, lambda x, w: x) == ({"scale": (), "flip": ()}, ())
    dropped, notes = accepted_options(scaled, torch.nn.functional.scaled_dot_product_attention)
    assert set(dropped) == {"scale", "flip"}
    assert "cannot be read" in notes[0]


@pytest.mark.parametrize("function", [lambda x: x, lambda x, w, bias: x, lambda x, w, *, bias: x])
def test_a_signature_that_does_not_fit_is_one_sentence(function):
    words = r"<lambda> does not fit family scaled: .*expected the inputs \(x, w\)"
    with pytest.raises(TypeError, match=words):
        accepted_options(scaled, function)


def test_mistakes_with_8_bits_are_one_sentence():
    def scaled(x: Float8e4m3fn[Tensor, "M K"], code: UInt8[Tensor, "M"]) -> Float32[Tensor, "M"]:
        return x.float().sum(-1) * torch.exp2(code.float() - 127)

    def of_another(x: Float8e4m3fnuz[Tensor, "M"]) -> Float32[Tensor, "M"]:
        return x.float()

    codes = gradoracle.IndexDomain(137, minimum=117)
    assert gradoracle.family(scaled, domains={"code": codes}).signature.inputs[1].dtype == "uint8"
    said = (
        r"code Between\(low=0.5, high=2\), which is of floats, and code holds integers; .* the codes of 2\^-10 to 2\^9"
    )
    with pytest.raises(ValueError, match=said):
        gradoracle.family(scaled, domains={"code": gradoracle.Between(0.5, 2)})
    with pytest.raises(ValueError, match=r"x Between.*500\), but float8_e4m3fn ends at 448; expected a range"):
        gradoracle.family(scaled, domains={"code": codes, "x": gradoracle.Between(0, 500)})
    with pytest.raises(ValueError, match="code is of uint8, from 0 to 255, and its domain goes from 0 to 299"):
        gradoracle.family(scaled, domains={"code": gradoracle.IndexDomain(300)})
    assert gradoracle.family(scaled, domains={"code": gradoracle.IndexDomain(256)})
    with pytest.raises(ValueError, match=r"x is of float8_e4m3fnuz, which cases do not have; .* gradoracle.Bits"):
        gradoracle.family(of_another)
