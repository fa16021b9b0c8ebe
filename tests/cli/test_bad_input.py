"""The issue's "Bad input", on the command line: one sentence, the correct exit code, no traceback, nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from places import TESTS

from gradoracle.cli import main

FILE = TESTS / "scaled.py"
FEW = ("--device", "cpu", "--workers", "0", "--examples", "3")
FORWARD = ("--property", "forward_matches_the_oracle")
LINE = "case:1 scaled.py:right cpu float32 family=scaled B=1 N=3 seed=1"
Run = Callable[..., "tuple[int, str, str]"]

ONE = """
from __future__ import annotations
import torch, gradoracle
from jaxtyping import Float
from torch import Tensor

@gradoracle.family(dims={{"N": gradoracle.sizes(2, 5)}}, dtypes=("float32",), outputs=("y",))
def one(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    {definition}

@gradoracle.kernel(one)
def doubled(x):
    return x * 2
"""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """The command line in a folder that holds scaled.py."""
    shutil.copy(FILE, tmp_path)
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        code = main.run(words)
        return (code, *capsys.readouterr())

    return call


def said(given: tuple[int, str, str]) -> str:
    """The one sentence of a usage error."""
    code, out, err = given
    assert (code, out) == (2, ""), given
    assert err.startswith("gradoracle: ") and len(err.splitlines()) == 1 and "Traceback" not in err
    return err.removeprefix("gradoracle: ").strip()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("spda",), "unknown target 'spda': did you mean sdpa? shipped are "),
        (("gone.py",), "no file gone.py; expected a shipped name, path/to/file.py"),
        (("scaled.py:wright",), "scaled.py has no callable named 'wright'; did you mean right?"),
        (("scaled.py:scaled",), "scaled.py:scaled is a family, not a kernel; expected a callable that implements it"),
        (("no.such.module:f",), "no module named 'no' can be imported; expected"),
        (("torch:relu",), "torch:relu is an outside callable: name the family that it implements"),
        (("json:dumps", "--family", "scaled.py:scaled"), "expected the inputs (x, w) positionally"),
        (("scaled.py:right", "--family", "sdpa"), "declared as a kernel of scaled, but --family says sdpa"),
        (("scaled.py:right", "--dtype", "int8"), "--dtype 'int8' is unknown: expected one of float32"),
        (("scaled.py:right", "--contract", "float32=bf16"), "for float32 choose one of: ieee32, bf16x6, tf32x3, tf32"),
        (("scaled.py:right", "--dim", "N=0"), "--dim 'N=0' is invalid; expected NAME=SIZE"),
        (("scaled.py:right", "--dim", "N=5000"), "dim N of right: 5000 was asked for; family scaled allows 1 to 40"),
        (("scaled.py:right", "--dim", "N=100:200"), "100 to 200 was asked for; family scaled allows 1 to 40; no size"),
        (("sdpa", "--dim", "D=4096"), "dim D of sdpa: 4096 was asked for; family sdpa allows 1 to 128; no size is in"),
        (("scaled.py:right", "--call-seconds", "0"), "--call-seconds must be a positive number, got 0"),
        (("scaled.py:right", "--call-seconds", "inf"), "--call-seconds must be a positive number, got inf"),
        (("scaled.py:right", "--dim", "Q=3"), "family scaled has no dim Q; it has B, N"),
        (("scaled.py:right", "--arg", "scale=2"), "--arg scale: right takes no such argument; it takes x, w"),
        (("scaled.py:right", "--property", "nono"), "no property of scaled matches 'nono'; see gradoracle list"),
        (("scaled.py:right", "--require", "nono"), "--require nono: no property of scaled matches 'nono'"),
        (("scaled.py:right", "--inputs", "gone.pt"), "--inputs gone.pt: no such file; expected tensors saved with"),
        (("scaled.py:right", "--format", "json", "--output", "gone/r.json"), "cannot be written: no such file or dir"),
        (("scaled.py:right", "--format", "json", "--output", "."), "--output . cannot be written: is a directory"),
    ],
)
def test_a_mistake_in_a_request_is_one_sentence(run: Run, words: tuple[str, ...], says: str) -> None:
    assert says in said(run("check", *words, *FEW))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
@pytest.mark.parametrize(
    "words", [("check", "scaled.py:right", "--device", "cuda"), ("replay", LINE, "--device", "cuda")]
)
def test_cuda_without_a_gpu_is_one_sentence(run: Run, words: tuple[str, ...]) -> None:
    expected = "--device cuda was asked for, but PyTorch sees no CUDA device here; use --device cpu or auto"
    assert said(run(*words)) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nosuchmodule", "mine.py, line 1: cannot be imported: ModuleNotFoundError: No module named 'nosuchm"),
        ("def f(:", "mine.py, line 1: cannot be imported: SyntaxError: invalid syntax"),
        ("\nraise SystemExit(3)", "mine.py, line 2: cannot be imported: SystemExit: 3"),
        ("x = 3", "mine.py has no @gradoracle.kernel; declare one or name a callable, as in mine.py:callable"),
        (
            "import gradoracle\n@gradoracle.family\ndef f(x): return x",
            "parameter 'x' of f is neither a tensor annotated",
        ),
        (
            ONE.format(definition="return x + torch.ones(17)"),
            "the definition of one raises RuntimeError on x [2] (N=2): The ",
        ),
        (ONE.format(definition="return x.sum()"), "the definition of one gives () on x [2], its annotation says (2,)"),
        (ONE.format(definition="return None"), "the definition of one gives NoneType on x [2], its annotation says"),
    ],
)
def test_a_mistake_in_a_file_is_one_sentence(run: Run, text: str, says: str) -> None:
    Path("mine.py").write_text(text)
    assert says in said(run("check", "mine.py", *FEW))


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense", "a case line starts with case:1, got 'nonsense'"),
        ("", "a case line starts with case:1, got an empty line"),
        ("case:1 sdpa cpu", "ends too soon; expected case:1 TARGET DEVICE DTYPE DIM=SIZE ... seed=N"),
        (LINE.replace("N=3", "N=0"), "dim N has size 0; expected a whole number from 1 on"),
        (LINE.replace("N=3", "N=x"), "case line gives dim N as 'x'; expected a whole number from 1 to 2^63 - 1"),
        (LINE.replace("case:1", "case:2"), "a case line starts with case:1, got 'case:2'"),
        (LINE.replace(" cpu ", " cuda:1 "), "case line names device 'cuda:1'; expected cpu or cuda as its third word"),
        (LINE.replace("N=3", "N=3 w=normal"), "; an option is written --w=normal, a tensor w~RECIPE"),
        (
            LINE.replace("N=3", "N=3 w=1"),
            "names dim w, which scaled does not have; expected some of B, N; w is written w~",
        ),
        (
            LINE.replace("N=3", "N=3 --N=3"),
            "names option N, which scaled does not have; it has none; N is written N=SIZE",
        ),
        (LINE.replace("N=3", "N=3 x~lowest"), "tensor x holds floats, recipe 'lowest' draws integers; expected one of"),
        (LINE.replace("N=3", "N=3 x~normal/flat"), "tensor x: layout 'flat' is unknown; expected one of contiguous"),
        (LINE.replace("N=3", f"N={10**12}"), "needs at least 18.2 TiB of memory (x alone 3.64 TiB); available "),
        (LINE.replace("N=3 ", ""), "the case gives no size of dim N; scaled needs all of B, N"),
        (LINE.replace("N=3", "N=3 M=3"), "the case names dim M, which scaled does not have; expected some of B, N"),
        (
            LINE.replace("N=3", "N=3 --causal=true"),
            "the case names option causal, which scaled does not have; it has none",
        ),
        (
            LINE.replace("N=3", "N=3 q~normal"),
            "the case names tensor q, which scaled does not have; expected some of x, w",
        ),
        (LINE.replace("N=3", "N=3 x~nono"), "tensor x: recipe 'nono' is unknown; expected NAME or NAME:NUMBER"),
        (LINE.replace("N=3", "N=3 blocks=big"), "right has no block configuration 'big'; it has none"),
        (
            LINE.replace("=scaled", "=other"),
            "the case belongs to family 'other', but its target is checked against scaled",
        ),
        (LINE.replace("float32", "float31"), "dtype 'float31' is unknown; expected one of float32"),
        (LINE.replace("seed=1", ""), "lacks its seed; expected seed=N as its last word"),
        (LINE.replace("scaled.py:right", "gone.py"), "no file gone.py; expected"),
    ],
)
@pytest.mark.parametrize("script", [(), ("--script",)], ids=["judged", "as a script"])
def test_a_mistake_in_a_case_line_is_one_sentence(run: Run, line: str, says: str, script: tuple[str, ...]) -> None:
    assert says in said(run("replay", line, *script))


def test_the_case_line_without_a_mistake_is_judged(run: Run) -> None:
    code, out, err = run("replay", LINE, "--property", "[fv]*_match*")
    assert code == 0 and "every checked property holds" in out, err


def test_a_definition_that_cannot_be_read_is_inconclusive_and_says_why(run: Run) -> None:
    definition = "return x * torch.linalg.svdvals(x.outer(x)).sum()"
    Path("mine.py").write_text(ONE.format(definition=definition))
    code, out, err = run("check", "mine.py", *FEW, "--property", "forward_matches_the_oracle")
    assert code == 4 and err.splitlines() == ["gradoracle: 1 of 3 cases, 1 property"] and "Traceback" not in out
    text = " ".join(out.split())
    assert "the rounding reading has no rule for the operator aten." in text
    assert "another reading" not in text and "--oracle" not in text, "budgets have no other reading"
    code, out, _ = run("check", "mine.py", *FEW, "--property", "*_unmodified")
    assert "✓" in out, "properties that need no truth are judged all the same"


@pytest.mark.parametrize(
    ("kernel", "property_name", "says"),
    [
        ("gives_another_shape", "forward_matches_the_oracle", "y has shape (1, 1, 1), expected (1, 1)"),
        ("gives_another_dtype", "forward_matches_the_oracle", "y has dtype float64, expected float32"),
        ("gives_nothing", "forward_matches_the_oracle", "the kernel returned NoneType, expected y[B N]"),
        ("gives_no_gradient_of_w", "vjp_matches_the_oracle", "dw is None: w takes part in the definition"),
        ("gives_nan", "finite_where_the_truth_is_finite", "1 elements are not finite where the truth is"),
    ],
)
def test_a_malformed_answer_is_violated_in_words(run: Run, kernel: str, property_name: str, says: str) -> None:
    code, out, _ = run("check", f"scaled.py:{kernel}", *FEW, "--property", property_name)
    assert code == 1 and says in out and "Traceback" not in out
    assert f"replay   gradoracle replay 'case:1 scaled.py:{kernel} cpu float32 family=scaled B=1 N=1 seed=0'" in out


def test_json_says_what_the_terminal_says(run: Run) -> None:
    words = ("check", "scaled.py:has_a_wrong_backward", *FEW, "--property", "[fv]*_match*")
    code, out, _ = run(*words)
    again, terminal, _ = run(*words, "--format", "json", "--output", "report.json")
    assert code == again == 1
    (report,) = json.loads(Path("report.json").read_text())["reports"]
    found = {verdict["property"]: verdict for verdict in report["verdicts"]}
    assert {name: verdict["status"] for name, verdict in found.items()} == {
        "forward_matches_the_oracle": "holds",
        "vjp_matches_the_oracle": "violated",
    }
    for text in (out, terminal):
        assert "vjp_matches_the_oracle  ✗ violated 3/3" in text and "1 violated, 1 hold" in text
        assert found["vjp_matches_the_oracle"]["counterexample"]["case"] in text


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_in_the_middle_keeps_the_verdicts(how: signal.Signals, tmp_path: Path) -> None:
    marks = tmp_path / "calls"
    file = tmp_path / "slow.py"
    body = f"open({str(marks)!r}, 'a').write('x'); return x * 2"
    definition, kernel = ONE.format(definition="return 2 * x").split("@gradoracle.kernel")
    file.write_text(f"{definition}@gradoracle.kernel{kernel.replace('return x * 2', body)}")
    words = ["check", str(file), "--device", "cpu", "--workers", "1", "--examples", "2000", *FORWARD]
    words += ["--format", "json", "--output", str(tmp_path / "report.json")]
    child = subprocess.Popen(
        [sys.executable, "-m", "gradoracle", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "GRADORACLE_TRACEBACK": "1"},
    )  # fmt: skip
    while child.poll() is None and (not marks.exists() or marks.stat().st_size < 20):
        time.sleep(0.05)
    child.send_signal(how)
    out, err = child.communicate(timeout=120)
    assert child.returncode == 4, err
    assert "forward_matches_the_oracle  ✓ " in out and "interrupted after " in out and "Traceback" not in err
    (report,) = json.loads((tmp_path / "report.json").read_text())["reports"]
    (verdict,) = report["verdicts"]
    assert verdict["cases_held"] > 0 and report["cases_run"] < report["cases_planned"]
    assert verdict["cases_held"] + verdict["cases_not_checked"] == report["cases_run"]
