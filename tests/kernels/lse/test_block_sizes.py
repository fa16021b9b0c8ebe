"""BlockSizes of LSE: what it refuses, and that each pass runs with the tiles that are named for it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from gradoracle.kernels import lse as kernels
from gradoracle.kernels.lse import BlockSizes, fused, hessian, output, separate, tangents
from gradoracle.properties.lse import FAMILY, KERNELS

from gradoracle.model.case import Case, Draw
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Outcome
from gradoracle.oracle.truth import Oracle
from tests.kernels.assertions import assert_refused
from tests.kernels.lse.watching import watch
from tests.properties import judging

SIZES: dict[str, Any] = {
    "block_q": 16,
    "block_kv": 64,
    "block_kv_compute": 32,
    "block_q_dkv": 32,
    "block_kv_dkv": 128,
    "block_kv_dkv_compute": 16,
}
SEPARATE = BlockSizes(**SIZES, block_q_dq=64, block_kv_dq=32)
FUSED = BlockSizes(**SIZES, use_fused_bwd_kernel=True)
FORWARD = BlockSizes(block_q=32, block_kv=16)
CASE = Case(
    "lse",
    {"B": 1, "H": 4, "G": 2, "T": 70, "M": 150, "D": 20},
    "float32",
    {"causal": True, "softcap": 2.0},
    {"sinks": Draw("normal"), "q_segments": Draw("index"), "kv_segments": Draw("index")},
    seed=6,
)
EVIDENCE = judging.evidence(CASE, KERNELS[0], Oracle(FAMILY))
SAMPLE = EVIDENCE.sample


def gradients(**options: Any) -> dict[str, torch.Tensor]:
    """The output and the gradients of the case, by name."""
    leaves = {n: t.detach().requires_grad_(t.is_floating_point()) for n, t in SAMPLE.inputs.items()}
    result = kernels.lse(**leaves, **SAMPLE.options, **options)
    expected = [leaf for leaf in leaves.values() if leaf.requires_grad]
    found = torch.autograd.grad(result, expected, *SAMPLE.cotangents.values())
    return {"lse": result.detach()} | dict(zip(EVIDENCE.names(Derivative.VJP), found, strict=True))


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> dict[str, tuple[int, int]]:
    """The tile [queries, keys] that each kernel was last launched with, by its name."""
    seen: dict[str, tuple[int, int]] = {}

    def note(name: str, args: tuple[Any, ...], constants: dict[str, Any]) -> None:
        if name != "sum_kernel":
            seen[name] = constants["BLOCK_QUERY"], constants["BLOCK_KEY"]

    watch(monkeypatch, (output, separate, fused, tangents, hessian), note)
    return seen


@pytest.mark.parametrize(
    ("sizes", "passes"),
    [
        (SEPARATE, {"forward_kernel": (16, 32), "query_kernel": (64, 32), "key_kernel": (32, 16)}),
        (FUSED, {"forward_kernel": (16, 32), "fused_kernel": (32, 16)}),
        (FORWARD, {"forward_kernel": (32, 16), "fused_kernel": (128, 256)}),
    ],
)
def test_each_pass_runs_with_its_own_tile_and_is_within_its_budget(
    sizes: BlockSizes, passes: dict[str, tuple[int, int]], launches: dict[str, tuple[int, int]]
) -> None:
    found = gradients(block_sizes=sizes)
    assert launches == passes
    judged = [*EVIDENCE.compare(Derivative.FORWARD, found), *EVIDENCE.compare(Derivative.VJP, found)]
    assert {finding.tensor for finding in judged} == {"lse", "dq", "dk", "dsinks"}
    assert not [finding for finding in judged if finding.outcome is Outcome.VIOLATED]


def test_the_jvp_and_the_hvp_keep_the_automatic_tiles(launches: dict[str, tuple[int, int]]) -> None:
    q, k = (SAMPLE.inputs[name].clone().requires_grad_() for name in "qk")
    result = kernels.lse(q, k, block_sizes=SEPARATE)
    (first,) = torch.autograd.grad(result, q, *SAMPLE.cotangents.values(), create_graph=True)
    torch.autograd.grad(first, (q, k), torch.ones_like(first))
    named = {"forward_kernel": (16, 32), "query_kernel": (64, 32), "key_kernel": (32, 16)}
    automatic = dict.fromkeys(("tangent_kernel", "query_hvp_kernel", "key_hvp_kernel"), (128, 256))
    assert launches == named | automatic


@pytest.mark.parametrize("size", [16, 32, 128])
def test_a_fused_backward_has_one_partial_dq_for_each_tile_of_keys(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, empty = [], torch.empty

    def watched(*shape: Any, **options: Any) -> torch.Tensor:
        made = empty(*shape, **options)
        seen.append(made)
        return made

    monkeypatch.setattr(fused.torch, "empty", watched)
    sizes = BlockSizes(block_q=16, block_kv=16, block_q_dkv=16, block_kv_dkv=size, use_fused_bwd_kernel=True)
    tiles = -(-150 // size)
    bytes_of_it = kernels.workspace_bytes(batch=1, heads=4, queries=70, keys=150, features=20, block=size)
    gradients(block_sizes=sizes, workspace_limit=bytes_of_it)
    (partials,) = (made for made in seen if made.dim() == 5)
    assert partials.shape == (tiles, 1, 4, 70, 20) and partials.nbytes == bytes_of_it
    with pytest.raises(ValueError, match=f"workspace_limit is {bytes_of_it - 1} bytes .* needs {bytes_of_it}"):
        gradients(block_sizes=sizes, workspace_limit=bytes_of_it - 1)


BACKWARD = {"block_q_dkv": 32, "block_kv_dkv": 32}
DQ = {"block_q_dq": 32, "block_kv_dq": 32}
FUSES = {"use_fused_bwd_kernel": True}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"block_q_dq": 32} | BACKWARD | {"use_fused_bwd_kernel": True},
            ["block_q_dq is 32", "not needed with a fused"],
        ),
        ({"block_kv_dq": 64} | BACKWARD | {"use_fused_bwd_kernel": True}, ["block_kv_dq is 64", "expected None"]),
        (BACKWARD, ["block_q_dq is None", "every size of the separate backward"]),
        (BACKWARD | {"block_q_dq": 32}, ["block_kv_dq is None", "separate"]),
        (DQ, ["block_q_dkv is None", "separate", "none of them"]),
        (DQ | {"block_q_dkv": 32}, ["block_kv_dkv is None", "separate"]),
        ({"block_kv_dkv_compute": 16}, ["block_q_dkv is None", "separate"]),
        (FUSES, ["block_q_dkv is None", "every size of the fused backward"]),
        (FUSES | {"block_q_dkv": 32}, ["block_kv_dkv is None", "fused"]),
        ({"block_kv_compute": 128}, ["block_kv_compute is 128", "divisor of block_kv, 64"]),
        (BACKWARD | DQ | {"block_kv_dkv_compute": 64}, ["block_kv_dkv_compute is 64", "divisor of block_kv_dkv, 32"]),
        ({"block_q": 48}, ["block_q is 48", "power of two from 16 to 4096"]),
        ({"block_q": None}, ["block_q is None", "power of two"]),
        ({"block_q": True}, ["block_q is True", "power of two"]),
        ({"block_kv": 8}, ["block_kv is 8", "power of two from 16"]),
        ({"block_kv": 8192}, ["block_kv is 8192", "to 4096"]),
        ({"block_kv_compute": 8}, ["block_kv_compute is 8", "power of two from 16"]),
        (BACKWARD | DQ | {"block_q_dkv": 33}, ["block_q_dkv is 33", "power of two"]),
        (BACKWARD | DQ | {"block_kv_dkv": -32}, ["block_kv_dkv is -32", "power of two"]),
        (BACKWARD | DQ | {"block_kv_dkv_compute": 0}, ["block_kv_dkv_compute is 0", "power of two"]),
        (BACKWARD | DQ | {"block_q_dq": 32.0}, ["block_q_dq is 32.0", "power of two"]),
        (BACKWARD | DQ | {"block_kv_dq": "32"}, ["block_kv_dq is '32'", "power of two"]),
        ({"use_fused_bwd_kernel": 1}, ["use_fused_bwd_kernel is 1", "True or False"]),
    ],
)
def test_sizes_that_contradict_each_other_are_refused_by_name(given: dict[str, Any], words: list[str]) -> None:
    assert_refused(lambda: BlockSizes(**({"block_q": 64, "block_kv": 64} | given)), words)
    assert BlockSizes(64, 64).backward is None and SEPARATE.backward == "separate" and FUSED.backward == "fused"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"block_sizes": SEPARATE, "backward": "fused"}, ["backward is 'fused'", "'separate' or 'auto'"]),
        ({"block_sizes": FUSED, "backward": "separate"}, ["backward is 'separate'", "use_fused_bwd_kernel=True"]),
        ({"block_sizes": FUSED, "blocks": kernels.BLOCKS["small"]}, ["blocks is Blocks(", "block_sizes is", "one of"]),
        ({"block_sizes": kernels.BLOCKS["small"]}, ["block_sizes is Blocks(", "a BlockSizes or None"]),
        ({"block_sizes": (64, 64)}, ["block_sizes is (64, 64)", "a BlockSizes or None"]),
    ],
)
def test_sizes_that_contradict_other_options_are_refused_by_name(options: dict[str, Any], words: list[str]) -> None:
    q, k = SAMPLE.inputs["q"], SAMPLE.inputs["k"]
    assert_refused(lambda: kernels.lse(q, k, **options), words)


@pytest.mark.parametrize("sizes", [SEPARATE, FUSED, FORWARD])
def test_the_same_backward_by_both_names_and_any_with_sizes_of_the_forward_alone(sizes: BlockSizes) -> None:
    automatic = gradients(block_sizes=sizes)
    for which in [sizes.backward] if sizes.backward else ["fused", "separate"]:
        named = gradients(block_sizes=sizes, backward=which)
        if which == sizes.backward:
            assert all(torch.equal(named[name], automatic[name]) for name in automatic)
        assert not [f for f in EVIDENCE.compare(Derivative.VJP, named) if f.outcome is Outcome.VIOLATED]


def test_launch_options_of_sizes_are_those_of_the_shipped_blocks_where_there_are_some() -> None:
    from gradoracle.kernels.lse.blocks import with_launch_options

    for each in kernels.BLOCKS.values():
        assert with_launch_options(each.query, each.key, torch.float32) == each
    assert with_launch_options(128, 64, torch.bfloat16) == kernels.Blocks(128, 64, num_warps=8, num_stages=2)
    assert with_launch_options(128, 64, torch.float32) == kernels.Blocks(128, 64, num_warps=8, num_stages=1)
    assert with_launch_options(32, 64, torch.float16) == kernels.Blocks(32, 64, num_warps=4, num_stages=1)
