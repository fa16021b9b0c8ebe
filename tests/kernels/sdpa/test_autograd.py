"""torch.autograd, torch.func and forward mode through the SDPA kernels, to second order, in float64 or float32."""

from __future__ import annotations

import pytest
import torch
from gradoracle.kernels.sdpa import backward, forward, hvp, jvp, moments, output, sdpa, tangents
from torch.autograd import forward_ad

from tests.kernels.assertions import assert_same_bits
from tests.kernels.sdpa.reference import DEVICE, definition, doubled, problem

DTYPE = torch.float32 if DEVICE == "cuda" else torch.float64
# the composition is under test here, not the rounding: entries are of order 1 and sums of 20 terms
CLOSE = {"rtol": 1e-3, "atol": 1e-3} if DEVICE == "cuda" else {"rtol": 1e-11, "atol": 1e-11}
DIMS = (1, 2, 9, 7, 4, 5)


def mine(*x):
    return sdpa(*x, causal=True)


def theirs(*x):
    return definition(*x, causal=True)


PRIMALS, TANGENTS, G = problem(DIMS, DTYPE)


def agree(computed, primals=PRIMALS, tangents=TANGENTS, g=G):
    """Assert that computed(function, primals, tangents, g) is the same for the kernels and for the definition."""
    got = computed(mine, primals, tangents, g)
    expected = computed(theirs, doubled(*primals), doubled(*tangents), g.double())
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a.double(), b, **CLOSE)


def gradients_of(f, primals, g, create_graph=False):
    leaves = [x.clone().requires_grad_() for x in primals]
    return leaves, torch.autograd.grad(f(*leaves), leaves, g, create_graph=create_graph)


def test_double_backward_reaches_primals_and_cotangent():
    def computed(f, x, t, g):
        u = g.clone().requires_grad_()
        leaves, first = gradients_of(f, x, u, create_graph=True)
        inner = sum((a * b).sum() for a, b in zip(first, t, strict=True))
        return torch.autograd.grad(inner, [*leaves, u])

    agree(computed)


def test_double_backward_is_the_hvp_kernel_and_the_jvp_kernel():
    u = G.clone().requires_grad_()
    leaves, first = gradients_of(mine, PRIMALS, u, create_graph=True)
    found = torch.autograd.grad(first, [*leaves, u], TANGENTS)
    assert_same_bits(found[:3], hvp(*PRIMALS, G, *TANGENTS, causal=True))
    assert torch.equal(found[3], jvp(*PRIMALS, *TANGENTS, causal=True)[1])


@pytest.mark.parametrize("first", range(3))
@pytest.mark.parametrize("second", range(3))
def test_double_backward_of_one_gradient_with_respect_to_one_input(first, second):
    def computed(f, x, t, g):
        leaves = [leaf.clone().requires_grad_(i in (first, second)) for i, leaf in enumerate(x)]
        (gradient,) = torch.autograd.grad(f(*leaves), leaves[first], g, create_graph=True)
        if not gradient.requires_grad:  # dv does not depend on v, which the definition's graph knows
            return (torch.zeros_like(leaves[second]),)
        return torch.autograd.grad(gradient, leaves[second], t[first])

    agree(computed)


@pytest.mark.parametrize("alone", range(3))
def test_forward_mode_with_a_tangent_on_one_input_alone(alone):
    def computed(f, x, t, g):
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(a, b) if i == alone else a for i, (a, b) in enumerate(zip(x, t, strict=True))]
            return (forward_ad.unpack_dual(f(*duals)).tangent,)

    agree(computed)


def test_functional_vjp():
    agree(lambda f, x, t, g: torch.func.vjp(f, *x)[1](g))


def pulled(f, g):
    return lambda *x: torch.func.vjp(f, *x)[1](g)


def test_forward_over_reverse_reaches_the_cotangent():
    def computed(f, x, t, g):
        return torch.func.jvp(lambda u: torch.func.vjp(f, *x)[1](u), (g,), (g.sin(),))[1]

    agree(computed)


def test_reverse_over_reverse():
    def computed(f, x, t, g):
        def inner(*y):
            return sum((a * b).sum() for a, b in zip(pulled(f, g)(*y), t, strict=True))

        return torch.func.grad(inner, argnums=(0, 1, 2))(*x)

    agree(computed)


def test_one_tensor_in_three_places():
    primals, tangents, _ = problem((1, 2, 6, 6, 4, 4), DTYPE)
    square = primals, tangents, tangents[2]
    agree(lambda f, x, t, g: torch.func.vjp(lambda y: f(y, y, y), x[0])[1](g), *square)
    agree(lambda f, x, t, g: torch.func.jvp(lambda y: f(y, y, y), (x[0],), (t[0],)), *square)


@pytest.mark.skipif(DEVICE == "cuda", reason="gradcheck wants float64")
def test_torch_gradcheck_and_gradgradcheck():
    leaves = [x.clone().requires_grad_() for x in PRIMALS]
    assert torch.autograd.gradcheck(mine, leaves, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(mine, leaves, check_fwd_over_rev=True, fast_mode=True)


def test_third_derivatives_are_refused():
    def third(q):
        return torch.func.jvp(pulled(mine, G), (q, *PRIMALS[1:]), TANGENTS)[1][0].sum()

    with pytest.raises(NotImplementedError, match="at most two derivatives"):
        torch.func.grad(third)(PRIMALS[0])
    with pytest.raises(NotImplementedError, match="forward mode over forward mode"):
        torch.func.jvp(lambda q: torch.func.jvp(mine, (q, *PRIMALS[1:]), TANGENTS)[1], PRIMALS[:1], TANGENTS[:1])


def test_sdpa_is_the_explicit_forward_and_backward():
    o, m, l = forward(*PRIMALS, causal=True)
    leaves = [x.clone().requires_grad_() for x in PRIMALS]
    found = mine(*leaves)
    assert torch.equal(found, o)
    found.backward(G)
    assert_same_bits([leaf.grad for leaf in leaves], backward(*PRIMALS, G, m, l, o=o, causal=True))
    assert all(leaf.grad.dtype == leaf.dtype for leaf in leaves)


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float32, ["jvp"]), (torch.bfloat16, ["r", "jvp"])])
def test_the_jvp_finds_its_statistics_in_its_own_sweeps_of_which_float32_takes_one(dtype, expected, monkeypatch):
    swept = []
    for module in (moments, output, tangents):
        launch = module.launch

        def watched(*given, launch=launch, part, **asked):
            swept.append(part)
            launch(*given, part=part, **asked)

        monkeypatch.setattr(module, "launch", watched)
    primals, directions, _ = problem((1, 2, 40, 33, 16, 16), dtype)
    o, tangent = jvp(*primals, *directions, causal=True)
    assert swept == expected
    _, m, l = forward(*primals, causal=True)
    assert m.dtype == l.dtype == torch.float32
    known, from_them = jvp(*primals, *directions, m=m, l=l, causal=True)
    loose = {"rtol": 1e-5, "atol": 1e-6} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(o, known, **loose)
    torch.testing.assert_close(tangent, from_them, **loose)
    assert not tangent[:, :, :7].any() and not o[:, :, :7].any()  # queries that see no key
