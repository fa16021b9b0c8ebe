"""Rows of kernels: which works are timed, without a GPU to list them; that peers compute what the kernels do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kernel_speed.run import module_of
from torch import Tensor

from gradoracle.execution import device
from gradoracle.project.shipped_names import family_names

device.prepare("cpu")
from families import gated_delta, lightning, lse, sdpa, semicrf, works  # noqa: E402
from gradoracle.properties.semicrf.readings import recursion as recursion  # noqa: E402

SPEED = {
    "sdpa": [
        *(f"{kind} {dtype} B4 H16 T4096 M4096 D{width}" for kind in ("forward", "backward")
          for dtype in ("bfloat16", "float16") for width in (64, 128)),
        "forward float32 B4 H16 T4096 M4096 D64",
        "backward float32 B4 H16 T4096 M4096 D64",
        *(f"{kind} {dtype} B4 H16 T2048 M2048 D64" for kind in ("JVP", works.HVP) for dtype in ("bfloat16", "float32")),
    ],
    "lse": [f"{kind} {dtype} B4 H16 T2048 M2048 D64" for kind in ("forward", "backward")
            for dtype in ("bfloat16", "float32")],
    "lightning": [f"{kind} bfloat16 B4 H16 N8192 D{width} Dv{width}" for kind in ("forward", "backward")
                  for width in (64, 128)],
    "gated_delta": [f"{kind} bfloat16 B4 H16 T{T} D{width} Dv{width}"
                    for kind in ("forward", "backward", "forward and backward") for T in (4096, 8192)
                    for width in (64, 128)],
    "semicrf": ["forward and backward float32 B1 T100000 K8 C4", "forward and backward float32 B4 T10000 K32 C24"],
}  # fmt: skip
PEERS = {
    "sdpa forward bfloat16 B4 H16 T4096 M4096 D64": {
        "flash", "cuDNN", "mem-efficient", "math", "math, 16-bit reduction", "torch.compile", "flex_attention",
        "jvp_flash_attention",
    },
    "sdpa backward float32 B4 H16 T4096 M4096 D64": {"gradoracle", "gradoracle bf16x6", "math, TF32"},
    "lightning backward bfloat16 B4 H16 N8192 D64 Dv64": {"fla chunk", "fla fused_chunk"},
    "gated_delta backward bfloat16 B4 H16 T8192 D128 Dv128": {"gradoracle", "fla chunk"},
    "semicrf forward and backward float32 B1 T100000 K8 C4": {"torch-semimarkov's recursion"},
}  # fmt: skip


@pytest.mark.parametrize("name", family_names())
def test_rows_are_listed_without_a_gpu_and_say_what_the_work_costs(name: str) -> None:
    module = module_of(name)
    rows = {row.work: row for row in module.rows()}
    assert set(rows) >= {f"{name} {work}" for work in SPEED[name]}
    for row in [*rows.values(), *module.scans()]:
        assert row.operations > 0 and row.moved > 0 and row.family == name
        assert row.work.startswith(f"{name} {row.derivative} {row.dtype} ") and set(row.ours) <= set(row.entries)
        assert set(row.ready).isdisjoint(row.ours)
    for work, peers in PEERS.items():
        if work in rows:
            assert set(rows[work].entries) >= peers


@pytest.mark.parametrize("name", family_names())
def test_scans_reach_from_end_to_end_and_do_the_same_work_for_each_token(name: str) -> None:
    rows = list(module_of(name).scans())
    dim, first, last = (
        ("T", 1024, 1_048_576) if name == "semicrf" else ("N" if name == "lightning" else "T", 512, 65_536)
    )
    sizes = {row.dims[dim] for row in rows}
    assert min(sizes) == first and max(sizes) == last
    tokens = {row.dims["B"] * row.dims.get("H", 1) * (row.dims[dim] if name != "semicrf" else 1) for row in rows}
    assert len(tokens) == 1


def test_operations_grow_as_the_work_does() -> None:
    by_length = {row.dims["T"]: row.operations for row in sdpa.scans() if row.derivative == "forward"}
    assert by_length[8192] == 2 * by_length[4096]  # twice the scores of each query, as many queries
    linear = {row.dims["N"]: row.operations for row in lightning.scans() if row.derivative == "forward"}
    assert linear[8192] == linear[4096]
    chain = {(row.dims["T"], row.dims["K"]): row.operations for row in semicrf.scans()}
    assert chain[4096, 8] == 4 * chain[1024, 8]


def result(row: Any, who: str) -> list[Tensor]:
    found = row.entries[who]()()
    return [found] if isinstance(found, Tensor) else [each for each in found if each is not None]


def agree(row: Any, who: str, tolerance: float) -> None:
    """An entry gives what ours gives, of which statistics of a forward are no part."""
    compared = 1 if row.derivative == "forward" else None
    ours, theirs = (result(row, each)[:compared] for each in (row.ours[0], who))
    for one, other in zip(ours, theirs, strict=True):
        assert torch.allclose(one.float(), other.float(), rtol=tolerance, atol=tolerance), who


@pytest.mark.parametrize("who", ["math", "math, TF32", "gradoracle bf16x6"])
def test_entries_of_sdpa_compute_the_same(who: str) -> None:
    tolerance = 5e-6 if who == "math" else 5e-3
    for row in [
        *sdpa.first_order(torch.float32, 1, 2, 17, 16, "cpu"),
        *sdpa.second_order(torch.float32, 1, 2, 17, 16, "cpu"),
    ]:
        agree(row, who, tolerance)


def test_entries_of_lse_and_lightning_compute_the_same() -> None:
    for row in lse.timed(torch.float32, 1, 2, 17, 16, "cpu"):
        agree(row, lse.EAGER, 5e-6)
    for row in lightning.timed(torch.float32, 1, 2, 17, 16, "cpu"):
        agree(row, lightning.EAGER, 1e-3)


def test_rows_of_the_gated_delta_rule_are_as_their_truth() -> None:
    rows = list(gated_delta.timed(torch.float32, 1, 3, 150, 16, "cpu"))
    assert [row.derivative for row in rows] == ["forward", "backward", "forward and backward"]
    for row in rows:
        exact = row.truth.exact()
        assert len(exact) == (1 if row.derivative == "forward" else 5)
        for who, tolerance in ((gated_delta.OURS, 2e-6), (gated_delta.TF32, 5e-3)):
            found = row.truth.of(who, row.entries[who]()())
            for one, other in zip(found, exact, strict=True):
                assert (one.double() - other).norm() <= tolerance * other.norm(), row.work
    assert {row.work for row in gated_delta.rows()} >= {f"gated_delta {work}" for work in SPEED["gated_delta"]}


@pytest.mark.parametrize("module, rows", [
    (sdpa, lambda: [*sdpa.first_order(torch.float32, 1, 2, 16, 16, "cpu"),
                    *sdpa.second_order(torch.float32, 1, 2, 16, 16, "cpu")]),
    (lse, lambda: lse.timed(torch.float32, 1, 2, 16, 16, "cpu")),
    (lightning, lambda: lightning.timed(torch.float32, 1, 2, 16, 16, "cpu")),
], ids=["sdpa", "lse", "lightning"])  # fmt: skip
def test_compiled_entries_compute_the_same(
    module: Any, rows: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every derivative traces as one function; what a GPU's compiler makes of it is not seen here."""
    monkeypatch.setattr(
        torch, "compile", lambda function, dynamic: compiler(function, backend="aot_eager", dynamic=dynamic)
    )
    for row in rows():
        agree(row, module.COMPILED, 1e-3)
        if row.derivative == "forward" and hasattr(module, "FLEX"):  # on the CPU it has no backward
            agree(row, module.FLEX, 1e-3)


compiler = torch.compile


def test_lse_has_an_entry_on_tensor_cores_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    def with_precision(q: Tensor, k: Tensor, *, precision: str = "ieee") -> Tensor:
        return lse._eager(q, k)

    monkeypatch.setattr(lse.kernels, "lse", with_precision)
    float32, half = (next(lse.timed(dtype, 1, 1, 4, 4, "cpu")) for dtype in (torch.float32, torch.bfloat16))
    assert float32.ours == (lse.OURS, lse.SPLIT) and float32.arithmetic[lse.SPLIT] == "bf16x6"
    assert half.ours == (lse.OURS,) and lse.SPLIT not in half.entries
    assert result(float32, lse.SPLIT)[0].shape == (1, 1, 4)


def test_the_semi_crf_by_operators_gives_the_same_log_z() -> None:
    given = semicrf._inputs(2, 12, 5, 3, "cpu")
    cum, transition, bias, lengths = given
    found = semicrf._loop(cum.double(), transition.double(), bias.double(), lengths)
    assert torch.allclose(found, recursion.log_z(dict(zip(semicrf.NAMES, given, strict=True))), rtol=1e-12)


@pytest.mark.parametrize("B, T, K, C", [(2, 12, 5, 3), (1, 3, 7, 2)])
def test_the_rewritten_recursion_gives_the_same_log_z_and_gradients(B: int, T: int, K: int, C: int) -> None:
    given = semicrf._inputs(B, T, K, C, "cpu")
    named = dict(zip(("cum_scores", "transition", "duration_bias", "lengths"), given, strict=True))
    g = torch.linspace(0.5, 1.5, B)
    exact = recursion.run(recursion.Problem(named), g)
    leaves = [x.requires_grad_() for x in given[:3]]
    found = semicrf._recursion(*leaves, given[3])
    assert torch.allclose(found.double(), exact.log_z, rtol=1e-6)
    for one, other in zip(torch.autograd.grad(found, leaves, g), exact.gradients.values(), strict=True):
        assert torch.allclose(one.double(), other, rtol=1e-5, atol=1e-6)


def test_a_peer_that_stores_too_much_or_takes_too_long_says_so() -> None:
    longest = next(row for row in sdpa.scans() if row.dims["T"] == 65_536)
    with pytest.raises(works.TooLarge, match="not run: 64 GiB of float32 scores would be stored"):
        longest.entries["math"]()
    slow = next(row for row in semicrf.scans() if row.dims["T"] == 1_048_576)
    with pytest.raises(works.TooLarge, match="not run: 8388608 steps, one after the other"):
        slow.entries[semicrf.RECURSION]()


def test_an_entry_with_a_switch_leaves_it_as_it_was() -> None:
    state = {"on": False}
    seen = []

    def made() -> Callable[[], int]:
        seen.append(state["on"])
        return lambda: seen.append(state["on"]) or 7  # type: ignore[func-returns-value]

    work = works.switched(made, lambda value: state.update(on=value), lambda: state["on"])()
    assert not state["on"] and work() == 7 and not state["on"] and seen == [True, True]
