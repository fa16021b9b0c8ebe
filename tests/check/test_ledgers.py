"""Ledgers of a run: their report is that of one process, and every mistake is one sentence."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import random
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from places import TESTS

from gradoracle.check import plan as planning
from gradoracle.check.fold import report_of
from gradoracle.check.minimise import _Minimiser
from gradoracle.check.run import check
from gradoracle.cli import main
from gradoracle.model.errors import UsageError
from gradoracle.model.ledger import CaseRecord, EndRecord, Header, Ledger, Section
from gradoracle.model.ledger_file import SCHEMA, LedgerFile, read, read_all, text_of
from gradoracle.model.serialize import to_plain
from gradoracle.model.verdict import Counterexample, Report, Status, Verdict
from gradoracle.project.request import Request
from gradoracle.report.formats import render

FILE = TESTS / "scaled.py"
FORWARD, VJP = "forward_matches_the_oracle", "vjp_matches_the_oracle"
MATCHING = "[fvj]*_match*"
Mend = Callable[[Any], Any]
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


def same(each: Any) -> Any:
    return each


def request(kernel: str, property: str = MATCHING, **fields: Any) -> Request:
    asked = Request(f"{FILE}:{kernel}", device="cpu", property=property)
    return dataclasses.replace(asked, **{"examples": 10, "workers": 0, **fields})


def merge(files: Sequence[Path]) -> list[Report]:
    """The reports of the runs in some files."""
    return [report_of(ledger, whole=True) for ledger in read_all(files)]


def written(path: Path, asked: Request, *, resumes: bool = False) -> Report:
    """Check, and write the ledger."""
    file = LedgerFile(path, resumes=resumes)
    report = check(asked, file=file)
    file.close()
    assert not file.lost
    return report


def rewrite(path: Path, header: Mend = same, record: Mend = same) -> None:
    """Change what a file holds; the seals are those of what it holds then."""
    sections = [section for ledger in read(path) for section in ledger.sections]
    made = [Section(header(each.header), list(map(record, each.records))) for each in sections]
    path.write_text(text_of(made))


def sharded(folder: Path, asked: Request, parts: int) -> list[Path]:
    """The files of all shards of a request."""
    files = []
    for part in range(1, parts + 1):
        files.append(folder / f"shard_{part}_of_{parts}.jsonl")
        written(files[-1], dataclasses.replace(asked, shard=(part, parts)))
    return files


def alone(path: Path) -> Report:
    """The report of one shard, as its own process shows it."""
    (ledger,) = read(path)
    return report_of(ledger)


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
    said = [alone(file).inconclusive() for file in files]
    (merged,) = merge(files)
    assert told(merged) == told(whole)
    assert merged.goals.get("no such", 0) == 0 and merged.goals_wanted["no such"] == 3
    assert any(name in text for each in said for text in each for name in ("'B = 1'", "'recipe ramp'"))
    assert any("'no such'" in text for text in merged.inconclusive())
    assert not any(name in text for text in merged.inconclusive() for name in ("'B = 1'", "'recipe ramp'"))


def test_a_property_that_no_case_of_a_shard_decides_is_decided_by_the_whole(tmp_path: Path) -> None:
    asked = request("right", FORWARD, examples=4, require=("forward_*",))
    files = sharded(tmp_path, asked, 8)  # of 4 cases: half of the shards have none
    assert any(text.startswith("--require forward_*: ") for text in alone(files[-1]).unmet)
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
    assert all(alone(file).exit_code == 0 for file in files)
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
    files = sharded(tmp_path, leaning(tmp_path, "0"), 2)
    for sign, file in zip((1, -1), files, strict=True):

        def slanted(each: Any, sign: int = sign) -> Any:
            if not isinstance(each, CaseRecord):
                return each
            (result,) = each.results
            pools = (
                f.pool and dataclasses.replace(f.pool, slope_top=sign * 1e9, slope_bottom=1e15) for f in result.findings
            )
            findings = tuple(dataclasses.replace(f, pool=p) for f, p in zip(result.findings, pools, strict=True))
            return dataclasses.replace(each, results=(dataclasses.replace(result, findings=findings),))

        rewrite(file, record=slanted)
        assert alone(file).exit_code == 1 and alone(file).verdicts[0].status is Status.VIOLATED
    (merged,) = merge(files)
    assert merged.exit_code == 0 and merged.verdicts[0].status is Status.HOLDS


def test_a_missing_shard_is_named_and_not_green(tmp_path: Path) -> None:
    files = sharded(tmp_path, request("right"), 4)
    (merged,) = merge([files[0], files[2]])
    assert merged.exit_code == 4 and merged.cases_planned == 10 > merged.cases_run
    assert merged.inconclusive() == [f"shard 2/4, 4/4 of {merged.target} is missing; expected all 4"]
    (one,) = merge(files[:1])
    assert "shard 2/4, 3/4, 4/4 of" in one.inconclusive()[0] and one.exit_code == 4


def test_an_interrupted_shard_is_not_green(tmp_path: Path) -> None:
    early = "interrupted after 1 of 5 cases"
    files = sharded(tmp_path, request("right"), 2)
    rewrite(files[1], record=lambda r: dataclasses.replace(r, interrupted=early) if isinstance(r, EndRecord) else r)
    (merged,) = merge(files)
    assert merged.interrupted == f"shard 2/2: {early}" and merged.exit_code == 4


def test_of_a_call_that_several_shards_stopped_the_longest_is_reported(tmp_path: Path) -> None:
    files = sharded(tmp_path, request("right"), 2)
    for part, file in enumerate(files, 1):
        own = {"right: forward": 9.0 - part, f"right: shard {part}": 1.0}
        rewrite(file, record=lambda r, own=own: dataclasses.replace(r, stopped=own) if isinstance(r, EndRecord) else r)
    (merged,) = merge(files)
    assert merged.stopped == {"right: forward": 8.0, "right: shard 1": 1.0, "right: shard 2": 1.0}


def test_a_fault_of_gradoracle_in_one_shard_is_not_green(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def empty(*_: Any) -> Any:
        raise ZeroDivisionError("a fault of our own")

    asked = request("right", FORWARD)
    files = sharded(tmp_path, asked, 2)
    monkeypatch.setattr("gradoracle.check.judge_case.Evidence", empty)
    files[1].unlink()
    assert written(files[1], dataclasses.replace(asked, shard=(2, 2))).exit_code == 3
    (merged,) = merge(files)
    (verdict,) = merged.errors
    assert (verdict.cases_held, verdict.cases_error, merged.cases_run, merged.exit_code) == (5, 5, 10, 3)
    assert main.run(["merge", *map(str, files)]) == 3, "as of one process"
    out, err = capsys.readouterr()
    assert "ERROR" in out and "ZeroDivisionError: a fault" in out and "internal error in " in err


def test_the_ledger_of_a_whole_run_is_its_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, again = tmp_path / "whole.jsonl", tmp_path / "again.json"
    report = written(file, request("has_a_wrong_backward", VJP))
    assert main.run(["merge", str(file), "--format", "json", "--output", str(again)]) == 1
    assert again.read_text() == render([report], "json") and "exit code 1" in capsys.readouterr().out


def test_several_targets_are_merged_each_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = [f"{FILE}:right", f"{FILE}:has_a_wrong_backward"]
    words = ["--property", VJP, "--examples", "6", "--workers", "0", "--device", "cpu", "--ledger"]
    files = [tmp_path / f"{part}.jsonl" for part in (1, 2)]
    for part, file in enumerate(files, 1):
        assert main.run(["check", *targets, "--shard", f"{part}/2", *words, str(file)]) == 1
    capsys.readouterr()
    assert main.run(["merge", *map(str, files)]) == 1
    out = " ".join(capsys.readouterr().out.split())  # a terminal breaks lines
    assert f"2 targets: {targets[0]}: holds, {targets[1]}: violated (exit code 1)" in out
    assert out.count("checked on 6 cases") == 2
    first, _ = read(files[1])
    files[1].write_text(text_of(first.sections))  # as a run that was interrupted then
    _, second = merge(files)
    assert f"shard 2/2 of {targets[1]} is missing; expected all 2" in second.inconclusive()


def test_a_run_that_was_killed_is_a_report_of_what_it_has(tmp_path: Path) -> None:
    file = tmp_path / "killed.jsonl"
    whole = written(file, request("right"))
    kept = file.read_bytes().splitlines(keepends=True)[:8]
    for last, said in ((b"", "after 7 of 10 cases"), (kept[7][:-30], "line 9 is cut: what it held is not counted")):
        file.write_bytes(b"".join(kept) + last)
        (report,) = merge([file])
        assert report.exit_code == 4 and report.cases_run == 7 and report.cases_planned == 10
        assert any(said in each for each in report.inconclusive())
    resumed = written(file, request("right"), resumes=True)
    assert told(resumed) == told(whole) == told(merge([file])[0])
    judged = [each.place for each in read(file)[0].of(CaseRecord)]
    assert judged == list(range(10)), "each case once"


def test_a_run_is_resumed_within_a_case(tmp_path: Path) -> None:
    """A run whose time is up ends between two properties of a case."""
    file, asked = tmp_path / "cut.jsonl", request("has_a_wrong_backward")
    whole = written(file, asked)

    def half(each: Any) -> Any:
        return dataclasses.replace(each, results=each.results[:1]) if isinstance(each, CaseRecord) else each

    rewrite(file, record=half)
    assert told(merge([file])[0]) != told(whole)
    assert told(written(file, asked, resumes=True)) == told(whole)


def test_a_case_whose_shrinking_was_interrupted_is_shrunk_by_the_run_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> Any:
        raise KeyboardInterrupt

    asked, file = request("loses_its_tail", FORWARD), tmp_path / "run.jsonl"
    whole = check(asked)
    with monkeypatch.context() as patched:
        patched.setattr(_Minimiser, "_violation", interrupt)
        cut = written(file, asked)
    assert "interrupted" in cut.interrupted and "interrupted" in counterexample(cut.verdicts[0]).shrink_note
    assert told(written(file, asked, resumes=True)) == told(whole) == told(merge([file])[0])


def test_records_may_come_in_any_order(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    whole = written(file, request("loses_its_tail"))
    ((section,),) = [ledger.sections for ledger in read(file)]
    for seed in range(5):
        mixed = list(section.records)
        random.Random(seed).shuffle(mixed)
        half = len(mixed) // 2
        parts = [Section(section.header, mixed[:half]), Section(section.header, mixed[half:])]
        assert told(report_of(Ledger(parts))) == told(whole)


def test_a_line_that_was_changed_is_named_and_the_others_count(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    written(file, request("right"))
    text = file.read_text()
    lines = text.splitlines(keepends=True)
    changed = [*lines[:4], lines[4].replace('"holds"', '"refused"', 1), *lines[5:]]
    for given in (changed, [*lines[:4], *lines[5:]]):  # changed, removed
        file.write_text("".join(given))
        (report,) = merge([file])
        (said,) = [each for each in report.inconclusive() if "line 5 is not what was written" in each]
        assert report.exit_code == 4 and said.endswith("what it held is not counted")
        assert report.cases_run == len(given) - 3, "without the header, the end and that line"
    file.write_text("".join(lines[1:]))
    with pytest.raises(UsageError, match="line 1 is not what was written"):
        merge([file])


def test_a_ledger_is_not_overwritten_and_of_another_run_not_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["check", f"{FILE}:right", "--property", VJP, "--workers", "0", "--device", "cpu", "--examples"]
    file = str(tmp_path / "run.jsonl")
    for more, said in (
        (["4", "--ledger", file], ""),
        (["4", "--ledger", file], f"--ledger {file} exists already; expected a new file, or --resume to go on with it"),
        (["5", "--ledger", file, "--resume"], f"{file} and this command come from different runs: --examples is 4 in"),
        (["4", "--resume"], "--resume needs --ledger FILE"),
        (["4", "--ledger", str(tmp_path)], f"--ledger {tmp_path} "),
        (["4", "--ledger", "/dev/full"], "--ledger /dev/full cannot be written: no space left on device"),
    ):
        assert main.run([*words, *more]) == (2 if said else 0)
        err = capsys.readouterr().err
        assert said in err and "Traceback" not in err


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return sharded(tmp_path_factory.mktemp("shards"), request("right", FORWARD, examples=4), 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": 1}, "seed is 0 in one and 1 in the other"),
        ({"device": "cuda"}, "the device is cpu in one and cuda in the other"),
        ({"environment": {"gradoracle": "0.0.9"}}, "gradoracle is "),
        ({"part": (2, 3)}, "the N of --shard I/N is 2 in one and 3 in the other"),
        ({"stream": "0" * 64}, "the digest of all cases is "),
        ({"files": {"tests/scaled.py": "1" * 64}}, "the content of "),
        ({"packages": {"other": "2.5"}}, "the version of other is none in one and 2.5 in the other"),
        ({"asked": {"--examples": "9"}}, "--examples is 4 in one and 9 in the other"),
        ({"asked": {"--property": "hvp_*"}}, f"--property is {FORWARD} in one and hvp_* in the other"),
        ({"asked": {"--oracle": "mpmath"}}, "--oracle is auto in one and mpmath in the other"),
        ({"kernels": {"float32": "tf32"}}, "the contract is float32=ieee32 in one and float32=tf32 in the other"),
    ],
    ids=str,
)
def test_what_is_not_of_one_run_is_one_sentence(
    shards: list[Path], tmp_path: Path, change: dict[str, Any], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def changed(header: Header) -> Header:
        own = dict(change)
        if "asked" in own:
            own["asked"] = {**header.asked, **own["asked"]}
        if "kernels" in own:
            ((name, kernel),) = header.kernels.items()
            own["kernels"] = {name: dataclasses.replace(kernel, contracts={**kernel.contracts, **own["kernels"]})}
        return dataclasses.replace(header, **own)

    other = tmp_path / "other.jsonl"
    other.write_bytes(shards[1].read_bytes())
    rewrite(other, header=changed)
    assert main.run(["merge", str(shards[0]), str(other)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("gradoracle: ") and len(err.splitlines()) == 1
    assert said in err and "other.jsonl" in err


def test_another_target_is_another_report(shards: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_bytes(shards[1].read_bytes())
    rewrite(other, header=lambda header: dataclasses.replace(header, target="other.py"))
    assert [report.target for report in merge([shards[0], other])] == [f"{FILE}:right", "other.py"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "no such file or directory; expected a ledger, which gradoracle check TARGET --ledger FILE writes"),
        (b"", "holds no ledger"),
        (b"\xff\xfe\x00", "holds no ledger"),
        (b'{"schema": "gradoracle-report/5", "reports": []}\n', "holds no ledger"),
        (
            {"record": "header", "schema": "other/1"},
            "cannot be read: its schema is 'other/1'; expected 'gradoracle-led",
        ),
        ({"record": "header", "schema": SCHEMA}, "cannot be read: line 1 has no field 'target'"),
        ({"record": "what"}, "cannot be read: line 1 is a record 'what'; expected one of header, case"),
        ({"record": "end"}, "line 1 comes before any header"),
    ],
)
def test_a_file_that_is_no_ledger_is_one_sentence(
    shards: list[Path], tmp_path: Path, content: bytes | dict[str, Any] | None, said: str
) -> None:
    file = tmp_path / "given.jsonl"
    if isinstance(content, dict):
        text = json.dumps(content, separators=(",", ":"))
        seal = hashlib.sha256(text.encode()).hexdigest()[:32]
        content = f'{text[:-1]},"seal":"{seal}"}}\n'.encode()
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(UsageError) as error:
        merge([shards[0], file])
    assert str(error.value).startswith(str(file)) and said in str(error.value)


def test_saved_tensors_have_no_shards(tmp_path: Path) -> None:
    saved = tmp_path / "saved.pt"
    saved.write_bytes(b"")
    with pytest.raises(UsageError, match="--shard cannot be combined with --inputs: saved tensors are one case"):
        check(request("right", inputs=str(saved), shard=(1, 2)))
