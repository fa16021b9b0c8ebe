"""The LSE kernels against their definition, derivative by derivative, and what only they promise: two backwards."""

from __future__ import annotations

import itertools

import pytest
import torch
from gradoracle.kernels import lse as kernels
from gradoracle.kernels.lse import fused
from gradoracle.properties.lse import FAMILY, KERNELS
from sweeps import covering

from gradoracle.check.evidence import Evidence
from gradoracle.model.case import Case, Draw
from gradoracle.oracle.truth import Oracle
from tests.kernels.assertions import assert_refused, assert_same_bits, assert_within_budgets
from tests.properties import judging

(KERNEL,) = KERNELS
ORACLE = Oracle(FAMILY)
DIMS = {
    "grouped, tails": {"B": 2, "H": 4, "G": 2, "T": 5, "M": 7, "D": 3},
    "one key head, T > M": {"B": 1, "H": 2, "G": 1, "T": 33, "M": 17, "D": 32},
    "several tiles": {"B": 1, "H": 2, "G": 2, "T": 40, "M": 65, "D": 20},
}
DTYPES = ("float32", "bfloat16", "float16")
CASES = itertools.product(DIMS, DTYPES, (False, True), (None, 2.0), (False, True), (False, True))


def evidence(dims: str, dtype: str, causal: bool, softcap: float | None, sinks: bool, segments: bool) -> Evidence:
    options = {"causal": causal} if causal else {}
    options |= {"softcap": softcap} if softcap else {}
    given = (["sinks"] if sinks else []) + (["q_segments", "kv_segments"] if segments else [])
    draws = {name: Draw("normal" if name == "sinks" else "index") for name in given}
    case = Case("lse", DIMS[dims], dtype, options, draws, "small", seed=4)
    return judging.evidence(case, KERNEL, ORACLE)


@pytest.mark.parametrize(("dims", "dtype", "causal", "softcap", "sinks", "segments"), covering(CASES))
def test_every_derivative_is_within_its_budget(
    dims: str, dtype: str, causal: bool, softcap: float | None, sinks: bool, segments: bool
) -> None:
    expected = {"lse", "dq", "dk", "jvp.lse", "hvp.q", "hvp.k"} | ({"dsinks", "hvp.sinks"} if sinks else set())
    assert_within_budgets(evidence(dims, dtype, causal, softcap, sinks, segments), expected)


def gradients(which: str, causal: bool = True) -> tuple[torch.Tensor, ...]:
    found = evidence("several tiles", "float32", causal, None, True, True)
    (g,) = found.sample.cotangents.values()
    made = KERNEL.extras["backward"](found.sample.inputs, g, which, found.sample.options, kernels.BLOCKS["small"])
    return tuple(made.values())


def test_fused_writes_zeros_where_a_tile_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, seen, empty = gradients("fused"), [], torch.empty

    def poisoned(*shape: object, **options: object) -> torch.Tensor:
        made = empty(*shape, **options)
        seen.append(tuple(made.shape))
        return made.fill_(float("nan")) if made.is_floating_point() else made

    monkeypatch.setattr(fused.torch, "empty", poisoned)
    for got, want in zip(gradients("fused"), expected, strict=True):
        assert torch.equal(got, want) and got.isfinite().all()
    assert (5, 1, 2, 40, 20) in seen, "the partial gradients of five tiles of 16 keys"


def test_the_workspace_is_that_of_the_seed() -> None:
    sizes = {"features": 128, "block": 128, "batch": 1}
    assert fused.workspace_bytes(heads=32, queries=8192, keys=8192, **sizes) == 8_589_934_592
    assert fused.workspace_bytes(heads=8, queries=2048, keys=2048, **sizes) == 134_217_728
    assert fused.workspace_bytes(heads=1, queries=3, keys=129, features=2, block=128, batch=1) == 2 * 3 * 2 * 4


@pytest.mark.parametrize(("limit", "runs"), [(5 * 2 * 40 * 20 * 4, "fused"), (5 * 2 * 40 * 20 * 4 - 1, "separate")])
def test_auto_is_fused_as_long_as_the_workspace_keeps_to_its_limit(
    limit: int, runs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gradoracle.kernels.lse import logsumexp

    called = []
    for name in ("fused", "separate"):
        module = getattr(logsumexp, name)
        own = module.run
        monkeypatch.setattr(module, "run", lambda *a, own=own, name=name: (called.append(name), own(*a))[1])
    q, k = (torch.randn(1, 2, rows, 20, requires_grad=True) for rows in (40, 65))
    result = kernels.lse(q, k, workspace_limit=limit, blocks=kernels.BLOCKS["small"])
    torch.autograd.grad(result.sum(), (q, k))
    assert called == [runs]
    called.clear()
    torch.autograd.grad(kernels.lse(q, k.detach(), blocks=kernels.BLOCKS["small"]).sum(), q)
    assert called == ["separate"], "one gradient alone needs no workspace"


Q, K = torch.randn(2, 4, 5, 3), torch.randn(2, 2, 7, 3)
IDS = torch.zeros(2, 5, dtype=torch.int64), torch.zeros(2, 7, dtype=torch.int64)


@pytest.mark.parametrize(
    ("args", "options", "words"),
    [
        ((Q, K.repeat(1, 2, 1, 1)[:, :3]), {}, ["k has G = 3", "divides the H = 4"]),
        ((Q, K), {"q_segments": IDS[0]}, ["kv_segments is None", "both sides"]),
        ((Q, K), {"kv_segments": IDS[1]}, ["q_segments is None", "both sides"]),
        ((Q, K), {"q_segments": IDS[1], "kv_segments": IDS[1]}, ["q_segments has shape (2, 7)", "(2, 5)"]),
        (
            (Q, K),
            {"q_segments": IDS[0].float(), "kv_segments": IDS[1]},
            ["q_segments has dtype torch.float32", "int32"],
        ),
        ((Q, K), {"sinks": torch.zeros(3)}, ["sinks has shape (3,)", "[H] = (4,)"]),
        ((Q, K), {"sinks": torch.zeros(4).half()}, ["sinks has dtype torch.float16", "torch.float32"]),
        ((Q, K), {"backward": "both"}, ["backward is 'both'", "'auto', 'fused' or 'separate'"]),
        ((Q, K), {"backward": "fused", "workspace_limit": 100}, ["workspace_limit is 100 bytes", "needs"]),
        ((Q, K), {"workspace_limit": -1}, ["workspace_limit is -1", "bytes from 0"]),
        ((Q, K), {"softcap": 0.0}, ["softcap is 0.0", "above 0"]),
        ((Q, K), {"scale": float("nan")}, ["scale is nan", "finite"]),
        ((Q, K), {"causal": 1}, ["causal is 1", "True or False"]),
        ((Q[0], K), {}, ["q has rank 3", "rank 4"]),
        ((Q, K.bfloat16()), {}, ["k has dtype torch.bfloat16", "torch.float32"]),
        ((Q.double(), K.double()), {}, ["q has dtype torch.float64", "float32, bfloat16 or float16"]),
        ((Q, K[..., :2]), {}, ["k has shape (2, 2, 7, 2)", "B and D of q"]),
        ((Q[:, :, :0], K), {}, ["q has T = 0", "from 1"]),
        ((Q.repeat(1, 1, 1, 86), K.repeat(1, 1, 1, 86)), {}, ["q has D = 258", "from 1 to 256"]),
        ((Q, K), {"blocks": kernels.Blocks(20, 16)}, ["blocks.query is 20", "power of two"]),
        ((Q, K), {"blocks": "small"}, ["blocks is 'small'", "Blocks or None"]),
        ((Q, K), {"precision": "fp8"}, ["precision", "'fp8'", "'ieee', 'bf16x6' or 'tf32'"]),
    ],
)
def test_what_it_cannot_take_is_refused_by_name(args: tuple, options: dict, words: list[str]) -> None:
    assert_refused(lambda: kernels.lse(*args, **options), words)
    assert kernels.lse(Q, K, q_segments=IDS[0], kv_segments=IDS[1], sinks=torch.zeros(4)).isfinite().all()


def test_no_third_derivative_and_no_forward_over_forward() -> None:
    q, k = Q.clone().requires_grad_(), K.clone().requires_grad_()
    (first,) = torch.autograd.grad(kernels.lse(q, k).sum(), q, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="third derivative"):
        torch.autograd.grad(second.sum(), q)


def test_segments_are_told_apart_by_all_64_bits() -> None:
    low = torch.arange(7) % 2
    wide = low * 2**32
    one = kernels.lse(Q, K, q_segments=low[:5].repeat(2, 1), kv_segments=low.repeat(2, 1))
    assert torch.equal(kernels.lse(Q, K, q_segments=wide[:5].repeat(2, 1), kv_segments=wide.repeat(2, 1)), one)
    assert not torch.equal(one, kernels.lse(Q, K))
    narrow = kernels.lse(Q, K, q_segments=low[:5].int().repeat(2, 1), kv_segments=low.int().repeat(2, 1))
    assert torch.equal(narrow, one)


def test_a_sink_of_minus_infinity_is_no_sink() -> None:
    given = [Q.clone().requires_grad_(), K.clone().requires_grad_(), torch.full((4,), -torch.inf, requires_grad=True)]
    with_sink = kernels.lse(given[0], given[1], sinks=given[2], causal=True)
    without = kernels.lse(given[0], given[1], causal=True)
    assert torch.equal(with_sink, without)
    *found, dsinks = torch.autograd.grad(with_sink.sum(), given)
    assert_same_bits(found, torch.autograd.grad(without.sum(), given[:2]))
    assert torch.equal(dsinks, torch.zeros(4))
