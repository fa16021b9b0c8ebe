"""Merging shards: the report of the whole, whatever the shards say by themselves; and every mistake is one sentence."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from places import TESTS

from gradoracle.check import plan as planning
from gradoracle.check.merge import merge as merge_reports
from gradoracle.check.run import check
from gradoracle.cli import main
from gradoracle.model.errors import UsageError
from gradoracle.model.serialize import to_plain
from gradoracle.model.verdict import Counterexample, Report, Status, Verdict
from gradoracle.project.request import Request
from gradoracle.report.formats import render
from gradoracle.report.json import read_shards

FILE = TESTS / "scaled.py"
FORWARD, VJP = "forward_matches_the_oracle", "vjp_matches_the_oracle"
MATCHING = "[fvj]*_match*"
Mend = Callable[[int, Report], Report]
LEANS = """
import gradoracle
from jaxtyping import Float
from torch import Tensor
from gradoracle.model.contract import PRESETS

@gradoracle.family(dims={"N": gradoracle.sizes(1, 40)})
def square(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    return x * x

@gradoracle.kernel(square, contracts={"float32": PRESETS["ieee32"]})
def leans(x):
    return (x.double() ** 2 * (1 + SLOPE)).to(x.dtype)
"""


def request(kernel: str, property: str = MATCHING, **fields: Any) -> Request:
    asked = Request(f"{FILE}:{kernel}", device="cpu", property=property)
    return dataclasses.replace(asked, **{"examples": 10, "workers": 0, **fields})


def merge(files: Sequence[Path]) -> list[Report]:
    """The merged reports of files."""
    return merge_reports(read_shards(files))


def sharded(
    folder: Path, asked: Request, parts: int, mend: Callable[[int, Report], Report] | None = None
) -> list[Path]:
    """The files of all shards of a request."""
    files = []
    for part in range(1, parts + 1):
        report = check(dataclasses.replace(asked, shard=(part, parts)))
        files.append(folder / f"shard_{part}_of_{parts}.json")
        files[-1].write_text(render([report if mend is None else mend(part, report)], "json"))
    return files


def told(report: Report) -> dict[str, Any]:
    """All that a report says, but for what it cost."""
    document = to_plain(report)
    del document["seconds"]
    return document


@pytest.mark.parametrize(
    ("kernel", "status"),
    [
        ("right", Status.HOLDS),
        ("has_a_wrong_backward", Status.VIOLATED),
        ("loses_its_tail", Status.VIOLATED),
        ("raises_index_error", Status.CRASHED),
        ("refuses_odd", Status.REFUSED),
        ("lacks_memory", Status.NOT_CHECKED),
    ],
)
def test_the_merged_report_is_that_of_one_process(tmp_path: Path, kernel: str, status: Status) -> None:
    asked = request(kernel)
    whole = check(asked)
    (merged,) = merge(sharded(tmp_path, asked, 3))
    assert told(merged) == told(whole)
    assert list(merged.goals) == list(whole.goals), "in the order of the stream"
    assert status in {verdict.status for verdict in merged.verdicts} and merged.exit_code == whole.exit_code
    assert merged.shard is None and "shard" not in json.dumps(told(merged)["verdicts"])


def test_the_order_of_the_files_does_not_matter(tmp_path: Path) -> None:
    files = sharded(tmp_path, request("loses_its_tail"), 3)
    (one,), (other,) = merge(files), merge(files[::-1])
    assert told(one) == told(other)


def test_a_goal_that_a_shard_misses_and_the_whole_meets_is_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "CASES_ON_CPU", 16)
    monkeypatch.setattr(planning, "wanted_goals", lambda *args, **more: {"B = 1": 2, "recipe ramp": 1, "no such": 3})
    asked = request("right", "*", examples=None)
    files = sharded(tmp_path, asked, 8)
    whole = check(asked)
    alone = [json.loads(file.read_text())["reports"][0]["inconclusive"] for file in files]
    (merged,) = merge(files)
    assert told(merged) == told(whole)
    assert merged.goals.get("no such", 0) == 0 and merged.goals_wanted["no such"] == 3
    assert any(name in text for said in alone for text in said for name in ("'B = 1'", "'recipe ramp'"))
    assert any("'no such'" in text for text in merged.inconclusive())
    assert not any(name in text for text in merged.inconclusive() for name in ("'B = 1'", "'recipe ramp'"))


def test_a_property_that_no_case_of_a_shard_decides_is_decided_by_the_whole(tmp_path: Path) -> None:
    asked = request("right", FORWARD, examples=4, require=("forward_*",))
    files = sharded(tmp_path, asked, 8)  # of 4 cases: half of the shards have none
    alone = json.loads(files[-1].read_text())["reports"][0]
    assert any(text.startswith("--require forward_*: ") for text in alone["unmet"])
    (merged,) = merge(files)
    assert merged.exit_code == 0 and told(merged) == told(check(asked))


def leaning(folder: Path, slope: str) -> Request:
    file = folder / "leans.py"
    file.write_text(LEANS.replace("SLOPE", slope))
    return Request(str(file), device="cpu", dtypes=("float32",), examples=60, property=FORWARD, workers=0)


def test_what_only_all_shards_together_show_is_a_violation_that_is_shown_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slope of 2.5e-8 of float32: neither a case nor a sixth of all cases decides it."""
    asked = leaning(tmp_path, "2.5e-8")
    files = sharded(tmp_path, asked, 6)
    assert all(json.loads(file.read_text())["exit_code"] == 0 for file in files)
    (merged,) = merge(files)
    (verdict,), (whole,) = merged.verdicts, check(asked).verdicts
    assert verdict.status is Status.VIOLATED and merged.exit_code == 1
    found, expected = counterexample(verdict), counterexample(whole)
    assert found.pooled and (found.case, found.message, found.command) == (
        expected.case,
        expected.message,
        expected.command,
    )
    assert "--shard" not in found.command and verdict.worst_error == pytest.approx(whole.worst_error, rel=1e-12)
    capsys.readouterr()
    assert main.run([*shlex.split(found.command)[1:], "--workers", "0"]) == 1
    assert "all 60 cases together" in capsys.readouterr().out


def test_correct_kernels_of_the_same_shards_hold(tmp_path: Path) -> None:
    (merged,) = merge(sharded(tmp_path, leaning(tmp_path, "0"), 6))
    assert merged.exit_code == 0 and [verdict.status for verdict in merged.verdicts] == [Status.HOLDS]


def counterexample(verdict: Verdict) -> Counterexample:
    assert verdict.counterexample is not None
    return verdict.counterexample


def test_what_two_shards_show_alone_and_both_together_do_not_is_none(tmp_path: Path) -> None:
    """The sums of two shards are slanted by hand, one way and the other."""

    bottoms: list[float] = []

    def mend(part: int, report: Report) -> Report:
        assert report.shard is not None
        (sums,) = report.shard.sums
        bottoms.append(sums.pools["out"].slope_bottom)
        slope = {1: 1e-6, 2: -1e-6}[part] * bottoms[0]
        pools = {name: dataclasses.replace(pool, slope_top=slope) for name, pool in sums.pools.items()}
        shard = dataclasses.replace(report.shard, sums=(dataclasses.replace(sums, pools=pools),))
        return dataclasses.replace(report, shard=shard)

    files = sharded(tmp_path, leaning(tmp_path, "0"), 2, mend)
    for file in files:
        (alone,) = merge([file])
        assert alone.exit_code == 1 and alone.verdicts[0].status is Status.VIOLATED
    (merged,) = merge(files)
    assert merged.exit_code == 0 and merged.verdicts[0].status is Status.HOLDS


def test_a_missing_shard_is_named_and_not_green(tmp_path: Path) -> None:
    files = sharded(tmp_path, request("right"), 4)
    (merged,) = merge([files[0], files[2]])
    assert merged.exit_code == 4 and merged.cases_planned == 10 > merged.cases_run
    assert merged.inconclusive() == [f"shard 2/4, 4/4 of {merged.target} is missing; expected all 4"]
    (alone,) = merge(files[:1])
    assert "shard 2/4, 3/4, 4/4 of" in alone.inconclusive()[0] and alone.exit_code == 4


def test_an_interrupted_shard_is_not_green(tmp_path: Path) -> None:
    early = "interrupted after 1 of 5 cases"

    def mend(part: int, report: Report) -> Report:
        return dataclasses.replace(report, interrupted=early if part == 2 else "")

    (merged,) = merge(sharded(tmp_path, request("right"), 2, mend))
    assert merged.interrupted == f"shard 2/2: {early}" and merged.exit_code == 4


def test_of_a_call_that_several_shards_stopped_the_longest_is_reported(tmp_path: Path) -> None:
    def mend(part: int, report: Report) -> Report:
        return dataclasses.replace(report, stopped={"right: forward": 9.0 - part, f"right: shard {part}": 1.0})

    merged = merge(sharded(tmp_path, request("right"), 2, mend))[0]
    assert merged.stopped == {"right: forward": 8.0, "right: shard 1": 1.0, "right: shard 2": 1.0}


def test_a_fault_of_gradoracle_in_one_shard_is_not_green(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def empty(*_: Any) -> Any:
        raise ZeroDivisionError("a fault of our own")

    asked = request("right", FORWARD)
    files = sharded(tmp_path, asked, 2)
    monkeypatch.setattr("gradoracle.check.judge_case.Evidence", empty)
    failed = check(dataclasses.replace(asked, shard=(2, 2)))
    assert failed.exit_code == 3
    files[1].write_text(render([failed], "json"))
    (merged,) = merge(files)
    (verdict,) = merged.errors
    assert (verdict.cases_held, verdict.cases_error, merged.cases_run, merged.exit_code) == (5, 5, 10, 3)
    assert main.run(["merge", *map(str, files)]) == 3, "as of one process"
    out, err = capsys.readouterr()
    assert "ERROR" in out and "ZeroDivisionError: a fault" in out and "internal error in " in err


def test_one_whole_report_is_given_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, again = tmp_path / "whole.json", tmp_path / "again.json"
    file.write_text(render([check(request("has_a_wrong_backward", VJP, shard=(1, 1)))], "json"))
    assert json.loads(file.read_text())["reports"][0]["shard"] is None, "a whole run holds nothing for merging"
    assert main.run(["merge", str(file), "--format", "json", "--output", str(again)]) == 1
    assert again.read_text() == file.read_text() and "exit code 1" in capsys.readouterr().out


def test_several_targets_are_merged_each_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = [f"{FILE}:right", f"{FILE}:has_a_wrong_backward"]
    words = ["--property", VJP, "--examples", "6", "--workers", "0", "--device", "cpu", "--format", "json", "--output"]
    files = [tmp_path / f"{part}.json" for part in (1, 2)]
    for part, file in enumerate(files, 1):
        assert main.run(["check", *targets, "--shard", f"{part}/2", *words, str(file)]) == 1
    capsys.readouterr()
    assert main.run(["merge", *map(str, files)]) == 1
    out = " ".join(capsys.readouterr().out.split())  # a terminal breaks lines
    assert f"2 targets: {targets[0]}: holds, {targets[1]}: violated (exit code 1)" in out
    assert out.count("checked on 6 cases") == 2
    first = json.loads(files[1].read_text())
    files[1].write_text(json.dumps({**first, "reports": first["reports"][:1]}))  # as a run that was interrupted then
    _, second = merge(files)
    assert f"shard 2/2 of {targets[1]} is missing; expected all 2" in second.inconclusive()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sharded(tmp_path_factory.mktemp("shards"), request("right", FORWARD, examples=4), 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target": "other.py"}, "target is "),
        ({"seed": 1}, "seed is 0 in one and 1 in the other"),
        ({"device": "cuda"}, "the device is cpu in one and cuda in the other"),
        ({"contracts": {"float32": "tf32"}}, "the contract is float32=ieee32 in one and float32=tf32 in the other"),
        ({"environment": {"gradoracle": "0.0.9"}}, "gradoracle is "),
        ({"shard": {"parts": 3}}, "the N of --shard I/N is 2 in one and 3 in the other"),
        ({"shard": {"part": 1}}, "shard 1/2 is given twice, by "),
        ({"shard": {"stream": "0" * 64}}, "the digest of all cases is "),
        ({"shard": {"files": {"tests/scaled.py": "1" * 64}}}, "the content of "),
        ({"shard": {"packages": {"other": "2.5"}}}, "the version of other is none in one and 2.5 in the other"),
        ({"shard": {"asked": {"--examples": "9"}}}, "--examples is 4 in one and 9 in the other"),
        ({"shard": {"asked": {"--property": "hvp_*"}}}, f"--property is {FORWARD} in one and hvp_* in the other"),
        ({"shard": {"asked": {"--oracle": "mpmath"}}}, "--oracle is auto in one and mpmath in the other"),
        ({"shard": None}, "that is not of a shard; expected reports of shards"),
    ],
    ids=str,
)
def test_what_is_not_of_one_run_is_one_sentence(
    shards: list[Path], tmp_path: Path, change: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(shards[1].read_text())
    (report,) = document["reports"]
    for name, value in change.items():
        if isinstance(value, dict):
            own = {k: {**report[name][k], **v} if k == "asked" else v for k, v in value.items()}
            report[name] = {**report[name], **own}
        else:
            report[name] = value
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document))
    assert main.run(["merge", str(shards[0]), str(other)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("gradoracle: ") and len(err.splitlines()) == 1
    assert said in err and "other.json" in err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no such file or directory; expected reports of shards"),
        ("", "cannot be merged: it is not JSON"),
        ('{"schema": "other/1"}', "cannot be merged: its schema is 'other/1'; expected 'gradoracle-report/4'"),
        ('{"schema": "gradoracle-report/4", "reports": []}', "does not contain a report; expected reports of shards"),
        ('{"schema": "gradoracle-report/4", "reports": [{}]}', "cannot be merged: reports[0] has no field 'target'"),
    ],
)
def test_a_file_that_holds_no_shard_is_one_sentence(
    shards: list[Path], tmp_path: Path, text: str | None, said: str
) -> None:
    file = tmp_path / "given.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(UsageError) as error:
        merge([shards[0], file])
    assert str(error.value).startswith(str(file)) and said in str(error.value)


def test_a_file_of_bytes_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "given.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"given\.json is not text; expected reports of shards"):
        merge([tmp_path / "given.json"])


def test_saved_tensors_have_no_shards(tmp_path: Path) -> None:
    saved = tmp_path / "saved.pt"
    saved.write_bytes(b"")
    with pytest.raises(UsageError, match="--shard cannot be combined with --inputs: saved tensors are one case"):
        check(request("right", inputs=str(saved), shard=(1, 2)))
