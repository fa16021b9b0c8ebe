"""Laws of random numbers: each holds of a correct kernel, and a wrong one violates it on the same case."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from gradoracle.properties.chance import LEAST, binomial, decides, mixed_binomial, weighted, within
from gradoracle.properties.roundings import lower
from jaxtyping import Bool, Float, Float32, Int
from torch import Tensor

import gradoracle
from gradoracle.check.properties import properties_of
from gradoracle.model.job import PropertyResult
from gradoracle.model.kernel import Kernel
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import Status
from gradoracle.oracle.truth import Oracle
from tests.properties.judging import evidence, judge, judge_on

SEEDED = {"domains": {"seed": gradoracle.IndexDomain(2**31)}}
CALLS = itertools.count()


@gradoracle.family(random=gradoracle.Randomness(seed="seed", drop="p", shown="out", mean=True), **SEEDED)
def thinned(
    x: Float[Tensor, "M N"], w: Float[Tensor, "N"], seed: Int[Tensor, ""], *, p: float = 0.25
) -> Float[Tensor, "M N"]:
    """x w, the mean over seeds."""
    return x * w


@gradoracle.family(random=gradoracle.Randomness(seed="seed", drop="p", shown="mask"), **SEEDED)
def masked(
    x: Float[Tensor, "M N"], w: Float[Tensor, "N"], seed: Int[Tensor, ""], mask: Bool[Tensor, "M N"], *, p: float = 0.25
) -> Float[Tensor, "M N"]:
    """x w / (1 - p) where the mask is true."""
    return torch.where(mask, x * w / (1 - p), 0.0)


@gradoracle.family(dtypes=("bfloat16",), random=gradoracle.Randomness(seed="seed", rounded="out"), **SEEDED)
def rounding(x: Float32[Tensor, "N"], seed: Int[Tensor, ""]) -> Float[Tensor, "N"]:
    """x, the mean of its roundings."""
    return x.clone()


def numbers(seed: Tensor, shape: Any, first: int = 0) -> Tensor:
    return gradoracle.random(seed, first, shape)


class Thinned(torch.autograd.Function):
    """x w m / s in forward, and in backward with another mask or scale."""

    @staticmethod
    def forward(ctx, x, w, masks, scales):
        ctx.save_for_backward(x, w, masks[1])
        ctx.scale = scales[1]
        return (torch.where(masks[0], x.float() * w.float() / scales[0], 0.0)).to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        x, w, mask = ctx.saved_tensors
        own = torch.where(mask, g.float() / ctx.scale, 0.0)
        return (own * w.float()).to(x.dtype), (own * x.float()).sum(0).to(w.dtype), None, None


def kernel(
    mask: Callable[[Tensor, Tensor, float], Any] = lambda x, seed, p: numbers(seed, x.shape) > p,
    scale: Callable[[float], Any] = lambda p: 1 - p,
    **fields: Any,
) -> Kernel:
    """A kernel of ``thinned`` with a mask and a scale, or two of each: of forward and of backward."""

    def call(x, w, seed, *, p=0.25, blocks=None):
        found, by = mask(x, seed, p) if blocks is None else mask(x, seed + blocks, p), scale(p)
        masks = found if isinstance(found, tuple) else (found, found)
        return Thinned.apply(x, w, masks, by if isinstance(by, tuple) else (by, by))

    return gradoracle.kernel(thinned, name="kernel", **fields)(call)


RIGHT = kernel(deterministic=True)
CASE = "case:1 thinned cpu float32 family=thinned M=5 N=40 seed=4"
LAWS = [prop for prop in properties_of(thinned) if prop.judge.__module__.endswith("universal.randomness")]
OF_DROPOUT = [
    "outputs_are_those_of_the_kept_elements",
    "gradients_are_those_of_the_kept_elements",
    "the_mask_of_backward_is_that_of_forward",
    "the_same_seed_gives_the_same_numbers",
    "the_mask_depends_on_the_seed_alone",
    "the_share_of_kept_elements_is_that_of_the_option",
    "another_seed_gives_another_mask",
]
OF_ROUNDING = ["a_rounded_value_is_one_of_its_neighbours", "rounding_at_random_has_the_mean_of_the_value"]


def judged(name: str, own: Kernel, case: str = CASE, family: Any = thinned) -> PropertyResult:
    return judge(name, case, own, Oracle(family, "float64"))


def by_place(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """Counted by place in memory."""
    places = torch.arange(x.shape[0])[:, None] * x.stride(0) + torch.arange(x.shape[1]) * x.stride(1)
    return gradoracle.random(seed, places) > p


def first_rows(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """From the seed in the first two rows alone."""
    return torch.cat([numbers(seed, (2, x.shape[1])), numbers(0 * seed, (x.shape[0] - 2, x.shape[1]))]) > p


def by_calls(x: Tensor, seed: Tensor, p: float) -> Tensor:
    """From a state that each call advances."""
    return numbers(seed, x.shape, 1000 * next(CALLS)) > p


WRONG = [
    (OF_DROPOUT[0], "scaled by 1 / p", kernel(scale=lambda p: p)),
    (OF_DROPOUT[0], "not scaled", kernel(scale=lambda p: 1.0)),
    (OF_DROPOUT[0], "small values are dropped", kernel(lambda x, seed, p: (numbers(seed, x.shape) > p) & (x > -1))),
    (OF_DROPOUT[1], "backward scaled by 1 / p", kernel(scale=lambda p: (1 - p, p))),
    (
        OF_DROPOUT[1],
        "backward with other offsets",
        kernel(lambda x, seed, p: (numbers(seed, x.shape) > p, numbers(seed, x.shape, 1) > p)),
    ),
    (
        OF_DROPOUT[2],
        "backward with other offsets",
        kernel(lambda x, seed, p: (numbers(seed, x.shape) > p, numbers(seed, x.shape, 1) > p)),
    ),
    (
        OF_DROPOUT[2],
        "backward in another order",
        kernel(lambda x, seed, p: (numbers(seed, x.shape) > p, (numbers(seed, x.shape[::-1]) > p).T)),
    ),
    (
        OF_DROPOUT[2],
        "backward without a mask",
        kernel(lambda x, s, p: (numbers(s, x.shape) > p, torch.ones(x.shape) > 0)),
    ),
    (OF_DROPOUT[3], "a state that calls advance", kernel(by_calls, deterministic=True)),
    (OF_DROPOUT[3], "a state, and no determinism claimed", kernel(by_calls)),
    (OF_DROPOUT[4], "places in memory", kernel(by_place)),
    (OF_DROPOUT[4], "the values decide", kernel(lambda x, seed, p: numbers(seed, x.shape, int(x.abs().max())) > p)),
    (OF_DROPOUT[4], "blocks decide", kernel(blocks={"wide": 1})),
    (OF_DROPOUT[5], "kept with probability p", kernel(lambda x, seed, p: numbers(seed, x.shape) > 1 - p)),
    (
        OF_DROPOUT[5],
        "one number a row",
        kernel(lambda x, seed, p: (numbers(seed, x.shape[:1]) > p)[:, None] & (torch.ones(x.shape) > 0)),
    ),
    (OF_DROPOUT[5], "in one byte, and by one level off", kernel(lambda x, seed, p: numbers(seed, x.shape) > p + 0.1)),
    (OF_DROPOUT[6], "the seed is ignored", kernel(lambda x, seed, p: numbers(0 * seed, x.shape) > p)),
    (OF_DROPOUT[6], "the upper bits of the seed alone", kernel(lambda x, seed, p: numbers(seed >> 3, x.shape) > p)),
    (
        OF_DROPOUT[6],
        "the first rows alone depend on the seed",
        kernel(first_rows),
    ),
]


@pytest.mark.parametrize(("name", "fault", "wrong"), WRONG, ids=[f"{name}-{fault}" for name, fault, _ in WRONG])
def test_a_wrong_mask_violates_its_law_and_the_right_one_holds_there(name: str, fault: str, wrong: Kernel) -> None:
    own = kernel(blocks={"same": 0}) if fault == "blocks decide" else RIGHT
    assert judged(name, own).status is Status.HOLDS
    assert judged(name, wrong).status is Status.VIOLATED, fault


def test_one_byte_of_random_numbers_is_right_where_it_is_declared() -> None:
    coarse = kernel(lambda x, seed, p: (256 * numbers(seed, x.shape)).floor() >= round(256 * p) + 1)
    large = "case:1 thinned cpu float32 family=thinned M=200 N=300 seed=4"
    name = "the_share_of_kept_elements_is_that_of_the_option"
    assert judged(name, coarse, large).status is Status.VIOLATED
    random = gradoracle.Randomness(seed="seed", drop="p", shown="out", mean=True, levels=256)
    assert judged(name, coarse, large, replace(thinned, random=random)).status is Status.HOLDS


@pytest.mark.parametrize("name", [*OF_DROPOUT, "runs_are_bit_identical", "vjp_is_linear_in_the_cotangent"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_law_holds_of_right_kernels(name: str, dtype: str, seed: int) -> None:
    found = judged(
        name, RIGHT, f"case:1 thinned cpu {dtype} family=thinned M=7 N=33 --p=0.1 x~wide/transposed seed={seed}"
    )
    assert found.status is Status.HOLDS, found


def test_no_call_of_a_mean_has_a_truth_and_each_property_says_so() -> None:
    for name in ("forward_matches_the_oracle", "vjp_matches_the_oracle", "finite_where_the_truth_is_finite"):
        found = judged(name, RIGHT)
        assert (found.status, found.why) == (Status.NOT_CHECKED, Reason.RANDOM)
        assert "the definition gives the mean over seeds" in found.reason
    for name in ("batch_and_head_permutation_equivariance", "tail_and_padding_invariance"):
        assert "random numbers belong to places" in judged(name, RIGHT).reason


def test_a_law_that_does_not_apply_says_why() -> None:
    reasons = {prop.name: judged(prop.name, RIGHT).reason for prop in LAWS if prop.name in OF_ROUNDING}
    assert set(reasons.values()) == {"the family declares that nothing is rounded at random"} and len(reasons) == 2
    assert len(LAWS) == len(OF_DROPOUT) + len(OF_ROUNDING)
    tiny = "case:1 thinned cpu float32 family=thinned M=1 N=1 seed=4"
    for name in OF_DROPOUT[5:]:
        found = judged(name, RIGHT, tiny)
        assert found.status is Status.NOT_CHECKED and "too few" in found.reason
    assert judged(OF_DROPOUT[0], RIGHT, tiny).status is Status.HOLDS


def test_a_family_without_random_numbers_has_none_of_the_laws() -> None:
    @gradoracle.family
    def plain(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        return x * 2

    assert not {prop.name for prop in properties_of(plain)} & {*OF_DROPOUT, *OF_ROUNDING}


@gradoracle.family(random=gradoracle.Randomness(seed="seed", drop="p", shown="out"))
def optional(x: Float[Tensor, "M N"], *, p: float = 0.25, seed: int = 5) -> Float[Tensor, "M N"]:
    """The definition knows the numbers, and the seed is an option."""
    return torch.where(gradoracle.random(seed, 0, x.shape) > p, x / (1 - p), 0.0)


@pytest.mark.parametrize("name", ["forward_matches_the_oracle", "vjp_matches_the_oracle", *OF_DROPOUT[2:]])
def test_a_seed_may_be_an_option(name: str) -> None:
    case = "case:1 optional cpu float32 family=optional M=5 N=40 --seed=9 seed=4"
    own = gradoracle.kernel(optional, name="own")(lambda x, *, p=0.25, seed=5: optional(x, p=p, seed=seed))
    ignores = gradoracle.kernel(optional, name="own")(lambda x, *, p=0.25, seed=5: optional(x, p=p, seed=5))
    assert judged(name, own, case, optional).status is Status.HOLDS
    if name in ("forward_matches_the_oracle", "another_seed_gives_another_mask"):
        assert judged(name, ignores, case, optional).status is Status.VIOLATED


# ---- masks that a kernel reveals ----


def revealing(show: Callable[..., Tensor], mask: Any = None, **fields: Any) -> Kernel:
    def call(x, w, seed, *, p=0.25):
        found = (mask or (lambda x, seed, p: numbers(seed, x.shape) > p))(x, seed, p)
        return Thinned.apply(x, w, found if isinstance(found, tuple) else (found, found), (1 - p, 1 - p))

    return gradoracle.kernel(masked, name="revealing", reveals={"mask": show}, **fields)(call)


REVEALED = "case:1 masked cpu float32 family=masked M=5 N=40 seed=4"
SHOWS = revealing(lambda x, w, seed, *, p=0.25: numbers(seed, x.shape) > p, deterministic=True)


@pytest.mark.parametrize(
    "name",
    ["forward_matches_the_oracle", "vjp_matches_the_oracle", "inputs_and_cotangents_are_unmodified", *OF_DROPOUT[3:]],
)
def test_a_kernel_that_reveals_its_mask_is_judged_given_it(name: str) -> None:
    assert judged(name, SHOWS, REVEALED, masked).status is Status.HOLDS
    own = evidence(REVEALED, SHOWS, Oracle(masked, "float64"))
    assert torch.equal(own.sample.inputs["mask"], numbers(own.sample.inputs["seed"], (5, 40)) > 0.25)


def test_what_the_definition_is_given_is_not_compared_twice() -> None:
    for name in OF_DROPOUT[:3]:
        found = judged(name, SHOWS, REVEALED, masked)
        assert (found.status, found.why) == (Status.NOT_CHECKED, Reason.RANDOM) and "definition" in found.reason


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        (
            "vjp_matches_the_oracle",
            revealing(
                lambda x, w, seed, *, p=0.25: numbers(seed, x.shape) > p,
                lambda x, s, p: (numbers(s, x.shape) > p, numbers(s, x.shape, 1) > p),
            ),
        ),
        ("forward_matches_the_oracle", revealing(lambda x, w, seed, *, p=0.25: numbers(seed, x.shape, 1) > p)),
        (
            "the_share_of_kept_elements_is_that_of_the_option",
            revealing(lambda x, w, seed, *, p=0.25: numbers(seed, x.shape) > 1 - p),
        ),
        ("another_seed_gives_another_mask", revealing(lambda x, w, seed, *, p=0.25: numbers(0 * seed, x.shape) > p)),
        ("the_same_seed_gives_the_same_numbers", revealing(lambda x, w, seed, *, p=0.25: by_calls(x, seed, p))),
        ("the_mask_depends_on_the_seed_alone", revealing(lambda x, w, seed, *, p=0.25: by_place(x, seed, p))),
    ],
)
def test_a_revealed_mask_that_is_wrong_violates_a_law(name: str, wrong: Kernel) -> None:
    assert judged(name, SHOWS, REVEALED, masked).status is Status.HOLDS
    assert judged(name, wrong, REVEALED, masked).status is Status.VIOLATED


@pytest.mark.parametrize(
    ("show", "says"),
    [
        (
            lambda x, w, seed: torch.full(x.shape, 2),
            "mask, as the kernel reveals it, holds 2 at [0, 0], expected integers from 0 to 1",
        ),
        (lambda x, w, seed: torch.full(x.shape, 0.5), "mask, as the kernel reveals it, holds fractions"),
        (lambda x, w, seed: torch.ones(3), "mask of revealed mask has shape (3,), expected (5, 40)"),
        (lambda x, w, seed: None, "mask of revealed mask is None"),
    ],
)
def test_what_is_no_mask_is_a_violation(show: Any, says: str) -> None:
    found = judged("forward_matches_the_oracle", revealing(show), REVEALED, masked)
    assert found.status is Status.VIOLATED and says in found.findings[0].message


def test_a_mask_that_is_given_is_not_the_kernels() -> None:
    given = gradoracle.kernel(masked, name="given")(lambda x, w, seed, mask, *, p=0.25: masked(x, w, seed, mask, p=p))
    for name in OF_DROPOUT[3:]:
        found = judged(name, given, REVEALED, masked)
        assert found.status is Status.NOT_CHECKED, name
    assert "mask is given to the kernel" in found.reason
    assert judged("vjp_matches_the_oracle", given, REVEALED, masked).status is Status.HOLDS


def test_declarations_that_do_not_fit_are_refused_in_a_sentence() -> None:
    with pytest.raises(
        ValueError, match="reveals names x of family masked; expected some of its integer inputs seed, mask"
    ):
        gradoracle.kernel(masked, name="k", reveals={"x": lambda: None})(lambda w, seed, mask: w)
    with pytest.raises(TypeError, match="does not fit family masked"):
        gradoracle.kernel(masked, name="k", reveals={"mask": lambda x: None})(lambda x, w, seed: w)
    with pytest.raises(TypeError, match="does not fit family masked"):
        gradoracle.kernel(masked, name="k", reveals={"mask": lambda x, w, seed: None})(lambda x, w, seed, mask: w)


# ---- stochastic rounding ----


def words(x: Tensor, noise: Tensor) -> Tensor:
    """x in bfloat16, with noise added below its last bit."""
    return ((x.contiguous().view(torch.int32) + noise.to(torch.int32)) & -65536).view(torch.float32).bfloat16()


class Rounding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, how, seed):
        return how(x, gradoracle.random_bits(seed, 0, x.shape))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g.float(), None, None


def rounder(how: Callable[[Tensor, Tensor], Tensor]) -> Kernel:
    return gradoracle.kernel(rounding, name="rounder", dtypes=("bfloat16",))(
        lambda x, seed: Rounding.apply(x, how, seed)
    )


FAIR = rounder(lambda x, bits: words(x, bits & 0xFFFF))
LONG = "case:1 rounding cpu bfloat16 family=rounding N=120 x~{} seed=4"


@pytest.mark.parametrize(
    ("name", "how", "recipe"),
    [
        (OF_ROUNDING[1], lambda x, bits: words(x, bits & 0x7FFF), "normal"),
        (OF_ROUNDING[1], lambda x, bits: words(x, 0 * bits), "normal"),
        (OF_ROUNDING[1], lambda x, bits: x.bfloat16(), "normal"),
        (OF_ROUNDING[1], lambda x, bits: words(x, 0 * bits + 0xFFFF), "normal"),
        (OF_ROUNDING[0], lambda x, bits: words(x, bits & 0x3FFFF), "normal"),
        (OF_ROUNDING[0], lambda x, bits: words(x, 0 * bits + 0x10000), "powers"),
        ("another_seed_gives_another_mask", lambda x, bits: words(x, 0 * bits + 0x7FFF), "normal"),
    ],
)
def test_a_wrong_rounding_violates_its_law_and_a_fair_one_holds_there(name: str, how: Any, recipe: str) -> None:
    assert judged(name, FAIR, LONG.format(recipe), rounding).status is Status.HOLDS
    assert judged(name, rounder(how), LONG.format(recipe), rounding).status is Status.VIOLATED


def test_a_rounding_at_random_is_compared_with_no_single_truth_and_its_gradient_is() -> None:
    case = LONG.format("wide")
    found = judged("forward_matches_the_oracle", FAIR, case, rounding)
    assert found.status is Status.NOT_CHECKED and "out is rounded at random" in found.reason
    assert judged("vjp_matches_the_oracle", FAIR, case, rounding).status is Status.HOLDS
    for recipe in ("wide", "outlier", "extreme:1e30", "positive", "alternating"):
        for name in OF_ROUNDING:
            assert judged(name, FAIR, LONG.format(recipe), rounding).status is Status.HOLDS


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float8_e4m3fn", "float32"])
def test_the_number_below_is_the_largest_that_a_format_holds(dtype: str) -> None:
    held = getattr(torch, dtype)
    values = torch.cat([torch.randn(2000, dtype=torch.float64), torch.tensor([0.0, 1.0, -1.0, 0.5, -2.0])])
    found = lower(values, dtype)
    assert torch.equal(found.to(held).double(), found) and bool((found <= values).all())
    above = -lower(-values, dtype)
    exact = values.to(held).double() == values
    assert torch.equal(found == above, exact) and bool((above >= values).all())
    middle = (found + above) / 2
    assert bool(((middle == found) | (middle == above) | (middle.to(held).double() != middle))[~exact].all())


# ---- chance ----


def test_tails_are_those_of_the_binomial_distribution() -> None:
    assert binomial(12, 48, 0.75) == pytest.approx(2 * 5.06e-13, rel=0.02)
    for trials, p in ((1, 0.5), (10, 0.3), (40, 0.9)):
        weights = [binomial_weight(k, trials, p) for k in range(trials + 1)]
        for k in range(trials + 1):
            one = sum(weights[k:]) if k > trials * p else sum(weights[: k + 1])
            assert binomial(k, trials, p) == pytest.approx(min(2 * one, 1.0), rel=1e-9)
            assert mixed_binomial(k, trials, p) >= binomial(k, trials, p) * (1 - 1e-9)
    assert binomial(3, 3, 1.0) == 1.0 and binomial(2, 3, 1.0) == 0.0 and binomial(0, 3, 0.0) == 1.0
    assert binomial(250_400, 500_000, 0.5) > 0.2 and binomial(253_000, 500_000, 0.5) < LEAST


def binomial_weight(k: int, n: int, p: float) -> float:
    return float(math.comb(n, k)) * p**k * (1 - p) ** (n - k)


def test_bounds_of_sums_and_levels() -> None:
    assert weighted(0.0, 3.0) == 1.0 and weighted(30.0, 100.0) == pytest.approx(2 * 2.718281828**-18, rel=1e-6)
    assert weighted(0.0, 0.0) == 1.0
    assert within(0.5, 256, 0.502) == 0.502 and within(0.5, 256, 0.6) == 0.5 + 1 / 256 and within(0.0, 4, 0.0) == 0.0
    assert decides(lambda k: binomial(k, 40, 0.5), 40) and not decides(lambda k: binomial(k, 9, 0.5), 9)


def test_correct_kernels_do_not_alarm_over_many_seeds() -> None:
    for seed in range(12):
        own = evidence(
            f"case:1 thinned cpu float32 family=thinned M=4 N=25 --p=0.1 seed={seed}", RIGHT, Oracle(thinned)
        )
        for name in OF_DROPOUT[5:]:
            assert judge_on(name, own).status in (Status.HOLDS, Status.NOT_CHECKED)
