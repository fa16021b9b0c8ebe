"""The semi-CRF kernels against a recursion in float64: log Z and gradients, on both paths, and the promises of both."""

from __future__ import annotations

import itertools

import pytest
import torch
from gradoracle.kernels import semicrf as kernels
from gradoracle.properties.semicrf.enumeration import numbers
from sweeps import covering, slow

from tests.kernels.assertions import assert_same_bits
from tests.kernels.semicrf.test_reference import Scores, draw, enumerated, log_z

UNIT = 2.0**-24
SMALL = {"sequential": kernels.Blocks(4, 16), "parallel": kernels.Blocks(4, 512)}
"""Chunks of 4 positions and, on the sequential path, rings of at most 16 numbers: most are cut."""


def call(scores: Scores, **options: object) -> torch.Tensor:
    cum, transition, duration, start, end, lengths = scores
    return kernels.semicrf(cum, transition, duration, lengths, proj_start=start, proj_end=end, **options)


def weights(scores: Scores) -> torch.Tensor:
    return torch.randn(scores.cum.shape[0], generator=torch.Generator().manual_seed(9))


def computed(scores: Scores, **options: object) -> list[torch.Tensor]:
    """Return log Z and the gradients of sum g log Z, of the kernel."""
    given = Scores(*(None if x is None else x.detach().requires_grad_() for x in scores[:5]), scores.lengths)
    z = call(given, **options)
    return [z.detach(), *torch.autograd.grad(z, given.leaves(), weights(scores))]


def true(scores: Scores) -> list[torch.Tensor]:
    """Return the same of the reference, from the same numbers in float64."""
    wide = scores.wide()
    z = log_z(wide)
    return [z.detach(), *torch.autograd.grad(z, wide.leaves(), weights(scores).double())]


def is_rounded(found: torch.Tensor, expected: torch.Tensor, floor: float, unit: float = UNIT) -> bool:
    """Say whether float64 arithmetic and one rounding explain the difference; -inf and NaN must be where they are."""
    same = (found.double() == expected) | (found.isnan() & expected.isnan())
    return bool((same | ((found.double() - expected).abs() <= unit * expected.abs() + floor)).all())


def floor(scores: Scores) -> float:
    """Return what float64 roundings of scores add up to: 2^-52 of the largest sum of them, at each of T positions."""
    finite = [x.double()[x.isfinite()].abs().max().item() for x in scores.leaves()]
    return 2.0**-52 * scores.cum.shape[1] * (1 + sum(finite[1:]) * 4 + finite[0])


def assert_right(scores: Scores, **options: object) -> None:
    found, expected = computed(scores, **options), true(scores)
    names = ["log_z", *(name for name, x in zip(Scores._fields, scores[:5], strict=False) if x is not None)]
    for name, a, b in zip(names, found, expected, strict=True):
        of_z = name == "log_z"
        unit = UNIT if of_z else {torch.float32: UNIT, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}[a.dtype]
        tiny = 2.0**-25 if a.dtype == torch.float16 else 0.0
        assert is_rounded(a, b, floor(scores) + tiny, unit), (name, (a.double() - b).abs().max())


SHAPES = {
    "one position": (1, 1, 1, 1),
    "one position, K > T": (3, 1, 4, 3),
    "K > T": (1, 6, 9, 2),
    "K = T": (2, 5, 5, 3),
    "one label": (3, 9, 3, 1),
    "tails": (3, 23, 3, 5),
    "K = 1": (3, 10, 1, 3),
}
CASES = list(itertools.product(SHAPES, (False, True), kernels.PATHS, ("chosen", "small")))


@pytest.mark.parametrize(("shape", "per_duration", "path", "blocks"), covering(CASES))
def test_log_z_and_every_gradient(shape: str, per_duration: bool, path: str, blocks: str) -> None:
    for projected in (False, True):
        scores = draw(*SHAPES[shape], per_duration=per_duration, projected=projected)
        assert_right(scores, path=path, blocks=SMALL[path] if blocks == "small" else None)


@pytest.mark.parametrize("blocks", kernels.BLOCKS)
@pytest.mark.parametrize("path", kernels.PATHS)
def test_every_shipped_configuration(path: str, blocks: str) -> None:
    assert_right(draw(2, 150, 3, 4), path=path, blocks=kernels.BLOCKS[blocks])


def test_the_comparison_sees_an_off_by_one_in_the_duration() -> None:
    scores = draw()
    late = scores._replace(duration=scores.duration.roll(1, 0))
    for a, b in zip(computed(late), true(scores), strict=True):
        assert not is_rounded(a, b, floor(scores))


def test_the_comparison_sees_a_weight_applied_twice() -> None:
    scores = draw(lengths=(11, 11, 11))
    for a, b in zip(computed(scores)[1:], true(scores)[1:], strict=True):
        assert is_rounded(a, b, floor(scores)) and not is_rounded(a * weights(scores)[0], b, floor(scores))


@pytest.mark.parametrize("path", kernels.PATHS)
def test_enumeration(path: str) -> None:
    scores = draw(3, 6, 4, 2, per_duration=True)
    assert is_rounded(call(scores, path=path), numbers(enumerated(scores).log_z), 1e-13)


@pytest.mark.parametrize("path", kernels.PATHS)
@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("per_duration", [False, True])
def test_forbidden_entries(path: str, small: bool, per_duration: bool) -> None:
    blocks = SMALL[path] if small else None
    scores = draw(3, 14, 3, 3, per_duration=per_duration, lengths=(14, 9, 14))
    scores.transition.view(-1)[1::4] = -torch.inf
    scores.duration[1, 0] = -torch.inf
    scores.start[0, 5:7, 1] = scores.end[1, 3, :2] = -torch.inf
    scores.end[2, 13] = -torch.inf  # every way to end the third sequence
    assert_right(scores, path=path, blocks=blocks)
    z, *gradients = computed(scores, path=path, blocks=blocks)
    assert z[2] == -torch.inf and z[:2].isfinite().all()
    assert all(bool(each.isfinite().all()) for each in gradients)
    assert not gradients[0][2].any() and not gradients[-1][2].any()


@pytest.mark.parametrize("path", kernels.PATHS)
@pytest.mark.parametrize("what", ["transition", "duration"])
def test_every_path_forbidden(path: str, what: str) -> None:
    scores = draw(2, 9, 3, 2, lengths=(9, 0))
    getattr(scores, what)[:] = -torch.inf
    z, *gradients = computed(scores, path=path, blocks=SMALL[path])
    assert z[0] == -torch.inf and z[1] == torch.tensor(2.0).log()
    assert not any(bool(each.any()) for each in gradients)


@pytest.mark.parametrize("path", kernels.PATHS)
@pytest.mark.parametrize("scale", [100.0, 1e4])
def test_extreme_scores(path: str, scale: float) -> None:
    for per_duration in (False, True):
        assert_right(draw(2, 60, 3, 2, scale=scale, per_duration=per_duration), path=path, blocks=SMALL[path])


def test_log_z_far_from_zero_costs_no_accuracy() -> None:
    scores = draw(1, 300, 3, 2)
    shift = 2.0**15 * torch.arange(301)  # the same to both labels: log Z grows, no gradient changes
    scores = scores._replace(cum=scores.cum.round())
    moved = scores._replace(cum=scores.cum + shift[None, :, None])
    assert torch.equal(moved.cum.double(), scores.cum.double() + shift[None, :, None]), "exact"
    for path in kernels.PATHS:
        z, *gradients = computed(moved, path=path)
        one, *others = computed(scores, path=path)
        assert z > 9e6 and z == (one.double() + 2.0**15 * 300).float()
        for a, b in zip(gradients, others, strict=True):
            assert is_rounded(a, b.double(), 1e-6 * UNIT + 1e-9, 2 * UNIT)


@pytest.mark.parametrize("path", kernels.PATHS)
def test_what_is_past_the_length_is_neither_read_nor_given_a_gradient(path: str) -> None:
    scores = draw(3, 12, 3, 2, lengths=(12, 5, 0))
    spoilt = [x.clone() for x in (scores.cum, scores.start, scores.end)]
    for b, length in enumerate((12, 5, 0)):
        spoilt[0][b, length + 1 :] = spoilt[1][b, length:] = spoilt[2][b, length:] = torch.nan
    other = scores._replace(cum=spoilt[0], start=spoilt[1], end=spoilt[2])
    clean, dirty = computed(scores, path=path, blocks=SMALL[path]), computed(other, path=path, blocks=SMALL[path])
    assert_same_bits(clean, dirty)
    for gradient in (dirty[1], dirty[4], dirty[5]):
        past = gradient[1, 6:] if gradient.shape[1] == 13 else gradient[1, 5:]
        assert not past.any() and not gradient[2].any()
    spoilt[0][1, 5] = torch.nan
    assert computed(other, path=path, blocks=SMALL[path])[0][1].isnan(), "the length itself is read"


@pytest.mark.parametrize("path", kernels.PATHS)
@pytest.mark.parametrize("name", ["cum", "transition", "duration", "start", "end"])
def test_nan_in_is_nan_out(path: str, name: str) -> None:
    scores = draw(2, 9, 3, 2, lengths=(9, 9))
    getattr(scores, name)[
        (0, 4, 1)[: getattr(scores, name).dim()] if name not in ("transition", "duration") else (1, 1)
    ] = torch.nan
    z, *gradients = computed(scores, path=path, blocks=SMALL[path])
    assert z[0].isnan() and gradients[1].isnan().any() and gradients[0][0].isnan().any()
    if name in ("cum", "start", "end"):
        assert z[1].isfinite() and gradients[0][1].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("path", kernels.PATHS)
def test_16_bits(path: str, dtype: torch.dtype) -> None:
    scores = draw(3, 20, 3, 2, dtype=dtype)
    found = computed(scores, path=path)
    assert found[0].dtype == torch.float32 and all(each.dtype == dtype for each in found[1:])
    assert_right(scores, path=path)


@pytest.mark.parametrize("positions", [1200, slow(5000)])
@pytest.mark.parametrize("path", kernels.PATHS)
def test_thousands_of_positions(path: str, positions: int) -> None:
    assert_right(draw(2, positions, 3, 2, lengths=(positions, positions * 2 // 3)), path=path)


def test_100001_positions_have_the_sums_that_they_must() -> None:
    scores = draw(1, 100_001, 3, 2, projected=False)
    z, dcum, _, dduration = (x.double() for x in computed(scores))
    g = weights(scores).double()
    segments = dduration / g
    assert 0.5 < z / 100_001 < 3
    assert abs((segments * torch.arange(1, 4)[:, None]).sum() / 100_001 - 1) < 4 * UNIT, "lengths add up to T"
    assert abs((segments * torch.arange(3)[:, None]).sum() / 100_001 - 1) > 0.1
    assert (dcum.sum(1).abs() < 1e-7 * 100_001**0.5).all() and dcum.abs().max() <= g.abs().max()


def test_more_durations_and_labels_than_a_tile_holds() -> None:
    assert_right(draw(1, 45, 18, 17, projected=False), blocks=kernels.Blocks(20, 128))
    assert_right(draw(1, 30, 9, 9, per_duration=True), blocks=kernels.Blocks(12, 512))


def test_1024_durations_and_64_labels() -> None:
    assert_right(draw(1, 12, 1024, 64, projected=False))


def test_the_paths_agree_and_neither_depends_on_the_batch() -> None:
    scores = draw(3, 300, 3, 2, lengths=(300, 120, 7))
    found = {path: computed(scores, path=path) for path in kernels.PATHS}
    for a, b in zip(*found.values(), strict=True):
        assert is_rounded(a, b.double(), 1e-10, 4 * UNIT)
    for path, (z, dcum, *_) in found.items():
        alone = Scores(*(x[1:2] if x.shape[0] == 3 and x.dim() == 3 else x for x in scores[:5]), scores.lengths[1:2])
        given = alone._replace(cum=alone.cum.clone().requires_grad_())
        own = call(given, path=path)
        assert torch.equal(own[0], z[1])
        assert torch.equal(torch.autograd.grad(own, given.cum, weights(scores)[1:2])[0][0], dcum[1])


@pytest.mark.parametrize("path", kernels.PATHS)
def test_two_runs_give_the_same_bits(path: str) -> None:
    first, second = (computed(draw(3, 90, 3, 2), path=path) for _ in range(2))
    assert_same_bits(first, second)


def test_the_automatic_path_is_a_matter_of_dims() -> None:
    assert kernels.choose_path(100_000, 8, 4) == "parallel" and kernels.choose_path(100_000, 8, 9) == "sequential"
    assert kernels.choose_path(127, 3, 2) == "sequential" and kernels.choose_path(128, 3, 2) == "parallel"
