"""Forward mode and second derivatives of the semi-CRF's log Z, and what is asked of autograd around them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from gradoracle.kernels import semicrf as kernels
from sweeps import covering, slow

from tests.kernels.semicrf.test_kernel import SMALL, UNIT, call, computed, floor, is_rounded, weights
from tests.kernels.semicrf.test_reference import Scores, draw, log_z

Tensors = tuple[torch.Tensor, ...]
FORBIDDEN = "forbidden entries"
CASES = [
    (path, small, what)
    for path in kernels.PATHS
    for small in (False, True)
    for what in ("[C, C]", "[K, C, C]", "no projections", FORBIDDEN)
]


def scores_of(what: str) -> Scores:
    scores = draw(3, 10, 3, 2, per_duration=what == "[K, C, C]", projected=what != "no projections")
    if what == FORBIDDEN:
        scores.transition[0, 1] = scores.duration[2, 0] = scores.start[0, 4, 1] = scores.end[1, :] = -torch.inf
    return scores


def as_function(scores: Scores, f: Callable[[Scores], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return f as a function of the scores that there are."""

    def function(*leaves: torch.Tensor) -> torch.Tensor:
        given = iter(leaves)
        return f(Scores(*(None if x is None else next(given) for x in scores[:5]), scores.lengths))

    return function


def directions(scores: Scores) -> Tensors:
    generator = torch.Generator().manual_seed(5)
    return tuple(torch.randn(x.shape, generator=generator) for x in scores.leaves())


def true_second(scores: Scores, moved: Tensors, tg: torch.Tensor) -> tuple[torch.Tensor, Tensors]:
    """Return the JVP along `moved`, and the tangent of the VJP along (moved, tg), of the reference."""
    wide = scores.wide()
    z, g = log_z(wide), weights(scores).double()
    first = [torch.autograd.grad(each, wide.leaves(), retain_graph=True) for each in z]
    jvp = torch.stack([sum((a * t.double()).sum() for a, t in zip(each, moved, strict=True)) for each in first])
    gradients = torch.autograd.grad(z, wide.leaves(), g, create_graph=True)
    along = sum((a * t.double()).sum() for a, t in zip(gradients, moved, strict=True))
    second = torch.autograd.grad(along, wide.leaves(), retain_graph=True)
    other = torch.autograd.grad(z, wide.leaves(), tg.double())
    return jvp, tuple(a + b for a, b in zip(second, other, strict=True))


@pytest.mark.parametrize(("path", "small", "what"), covering(CASES))
def test_jvp_and_hvp(path: str, small: bool, what: str) -> None:
    scores = scores_of(what)
    blocks, moved, g = SMALL[path] if small else None, directions(scores), weights(scores)
    tg = g.flip(0) + 1
    jvp, hvp = true_second(scores, moved, tg)
    function = as_function(scores, lambda given: call(given, path=path, blocks=blocks))
    leaves = tuple(scores.leaves())
    tiny = 1e-12

    _, found = torch.func.jvp(function, leaves, moved)
    assert is_rounded(found, jvp, tiny) and not is_rounded(found * 1.00001, jvp, tiny)

    def vjp(g: torch.Tensor, *given: torch.Tensor) -> Tensors:
        return torch.func.vjp(function, *given)[1](g)

    _, forward_over_reverse = torch.func.jvp(vjp, (g, *leaves), (tg, *moved))
    for a, b in zip(forward_over_reverse, hvp, strict=True):
        assert is_rounded(a, b, tiny)

    own = [x.clone().requires_grad_() for x in leaves]
    weight = g.clone().requires_grad_()
    gradients = torch.autograd.grad(function(*own), own, weight, create_graph=True)
    along = sum((a * t).sum() for a, t in zip(gradients, moved, strict=True))
    *twice, of_weight = torch.autograd.grad(along, [*own, weight])
    assert is_rounded(of_weight, jvp, tiny)
    _, still = true_second(scores, moved, torch.zeros_like(tg))
    for a, b, c in zip(twice, still, hvp, strict=True):
        assert is_rounded(a, b, tiny) and not is_rounded(a, c, tiny), "without the tangent of g"


@pytest.mark.parametrize("path", kernels.PATHS)
def test_a_tangent_on_each_input_alone(path: str) -> None:
    scores = draw(2, 9, 3, 2)
    moved = directions(scores)
    function = as_function(scores, lambda given: call(given, path=path))
    whole = torch.func.jvp(function, tuple(scores.leaves()), moved)[1]
    parts = torch.zeros(2, dtype=torch.float64)
    for i in range(5):
        leaves = list(scores.leaves())
        with torch.autograd.forward_ad.dual_level():
            leaves[i] = torch.autograd.forward_ad.make_dual(leaves[i], moved[i])
            parts += torch.autograd.forward_ad.unpack_dual(function(*leaves)).tangent
    assert is_rounded(whole, parts, 1e-5 * UNIT, 8 * UNIT)


def test_a_part_of_the_gradients_is_the_same_as_all_of_them() -> None:
    for per_duration in (False, True):
        scores = draw(3, 20, 3, 2, per_duration=per_duration)
        together = computed(scores)[1:]
        for i, whole in enumerate(together):
            leaves = [x.detach().clone().requires_grad_(j == i) for j, x in enumerate(scores.leaves())]
            z = call(Scores(*leaves, scores.lengths))
            (alone,) = torch.autograd.grad(z, leaves[i], weights(scores))
            assert torch.equal(alone, whole)


def test_a_third_derivative_is_refused_in_one_sentence() -> None:
    scores = draw(1, 6, 2, 2, projected=False)
    cum, transition, duration = (x.requires_grad_() for x in scores.leaves())
    (first,) = torch.autograd.grad(call(scores).square().sum(), cum, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), duration, create_graph=True)
    with pytest.raises(NotImplementedError, match=r"^semicrf has no third derivative: expected at most two"):
        torch.autograd.grad(second.sum(), transition)


@pytest.mark.parametrize("positions", [1000, slow(5000)])
def test_thousands_of_positions_twice(positions: int) -> None:
    scores = draw(1, positions, 3, 2, projected=False)
    moved = directions(scores)
    jvp, hvp = true_second(scores, moved, torch.zeros(1))
    own = [x.clone().requires_grad_() for x in scores.leaves()]
    function = as_function(scores, call)
    found = torch.func.jvp(function, tuple(scores.leaves()), moved)[1]
    assert is_rounded(found, jvp, floor(scores))
    gradients = torch.autograd.grad(function(*own), own, weights(scores), create_graph=True)
    along = sum((a * t).sum() for a, t in zip(gradients, moved, strict=True))
    for a, b in zip(torch.autograd.grad(along, own), hvp, strict=True):
        assert is_rounded(a, b, floor(scores))
