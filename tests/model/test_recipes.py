"""Recipes: the bits of each are fixed for ever, each has the character it names, rounding is single and to even."""

from __future__ import annotations

import hashlib
import itertools

import numpy as np
import pytest
import torch

from gradoracle.model.formats import DTYPES, FORMATS
from gradoracle.model.recipes import INDEX_RECIPES, RECIPES, canonical, indices, is_continuous, rounded, values

SHAPE = (2, 3, 33, 17)
# digests in the order of DTYPES, of integers one
GOLDEN = {
    "normal": "99db8d1f 22eaecd2 08444afc 866e1029 865bba5a eac1d349",
    "uniform": "6a9cc4df 1982d8f7 e6e13e8d fcbc9227 b7620ffa 49eeda0f",
    "positive": "b31a3e4e e4410656 6976dbb0 73d7fdc5 a4700915 3f5d74ec",
    "alternating": "53176ccb 0213a92e d5aeea79 711d3ac3 964c2311 21bf8747",
    "ramp": "82fa7acc 3e6f553c 8fa710af 6b092049 f8f6da51 63d21ff2",
    "wide": "80ba87bb 7320f9ce 4c6ee6a7 dca4131b 8831145d 1dc6c44b",
    "outlier": "d6488bf1 2d6b82ea eb2c7a62 4d475f94 7a7f410c adf6909c",
    "extreme": "130058ac 4b333cac 4c522be4 18e08f9c 088177d4 096a28cd",
    "tiny": "34b0f71a ca0b7f2e a65e675b 6e125e7a 7e4a33c0 f83cb90c",
    "subnormal": "fd3ca9d1 664bc758 e6798aae a8d123b6 e6dccba2 ea2ea0bb",
    "largemean": "e1cfce5a dcdfec75 537d319a fa4f2c46 d00971a6 0d272420",
    "ties": "6cd78e25 c3afd5de f04960aa f109a5d6 3f191c17 211bad60",
    "powers": "d682cc7c 5303505d 2be498f9 d64bbfe8 63e1042a 3a9d6947",
    "onehot": "82d7b8fe 8d316c58 43c7949a 8eccd7bf 9affa57e 128bca19",
    "constant": "1da0d0a9 28297c7c 82c1e3b6 601a99b1 230441c2 052f5a67",
    "zeros": "059676fe 2f59b333 2f59b333 4d01ac7e b3314f7b b3314f7b",
    "normal:3": "c0403b0f 6e419444 4b3268f7 1415104e 507afb80 eb98ec5a",
    "normal:1e-3": "d6b04a79 74ccacd9 2e21d193 4fe46346 fc2ac7fc a2450b25",
    "largemean:1000": "3b42db10 29db5868 9a22da1f 152cf722 212cc4e3 21df5821",
    "extreme:1e6": "ef9f7e6a b25d3003 972d5f71 214f6a49 088177d4 b0552893",
    "index": "2cfb26aa",
    "lowest": "aaf3fb05",
    "highest": "c18349cd",
    "collisions": "bc05f8d1",
}


def digest(tensor: torch.Tensor) -> str:
    width = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[tensor.element_size()]
    array = tensor.contiguous().view(width).numpy()
    return hashlib.sha256(array.astype(array.dtype.newbyteorder("<")).tobytes()).hexdigest()[:8]


@pytest.mark.parametrize("name", [*RECIPES, "normal:3", "normal:1e-3", "largemean:1000", "extreme:1e6"])
def test_golden_digests(name: str) -> None:
    found = [digest(values(name, SHAPE, dtype, seed=5, name="primal q")) for dtype in DTYPES]
    assert " ".join(found) == GOLDEN[name]


@pytest.mark.parametrize("name", INDEX_RECIPES)
def test_golden_digests_of_integers(name: str) -> None:
    assert digest(indices(name, SHAPE, 2, 40, seed=5, name="lengths")) == GOLDEN[name]


@pytest.mark.parametrize(("name", "dtype"), [*itertools.product(RECIPES, DTYPES)])
def test_every_recipe_is_finite_in_every_dtype_and_shape(name: str, dtype: str) -> None:
    for shape in ((), (1,), (7,), (1, 1), (3, 1, 5), SHAPE):
        tensor = values(name, shape, dtype, seed=11, name="q")
        assert tensor.shape == shape and tensor.dtype == DTYPES[dtype] and tensor.double().isfinite().all()


@pytest.mark.parametrize(("name", "dtype"), [*itertools.product(RECIPES, ("float32", "float16"))])
def test_a_continuous_recipe_repeats_nothing_that_its_dtype_distinguishes(name: str, dtype: str) -> None:
    tensor = values(name, (40, 50), "float64", seed=2, name="q")
    distinct = len(tensor.unique()) / tensor.numel()
    if is_continuous(name):
        assert distinct > 0.999
        assert tensor.std() > 0.3 * tensor.mean().abs()
        assert len(values(name, (10, 10), dtype, seed=2, name="q").unique()) > 90
    else:
        aligned = distinct < 0.1 or tensor.mean().abs() > 10 * tensor.std()
        assert aligned or name in ("subnormal", "ramp")  # a grid that is absolute; an order that is not random


def test_characters() -> None:
    def drawn(text: str, dtype: str = "float32", shape: tuple[int, ...] = (40, 50)) -> torch.Tensor:
        return values(text, shape, dtype, seed=3, name="q").double()

    assert abs(drawn("normal").std() - 1) < 0.1 and abs(drawn("normal:3").std() - 3) < 0.3
    assert drawn("uniform").min() < -0.9 and 0.9 < drawn("uniform").max() < 1
    assert (drawn("positive") >= 0).all()
    assert (drawn("alternating").flatten()[::2] > 0).all() and (drawn("alternating").flatten()[1::2] < 0).all()
    rows = drawn("ramp").mean(1)
    assert rows[0] < -0.9 and rows[-1] > 0.9 and (rows.diff() > 0).double().mean() > 0.8
    assert drawn("wide").abs().max() > 32 and drawn("wide").abs().quantile(0.1) < 0.1
    assert (drawn("outlier").abs() > 50).sum() == 1 and (drawn("outlier").abs() >= 100).sum() == 1
    assert drawn("extreme").abs().min() >= 5000 and 9900 < drawn("extreme").abs().max() <= 1e4
    assert 1e-31 < drawn("tiny").std() < 1e-29
    assert 1 < drawn("tiny", "float16").std() / FORMATS["float16"].smallest_normal < 8
    for dtype in ("float32", "bfloat16", "float16"):
        small = drawn("subnormal", dtype)
        most = FORMATS[dtype].smallest_normal
        assert small.abs().max() <= most and small.abs().max() > 0.9 * most
    assert abs(drawn("largemean").mean() - 100) < 0.2 and drawn("largemean").std() < 2
    assert len(drawn("ties").unique()) == 3 and len(drawn("ties:5").unique()) == 5
    assert set(drawn("powers").abs().unique().tolist()) == {2.0**k for k in range(-4, 5)}
    assert set(drawn("powers").sign().unique().tolist()) == {-1.0, 1.0}
    assert (drawn("onehot").sum(1) == 1).all() and set(drawn("onehot").unique().tolist()) == {0.0, 1.0}
    assert (drawn("constant:0.5") == 0.5).all() and (drawn("constant:-2") == -2).all()
    assert (drawn("zeros") == 0).all()


def test_beyond_the_range_of_the_dtype_values_stay_finite_and_distinct() -> None:
    tensor = values("extreme:1e6", (8, 8), "float16", seed=1, name="q")
    largest = FORMATS["float16"].largest
    assert tensor.isfinite().all() and largest / 8 < tensor.abs().max().item() <= largest
    assert len(tensor.unique()) > 32


def test_integers() -> None:
    def drawn(text: str) -> torch.Tensor:
        return indices(text, (30, 10), 2, 9, seed=3, name="lengths")

    assert drawn("index").dtype == torch.int64 and set(drawn("index").flatten().tolist()) == set(range(2, 10))
    assert (drawn("lowest") == 2).all() and (drawn("highest") == 9).all()
    assert len(drawn("collisions").unique()) <= 2
    with pytest.raises(ValueError, match="has no possible value"):
        indices("index", (3,), 5, 4, seed=0, name="lengths")
    with pytest.raises(ValueError, match="makes floats"):
        indices("normal", (3,), 0, 4, seed=0, name="lengths")
    with pytest.raises(ValueError, match="makes integers"):
        values("index", (3,), "float32", seed=0, name="q")


def hard_numbers(lowest: int, highest: int, fraction: int) -> np.ndarray:
    """Numbers at and next to ties, subnormal and overflowing ones included."""
    generator = np.random.default_rng(0)
    exponents = generator.integers(lowest - fraction - 3, highest + 2, 20_000)
    bits = generator.integers(0, 2 << (fraction + 1), 20_000)
    ties = (1 + bits / (2 << fraction)) * 2.0**exponents
    beside = [ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf), generator.normal(size=20_000) * 2.0**exponents]
    both = np.concatenate([*beside, [0.0]])
    return np.concatenate([both, -both])


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_rounding_agrees_with_the_single_rounding_of_numpy(dtype: str) -> None:
    numbers = hard_numbers(-126, 127, 23) if dtype == "float32" else hard_numbers(-14, 15, 10)
    with np.errstate(over="ignore", under="ignore"):
        expected = numbers.astype(dtype)
    width = np.int32 if dtype == "float32" else np.int16
    assert np.array_equal(rounded(numbers, dtype).numpy().view(width), expected.view(width))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_rounding_to_8_bits_agrees_with_torch(dtype: str) -> None:
    numbers = hard_numbers(FORMATS[dtype].lowest, 9, FORMATS[dtype].bits - 1).astype(
        np.float32
    )  # torch rounds that once
    expected = torch.from_numpy(numbers).to(DTYPES[dtype])
    assert torch.equal(rounded(numbers.astype(np.float64), dtype).view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
@pytest.mark.parametrize("recipe", ["normal:1e6", "extreme:1e6", "outlier:1e6"])
def test_values_beyond_the_range_of_8_bits_end_at_the_largest_number(recipe: str, dtype: str) -> None:
    found = values(recipe, (40, 9), dtype, seed=1, name="primal x").double()
    assert found.abs().max() == FORMATS[dtype].largest and (found.abs() == FORMATS[dtype].largest).sum() < 80
    assert len(found.unique()) > 4 or recipe == "outlier:1e6"


def test_rounding_to_bfloat16_is_the_nearest_even_and_single() -> None:
    numbers = hard_numbers(-126, 100, 7)
    got = rounded(numbers, "bfloat16").double().numpy()
    quantum = 2.0 ** (np.maximum(np.frexp(numbers)[1] - 1, -126) - 7)
    assert np.array_equal(got, np.rint(numbers / quantum) * quantum)
    # float64 -> float32 -> bfloat16 rounds this tie twice, and wrongly
    twice = np.array([1 + 2.0**-8 + 2.0**-40])
    assert rounded(twice, "bfloat16").item() == 1 + 2.0**-7
    assert torch.from_numpy(twice).float().bfloat16().item() == 1.0


def test_rounding_keeps_subnormals_where_the_machine_flushes_them() -> None:
    if not torch.set_flush_denormal(True):
        pytest.skip("this machine cannot flush subnormals")
    try:
        found = [digest(values("subnormal", SHAPE, dtype, seed=5, name="primal q")) for dtype in DTYPES]
    finally:
        torch.set_flush_denormal(False)
    assert found[:3] == GOLDEN["subnormal"].split()[:3]


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("normal:1.0", "normal"),
        ("normal:3.0", "normal:3"),
        ("tiny:1e-30", "tiny"),
        ("constant:-2", "constant:-2"),
        ("normal:0.1", "normal:0.1"),
        ("ties:4", "ties:4"),
        ("index", "index"),
        ("normal:0.12345678", "normal:0.12345678"),
    ],
)
def test_canonical(text: str, short: str) -> None:
    assert canonical(text) == short == canonical(short)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "recipe '' is unknown; expected NAME or NAME:NUMBER"),
        ("gaussian", "recipe 'gaussian' is unknown; expected NAME or NAME:NUMBER"),
        ("normal:", "after normal: expected a finite number above 0"),
        ("normal:x", "after normal: expected a finite number above 0"),
        ("normal:-1", "after normal: expected a finite number above 0"),
        ("normal:nan", "after normal: expected a finite number above 0"),
        ("constant:inf", "after constant: expected a finite number"),
        ("ties:2.5", "after ties: expected a whole number from 1 to 64"),
        ("ties:0", "after ties: expected a whole number from 1 to 64"),
        ("powers:1e9", "after powers: expected a whole number from 1 to 64"),
        ("zeros:1", "zeros takes no number"),
        ("index:3", "is unknown"),
    ],
)
def test_malformed_recipes_say_what_is_expected(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        canonical(text)


def test_unknown_dtype() -> None:
    with pytest.raises(ValueError, match="dtype 'float8' is unknown; expected one of float32"):
        rounded(np.zeros(3), "float8")


@pytest.mark.parametrize("dtype", DTYPES)
def test_forbidden_entries_are_minus_infinity_and_the_others_are_normal(dtype: str) -> None:
    drawn = values("forbidden:0.2", (2000,), dtype, seed=3, name="primal bias").double()
    format_ = FORMATS[dtype]
    forbidden = drawn == (-torch.inf if format_.has_infinities else -format_.largest)
    assert 0.15 < float(forbidden.double().mean()) < 0.25 and bool(drawn[~forbidden].isfinite().all())
    plain = values("normal", (2000,), dtype, seed=3, name="primal bias").double()
    assert torch.equal(drawn[~forbidden], plain[~forbidden])
    assert is_continuous("forbidden") and "forbidden" not in RECIPES  # no family draws it that does not name it
