"""The command line: what reaches the check, what is printed where, and every exit code."""

from __future__ import annotations

import inspect
import json
import signal
import subprocess
import sys
import types
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
from grouping import with_faults
from places import TESTS
from programs import Run

from gradoracle.cli import main
from gradoracle.cli.arguments import Typed
from gradoracle.execution import environment
from gradoracle.model.dims import Sizes
from gradoracle.model.errors import UsageError
from gradoracle.model.property import property
from gradoracle.model.verdict import Report, Status, Verdict
from gradoracle.project import target
from gradoracle.project.request import Request

CASE = "gradoracle-case/1 sdpa cpu float32 T=1 seed=0"


def made(target: str = "sdpa", status: Status = Status.HOLDS, **fields: Any) -> Report:
    verdict = Verdict("forward_matches_the_oracle", "k", "float32", status, cases_held=3)
    found = Report(
        target, target, ["k"], "cpu", 0, {"float32": "ieee32"}, {}, [verdict], cases_planned=3, cases_run=3, **fields
    )
    return with_faults(found)


class Check(types.ModuleType):
    """Stands in for gradoracle.check: remembers what it was asked, answers with what the test put in."""

    def __init__(self) -> None:
        super().__init__("gradoracle.check.run")
        self.asked: list[Any] = []
        self.answers: list[Any] = []

    def check(self, request: Request, progress: Any, file: Any = None) -> Report:
        self.asked.append(request)
        answer = self.answers.pop(0) if self.answers else made(request.target)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def replay(self, line: str, progress: Any, **fields: Any) -> Report:
        self.asked.append((line, fields))
        return made()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Check:
    fake = Check()
    monkeypatch.setitem(sys.modules, "gradoracle.check.run", fake)
    monkeypatch.setattr(target, "family_names", lambda: ["lse", "sdpa"])
    return fake


def test_every_option_reaches_the_check(engine: Check, run: Run, tmp_path: Path) -> None:
    saved = tmp_path / "saved.pt"
    saved.write_bytes(b"")
    code, _, _ = run(
        "check", "torch.nn.functional:scaled_dot_product_attention", "--family", "sdpa", "--device", "cpu",
        "--dtype", "float32,float16", "--contract", "float32=tf32", "--contract", "float16=eager-fp16",
        "--arg", "causal=True", "--dim", "T=1:4096", "--dim", "D=64,128", "--inputs", str(saved),
        "--oracle", "certified", "--examples", "7", "--seconds", "150", "--seed", "3",
        "--property", "vjp_*", "--property", "hvp_*,jvp_*",
        "--require", "hvp_*", "--require", "jvp_*", "--workers", "2", "--shard", "2/4",
    )  # fmt: skip
    assert code == 0
    (asked,) = engine.asked
    assert asked.seconds is not None and 100 < asked.seconds < 150, "its time counts since the command began"
    assert [replace(asked, seconds=150.0)] == [
        Request(
            target="torch.nn.functional:scaled_dot_product_attention",
            family="sdpa",
            device="cpu",
            dtypes=("float32", "float16"),
            contracts={"float32": "tf32", "float16": "eager-fp16"},
            arguments={"causal": True},
            dims={"T": Sizes(1, 4096), "D": Sizes(choices=(64, 128))},
            inputs=str(saved),
            oracle="certified",
            examples=7,
            seconds=150.0,
            seed=3,
            property="vjp_*,hvp_*,jvp_*",
            require=("hvp_*", "jvp_*"),
            workers=2,
            shard=(2, 4),
        )
    ]


def test_defaults_are_those_of_the_request(engine: Check, run: Run) -> None:
    run("check", "sdpa")
    assert engine.asked == [Request(target="sdpa")]


def test_all_and_several_targets_are_checked_each_once(engine: Check, run: Run) -> None:
    code, out, _ = run("check", "sdpa", "all")
    assert [request.target for request in engine.asked] == ["sdpa", "lse"]
    assert code == 0 and "sdpa: holds, lse: holds" in out


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (made(), 0),
        (made(status=Status.VIOLATED), 1),
        (made(status=Status.CRASHED), 1),
        (made(status=Status.REFUSED), 4),
        (made(status=Status.NOT_CHECKED), 4),
        (made(goals_wanted={"T < M": 1}), 4),
        (made(interrupted="interrupted after 3 of 9 cases"), 4),
        (made(status=Status.VIOLATED, interrupted="interrupted after 3 of 9 cases"), 1),
        (UsageError("no property of sdpa matches 'x'"), 2),
        (RuntimeError("a bug"), 3),
        (KeyboardInterrupt(), 4),
    ],
)
def test_exit_codes(engine: Check, run: Run, report: Any, code: int) -> None:
    engine.answers = [report]
    assert run("check", "sdpa")[0] == code


def test_formats_go_where_they_are_sent(engine: Check, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "report.json"
    code, out, err = run("check", "sdpa", "--format", "json", "--output", str(file), "--format", "junit")
    assert (code, err) == (0, "")
    assert json.loads(file.read_text())["exit_code"] == 0
    assert out.startswith("<?xml") and out.endswith("</testsuites>\n")
    _, out, _ = run("check", "sdpa", "--format", "json", "--output", str(file))
    assert "every checked property holds" in out


def test_an_output_that_becomes_unwritable_loses_nothing(engine: Check, run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()

    def vanish(request: Request, progress: Any, file: Any = None) -> Report:
        folder.rmdir()
        return made()

    engine.check = vanish  # type: ignore[method-assign]
    code, out, err = run("check", "sdpa", "--format", "json", "--output", str(folder / "report.json"))
    assert code == 2 and '"exit_code": 0' in out and "every checked property holds" in out
    assert err.startswith("gradoracle: --output ") and "printed instead" in err


def test_what_was_known_before_a_fault_is_shown(engine: Check, run: Run) -> None:
    engine.answers = [made(), RuntimeError("a bug")]
    code, out, err = run("check", "sdpa", "lse")
    assert code == 3 and "✓ sdpa: " in out
    assert err.startswith("gradoracle: internal error: ") and "RuntimeError: a bug" in err and "traceback" in err


def test_a_fault_hides_no_violation(engine: Check, run: Run) -> None:
    engine.answers = [made("lse", Status.VIOLATED), RuntimeError("a bug")]
    code, out, err = run("check", "lse", "sdpa")
    assert code == 1 and "lse: 1 fault" in out
    assert err.startswith("gradoracle: internal error: ") and "RuntimeError: a bug" in err and "traceback" in err


@pytest.mark.parametrize(("first", "code"), [(Status.HOLDS, 4), (Status.VIOLATED, 1)])
def test_an_interrupt_between_targets_keeps_the_others(engine: Check, run: Run, first: Status, code: int) -> None:
    engine.answers = [made(status=first), made(), KeyboardInterrupt()]
    given, out, _ = run("check", "sdpa", "lse", "semicrf")
    assert given == code and out.startswith("gradoracle sdpa")


def test_an_interrupted_target_is_the_last(engine: Check, run: Run) -> None:
    engine.answers = [made(interrupted="interrupted after 3 of 9 cases")]
    assert run("check", "sdpa", "lse")[0] == 4
    assert len(engine.asked) == 1


def test_a_usage_error_of_a_later_target_comes_after_the_report(engine: Check, run: Run) -> None:
    mistake = "no property of lse matches 'x'"
    engine.answers = [made(), UsageError(mistake)]
    code, out, err = run("check", "sdpa", "lse")
    assert (code, err) == (2, f"gradoracle: {mistake}\n")
    assert "every checked property holds" in out


def test_a_fault_shows_its_traceback_only_where_asked(
    engine: Check, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    engine.answers = [RuntimeError("a bug\nover two lines")]
    _, out, err = run("check", "sdpa")
    assert "Traceback" not in out + err and len(err.splitlines()) == 1
    (kept,) = tmp_path.iterdir()
    assert str(kept) in err and "over two lines" in kept.read_text()
    monkeypatch.setenv("GRADORACLE_TRACEBACK", "1")
    engine.answers = [RuntimeError("a bug")]
    assert "Traceback (most recent" in run("check", "sdpa")[2]


@pytest.mark.parametrize(
    "words",
    [
        ["chek"], ["check"],
        ["check", "sdpa", "--nonsense"],
        ["check", "sdpa", "--seed", "x"],
        ["check", "sdpa", "--seed", "-1"], ["check", "sdpa", "--seed", "1", "--seed", "2"],
        ["check", "sdpa", "--examples", "0"],
        ["check", "sdpa", "--seconds", "-3"],
        ["check", "sdpa", "--device", "gpu"],
        ["check", "sdpa", "--oracle", "guess"],
        ["check", "sdpa", "--dtype", "float31"],
        ["check", "sdpa", "--contract", "float32"],
        ["check", "sdpa", "--dim", "T=x"],
        ["check", "sdpa", "--arg", "x"],
        ["check", "sdpa", "--workers", "some"],
        ["check", "sdpa", "--shard", "3"],
        ["check", "sdpa", "--format", "yaml"],
        ["check", "sdpa", "--output", "x"],
        ["check", "sdpa", "--inputs", "missing.pt"],
        ["check", "sdpa", "--seed"],
        ["replay"],
        ["replay", CASE, "--device", "auto?"],
        ["explain"],
        ["list", "extra"], ["gate"], ["gate", "--base", "HEAD", "--baseline", "b.json"], ["baseline", "save"],
        ["mutate"], ["mutate", "sdpa", "--mutants", "some"], ["mutate", "sdpa", "--least", "2"],
        ["mutate", "sdpa", "--equivalents", "missing.toml"],
    ],
)  # fmt: skip
def test_mistakes_end_in_one_sentence_before_anything_runs(
    engine: Check, run: Run, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # where no pyproject.toml names kernels
    code, out, err = run(*words)
    assert (code, out, engine.asked) == (2, "", []) and err.startswith("gradoracle: ") and len(err.splitlines()) == 1


def test_no_command_at_all_is_help_and_not_green(run: Run) -> None:
    code, out, _ = run()
    assert code == 2 and "Usage: gradoracle" in out
    assert run("--help")[0] == 0 and run("check", "--help")[0] == 0
    assert run("--version")[:2] == (0, "gradoracle 0.1.0\n")


def test_a_case_is_replayed_with_what_was_given(engine: Check, run: Run) -> None:
    code, out, _ = run("replay", CASE)
    assert code == 0 and "every checked property holds" in out
    run("replay", CASE, "--property", "vjp_*", "--device", "cuda", "--oracle", "mpmath")
    run("replay", CASE, "--contract", "float32=tf32", "--arg", "by=0.5")
    assert engine.asked == [
        (CASE, {}),
        (CASE, {"oracle": "mpmath", "device": "cuda", "property": "vjp_*"}),
        (CASE, {"contracts": {"float32": "tf32"}, "arguments": {"by": 0.5}}),
    ]


@property()
def rows_sum_to_one(evidence: Any) -> Iterator[Any]:
    """Each row of P sums to 1.

    Holds because: softmax divides by the row's sum.
    Catches: a row normalised by another's sum.
    Cannot catch: mass moved within a row.
    """
    yield from ()


DOUBLE = """
from torch import Tensor
from jaxtyping import Float
from gradoracle import family, kernel

@family
def double(x: Float[Tensor, "B N"], *, negate: bool = False) -> Float[Tensor, "B N"]:
    return -2 * x if negate else 2 * x

@kernel(double)
def added(x, *, negate=False):
    return -(x + x) if negate else x + x
"""


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "double.py"
    file.write_text(DOUBLE)
    found = target.resolve(str(file))
    listed = [found], [rows_sum_to_one]
    for command in ("list", "explain"):
        monkeypatch.setattr(f"gradoracle.cli.commands.{command}.catalogue", lambda *_, **__: listed)


def test_list_names_families_kernels_properties_and_presets(catalogue: None, run: Run) -> None:
    code, out, _ = run("list")
    assert code == 0
    lines = [line.strip() for line in out.splitlines()]
    assert lines[lines.index("kernels: added") - 1].split(", ") == ["double(x[B N]", "*", "negate=False) -> out[B N]"]
    assert lines[lines.index("rows_sum_to_one") + 1] == "Each row of P sums to 1."
    assert "every family (1)" in lines[lines.index("rows_sum_to_one") - 1]
    assert ["tf32", "for", "float32"] in [line.split() for line in lines]


def test_explain_prints_the_contract_of_a_property(catalogue: None, run: Run) -> None:
    code, out, _ = run("explain", "rows_*")
    assert code == 0
    name, statement, *parts = (line.strip() for line in out.splitlines())
    assert (name, statement) == ("rows_sum_to_one", "Each row of P sums to 1.")
    docstring = [line for line in (inspect.getdoc(rows_sum_to_one.judge) or "").splitlines() if ": " in line]
    assert len(docstring) == 3
    assert [" ".join(line.split()) for line in parts] == [*docstring, "Needs: forward", "Families: every family"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("rows_sum_to_two", "no property is named 'rows_sum_to_two': did you mean rows_sum_to_one?"),
        ("sum", "no property is named 'sum': did you mean rows_sum_to_one?"),
        ("zzz", "no property is named 'zzz': gradoracle list prints them all"),
    ],
)
def test_an_unknown_property_is_said_with_its_neighbours(catalogue: None, run: Run, name: str, says: str) -> None:
    assert run("explain", name) == (2, "", f"gradoracle: {says}\n")


def test_doctor_says_what_is_missing_and_whether_that_matters(monkeypatch: pytest.MonkeyPatch, run: Run) -> None:
    found = [
        environment.Facility("torch", "2.13", "tensors"),
        environment.Facility("numba", "", "speed", "pip install numba", required=False),
    ]
    monkeypatch.setattr(environment, "facilities", lambda: found)
    code, out, _ = run("doctor")
    assert code == 0 and "absent   numba" in out and "pip install numba" in out
    found.append(environment.Facility("triton", "", "kernels", "pip install triton"))
    code, out, _ = run("doctor")
    assert code == 1 and "MISSING  triton" in out and "triton missing" in out


def test_a_reader_that_has_gone_does_not_change_the_exit_code(tmp_path: Path) -> None:
    program = "import sys; from gradoracle.report import showing;showing.say('x' * 1000000); sys.exit(4)"
    command = f'{sys.executable} -c "{program}" | head -c 1 >/dev/null; exit ${{PIPESTATUS[0]}}'
    assert subprocess.run(["bash", "-c", command], capture_output=True).returncode == 4


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_is_known(how: signal.Signals) -> None:
    program = (
        "import os, sys, types;"
        "sys.path[:0] = sys.argv[1:];"
        "import test_main as t;"
        "from gradoracle.project import target;"
        "target.family_names = lambda: ['sdpa', 'lse'];"
        "fake = t.Check();"
        "sys.modules['gradoracle.check.run'] = fake;"
        "first = fake.check;"
        f"fake.check = lambda r, p, f: first(r, p) if r.target == 'sdpa' else os.kill(os.getpid(), {int(how)});"
        "sys.argv[1:] = ['check', 'sdpa', 'lse'];"
        "from gradoracle.__main__ import main; main()"
    )
    command = [sys.executable, "-c", program, str(TESTS), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 4 and "every checked property holds" in done.stdout, done.stderr


def test_help_loads_nothing_heavy() -> None:
    program = (
        "import sys; from gradoracle.cli import main; code = main.run(['--help']);"
        "heavy = {'torch', 'triton', 'hypothesis', 'numpy', 'mpmath', 'flint'} & set(sys.modules);"
        "sys.exit(f'{code} {heavy}' if heavy or code else 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_parser_of_this_typer_raises_what_run_knows() -> None:
    with pytest.raises(Exception, match="nonsense") as caught:
        main.app(args=["check", "--nonsense"], obj=Typed([], 0.0), standalone_mode=False)
    assert hasattr(caught.value, "format_message") and not isinstance(caught.value, typer.Exit)
