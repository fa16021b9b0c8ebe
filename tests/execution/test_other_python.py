"""Kernels in another Python: judged as in this one, by what that Python does not have."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import programs
import pytest
from bare_python import bare_python
from sweeps import slow

from gradoracle.check.run import check
from gradoracle.execution import fork_server
from gradoracle.execution.other_python import other_python
from gradoracle.model.errors import UsageError
from gradoracle.model.ledger import CaseRecord
from gradoracle.model.ledger_file import LedgerFile, read
from gradoracle.model.serialize import to_plain
from gradoracle.model.severity import Severity
from gradoracle.project.request import Request

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "rmsnorm.py"

DEFINITION = """
import gradoracle, hypothesis, mpmath, rich  # none of which the other Python has
import torch
from jaxtyping import Float
from torch import Tensor

@gradoracle.family
def soft(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return torch.log1p(torch.exp(x)) ** 2
"""
KERNELS = """
import sys
import torch

def right(x):
    found = [n for n in sys.modules if n.startswith(("gradoracle.oracle", "gradoracle.check", "gradoracle.cases"))]
    found += [n for n in ("hypothesis", "flint", "typer", "numba", "jaxtyping") if n in sys.modules]
    assert not found, found
    return torch.nn.functional.softplus(x) ** 2

def wrong(x):
    y = torch.nn.functional.softplus(x)
    return y.detach() * y

def dies(x):
    import os
    os._exit(0)
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bare_python(tmp_path_factory.mktemp("bare"), has_triton=True)


@pytest.fixture(scope="module")
def without_triton(tmp_path_factory: pytest.TempPathFactory) -> str:
    return bare_python(tmp_path_factory.mktemp("bare"), has_triton=False)


@pytest.fixture
def own(tmp_path: Path) -> tuple[str, str]:
    """A file of kernels and one of their definition."""
    (tmp_path / "soft.py").write_text(KERNELS)
    (tmp_path / "defined.py").write_text(DEFINITION)
    return str(tmp_path / "soft.py"), str(tmp_path / "defined.py")


def judged(target: str, file: Path, python: str | None, **fields: object) -> list[object]:
    """What the records of cases say, but for times."""
    check(Request(target, workers=1, device="cpu", python=python, **fields), file=LedgerFile(file))  # type: ignore[arg-type]
    (ledger,) = read(file)
    plain = [to_plain(record) for record in ledger.of(CaseRecord)]
    return sorted(json.dumps(without_times(each), sort_keys=True) for each in plain)


def without_times(value: object) -> object:
    if isinstance(value, dict):
        return {name: without_times(each) for name, each in value.items() if "seconds" not in name}
    return [without_times(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("target", [str(EXAMPLE), "lse", slow("lightning")])
def test_what_is_found_is_what_is_found_in_this_python(target: str, tmp_path: Path, bare: str) -> None:
    here = judged(target, tmp_path / "here", None, examples=3)
    there = judged(target, tmp_path / "there", bare, examples=3)
    assert len(here) == 3 and here == there


def test_a_host_there_has_nothing_that_judges(own: tuple[str, str], without_triton: str) -> None:
    report = check(Request(f"{own[0]}:right", own[1], device="cpu", examples=6, workers=1, python=without_triton))
    assert report.exit_code == 0 and report.environment["host"] == other_python(without_triton).words
    assert "triton" not in report.environment["host"]


def test_an_error_there_is_found_and_is_wrong(own: tuple[str, str], without_triton: str) -> None:
    """Its operators are widened there, where no program of Triton's can run."""
    report = check(Request(f"{own[0]}:wrong", own[1], device="cpu", examples=6, workers=1, python=without_triton))
    (fault,) = report.faults
    lead = next(each for each in report.verdicts if each.key == fault.verdicts[0])
    assert report.exit_code == 1 and lead.property_name == "vjp_matches_the_oracle" and lead.severity is Severity.WRONG
    assert lead.counterexample is not None and f"--python {without_triton}" in lead.counterexample.command


def test_a_package_that_only_that_python_has_is_a_target(own: tuple[str, str], tmp_path: Path) -> None:
    there = bare_python(tmp_path / "there", has_triton=False)
    (tmp_path / "there" / "packages" / "only_there.py").write_text(KERNELS)
    fields = {"device": "cpu", "examples": 3, "workers": 1, "python": there}
    for name, code in (("right", 0), ("wrong", 1)):
        assert check(Request(f"only_there:{name}", own[1], **fields)).exit_code == code  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="no module named 'only_there'"):
        check(Request("only_there:right", own[1], device="cpu", examples=3))


def test_a_call_that_ends_its_process_is_a_crash(own: tuple[str, str], without_triton: str) -> None:
    report = check(Request(f"{own[0]}:dies", own[1], device="cpu", examples=3, workers=1, python=without_triton))
    assert report.exit_code == 1 and {each.status.value for each in report.verdicts} <= {"crashed", "not checked"}


def written(folder: Path, text: str) -> str:
    """A program in the place of an interpreter."""
    folder.mkdir(exist_ok=True)
    (folder / "python").write_text(f"#!/bin/sh\n{text}\n")
    (folder / "python").chmod(0o755)
    return str(folder / "python")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('echo \'{"python": "3.9.1", "torch": "2.7.0", "numpy": "1.26.0"}\'', "is Python 3.9.1; expected Python 3.10"),
        (
            'echo \'{"python": "3.12.1", "numpy": "1.26.0"}\'',
            "lacks torch; expected an environment with numpy and torch",
        ),
        ("echo no Python", "cannot host kernels: it gives no answer"),
        ("echo '[1]'", "cannot host kernels: it gives no answer"),
        ("echo broken 1>&2; exit 1", "cannot host kernels: it ends with 'broken'"),
    ],
)
def test_an_interpreter_that_can_be_no_host_is_one_sentence(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        other_python(written(tmp_path, text))


def test_what_an_interpreter_prints_at_its_start_is_passed_over(tmp_path: Path) -> None:
    assert other_python(written(tmp_path, f'echo hello; exec {sys.executable} "$@"')).versions["torch"]


@pytest.mark.parametrize("name", ["json.py", "csv.py", "typing.py", "pkgutil.py", "torch.py"])
def test_the_current_folder_hides_no_module_from_it(
    name: str, own: tuple[str, str], without_triton: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / name).write_text("raise OSError('mine')\n")
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv(fork_server.VARIABLE, "off")
    words = ("check", f"{own[0]}:right", "--family", own[1], "--python", without_triton, "--device", "cpu")
    done = programs.gradoracle(*words, "--examples", "1", "--workers", "1", "--property", "forward_matches*")
    assert done.returncode == 0, done.stderr


def test_packages_that_do_not_import_there_are_one_sentence(tmp_path: Path, own: tuple[str, str]) -> None:
    broken = bare_python(tmp_path / "broken", has_triton=False)
    (tmp_path / "broken" / "packages" / "torch").unlink()
    (tmp_path / "broken" / "packages" / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open')\n")
    done = programs.gradoracle("check", f"{own[0]}:right", "--family", own[1], "--python", broken, "--device", "cpu")
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert "libcudart.so.12: cannot open" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["check", "lse", "--python", "/nowhere"], "--python /nowhere: no such interpreter; expected the path of a"),
        (["check", "lse", "--python", sys.executable, "--workers", "0"], "cannot be combined with --workers 0"),
        (["doctor", "--python", "/nowhere"], "--python /nowhere: no such interpreter"),
    ],
)
def test_a_mistake_is_one_sentence(words: list[str], says: str) -> None:
    done = programs.gradoracle(*words)
    assert done.returncode == 2 and says in done.stderr and done.stderr.count("\n") == 1, done.stderr


def test_doctor_says_what_an_interpreter_has(without_triton: str, tmp_path: Path) -> None:
    done = programs.gradoracle("doctor", "--python", str(Path(without_triton).parents[1]))  # the folder of a venv
    assert done.returncode == 0 and "interpreting Triton kernels needs it" in done.stdout, done.stdout
    lacking = written(tmp_path, 'echo \'{"python": "3.12.1", "numpy": "1.26.0"}\'')
    done = programs.gradoracle("doctor", "--python", lacking)
    assert done.returncode == 1 and f"kernels cannot run in {lacking}: torch missing" in done.stdout
