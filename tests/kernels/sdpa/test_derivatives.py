"""Every derivative of the SDPA kernels against float64, within the worst that their roundings can do."""

from __future__ import annotations

import math

import pytest
import torch
from gradoracle.kernels.sdpa import (
    BLOCKS,
    Blocks,
    backward,
    fitting,
    forward,
    hvp,
    jvp,
    jvp_frozen,
    vjp,
)

from tests.kernels.assertions import assert_same_bits
from tests.kernels.sdpa.reference import (
    DEVICE,
    SMALLEST,
    UNIT,
    Attention,
    definition,
    doubled,
    excess,
    problem,
    visible,
)

ON_GPU = DEVICE == "cuda"
DTYPES = [dtype for dtype in UNIT if not (ON_GPU and dtype == torch.float64)]
DIMS = {
    "tails everywhere, D > Dv": (2, 3, 33, 65, 32, 17),
    "T > M, D < Dv": (2, 2, 50, 20, 5, 40),
    "T < M, the widest": (1, 2, 20, 70, 128, 127),
    "one of each": (1, 1, 1, 1, 1, 1),
    "one query": (2, 1, 1, 37, 16, 1),
    "one key": (1, 2, 37, 1, 3, 16),
    "aligned": (1, 2, 32, 48, 16, 32),
}


def truths(primals, tangents, g, **options):
    """o, its tangent, the VJP and its tangent, the HVP, in float64."""

    def f(*x):
        return definition(*x, **options)

    def pull(*x):
        return torch.func.vjp(f, *x)[1](g.double())

    x, t = doubled(*primals), doubled(*tangents)
    return *torch.func.jvp(f, x, t), *torch.func.jvp(pull, x, t)


def excesses(dims, dtype, *, blocks=None, spread=1.0, mean=0.0, seed=0, **options):
    """The excess of every output of every kernel, by name."""
    primals, tangents, g = problem(dims, dtype, spread=spread, mean=mean, seed=seed)
    o, to, gradients, second = truths(primals, tangents, g, **options)
    bounds = Attention(primals, dtype, g=g, tangents=tangents, **options)
    options["blocks"] = blocks
    ko, m, l = forward(*primals, **options)
    got = {"o": ko, "to": jvp(*primals, *tangents, **options)[1]}
    got |= zip(("dq", "dk", "dv"), backward(*primals, g, m, l, **options), strict=True)
    got |= zip(("hq", "hk", "hv"), hvp(*primals, g, *tangents, **options), strict=True)
    expected = [(bounds.output(), o), (bounds.tangent(), to)]
    expected += [*zip(bounds.gradients(), gradients, strict=True), *zip(bounds.second(), second, strict=True)]
    return {name: excess(got[name], bound, truth) for name, (bound, truth) in zip(got, expected, strict=True)}


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("name", DIMS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_derivative_is_within_its_bound(dtype, name, causal):
    found = excesses(DIMS[name], dtype, causal=causal)
    assert max(found.values()) <= 1, found


@pytest.mark.parametrize(
    "recipe", [{"spread": 8.0}, {"mean": 20.0}, {"spread": 1e-20}, {"scale": 3.0}, {"spread": 100.0}], ids=str
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_extreme_inputs_are_within_their_bound(dtype, recipe):
    if dtype == torch.float16 and recipe == {"mean": 20.0}:
        recipe = {"mean": 5.0}  # dP = g v^T of mean 20 makes dS' overflow float16, which is its contract
    found = excesses((1, 2, 33, 65, 32, 17), dtype, **recipe)
    assert max(found.values()) <= 1, found


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("dims", [(1, 2, 70, 50, 24, 9), (1, 1, 50, 70, 32, 32)], ids=["T > M", "T < M"])
def test_every_block_configuration_is_correct(name, dims):
    if name not in fitting(torch.float32, *dims[4:]):
        pytest.skip(f"{name} does not fit this GPU in float32")
    found = excesses(dims, torch.float32, blocks=BLOCKS[name], causal=True)
    assert max(found.values()) <= 1, found


def test_the_bound_itself_finds_small_faults():
    primals, _, g = problem((1, 2, 33, 65, 32, 17), torch.float32)
    *_, gradients, _ = truths(primals, primals, g)
    for bound, truth in zip(Attention(primals, torch.float32, g=g).gradients(), gradients, strict=True):
        assert excess(truth.float(), bound, truth) <= 1
        assert excess((truth * (1 + 1e-2)).float(), bound, truth) > 1
        assert excess(torch.full_like(truth, torch.nan), bound, truth) == math.inf
    o = definition(*doubled(*primals), causal=True)
    top_left = torch.where(visible(33, 33, True), primals[0].double() @ primals[1].double().mT[..., :33], -torch.inf)
    wrong = torch.softmax(top_left / math.sqrt(32), -1) @ primals[2].double()[..., :33, :]
    assert excess(wrong.float(), Attention(primals, torch.float32, causal=True).output(), o) > 1


def test_rows_that_see_no_key_are_exactly_zero_in_every_order():
    for dtype in DTYPES:
        primals, tangents, g = problem((1, 2, 40, 7, 20, 9), dtype, spread=3.0)
        o, tangent = jvp(*primals, *tangents, causal=True)
        frozen = jvp_frozen(*primals, *tangents, causal=True)[1]
        dq = vjp(*primals, g, causal=True)[0]
        hq = hvp(*primals, g, *tangents, causal=True)[0]
        for tensor in (o, tangent, frozen, dq, hq):
            assert (tensor[..., :33, :] == 0).all()
            assert (tensor[..., 33:, :] != 0).any()
        # and those rows of g, tq and q reach nothing else
        silent = [x.clone() for x in (primals[0], g, tangents[0])]
        for x in silent:
            x[..., :33, :] = 7.0
        assert_same_bits(vjp(silent[0], *primals[1:], silent[1], causal=True)[1:], vjp(*primals, g, causal=True)[1:])


def test_future_keys_have_exactly_zero_gradients():
    primals, _, g = problem((1, 1, 20, 50, 8, 8), torch.float32)
    g[..., 3:, :] = 0
    dk, dv = vjp(*primals, g, causal=True)[1:]
    # query 2 sees keys 0 to 2 + 50 - 20
    assert (dk[..., 33:, :] == 0).all() and (dv[..., 33:, :] == 0).all()
    assert (dk[..., 32, :] != 0).any() and (dv[..., 32, :] != 0).any()


def test_stale_statistics_are_taken_as_given():
    primals, tangents, g = problem((1, 2, 33, 65, 32, 17), torch.float32)
    _, m, l = forward(*primals)
    shifted, halved = m + 0.5, l / 2
    q, k, v, tq, tk, tv = doubled(*primals, *tangents)
    scale = 1 / math.sqrt(32)
    p = torch.exp(q @ k.mT * scale - shifted.double()[..., None]) / halved.double()[..., None]
    ts = (tq @ k.mT + q @ tk.mT) * scale
    # |S| and |S'| are of order 10 here: 1e-4 is 70 of their worst roundings, and 1 / 2 is what is looked for
    stale = {"m": shifted, "l": halved}
    for got, tp in (
        (jvp(*primals, *tangents, **stale), p * (ts - (p * ts).sum(-1, keepdim=True))),
        (jvp_frozen(*primals, *tangents, **stale), p * ts),
    ):
        torch.testing.assert_close(got[0].double(), p @ v, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got[1].double(), tp @ v + p @ tv, rtol=1e-4, atol=1e-4)
    dp = g.double() @ v.mT
    dq = (p * (dp - (p * dp).sum(-1, keepdim=True))) @ k * scale
    torch.testing.assert_close(backward(*primals, g, shifted, halved)[0].double(), dq, rtol=1e-4, atol=1e-4)


def test_a_missing_tangent_is_zero():
    primals, tangents, g = problem((1, 2, 33, 20, 8, 17), torch.float32)
    zeros = [torch.zeros_like(x) for x in primals]
    for alone in range(3):
        given = [tangent if i == alone else None for i, tangent in enumerate(tangents)]
        filled = [zero if tangent is None else tangent for tangent, zero in zip(given, zeros, strict=True)]
        assert_same_bits(
            (*jvp(*primals, *given), *jvp_frozen(*primals, *given), *hvp(*primals, g, *given)),
            (*jvp(*primals, *filled), *jvp_frozen(*primals, *filled), *hvp(*primals, g, *filled)),
        )
        assert (jvp(*primals, *given)[1] != 0).any()


def test_z_comes_from_dp_and_not_from_a_rounded_output():
    dtype = torch.bfloat16
    primals, _, g = problem((1, 2, 128, 128, 64, 64), dtype, spread=8**0.5)
    *_, (truth, _, _), _ = truths(primals, primals, g)
    mine = (vjp(*primals, g)[0].double() - truth).square().mean().sqrt()
    q, k, v = (x.float() for x in primals)
    p = torch.softmax(q @ k.mT / 8, -1)
    z = (g.float() * (p @ v).to(dtype).float()).sum(-1, keepdim=True)
    ds = (p * (g.float() @ v.mT - z)).to(dtype).float()
    flash = ((ds @ k / 8).to(dtype).double() - truth).square().mean().sqrt()
    assert mine * 1.2 < flash


def with_sharp_rows(seed=0):
    """Primals and a cotangent in bfloat16; in queries 0, 3, 6 ... one key nearly takes the row."""
    primals, _, g = problem((1, 2, 48, 40, 16, 33), torch.bfloat16, seed=seed)
    sharp = torch.arange(48, device=DEVICE) % 3 == 0
    q = torch.where(sharp[:, None], primals[0] * 8, primals[0])
    return (q, *primals[1:]), g.abs(), sharp


def test_dq_where_one_key_takes_a_row_rounds_ds_alone():
    """o comes rounded: what that takes from z is as large as dS there, and must not be rounded with it."""
    for seed in range(6):
        (q, k, v), g, _ = with_sharp_rows(seed)
        p = torch.softmax(q.double() @ k.double().mT / 4, -1)
        dp = g.double() @ v.double().mT
        ds = p * (dp - (p * dp).sum(-1, keepdim=True))
        truth, terms = ds @ k.double() / 4, ds.abs() @ k.double().abs() / 4
        error = (vjp(q, k, v, g)[0].double() - truth).abs()
        assert bool((error <= UNIT[torch.bfloat16] * (terms + truth.abs())).all())


def test_a_row_of_dq_depends_on_no_other_row():
    primals, g, sharp = with_sharp_rows()
    blocks = Blocks(16, 32)  # rows that are computed again, and others, in every tile

    def dq(q):
        o, m, l = forward(q, *primals[1:], blocks=blocks)
        return backward(q, *primals[1:], g, m, l, o=o, blocks=blocks)[0]

    q = primals[0]
    own = dq(q)
    beside_soft = dq(torch.where(sharp[:, None], q / 8, q))
    assert_same_bits([beside_soft[:, :, ~sharp]], [own[:, :, ~sharp]])
    beside_softer = dq(torch.where(sharp[:, None], q, q / 8))
    assert_same_bits([beside_softer[:, :, sharp]], [own[:, :, sharp]])
    assert (beside_soft != own).any() and (beside_softer != own).any()


def test_logits_of_ten_thousand_stay_finite_and_normalised():
    for dtype in DTYPES:
        primals, tangents, g = problem((1, 1, 20, 30, 16, 8), dtype, spread=50.0)
        primals = (*primals[:2], torch.ones_like(primals[2]))
        o, m, _ = forward(*primals, scale=1.0)
        assert float(m.abs().max()) > 1e4
        # l is rounded and divided by: V = 1 gives O = 1 within that and the rounding of the operand P
        assert float((o.double() - 1).abs().max()) <= 2 * UNIT[dtype] + 40 * 2**-24
        for tensor in (*vjp(*primals, g, scale=1.0), *hvp(*primals, g, *tangents, scale=1.0)):
            assert tensor.isfinite().all()


def test_a_hundred_thousand_queries_or_keys():
    for dims in ((1, 1, 100_003, 33, 8, 8), (1, 1, 33, 100_003, 8, 8)):
        primals, _, g = problem(dims, torch.float32)
        x = [tensor.requires_grad_() for tensor in doubled(*primals)]
        bounds = Attention(primals, torch.float32, g=g)
        o = definition(*x)
        assert excess(forward(*primals)[0], bounds.output(), o.detach()) <= 1
        for got, bound, truth in zip(
            vjp(*primals, g), bounds.gradients(), torch.autograd.grad(o, x, g.double()), strict=True
        ):
            assert excess(got, bound, truth) <= 1


def test_six_products_of_bfloat16_parts_are_nearly_as_good_as_ieee():
    primals, tangents, g = problem((1, 2, 33, 65, 64, 32), torch.float32)
    *_, gradients, second = truths(primals, tangents, g)
    errors = {}
    for precision in ("ieee", "bf16x6"):
        found = (*vjp(*primals, g, precision=precision), *hvp(*primals, g, *tangents, precision=precision))
        errors[precision] = [
            float((mine.double() - truth).norm() / truth.norm())
            for mine, truth in zip(found, (*gradients, *second), strict=True)
        ]
    assert all(six < 4 * ieee for six, ieee in zip(errors["bf16x6"], errors["ieee"], strict=True)), errors


def test_underflow_of_float16_is_the_declared_floor():
    assert SMALLEST[torch.float16] == 2.0**-24
    primals, _, g = problem((1, 1, 4, 4096, 4, 4), torch.float16)
    found = vjp(*primals, g)
    *_, gradients, _ = truths(primals, primals, g)
    for got, bound, truth in zip(found, Attention(primals, torch.float16, g=g).gradients(), gradients, strict=True):
        assert excess(got, bound, truth) <= 1
