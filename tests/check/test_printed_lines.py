"""Each line that a report prints to see a failure again is typed as it stands, and shows the same findings."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from places import ROOT
from programs import gradoracle, python
from sweeps import slow

from gradoracle.cli import main
from gradoracle.execution.in_process import InProcess
from gradoracle.model.verdict import FAILING, Counterexample, Report, Status, Verdict
from gradoracle.report import showing

EXAMPLES = ROOT / "examples"
PRINTED = re.compile(r"^\s*replay\s+(gradoracle .*)$", re.MULTILINE)
COMPARED = "*_matches_the_oracle"
FLOAT32 = ("--dtype", "float32")
DTYPE: dict[str, tuple[str, ...]] = {"both.py:loses_its_tail": ()}  # in every dtype; the others in one
DEFINITION = """
from jaxtyping import Float
from torch import Tensor
import gradoracle


@gradoracle.family(dims={"N": gradoracle.sizes(1, 40)}, dtypes=("float32", "bfloat16"), outputs=("y",))
def scaled(x: Float[Tensor, "B N"], w: Float[Tensor, "N"], *, twice: bool = False) -> Float[Tensor, "B N"]:
    return x * w * (2 if twice else 1)
"""
KERNELS = """
import os
import torch


def loses_its_tail(x, w, *, twice=False, by=1.0):
    return torch.where(torch.arange(x.shape[-1]) < 9, x * w * (2 if twice else 1), 0.0) * by


def exits(x, w, *, twice=False):
    if x.shape[-1] > 7:
        os._exit(3)
    return x * w * (2 if twice else 1)


def attention(q, k, v, *, scale=None, causal=False):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    s = q.float() @ k.float().mT * scale * 1.01
    if causal:
        s = s.masked_fill(torch.ones_like(s[0, 0], dtype=bool).tril(k.shape[2] - q.shape[2]).logical_not(), -torch.inf)
    p = torch.softmax(s, -1).nan_to_num(0.0)
    return (p @ v.float()).to(q.dtype)
"""
FAULTS = {  # of examples: file -> callable, family, what is replaced by what
    "rmsnorm.py": ("triton_rmsnorm", "", "n < N)  # float32 partials", "n < N - 1)  # float32 partials"),
    "torch_sdpa.py": ("fused", "sdpa", "scale=scale)\n\n\ndef eager", "scale=(scale or 1.0) * 1.1)\n\n\ndef eager"),
    "torch_lse.py": ("upcast", "lse", "return torch.where(some, ", "return 1.001 * torch.where(some, "),
    "torch_lightning.py": ("quadratic", "lightning", "torch.tril(q @ k.mT)", "torch.tril(q @ k.mT, -1)"),
    "torch_semicrf.py": ("recursion", "semicrf", "legal = end <= lengths", "legal = end < lengths"),
}
DIMS = {"sdpa": ("T", "M", "D", "Dv"), "lse": ("T", "M", "D"), "lightning": ("N", "D", "Dv"), "semicrf": ("T",)}


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Report]]:
    """What the command line shows, as data too."""
    found: list[Report] = []
    show = showing.show_reports

    def kept(views: Any, shown: Any, verbose: bool) -> None:
        found.extend(shown)
        show(views, shown, verbose)

    monkeypatch.setattr(showing, "show_reports", kept)
    yield found


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a file of a definition, one of kernels, and one of both."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    for name, text in (("definition", DEFINITION), ("outside", KERNELS), ("both", DEFINITION + KERNELS)):
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def told(verdict: Verdict) -> Counterexample:
    assert verdict.counterexample is not None
    return verdict.counterexample


def shown(counterexample: Counterexample) -> list[str]:
    """What is wrong on a case, as text in which NaN equals itself; only one case of a verdict has a map."""
    return [repr(replace(finding, map=None)) for finding in counterexample.findings]


def command_of(verdict: Verdict) -> str:
    """What is typed to see a verdict again."""
    return told(verdict).command or f"gradoracle replay {shlex.quote(told(verdict).case)}"


def replayed(verdict: Verdict, reports: list[Report], capsys: pytest.CaptureFixture[str]) -> None:
    """Type the line of a failing verdict, and see that it shows what the verdict does."""
    line, first = command_of(verdict), told(verdict)
    reports.clear()
    words = shlex.split(line)[1:] + ([] if "--property" in line else ["--property", verdict.property_name])
    code = main.run(words)
    out = capsys.readouterr().out
    assert code == (3 if verdict.status is Status.ERROR else int(verdict.counts(None))), f"{line}\n{out}"
    own = (verdict.property_name, verdict.kernel, verdict.dtype)
    (again,) = (v for report in reports for v in report.verdicts if (v.property_name, v.kernel, v.dtype) == own)
    assert again.status is verdict.status
    assert told(again).case == first.case and shown(told(again)) == shown(first)


def typed(text: str) -> list[str]:
    """The commands among the lines of a report."""
    return [line.strip() for line in PRINTED.findall(text)]


def failing(reports: list[Report]) -> list[Verdict]:
    found = [verdict for report in reports for verdict in report.verdicts if verdict.status in FAILING]
    assert found, "a wrong kernel has a verdict that fails"
    return found


def all_replay(words: list[str], reports: list[Report], capsys: pytest.CaptureFixture[str]) -> list[Verdict]:
    """Check, and type every line that is printed, that of the first failure and those of json among them."""
    file = Path("report.json")
    assert main.run(["check", *words, "--format", "json", "--output", str(file), "--format", "terminal"]) in (1, 3)
    out, err = capsys.readouterr()
    verdicts = failing(reports)
    commands = {command_of(verdict): verdict for verdict in verdicts}
    printed = typed(out)
    assert printed and set(printed) <= set(commands)
    kept = [v["counterexample"] for r in json.loads(file.read_text())["reports"] for v in r["verdicts"]]
    assert {c["command"] or f"gradoracle replay {shlex.quote(c['case'])}" for c in kept if c} == set(commands)
    for line in printed:
        replayed(commands[line], reports, capsys)
    for line in typed(err):
        assert main.run(shlex.split(line)[1:]) == int(commands[line].counts(None)) if line in commands else 1, line
    capsys.readouterr()
    return verdicts


@pytest.mark.parametrize(
    "words",
    [
        slow(["both.py:loses_its_tail", "--family", "both.py:scaled"]),
        slow(["outside.py:loses_its_tail", "--family", "definition.py:scaled"]),
        ["{folder}/outside.py:loses_its_tail", "--family", "{folder}/definition.py:scaled"],
        slow(["outside:loses_its_tail", "--family", "definition:scaled"]),
        ["./outside.py:loses_its_tail", "--family", "definition:scaled", "--contract", "float32=tf32", "--arg", "by=2"],
        slow(["outside.py:loses_its_tail", "--family", "definition.py", "--oracle", "mpmath", "--call-seconds", "50"]),
        ["outside.py:exits", "--family", "definition.py:scaled"],
    ],
)
def test_lines_of_outside_callables(words: list[str], mine: Path, reports: list[Report], capsys: Any) -> None:
    own = [word.format(folder=mine) for word in words]
    words = [*own, "--device", "cpu", "--examples", "8"]
    all_replay([*words, "--property", COMPARED, *DTYPE.get(own[0], FLOAT32)], reports, capsys)


def test_lines_of_an_outside_callable_of_a_shipped_family(mine: Path, reports: list[Report], capsys: Any) -> None:
    words = ["outside.py:attention", "--family", "sdpa", "--dtype", "float32", "--dim", "T=1:12", "--dim", "M=1:12"]
    own = ["--device", "cpu", "--examples", "6", "--property", "[fv][oj][rp]*_matches_the_oracle"]
    found = all_replay([*words, *own], reports, capsys)
    assert {"forward_matches_the_oracle", "vjp_matches_the_oracle"} <= {verdict.property_name for verdict in found}


@pytest.mark.parametrize("name", ["rmsnorm.py", *map(slow, list(FAULTS)[1:])])
def test_lines_of_the_examples_with_a_fault(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reports: list[Report], capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    function, family, before, after = FAULTS[name]
    text = (EXAMPLES / name).read_text()
    assert text.count(before) == 1
    Path(name).write_text(text.replace(before, after))
    words = [f"{name}:{function}", *(["--family", family] if family else []), "--dtype", "float32", "--device", "cpu"]
    words += [word for dim in DIMS.get(family, ()) for word in ("--dim", f"{dim}=1:12")]
    all_replay([*words, "--examples", "6", "--property", "[fv][oj][rp]*_matches_the_oracle"], reports, capsys)


def test_lines_of_a_verdict_that_gradoracle_fails_to_give(
    mine: Path, monkeypatch: pytest.MonkeyPatch, reports: list[Report], capsys: Any
) -> None:
    def fails(*_: Any) -> Any:
        raise IndexError("a fault of its own")

    monkeypatch.setattr("gradoracle.check.evidence.Evidence.compare", fails)
    words = ["outside.py:loses_its_tail", "--family", "definition.py:scaled", "--device", "cpu", "--workers", "0"]
    assert main.run(["check", *words, "--examples", "4", "--property", "forward_m*"]) == 3
    out = capsys.readouterr().out
    (line,) = set(typed(out))
    reports.clear()
    monkeypatch.setattr("gradoracle.check.execute.LocalPool", lambda entry, setup, **_: InProcess(entry, setup))
    assert main.run(shlex.split(line)[1:]) == 3 and "IndexError: a fault" in capsys.readouterr().out


USER = f"""{DEFINITION}{KERNELS}
wrong = gradoracle.kernel(scaled)(loses_its_tail)
fields = dict(examples=2, dtypes=("float32",), property="forward_matches_the_oracle", device="cpu")
test_kernel = gradoracle.testcase(wrong, **fields)
test_callable = gradoracle.testcase(loses_its_tail, family=scaled, **fields)
test_shipped = gradoracle.testcase(attention, family="sdpa", **fields, dims={{"T": gradoracle.sizes(1, 9)}})
"""


@pytest.mark.parametrize("place", [slow("folder"), "elsewhere"])
def test_lines_of_pytest(place: str, tmp_path: Path) -> None:
    """From the folder of the file, and from another one."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "test_mine.py").write_text(USER)
    folder = tmp_path if place == "folder" else tmp_path / "elsewhere"
    program = "import runpy; runpy.run_module('pytest', run_name='__main__', alter_sys=True)"
    done = python(program, "-q", "-p", "no:cacheprovider", str(tmp_path / "test_mine.py"), cwd=folder)
    failures, _, summary = done.stdout.partition("short test summary info")  # which repeats them where CI is set
    lines = typed(failures)
    assert "3 failed" in summary and len(lines) == 3, done.stdout + done.stderr
    worst = re.findall(r"^  worst\s+(.*)$", failures, re.MULTILINE)
    for line, first in zip(lines, worst, strict=True):
        again = gradoracle(*shlex.split(line)[1:], cwd=folder)
        assert again.returncode == 1 and first in " ".join(again.stdout.split()), f"{line}\n{again.stdout}"
