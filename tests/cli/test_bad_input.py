"""The issue's "Bad input", on the command line: one sentence, the correct exit code, no traceback, nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from documents import reports_in
from places import TESTS
from programs import Run

from gradoracle.model.case import Case
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import Status

FEW = ("--device", "cpu", "--workers", "0", "--examples", "3")
FORWARD = ("--property", "forward_matches_the_oracle")
LINE = "case:1 scaled.py:right cpu float32 family=scaled B=1 N=3 seed=1"

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


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The current folder holds scaled.py."""
    shutil.copy(TESTS / "scaled.py", tmp_path)
    monkeypatch.chdir(tmp_path)


def said(given: tuple[int, str, str]) -> str:
    """The one sentence of a usage error."""
    code, out, err = given
    assert (code, out) == (2, ""), given
    assert err.startswith("gradoracle: ") and len(err.splitlines()) == 1 and "Traceback" not in err
    return err.removeprefix("gradoracle: ").strip()


def row(text: str, first: str) -> str:
    """The only line of a report that begins with a word."""
    (found,) = (line for line in text.splitlines() if line.split()[:1] == [first])
    return found


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("spda",), "unknown target 'spda': did you mean sdpa? shipped are "),
        (("json:dumps", "--family", "scaled.py:scaled"), "expected the inputs (x, w) positionally"),
        (("scaled.py:right", "--family", "sdpa"), "declared as a kernel of scaled, but --family says sdpa"),
        (("scaled.py:right", "--dim", "N=5000"), "dim N of right: 5000 was asked for; family scaled allows 1 to 40"),
        (("scaled.py:right", "--dim", "N=100:200"), "100 to 200 was asked for; family scaled allows 1 to 40; no size"),
        (("sdpa", "--dim", "D=4096"), "dim D of sdpa: 4096 was asked for; family sdpa allows 1 to 128; no size is in"),
        (("scaled.py:right", "--dim", "Q=3"), "family scaled has no dim Q; it has B, N"),
        (("scaled.py:right", "--arg", "scale=2"), "--arg scale: right takes no such argument; it takes x, w"),
        (("scaled.py:right", "--property", "nono"), "no property of scaled matches 'nono'; see gradoracle list"),
        (("scaled.py:right", "--require", "nono"), "--require nono: no property of scaled matches 'nono'"),
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
        (ONE.format(definition="return x + torch.ones(17)"), "one raises RuntimeError on x [2] (N=2): The "),
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
        (LINE.replace("N=3", "N=3 --N=3"), "which scaled does not have; it has none; N is written N=SIZE"),
        (LINE.replace("N=3", f"N={10**12}"), "needs at least 18.2 TiB of memory (x alone 3.64 TiB); available "),
        (LINE.replace("N=3", "N=3 blocks=big"), "right has no block configuration 'big'; it has none"),
        (LINE.replace("=scaled", "=other"), "family 'other', but its target is checked against scaled"),
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
    json_too = ("--format", "json", "--output", "report.json")
    code, out, err = run("check", "mine.py", *FEW, "--property", "forward_matches_the_oracle", *json_too)
    assert code == 4 and len(err.splitlines()) == 1 and "1 of 3 cases" in err and "Traceback" not in out
    (report,) = reports_in(Path("report.json").read_text())
    (verdict,) = report.verdicts
    (reason,) = verdict.reasons
    assert (verdict.status, verdict.why) == (Status.NOT_CHECKED, Reason.UNREAD)
    text = " ".join(out.split())
    assert "rounding" in reason and "operator aten." in reason and reason in text
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
    smallest = Case("scaled", {"B": 1, "N": 1}).line(f"scaled.py:{kernel}", "cpu")
    assert row(out, "replay").endswith(f"gradoracle replay '{smallest}'")


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
        assert "✗ violated 3/3" in row(text, "vjp_matches_the_oracle") and "1 violated, 1 hold" in text
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
    assert "✓ " in row(out, "forward_matches_the_oracle") and "interrupted after " in out and "Traceback" not in err
    (report,) = json.loads((tmp_path / "report.json").read_text())["reports"]
    (verdict,) = report["verdicts"]
    assert verdict["cases_held"] > 0 and report["cases_run"] < report["cases_planned"]
    assert verdict["cases_held"] + verdict["cases_not_checked"] == report["cases_run"]
