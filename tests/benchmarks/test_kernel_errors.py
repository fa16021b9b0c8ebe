"""Errors of kernels and peers: what a run writes, whatever its entries do; the truths of rows; the page's lists."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from kernel_speed import errors, run, stopwatch
from kernel_speed.page import EQUALLY, LESS, UNIT, UNKNOWN, ahead, is_as_accurate, write
from kernel_speed.rows import COLUMNS, Line, append, keep, read, written
from kernel_speed.run import Asked
from pages import line_with, table_rows
from torch import Tensor

from gradoracle.execution import device

device.prepare("cpu")
from families import lightning, lse, sdpa, semicrf, truth, works  # noqa: E402

Make = Callable[..., Asked]


def softmax(x: Tensor, scale: float = 1.0) -> Tensor:
    return torch.softmax(x, -1) * scale


def rounded(x: Tensor) -> Tensor:
    return softmax(x).bfloat16().float()


def not_finite(x: Tensor) -> Tensor:
    return torch.where(torch.arange(x.shape[-1]) == 3, math.nan, softmax(x))


def dies_on_large(x: Tensor) -> Tensor:
    if x.abs().max() > 8:
        os._exit(3)
    return softmax(x)


def fails_on_large(x: Tensor) -> Tensor:
    if x.abs().max() > 8:
        raise OverflowError("too large")
    return softmax(x)


def row(**functions: Callable[[Tensor], Any]) -> Any:
    """Forward of a made-up family, the softmax, by functions that are right or wrong."""
    inputs = works.Normal([(2, 3, 5, 16)], torch.float32, "cpu")
    how = partial(works.forward, inputs=inputs)
    return works.row(
        "toy", "forward", torch.float32, {"B": 2, "H": 3, "N": 5},
        {who: partial(how, f) for who, f in functions.items()}, operations=4e9, moved=1e6,
        truth=truth.Truth(("o",), truth.exact(how, softmax), stress="x by 8", stressed=partial(inputs.scaled, 8.0)),
    )  # fmt: skip


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes what a run of some rows is asked for; few calls are timed."""
    monkeypatch.setattr(stopwatch, "count", lambda once: 3)

    def make(*rows: Any, **more: Any) -> Asked:
        module = SimpleNamespace(rows=lambda: iter(rows), scans=lambda: iter(()))
        monkeypatch.setattr(run, "module_of", lambda family: module)
        return Asked(("toy",), tmp_path / "kernels.csv", device="cpu", **more)

    return make


def by_entry(file: Path) -> dict[str, Line]:
    return {line.entry: line for line in read(file)}


def test_a_run_writes_the_errors_of_right_and_wrong_entries_beside_their_times(asked: Make) -> None:
    given = asked(row(right=softmax, rounded=rounded, wrong=partial(softmax, scale=1.5), nan=not_finite), commit="abc")
    run.run(given, "fork")
    assert len(written(given.file)) == 4
    lines = by_entry(given.file)
    for each in lines.values():
        assert each.milliseconds is not None and each.is_compared and "commit abc" in each.errors_on
        assert each.error_of == each.sharp_of == "o" and each.sharp == "x by 8"
    numbers = {who: (each.error_rms, each.error_largest, each.sharp_rms) for who, each in lines.items()}
    assert all(0 < (error or 0) < 4 * UNIT["float32"] for error in numbers["right"])
    assert all(0.1 * UNIT["bfloat16"] < (error or 0) < UNIT["bfloat16"] for error in numbers["rounded"])
    assert numbers["wrong"] == pytest.approx((0.5, 0.5, 0.5), rel=1e-5)
    assert numbers["nan"] == (math.inf, math.inf, math.inf)


def test_an_entry_that_dies_or_fails_at_larger_logits_keeps_its_time_and_says_why(asked: Make) -> None:
    given = asked(row(right=softmax, dies=dies_on_large, fails=fails_on_large, few=lambda x: None, last=softmax))
    run.run(given, "fork")
    lines = by_entry(given.file)
    missing = {who: line.errors_missing for who, line in lines.items() if line.errors_missing}
    assert set(missing) == {"dies", "fails", "few"} and missing["dies"].endswith("code 3")
    assert missing["fails"].startswith("OverflowError: too large") and "x by 8" in missing["fails"]
    assert missing["few"].startswith("ValueError: 0 tensors")
    assert all(line.milliseconds is not None for line in lines.values())
    assert lines["dies"].error_rms is None and lines["fails"].sharp_rms is None
    assert lines["fails"].error_rms == lines["last"].error_rms == lines["right"].error_rms is not None


def test_errors_alone_leave_times_as_they_are_and_go_on_where_they_were_cut(
    asked: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = asked(row(right=softmax, peer=softmax))
    run.run(given, "fork")
    before = read(given.file)
    bare = [errors.lined(line, {}, "", {}) for line in before]
    keep(given.file, {line.place for line in before})
    append(given.file, [before[0], bare[1], replace(bare[0], entry="slow", missing="no end after 6 s")])
    more = replace(given, errors=True, missing=True)
    assert run.uncompared(more) == [bare[1].place]
    run.run(more, "fork")
    assert read(given.file)[:2] == before and read(given.file)[2].missing
    assert len(run.uncompared(replace(more, missing=False))) == 2 and run.uncompared(more) == []
    monkeypatch.setattr(run, "_time", lambda *given: os._exit(1))
    run.run(replace(more, missing=False), "fork")
    assert read(given.file)[:2] == before
    monkeypatch.setattr(run, "_content", lambda family: "changed")
    assert run.uncompared(replace(more, missing=False)) == []  # times of other kernels


def test_works_of_scans_alone_and_rows_without_a_truth_are_not_compared(asked: Make) -> None:
    given = asked(replace(row(right=softmax), truth=None))
    run.run(given, "fork")
    assert [line.is_compared for line in read(given.file)] == [False]


def test_rows_written_before_there_were_errors_are_read(tmp_path: Path) -> None:
    file = tmp_path / "old.csv"
    old = [name for name in COLUMNS if not name.startswith(("error", "sharp"))]
    file.write_text(f"{','.join(old)}\n{','.join('toy' if name in ('family', 'work') else '' for name in old)}\n")
    (line,) = read(file)
    assert line.family == "toy" and line.error_rms is None and not line.is_compared


def small() -> list[Any]:
    """Each derivative of each family in float32, with more heads than the truth has."""
    return [
        *sdpa.first_order(torch.float32, 2, 3, 17, 16, "cpu"),
        *sdpa.second_order(torch.float32, 2, 3, 17, 16, "cpu"),
        *lse.timed(torch.float32, 2, 3, 17, 16, "cpu"),
        *lightning.timed(torch.float32, 2, 3, 17, 16, "cpu"),
        *semicrf.timed(2, 12, 5, 3, "cpu"),
    ]


@pytest.mark.parametrize("each", small(), ids=lambda row: f"{row.family}-{row.derivative[:9]}")
def test_our_entries_are_within_rounding_of_the_truth_and_one_that_is_off_is_not(each: Any) -> None:
    truths: errors.Truths = {}
    for who in each.ours:
        for inputs in (errors.TIMED, errors.STRESS) if each.truth.stress else (errors.TIMED,):
            found = errors.errors(each, who, inputs, truths, stopwatch.Cpu())
            assert 0 <= found.rms < 64 * UNIT["float32"] and found.largest < 64 * UNIT["float32"]
            assert set(found.of.split(", ")) <= set(each.truth.names)
    result = each.entries[each.ours[0]]()()
    parts = each.truth.of(each.ours[0], result)
    for wrong, name in enumerate(each.truth.names):
        off = [x * 1.01 if place == wrong else x for place, x in enumerate(parts)]
        found = errors.worst(each.truth.names, off, truths[errors.TIMED])
        assert found.of == name and found.rms == pytest.approx(0.01, rel=0.1)
    if errors.STRESS in truths:  # other inputs, and the timed ones afterwards as they were
        assert not torch.equal(truths[errors.STRESS][0], truths[errors.TIMED][0])
        assert torch.equal(each.truth.exact()[0], truths[errors.TIMED][0])


def test_peers_of_lightning_get_the_same_numbers_in_their_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    def chunk(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        assert q.shape == (2, 17, 3, 16) and q.is_contiguous()
        return lightning._quadratic(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)  # type: ignore[no-any-return]

    monkeypatch.setattr(lightning, "_chunk", chunk)
    for each in lightning.timed(torch.float32, 2, 3, 17, 16, "cpu"):
        if lightning.FLA in each.entries:
            found = errors.errors(each, lightning.FLA, errors.TIMED, {}, stopwatch.Cpu())
            assert found.rms < 64 * UNIT["float32"]


def test_lightnings_truth_by_chunks_is_that_by_all_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lightning, "CHUNK", 5)
    for each in lightning.timed(torch.float64, 1, 2, 17, 4, "cpu"):
        found = errors.errors(each, lightning.EAGER, errors.TIMED, {}, stopwatch.Cpu())
        assert found.largest < 64 * UNIT["float64"]


def test_the_semi_crfs_truth_is_the_definition_by_autograd_too() -> None:
    for each in semicrf.timed(2, 12, 5, 3, "cpu"):
        if semicrf.LOOP in each.entries:
            found = errors.errors(each, semicrf.LOOP, errors.TIMED, {}, stopwatch.Cpu())
            assert found.rms < 64 * UNIT["float32"]


def test_a_truth_that_is_not_finite_or_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="the truth is not finite"):
        errors.error(torch.zeros(2), torch.tensor([0.0, math.inf]))
    with pytest.raises(ValueError, match=r"a tensor \[2\]; expected \[3\]"):
        errors.error(torch.zeros(2), torch.zeros(3))
    assert errors.error(torch.zeros(2), torch.zeros(2)) == (0.0, 0.0)
    assert errors.error(torch.ones(2), torch.zeros(2)) == (math.inf, math.inf)


def timed(entry: str, milliseconds: float | None, rms: float | None, sharp: float | None = None, **more: Any) -> Line:
    """A row of a made-up work; errors in units of float32's roundoff."""
    u = UNIT["float32"]
    line = Line(
        "toy", "toy backward float32 N512", "backward", "float32", "N=512", entry,
        "yes" if entry.startswith("ours") else "", milliseconds=milliseconds, lower=milliseconds, upper=milliseconds,
        error_rms=rms and rms * u, error_largest=rms and 3 * rms * u, error_of="dq, dk", sharp="q x 8",
        sharp_rms=sharp and sharp * u, sharp_largest=sharp and 5 * sharp * u,
        sharp_of="dk", errors_on="date 2026-01-02; card NVIDIA H200",
    )  # fmt: skip
    return replace(line, **more)


@pytest.mark.parametrize("peer, how", [
    (timed("peer", 0.5, 1.0, 2.0), EQUALLY),
    (timed("peer", 0.5, 1.05, 2.1), EQUALLY),
    (timed("peer", 0.5, 1.0, 9.0), LESS),  # at larger logits only
    (timed("peer", 0.5, 9.0, 2.0), LESS),
    (timed("peer", 0.5, math.inf, 2.0), LESS),
    (timed("peer", 0.5, None), UNKNOWN),
    (timed("peer", 0.5, 1.0, None), UNKNOWN),
    (timed("peer", 1.5, 0.1, 0.1), None),
    (timed("peer", None, None), None),
])  # fmt: skip
def test_a_peer_is_ahead_where_it_is_faster_and_how_depends_on_both_errors(peer: Line, how: str | None) -> None:
    assert [each.how for each in ahead([timed("ours", 1.0, 1.0, 2.0), peer])] == ([how] if how else [])


@pytest.mark.parametrize("peer, how", [
    (timed("peer", 5.0, 1.0, 1.0), EQUALLY),  # faster than ours of this accuracy
    (timed("peer", 5.0, 4.0, 4.0), None),  # the other one is as accurate, and faster
    (timed("peer", 0.5, 4.0, 4.0), EQUALLY),
    (timed("peer", 0.5, 9.0, 9.0), LESS),
    (timed("peer", 5.0, None), None),
    (timed("peer", 20.0, 0.1, 0.1), None),
])  # fmt: skip
def test_of_two_entries_of_ours_one_must_be_as_fast_and_as_accurate(peer: Line, how: str | None) -> None:
    ours = [timed("ours", 10.0, 1.0, 1.0), timed("ours on tensor cores", 1.0, 4.0, 4.0)]
    assert [each.how for each in ahead([*ours, peer])] == ([how] if how else [])


def test_the_timed_inputs_decide_where_there_are_no_others() -> None:
    assert is_as_accurate(timed("one", 1.0, 1.0), timed("other", 1.0, 1.0)) is True
    assert is_as_accurate(timed("one", 1.0, 2.0), timed("other", 1.0, 1.0)) is False


def test_the_page_has_errors_in_units_and_who_is_ahead(tmp_path: Path) -> None:
    file, page = tmp_path / "kernels.csv", tmp_path / "speed.md"
    keep(file, set())
    ours = timed("ours", 1.0, 1.0, 2.0)
    append(file, [ours, timed("a", 0.5, 1.0, 1.5), timed("b", 0.25, 4096.0, 2.0),
                  timed("c", 3.0, None, None, errors_missing="OutOfMemoryError: no | memory")])  # fmt: skip
    write(file, page)
    text = page.read_text()
    of_timed, of_larger = table_rows(text, "work, error in u")
    work = {"work, error in u": "backward float32 N512"}
    errors_of = {"ours": "**1 / 3** dq, dk", "a": "1 / 3 dq, dk", "b": "4096 / 12288 dq, dk"}
    assert of_timed == {**work, "inputs": "timed", **errors_of}
    assert of_larger == {**work, "inputs": "q x 8", "ours": "**2 / 10** dk", "a": "1.5 / 7.5 dk", "b": "2 / 10 dk"}
    assert ours.errors_on in text
    missing = line_with(text, "OutOfMemoryError")
    assert missing.startswith("- c: ") and "no / memory" in missing and "backward float32 N512" in missing
    for how, who, error in ((EQUALLY, "a 0.5 ms", "1 u, 1 u"), (LESS, "b 0.25 ms", "4096 u, 1 u")):
        listed = text.partition(f"Ahead of ours, {how}:\n\n")[2].partition("\n\n")[0]
        assert listed.startswith("- backward float32 N512") and "\n" not in listed
        assert who in listed and "ours 1 ms" in listed and error in listed
    assert "toy --errors" not in text
    for table in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        assert len({row.count("|") for row in table.splitlines()}) == 1
    keep(file, {timed("a", None, None).place, timed("b", None, None).place})
    write(file, page)
    assert f"Ahead of ours, {EQUALLY}: none." in page.read_text()
    keep(file, {timed("c", None, None).place, timed("ours", None, None).place})
    append(file, [timed("ours", 1.0, None)])
    write(file, page)
    assert "kernels.py toy --errors" in page.read_text()


def test_a_stress_scales_each_input_and_columns_follow_it() -> None:
    given = works.Normal([(1, 2, 3, 4)] * 3, torch.float16, "cpu")
    turned = works.columns(given)
    before = [x.clone() for x in turned()]
    with given.scaled(8.0, 1.0, 0.125):
        assert [torch.equal(x, y * f) for x, y, f in zip(turned(), before, (8, 1, 0.125), strict=True)] == [True] * 3
    assert turned()[0] is turned()[0] and all(map(torch.equal, turned(), before))


def test_scores_of_lightning_go_beyond_float16_under_its_stress_and_o_does_not() -> None:
    forward, backward, *_ = lightning.timed(torch.float16, 1, 2, 512, 64, "cpu")
    assert forward.truth.stress and not backward.truth.stress
    with forward.truth.stressed():
        exact = forward.truth.exact()[0]
        naive = forward.entries[lightning.EAGER]()()
    assert exact.abs().max() < 65504 and not torch.isfinite(naive).all()
    found = errors.errors(forward, lightning.OURS, errors.STRESS, {}, stopwatch.Cpu())
    assert found.rms < 2 * UNIT["float16"]
