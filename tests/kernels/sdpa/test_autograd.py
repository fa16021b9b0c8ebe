"""torch.autograd, torch.func and forward mode through the SDPA kernels, to second order, in float64 or float32."""

from __future__ import annotations

import pytest
import torch
from gradoracle.kernels.sdpa import backward, forward, hvp, jvp, sdpa
from torch.autograd import forward_ad

from tests.kernels.sdpa.reference import DEVICE, definition, doubled, problem

DTYPE = torch.float32 if DEVICE == "cuda" else torch.float64
# the composition is under test here, not the rounding: entries are of order 1 and sums of 20 terms
CLOSE = {"rtol": 1e-3, "atol": 1e-3} if DEVICE == "cuda" else {"rtol": 1e-11, "atol": 1e-11}
DIMS = (1, 2, 9, 7, 4, 5)


def mine(*x):
    return sdpa(*x, causal=True)


def theirs(*x):
    return definition(*x, causal=True)


@pytest.fixture(name="case")
def _case():
    primals, tangents, g = problem(DIMS, DTYPE)
    return primals, tangents, g


def agree(computed, primals, *rest):
    """Assert that computed(function, primals, *rest) is the same for the kernels and for the definition."""
    got = computed(mine, primals, *rest)
    wide = [tuple(doubled(*x)) if isinstance(x, tuple) else x.double() for x in rest]
    expected = computed(theirs, doubled(*primals), *wide)
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.double(), b, **CLOSE)


def gradients_of(f, primals, g, create_graph=False):
    leaves = [x.clone().requires_grad_() for x in primals]
    return leaves, torch.autograd.grad(f(*leaves), leaves, g, create_graph=create_graph)


def test_reverse_mode(case):
    primals, _, g = case
    agree(lambda f, x, u: gradients_of(f, x, u)[1], primals, g)


def test_backward_twice_gives_the_same_bits(case):
    primals, _, g = case
    leaves = [x.clone().requires_grad_() for x in primals]
    o = mine(*leaves)
    first = torch.autograd.grad(o, leaves, g, retain_graph=True)
    second = torch.autograd.grad(o, leaves, g)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_double_backward_reaches_primals_and_cotangent(case):
    def computed(f, x, g, t):
        u = g.clone().requires_grad_()
        leaves, first = gradients_of(f, x, u, create_graph=True)
        inner = sum((a * b).sum() for a, b in zip(first, t, strict=True))
        return torch.autograd.grad(inner, [*leaves, u])

    primals, tangents, g = case
    agree(computed, primals, g, tangents)


def test_double_backward_is_the_hvp_kernel_and_the_jvp_kernel(case):
    primals, tangents, g = case
    u = g.clone().requires_grad_()
    leaves, first = gradients_of(mine, primals, u, create_graph=True)
    found = torch.autograd.grad(first, [*leaves, u], tangents)
    for a, b in zip(found[:3], hvp(*primals, g, *tangents, causal=True), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(found[3], jvp(*primals, *tangents, causal=True)[1])


@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize("second", range(3))
def test_double_backward_of_one_gradient_with_respect_to_one_input(case, first, second):
    def computed(f, x, g, t):
        leaves = [leaf.clone().requires_grad_(i in (first, second)) for i, leaf in enumerate(x)]
        (gradient,) = torch.autograd.grad(f(*leaves), leaves[first], g, create_graph=True)
        if not gradient.requires_grad:  # dv does not depend on v, which the definition's graph knows
            return (torch.zeros_like(leaves[second]),)
        return torch.autograd.grad(gradient, leaves[second], t[first])

    primals, tangents, g = case
    agree(computed, primals, g, tangents)


def test_forward_mode(case):
    primals, tangents, _ = case
    agree(lambda f, x, t: torch.func.jvp(f, x, t), primals, tangents)


@pytest.mark.parametrize("alone", range(3))
def test_forward_mode_with_a_tangent_on_one_input_alone(case, alone):
    def computed(f, x, t):
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(a, b) if i == alone else a for i, (a, b) in enumerate(zip(x, t, strict=True))]
            return (forward_ad.unpack_dual(f(*duals)).tangent,)

    primals, tangents, _ = case
    agree(computed, primals, tangents)


def test_functional_vjp(case):
    primals, _, g = case
    agree(lambda f, x, u: torch.func.vjp(f, *x)[1](u), primals, g)


def pulled(f, g):
    return lambda *x: torch.func.vjp(f, *x)[1](g)


def test_forward_over_reverse(case):
    primals, tangents, g = case
    agree(lambda f, x, u, t: torch.func.jvp(pulled(f, u), x, t)[1], primals, g, tangents)


def test_forward_over_reverse_reaches_the_cotangent(case):
    def computed(f, x, g, t):
        return torch.func.jvp(lambda u: torch.func.vjp(f, *x)[1](u), (g,), (g.sin(),))[1]

    primals, tangents, g = case
    agree(computed, primals, g, tangents)


def test_reverse_over_forward(case):
    def computed(f, x, g, t):
        def inner(*arguments):
            return (torch.func.jvp(f, arguments[:3], arguments[3:])[1] * g).sum()

        return torch.func.grad(inner, argnums=tuple(range(6)))(*x, *t)

    primals, tangents, g = case
    agree(computed, primals, g, tangents)


def test_reverse_over_reverse(case):
    def computed(f, x, g, t):
        def inner(*y):
            return sum((a * b).sum() for a, b in zip(pulled(f, g)(*y), t, strict=True))

        return torch.func.grad(inner, argnums=(0, 1, 2))(*x)

    primals, tangents, g = case
    agree(computed, primals, g, tangents)


def test_one_tensor_in_three_places(case):
    primals, tangents, _ = problem((1, 2, 6, 6, 4, 4), DTYPE)
    g = tangents[2]
    agree(lambda f, x, u: torch.func.vjp(lambda y: f(y, y, y), x[0])[1](u), primals, g)
    agree(lambda f, x, t: torch.func.jvp(lambda y: f(y, y, y), (x[0],), (t[0],)), primals, tangents)


@pytest.mark.skipif(DEVICE == "cuda", reason="gradcheck wants float64")
def test_torch_gradcheck_and_gradgradcheck(case):
    leaves = [x.clone().requires_grad_() for x in case[0]]
    assert torch.autograd.gradcheck(mine, leaves, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(mine, leaves, check_fwd_over_rev=True, fast_mode=True)


def test_third_derivatives_are_refused(case):
    primals, tangents, g = case

    def third(q):
        return torch.func.jvp(pulled(mine, g), (q, *primals[1:]), tangents)[1][0].sum()

    with pytest.raises(NotImplementedError, match="at most two derivatives"):
        torch.func.grad(third)(primals[0])
    with pytest.raises(NotImplementedError, match="forward mode over forward mode"):
        torch.func.jvp(lambda q: torch.func.jvp(mine, (q, *primals[1:]), tangents)[1], primals[:1], tangents[:1])


def test_sdpa_is_the_explicit_forward_and_backward(case):
    primals, _, g = case
    o, m, l = forward(*primals, causal=True)
    leaves = [x.clone().requires_grad_() for x in primals]
    found = mine(*leaves)
    assert torch.equal(found, o)
    found.backward(g)
    for leaf, gradient in zip(leaves, backward(*primals, g, m, l, causal=True), strict=True):
        assert torch.equal(leaf.grad, gradient)
        assert leaf.grad.dtype == leaf.dtype
