"""Domains of integer inputs: what they make is legal, in every recipe, layout and size; what is not, they name."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import Float, Int, Int32
from torch import Tensor

import gradoracle
from gradoracle import (
    Bits,
    BlockTable,
    Distinct,
    IndexDomain,
    Lengths,
    Mask,
    Offsets,
    Permutation,
    Positions,
    Seed,
    Segments,
)
from gradoracle.cases.sample import build
from gradoracle.model import layouts
from gradoracle.model.case import Case, Draw
from gradoracle.model.domains import DOMAINS, Domain, Drawing, Longer, Neighbours
from gradoracle.model.domains.written import read
from gradoracle.model.signature import Constraints, TensorSpec
from tests.domain_families import FAMILIES

# A domain, the dims of an input of it, its dtype
EVERY: dict[str, tuple[Domain, tuple[str, ...], str]] = {
    "index": (IndexDomain("V", ignore=-100), ("B", "T"), "int64"),
    "length": (IndexDomain("T", 1, "length"), ("B",), "int32"),
    "cu_seqlens": (IndexDomain("T", kind="cu_seqlens"), ("N+1",), "int32"),
    "offsets": (Offsets("T"), ("N+1",), "int32"),
    "offsets of each row": (Offsets("T"), ("B", "N+1"), "int64"),
    "ends": (Offsets("B*T", leading=False), ("N",), "int32"),
    "offsets, none empty": (Offsets("T", minimum=2), ("N+1",), "int32"),
    "ends, none empty": (Offsets("T", leading=False, minimum=1), ("B", "N"), "int32"),
    "lengths": (Lengths("T", minimum=1), ("B",), "int64"),
    "counts": (Lengths("T", total=True), ("B", "N"), "int64"),
    "counts, none empty": (Lengths("T", minimum=1, total=True), ("N",), "int64"),
    "segments": (Segments("N"), ("B", "T"), "int64"),
    "positions": (Positions(), ("B", "T"), "int64"),
    "positions in a table": (Positions("V"), ("T",), "int32"),
    "permutation": (Permutation("T"), ("B", "T"), "int32"),
    "distinct": (Distinct("V"), ("B", "K"), "int64"),
    "distinct, sorted": (Distinct("V", sorted=True), ("B", "K"), "int64"),
    "block table": (BlockTable("P"), ("B", "N"), "int32"),
    "shared blocks": (BlockTable("V", shared=True), ("B", "N"), "int32"),
    "mask": (Mask(), ("B", "T"), "bool"),
    "mask of some": (Mask(some=True), ("B", "T"), "int32"),
    "padding": (Mask(prefix=True), ("B", "T"), "bool"),
    "padding of some": (Mask(some=True, prefix=True), ("B", "T"), "int64"),
    "seed": (Seed(), (), "int64"),
    "narrow seed": (Seed(), ("1",), "int32"),
    "bits": (Bits(32), ("T",), "int32"),
    "wide bits": (Bits(64), ("T",), "int64"),
    "bytes": (Bits(8), ("B", "T"), "uint8"),
    "signed bytes": (Bits(8), ("T",), "int8"),
    "bits in a wider dtype": (Bits(32), ("T",), "int64"),
}
SIZES = {dim: gradoracle.sizes(1, 9) for dim in ("B", "N", "K", "V")} | {
    "T": gradoracle.sizes(1, 70), "P": gradoracle.sizes(1, 90)
}  # fmt: skip


def settled(name: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """Sizes with which an input of the domain can be."""
    domain, dims, _ = EVERY[name]
    return Constraints(at_most=domain.at_most(dims)).settled(sizes, SIZES)


def made(name: str, sizes: Mapping[str, int], recipe: str, seed: int) -> Tensor:
    domain, dims, dtype = EVERY[name]
    kind: torch.dtype = getattr(torch, dtype)
    shape = TensorSpec(name, dims).shape(sizes)
    drawn = domain.drawn(Drawing(recipe, shape, sizes, seed, f"primal {name}", kind))
    assert drawn.dtype is torch.int64 and tuple(drawn.shape) == shape
    return drawn.to(kind)


some_sizes = st.fixed_dictionaries({dim: st.integers(1, sizes.biggest) for dim, sizes in SIZES.items()})


@pytest.mark.parametrize("name", EVERY)
@given(data=st.data(), sizes=some_sizes, seed=st.integers(0, 1000))
def test_every_recipe_makes_legal_values_in_every_layout(name: str, data: Any, sizes: Any, seed: int) -> None:
    domain = EVERY[name][0]
    sizes = settled(name, sizes)
    values = made(name, sizes, data.draw(st.sampled_from(domain.recipes)), seed)
    assert domain.fault(values, sizes) == ""
    for layout in layouts.LAYOUTS:
        if domain.allows(layout, tuple(values.shape)):
            assert domain.fault(layouts.apply(values, layout), sizes) == "", layout


@pytest.mark.parametrize("name", EVERY)
@given(data=st.data(), sizes=some_sizes, seed=st.integers(0, 1000))
def test_one_more_member_is_legal_or_said_to_be_impossible(name: str, data: Any, sizes: Any, seed: int) -> None:
    domain, dims, _ = EVERY[name]
    sizes = settled(name, sizes)
    values = made(name, sizes, data.draw(st.sampled_from(domain.recipes)), seed)
    names = sorted({each for dim in (*dims, *domain.bounds) for each in "BNKVTP" if each in dim})
    grown = data.draw(st.sampled_from([part for n in range(len(names) + 1) for part in combinations(names, n)]))
    after = {dim: size + (dim in grown) for dim, size in sizes.items()}
    axes = tuple(axis for axis, dim in enumerate(dims) if dim.partition("+")[0] in grown)
    first = data.draw(st.booleans())
    longer = domain.extended(values, Longer(axes, sizes, after, first))
    assert tuple(longer.shape) == TensorSpec(name, dims).shape(after) and longer.dtype is values.dtype
    possible = not Constraints(at_most=domain.at_most(dims)).unmet(after, ())
    fits = possible and not (getattr(domain, "minimum", 0) or (getattr(domain, "sorted", False) and axes))
    assert domain.fault(longer, after) == "" or not fits


@pytest.mark.parametrize("name", EVERY)
def test_a_new_last_member_leaves_the_former_ones_as_they_are(name: str) -> None:
    domain, dims, _ = EVERY[name]
    sizes = {"B": 2, "N": 2, "K": 2, "V": 5, "T": 6, "P": 12}
    values = made(name, sizes, "index", 3)
    for axis, dim in enumerate(dims):
        grown = dim.partition("+")[0]
        if grown not in sizes or grown in domain.dims:
            continue
        longer = domain.extended(values, Longer((axis,), sizes, {**sizes, grown: sizes[grown] + 1}))
        assert torch.equal(longer.narrow(axis, 0, values.shape[axis]), values)


def digest(name: str) -> str:
    """Of values of every recipe at some sizes: the same on every machine and in every version."""
    sizes = {"B": 3, "N": 4, "K": 3, "V": 7, "T": 40, "P": 30}
    state = hashlib.sha256()
    for recipe in EVERY[name][0].recipes:
        state.update(made(name, sizes, recipe, 5).to(torch.int64).numpy().astype("<i8").tobytes())
    return state.hexdigest()[:12]


DIGESTS = {
    "index": "a08e667bf25a",
    "length": "4c20779fe6a0",
    "cu_seqlens": "1a2ded092b7f",
    "offsets": "50bf50b85252",
    "offsets of each row": "e90c8bfb65f2",
    "ends": "3e97083584ed",
    "offsets, none empty": "b2dc0ddc26a8",
    "ends, none empty": "c55c78f8255b",
    "lengths": "94b2584e6dce",
    "counts": "ff051de1d174",
    "counts, none empty": "60c4446ecf62",
    "segments": "f66aa27cc8e5",
    "positions": "36644e7afc06",
    "positions in a table": "e194154a608e",
    "permutation": "a313175f2832",
    "distinct": "48f948cbc0c7",
    "distinct, sorted": "397792c9cce2",
    "block table": "7d13733121eb",
    "shared blocks": "df00d532295d",
    "mask": "51242ae7ee70",
    "mask of some": "5ee49e4045d1",
    "padding": "1bb6584fb6cf",
    "padding of some": "c7d40f49bb62",
    "seed": "3112821b6eb6",
    "narrow seed": "4a2877462771",
    "bits": "b9ba5addc736",
    "wide bits": "a14bd7ca6609",
    "bytes": "d5f23f8f6023",
    "signed bytes": "0b6e66af05ba",
    "bits in a wider dtype": "677f26833953",
}


@pytest.mark.parametrize("name", EVERY)
def test_the_values_are_golden(name: str) -> None:
    assert digest(name) == DIGESTS[name]


def test_offsets_and_lengths_have_the_values_of_the_index_domain_of_that_kind() -> None:
    """So that a case line keeps its tensors where a family says Offsets instead."""
    for old, new in (("cu_seqlens", "offsets"), ("length", "lengths")):
        for recipe in EVERY[old][0].recipes:
            sizes = {"B": 4, "N": 4, "T": 40}
            drawn = [EVERY[each][0].drawn(Drawing(recipe, (5,), sizes, 3, "primal x")) for each in (old, new)]
            assert torch.equal(*drawn), (old, recipe)


def tensor(*values: Any) -> Tensor:
    return torch.tensor(values[0] if len(values) == 1 else list(values))


CU = Neighbours({"cu": Offsets("T"), "n": Lengths("T")}, {"cu": tensor(0, 2, 2, 5), "n": tensor(3, 0)})


@pytest.mark.parametrize(
    ("domain", "values", "says"),
    [
        (IndexDomain("V"), tensor([[0, 1], [3, 2]]), "holds 3 at [1, 0], expected integers from 0 to 2"),
        (IndexDomain("V", ignore=-1), tensor(-1, -2), "holds -2 at [1], expected integers from 0 to 2"),
        (Offsets("T"), tensor(0, 3, 2, 5), "falls from 3 to 2 at [2], expected offsets that rise from 0 to 5"),
        (Offsets("T"), tensor(1, 3, 5), "begins with 1 at [0], expected offsets that rise from 0 to 5"),
        (Offsets("T"), tensor(0, 3, 4), "ends with 4 at [2], expected offsets that rise from 0 to 5"),
        (Offsets("T"), tensor([[0, 5], [0, 4]]), "ends with 4 at [1, 1], expected offsets that rise from 0 to 5"),
        (Offsets("T", leading=False), tensor(-1, 5), "falls from 0 to -1 at [0]"),
        (Offsets("T", minimum=1), tensor(0, 2, 2, 5), "ends at [2] of length below 1, expected lengths of at least 1"),
        (Offsets("T", leading=False, minimum=1), tensor(0, 5), "ends at [0] of length below 1"),
        (Lengths("T", minimum=1), tensor(2, 0), "holds 0 at [1], expected lengths from 1 to 5"),
        (Lengths("T", total=True), tensor(2, 2), "adds up to 4, expected lengths that add up to 5"),
        (Lengths("T", total=True), tensor([[2, 3], [5, 1]]), "adds up to 6 in row [1], expected"),
        (Segments("V"), tensor(0, 1, 3), "holds 3 at [2], expected segments from 0 to 2"),
        (Segments("V"), tensor([[0, 0], [1, 0]]), "falls from 1 to 0 at [1, 1], expected segments one after the other"),
        (Segments(of="cu"), tensor(0, 0, 1, 2, 2), "holds 1 at [2], expected 2 by the sequences of cu"),
        (Segments(of="cu"), tensor(0, 0, 2), "has shape (3,), expected one value for each token of cu"),
        (Positions(), tensor(0, 1, 3), "holds 3 at [2], expected positions from 0 to 2"),
        (Positions(), tensor(0, 1, 1), "holds 1 at [2], expected one more than the position before it, or 0"),
        (Positions(), tensor(1, 0, 1), "holds 1 at [0], expected one more than the position before it, or 0"),
        (Positions("V"), tensor(0, 1, 2, 3), "holds 3 at [3], expected positions from 0 to 2"),
        (Positions(of="cu"), tensor(0, 1, 2, 0, 1), "holds 2 at [2], expected 0 by the sequences of cu"),
        (Permutation("V"), tensor([[0, 1, 2], [2, 0, 2]]), "holds 2 at [1, 2] a second time, expected each value once"),
        (Permutation("V"), tensor(0, 1, 3), "holds 3 at [2], expected a permutation of the numbers from 0 to 2"),
        (Permutation("V"), tensor(0, 1), "has rows of 2, expected permutations of 3"),
        (
            Distinct("T"),
            tensor([[0, 1], [4, 4]]),
            "holds 4 at [1, 1] a second time, expected each value once in its row",
        ),
        (Distinct("V"), tensor([[0, 3]]), "holds 3 at [0, 1], expected indices from 0 to 2"),
        (
            Distinct("V", sorted=True),
            tensor([[0, 2], [2, 1]]),
            "falls from 2 to 1 at [1, 1], expected indices that ascend",
        ),
        (BlockTable("P"), tensor([[0, 1], [8, 2]]), "holds 8 at [1, 0], expected blocks from 0 to 7"),
        (BlockTable("P"), tensor([[0, 1], [2, 0]]), "holds 0 at [1, 1] a second time, expected each block once"),
        (BlockTable("P", shared=True), tensor([[0, 1], [2, -1]]), "holds -1 at [1, 1], expected blocks from 0 to 7"),
        (BlockTable("P", lengths="n", block=2), tensor([[0, -1], [5, 5]]), "holds -1 at [0, 1], expected blocks"),
        (
            BlockTable("P", lengths="n", block=1),
            tensor([[0, 1], [5, 5]]),
            "has rows of 2, expected 3 at [0], as n needs",
        ),
        (Mask(), tensor(0, 2), "holds 2 at [1], expected a mask of 0 and 1"),
        (
            Mask(some=True),
            tensor([[True, False], [False, False]]),
            "masks all of row [1], expected at least one element",
        ),
        (Mask(prefix=True), tensor([[1, 0], [0, 1]]), "holds 1 at [1, 1] after a 0"),
        (Seed(), tensor(3, -7), "holds -7 at [1], expected seeds from 0"),
        (Bits(8), tensor(0, 256), "holds 256 at [1], expected numbers of 8 bits from -128 to 255"),
    ],
    ids=lambda each: "" if isinstance(each, Tensor) else str(each),
)
def test_what_is_illegal_is_named_with_its_place(domain: Domain, values: Tensor, says: str) -> None:
    assert says in domain.fault(values, {"V": 3, "T": 5, "P": 8}, CU)


def test_what_no_token_needs_does_not_matter() -> None:
    own = BlockTable("P", lengths="n", block=2)
    assert own.fault(tensor([[0, 1], [77, 0]]), {"P": 8}, CU) == ""


def test_each_recipe_is_what_its_name_says() -> None:
    sizes = {"T": 40, "N": 4, "V": 7, "K": 3, "B": 3, "P": 30}
    offsets = {recipe: made("offsets", sizes, recipe, 5).tolist() for recipe in Offsets("T").recipes}
    assert offsets["lowest"] == [0, 0, 0, 0, 40] and offsets["highest"] == [0, 40, 40, 40, 40]
    assert offsets["equal"] == [0, 10, 20, 30, 40] and offsets["empty"] == [0, 20, 20, 40, 40]
    assert all(min(end % 16, -end % 16) <= 3 or end == 40 for end in offsets["tails"])
    assert made("ends, none empty", sizes, "lowest", 5)[0].tolist() == [1, 2, 3, 40]
    assert made("counts", sizes, "equal", 5)[0].tolist() == [10, 10, 10, 10]
    assert made("segments", sizes, "lowest", 5).unique().tolist() == [0]
    assert made("positions in a table", sizes, "highest", 5)[:9].tolist() == [0, 1, 2, 3, 4, 5, 6, 0, 1]
    assert made("positions", sizes, "lowest", 5).unique().tolist() == [0]
    assert made("positions", sizes, "tails", 5)[0, 16:19].tolist() == [16, 0, 1]
    assert (made("positions", sizes, "index", 5) == 0).sum() > 12  # one token in four begins a sequence
    assert made("permutation", sizes, "identity", 5)[0].tolist() == list(range(40))
    assert made("permutation", sizes, "reversed", 5)[0].tolist() == list(range(39, -1, -1))
    assert not torch.equal(*made("permutation", sizes, "index", 5)[:2])
    assert made("distinct", sizes, "highest", 5)[0].tolist() == [6, 5, 4]
    assert made("distinct, sorted", sizes, "highest", 5)[0].tolist() == [4, 5, 6]
    assert len(made("distinct", sizes, "collisions", 5).unique(dim=0)) == 1
    assert made("block table", sizes, "reversed", 5)[0].tolist() == [29, 28, 27, 26]
    assert made("mask of some", sizes, "lowest", 5).sum(-1).tolist() == [1, 1, 1]
    assert made("padding", sizes, "index", 5).sum(-1).unique().numel() > 1
    assert made("bits", sizes, "full", 5).unique().tolist() == [-1] and made("bytes", sizes, "full", 5).max() == 255
    assert made("bits", sizes, "lowest", 5).unique().tolist() == [-(2**31)]
    for name, least in (("bits", -(2**30)), ("wide bits", -(2**62)), ("signed bytes", -60)):
        random = made(name, sizes, "index", 5).long()
        assert random.min() < least and random.max() > -least
    assert made("seed", sizes, "highest", 5) == 2**63 - 1 and made("narrow seed", sizes, "highest", 5) == 2**31 - 1
    assert made("seed", sizes, "index", 5) > 2**32


def pick(x: Float[Tensor, "T D"], i: Int[Tensor, "N"], cu: Int32[Tensor, "S+1"]) -> Float[Tensor, "N D"]:
    return x[i]


@pytest.mark.parametrize(
    ("domains", "says"),
    [
        ({"i": Permutation("T")}, "family pick: i has the last dim N, but a permutation of T has T"),
        ({"i": IndexDomain("Q")}, "the domain of i names Q, which is no dim; expected some of T, D, N, S"),
        ({"i": Positions(of="cv")}, "the domain of i reads 'cv'; expected one of cu"),
        ({"i": Positions(of="i")}, "the domain of i reads 'i'; expected one of cu"),
        ({"i": BlockTable("T", lengths="cu")}, "reads 'cu'; expected an input of lengths, which it has not"),
        ({"i": Seed(), "x": Seed()}, "domains names 'x', which is no integer input; expected some of i, cu"),
        ({"i": Bits(32), "cu": Bits(64)}, "cu is of int32, which has no 64 bits"),
        ({"i": "index"}, "the domain of i is 'index'; expected one such as gradoracle.IndexDomain"),
    ],
    ids=str,
)
def test_a_domain_that_does_not_fit_its_input_is_one_sentence(domains: Any, says: str) -> None:
    with pytest.raises(ValueError, match=r"^family pick: ") as caught:
        gradoracle.family(pick, domains={"cu": Offsets("T")} | domains)
    assert says in str(caught.value)


def test_an_input_that_another_reads_is_there_with_it() -> None:
    def packed(
        x: Float[Tensor, "T"], *, cu: Int[Tensor, "N+1"] | None = None, pos: Int[Tensor, "T"] | None = None
    ) -> Float[Tensor, "T"]:
        return x

    domains = {"cu": Offsets("T"), "pos": Positions(of="cu")}
    with pytest.raises(ValueError, match=r"reads cu, which may be absent; expected both in a group of together"):
        gradoracle.family(packed, domains=domains)
    assert gradoracle.family(packed, domains=domains, together=[("cu", "pos")]).domains["pos"].reads == ("cu",)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Offsets("T", minimum=-1), "Offsets has minimum -1; expected a length of at least 0"),
        (lambda: Lengths("T", minimum=-1), "Lengths has minimum -1; expected a length of at least 0"),
        (lambda: Segments(), "Segments has neither bound nor of; expected one of them"),
        (lambda: Segments("N", of="cu"), "Segments has bound 'N' and of 'cu'; expected one of them"),
        (lambda: Bits(7), "Bits has width 7; expected one of 8, 16, 32, 64"),
    ],
)
def test_a_domain_that_means_nothing_is_refused(make: Any, says: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        make()
    assert says in str(caught.value)


@pytest.mark.parametrize("name", EVERY)
def test_a_domain_is_read_as_it_is_written(name: str) -> None:
    domain = EVERY[name][0]
    assert eval(domain.source) == domain
    assert read(domain.source.removeprefix("gradoracle.").replace('"', ""), DOMAINS) == domain
    assert (domain.words and domain.words[0].islower()) or domain.words[0].isdigit()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("Permute(T)", "Permute is no domain; expected one of Bits, BlockTable"),
        ("Permutation()", "missing 1 required positional argument: 'bound'"),
        ("Permutation(T, ordered=True)", "unexpected keyword argument 'ordered'"),
        ("Bits(9)", "Bits has width 9"),
        ("Permutation(T/2)", "the dim 'T/2' is invalid"),
        ("Permutation([1])", "is no number, dim or name of an input"),
    ],
)
def test_a_text_that_is_no_domain_says_so(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=r"domain|argument|width|invalid|input") as caught:
        read(text, DOMAINS)
    assert says in str(caught.value)


def test_a_case_line_with_a_recipe_or_layout_of_another_domain_is_refused() -> None:
    case = Case("tokens", {"T": 6, "D": 2, "N": 2, "E": 2})
    own = FAMILIES["tokens"]
    for draw, says in (
        ({"order": Draw("tails")}, "order the recipe tails; expected one of index, identity, reversed"),
        ({"order": Draw("index", "broadcast")}, "order the layout broadcast, in which values repeat; expected one"),
    ):
        with pytest.raises(ValueError, match=says):
            build(case.with_draws(**draw), own.signature, domains=own.domains)


def test_a_joint_recipe_of_another_domain_is_refused() -> None:
    domains = {"i": Distinct("T"), "cu": Offsets("T")}
    with pytest.raises(ValueError, match=r"joint recipe 'both' gives cu 'identity'; expected one of index, lowest"):
        gradoracle.family(pick, domains=domains, joint={"both": {"cu": "identity"}})
    made = gradoracle.family(pick, domains=domains, joint={"both": {"cu": "empty", "x": "ties"}})
    assert made.joint["both"] == {"cu": "empty", "x": "ties"}


def spread(x: Float[Tensor, "*batch T"], i: Int[Tensor, "*batch T"], j: Int[Tensor, "T *batch"]) -> Float[Tensor, "T"]:
    return x


@pytest.mark.parametrize(
    "domain",
    [Offsets("T", minimum=1), Lengths("T", total=True), Segments("T"), Positions(), Permutation("T"), Distinct("T")],
    ids=str,
)
def test_rows_have_a_last_dim(domain: Domain) -> None:
    """Of any number of dims, which may be none, no row is known."""
    with pytest.raises(ValueError, match=r"j has dims \[T \*batch\], but .* need a last dim of one name, number or"):
        gradoracle.family(spread, domains={"i": IndexDomain("T"), "j": domain})
    if not isinstance(domain, Offsets):
        gradoracle.family(spread, domains={"i": domain, "j": IndexDomain("T")})


def test_entries_and_tokens_that_are_counted_have_named_dims() -> None:
    for domain in (BlockTable("T"), Positions("T", of="j")):
        with pytest.raises(ValueError, match=r"family spread: i has (the )?dims .*batch.* need"):
            gradoracle.family(spread, domains={"i": domain, "j": IndexDomain("T")})
