"""A definition that raises, or that cannot be traced, is its author's mistake: never a refusal, never a fault here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gradoracle.cli import main
from gradoracle.model.reason import Reason

FEW = ("--device", "cpu", "--workers", "0", "--examples", "12")
MATCHING = ("--property", "[fv]*_match*")
FILE = """
from __future__ import annotations
import torch, gradoracle
from jaxtyping import Float
from torch import Tensor

@gradoracle.family(dims={{"B": gradoracle.sizes(1, 20), {dims}}}, dtypes=("{dtype}",), outputs=("y",))
def one(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    {definition}

@gradoracle.kernel(one)
def doubled(x):
    {kernel}
"""
ANY, EIGHTS = '"N": gradoracle.sizes(1, 20)', '"N": gradoracle.multiples(8, 64)'
RIGHT = "return x * 2"
NOT_OF_EIGHT = "if x.shape[-1] % 8: raise {error}('N must divide by 8')\n    return x * 2"
LARGE = "if x.shape[0] > 2: raise {error}('B is at most 2')\n    return x * 2"
PURE, VALUES = "expected a pure torch function", "from the values"
PROGRESS = re.compile(r"gradoracle: \d+ of \d+ cases, ")
Run = Callable[..., "tuple[int, str, str]"]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """``check`` of mine.py, written here from a definition, a kernel and the declared sizes of N."""
    monkeypatch.chdir(tmp_path)

    def call(
        definition: str = RIGHT,
        kernel: str = RIGHT,
        dims: str = ANY,
        words: tuple[str, ...] = (),
        dtype: str = "float32",
    ) -> tuple[int, str, str]:
        text = FILE.format(definition=definition, kernel=kernel, dims=dims, dtype=dtype)
        Path("mine.py").write_text(text)
        code = main.run(("check", "mine.py", *FEW, *words))
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        said = [line for line in err.splitlines(keepends=True) if not PROGRESS.match(line)]
        return code, " ".join(out.split()), "".join(said)

    return call


@pytest.mark.parametrize("error", ["ValueError", "KeyError", "AssertionError", "ZeroDivisionError", "SystemExit"])
def test_a_definition_that_raises_on_the_first_case_is_a_usage_error(run: Run, error: str) -> None:
    code, out, err = run(NOT_OF_EIGHT.format(error=error))
    assert (code, out) == (2, "") and len(err.splitlines()) == 1
    assert f"{error} on x [1, 1] (B=1, N=1): " in err and "N must divide by 8" in err
    assert "@gradoracle.family(dims={'N': " in err


@pytest.mark.parametrize("error", ["ValueError", "RuntimeError"])
def test_the_definition_that_declares_its_sizes_holds(run: Run, error: str) -> None:
    raising = NOT_OF_EIGHT.format(error=error)
    code, out, err = run(raising, raising, EIGHTS)
    assert code == 0 and "every checked property holds" in out and err == ""


@pytest.mark.parametrize("kernel", [RIGHT, LARGE.format(error="RuntimeError")], ids=["taken", "refused by the kernel"])
@pytest.mark.parametrize("error", ["ValueError", "KeyError", "ZeroDivisionError"])
def test_a_case_on_which_the_definition_raises_is_not_checked(run: Run, error: str, kernel: str) -> None:
    code, out, err = run(LARGE.format(error=error), kernel, words=("--format", "json"))
    (report,) = json.loads(out)["reports"]
    assert code == 4 and err == "" and not any(verdict["cases_refused"] for verdict in report["verdicts"])
    forward, *_ = report["verdicts"]
    assert forward["why"] == Reason.OUTSIDE and 0 < forward["cases_not_checked"] < 12
    (unmet,) = report["inconclusive"]
    assert unmet.startswith(f"{forward['cases_not_checked']} of 12 cases ")
    assert f" {error} on x [" in unmet and "B is at most 2" in unmet
    assert unmet.endswith("@gradoracle.family(dims={'N': gradoracle.multiples(16)})")


def test_the_kernel_may_refuse_what_the_definition_takes(run: Run) -> None:
    code, out, _ = run(RIGHT, LARGE.format(error="RuntimeError"), words=MATCHING)
    assert "refused: RuntimeError: B is" in out and "the definition of" not in out
    assert code == 0


def test_a_wrong_kernel_is_found_where_the_definition_is_defined(run: Run) -> None:
    definition = LARGE.format(error="ValueError")
    code, out, _ = run(definition, "return x * 2.001", words=MATCHING)
    assert code == 1 and "✗ WRONG forward_matches_the_oracle" in out


@pytest.mark.parametrize(
    ("definition", "says"),
    [
        ("return x * (2 if x.tolist() else 2)", "RuntimeError: tolist() "),
        ("return x * 2 + 0 * x.sum().item()", VALUES),
        ("return x * 2 if x.sum() > 0 else x * 2", VALUES),
        ("return x * 2 + 0 * x[x > 0].sum()", VALUES),
        ("return torch.from_numpy(x.numpy() * 2)", "RuntimeError: Can't call numpy() on Tensor"),
        ("return torch.from_numpy(x.detach().numpy() * 2)", "RuntimeError: "),
        ("return x.requires_grad_() * 2", "RuntimeError: You are attempting to call Tensor.requires_grad_()"),
    ],
)
def test_a_definition_that_cannot_be_traced_is_a_usage_error(run: Run, definition: str, says: str) -> None:
    code, out, err = run(definition)
    assert (code, out) == (2, "") and len(err.splitlines()) == 1
    assert err.count(" traced at mine.py, line 9: ") == 1
    assert says in err and PURE in err


@pytest.mark.parametrize("definition", ["return x.mul_(2)", "x += x\n    return x", "x[0] = 0\n    return x * 2"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_definition_that_writes_to_its_argument_is_a_usage_error(run: Run, definition: str, dtype: str) -> None:
    code, out, err = run(definition, dtype=dtype)
    assert (code, out) == (2, "") and len(err.splitlines()) == 1
    assert "its argument x in place; " in err and PURE in err


def test_a_definition_that_writes_to_a_copy_holds(run: Run) -> None:
    code, out, _ = run("y = x.clone()\n    y += x\n    return y", words=MATCHING)
    assert code == 0 and "every checked property holds" in out


def test_what_only_some_cases_cannot_trace_is_said_once(run: Run) -> None:
    definition = "return x * 2 if x.shape[0] < 3 or x.sum() > 0 else x * 2"
    code, out, err = run(definition, words=MATCHING)
    assert code == 4 and err == ""
    _, because = out.split("inconclusive (exit code 4) because ")
    assert because.count("cannot be traced") == because.count(" traced at mine.py") == 1 and " of 12 cases " in because


def test_an_operator_without_a_derivative_is_a_usage_error(run: Run) -> None:
    code, out, err = run("return torch.igamma(x.abs() + 1, x.abs())")
    assert (code, out) == (2, "") and len(err.splitlines()) == 1
    assert "cannot be traced: " in err and "is not implemented; " in err and "PyTorch differentiates" in err


def test_an_operator_without_forward_mode_is_not_checked(run: Run) -> None:
    property_name = ("--property", "hvp_finite_difference_convergence")
    definition = "return x * torch.cdist(x, x + 1).sum()"
    code, out, _ = run(definition, definition, words=property_name)
    assert code == 4 and " traced at mine.py, line 9: " in out
    assert "NotImplementedError" in out and "PyTorch differentiates twice" in out
    code, out, _ = run("return x * x.sum()", "return x * x.sum()", words=property_name)
    assert code == 0 and "every checked property holds" in out


def test_saved_tensors_on_which_the_definition_raises_are_a_usage_error(run: Run) -> None:
    torch.save({"x": torch.ones(3, 4)}, "saved.pt")
    code, out, err = run(LARGE.format(error="ValueError"), words=("--inputs", "saved.pt"))
    assert (code, out) == (2, "") and " ValueError on x [3, 4] " in err and "(B=3, N=4): B is at most 2" in err
    torch.save({"x": torch.ones(2, 4)}, "saved.pt")
    code, out, _ = run(LARGE.format(error="ValueError"), words=("--inputs", "saved.pt", *MATCHING))
    assert code == 0 and "every checked property holds" in out
