"""examples/recurrences: on the same few cases each right kernel passes and each planted bug fails."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from places import ROOT
from programs import gradoracle
from sweeps import slow

FOLDER = ROOT / "examples" / "recurrences"
LINES = 40  # of code, without docstrings and imports
SIZES = {  # at which the bug shows
    "crf": "T=2:40",
    "ctc": "T=2:40",
    "gla": "T=33:80",
    "rnnt": "T=5:40",
    "rwkv7": "T=17:40",
    "selective_scan": "T=65:90",
    "soft_dtw": "N=2:20",
    "ssd": "T=129:150",
}
IN_PARTS = {  # by name: what is cast once, and a case that shows the second derivative of what is not
    "selective_scan": (
        ("u.float()[", "u["),
        "bfloat16 family=selective_scan B=1 T=13 D=5 N=5 a~normal/expanded seed=0",
    ),
    "ssd": (("x.float() * d", "x * d"), "bfloat16 family=ssd B=1 T=48 H=3 P=1 N=9 seed=8596"),
}
BEFORE = {"gla": 32, "rwkv7": 16, "selective_scan": 64, "ssd": 128}  # the longest T at which it does not


def checked(name: str, kernel: str, dim: str, examples: int = 6, dtype: str = "float32") -> tuple[int, str]:
    """Exit code and output of a check of forward and VJP."""
    words = ("--device", "cpu", "--dtype", dtype, "--workers", "0", "--property", "[fv]*_matches_the_oracle")
    target = f"examples/recurrences/{name}.py:{kernel}"
    done = gradoracle("check", target, "--examples", str(examples), "--dim", dim, *words, cwd=ROOT)
    return done.returncode, done.stdout + done.stderr


def test_each_example_is_tested() -> None:
    assert {file.stem for file in FOLDER.glob("*.py")} == set(SIZES)


@pytest.mark.parametrize("name", [slow(name) if name == "soft_dtw" else name for name in SIZES])
def test_the_right_kernel_passes_and_the_wrong_one_fails(name: str) -> None:
    code, output = checked(name, "right", SIZES[name])
    assert code == 0, output
    assert re.search(r"^  forward ✓  VJP ✓", output, re.MULTILINE), output
    code, output = checked(name, "wrong", SIZES[name])
    assert code == 1 and "✗ WRONG  " in output, output


@pytest.mark.parametrize("name", BEFORE)
def test_a_bug_at_a_boundary_needs_a_length_beyond_it(name: str) -> None:
    code, output = checked(name, "wrong", f"T=1:{BEFORE[name]}")
    assert code == 0, output


@pytest.mark.parametrize("dtype", [slow("bfloat16"), slow("float16")])
@pytest.mark.parametrize("name", SIZES)
def test_right_kernels_pass_in_16_bits(name: str, dtype: str) -> None:
    code, output = checked(name, "right", SIZES[name], 12, dtype)
    assert code == 0, output


@pytest.mark.parametrize("name", IN_PARTS)
def test_an_input_is_cast_once(name: str, tmp_path: Path) -> None:
    """One that each product casts for itself gets its second derivative in parts, rounded to 16 bits before they are
    added; where they cancel the result has no right digit."""
    (cast, bare), words = IN_PARTS[name]
    source = (FOLDER / f"{name}.py").read_text()
    assert source.count(cast) == 1
    (tmp_path / "kernels.py").write_text(source.replace(cast, bare))
    for target, loses in ((f"examples/recurrences/{name}.py", False), (tmp_path / "kernels.py", True)):
        done = gradoracle(
            "replay", f"case:1 {target}:right cpu {words}", "--property", "hvp_matches_the_oracle", cwd=ROOT
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert ("PRECISION  hvp_matches_the_oracle" in done.stdout) == loses, done.stdout


@pytest.mark.parametrize(("kernel", "expected"), [("right", 0), ("wrong", 1)])
@pytest.mark.parametrize("name", [slow(name, marks=[pytest.mark.timeout(900)]) for name in SIZES])
def test_lengths_of_thousands(name: str, kernel: str, expected: int) -> None:
    if (name, kernel) == ("ctc", "wrong"):
        pytest.skip("of the paths through thousands of steps, few leap over the one blank")
    dim, length = SIZES[name][0], 4096 if name != "soft_dtw" else 1024
    code, output = checked(name, kernel, f"{dim}={length}", 1)
    assert code == expected, output


@pytest.mark.parametrize("name", [slow("gla"), slow("selective_scan")])
def test_a_length_of_a_hundred_thousand(name: str) -> None:
    code, output = checked(name, "right", "T=100000", 1)
    assert code == 0, output


@pytest.mark.parametrize("name", SIZES)
def test_an_example_is_short(name: str) -> None:
    """At most 40 lines, without docstrings and imports."""
    source = (FOLDER / f"{name}.py").read_text()
    aside: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        text = node.body[0] if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) else None
        for one in (node, text):
            if isinstance(one, (ast.Import, ast.ImportFrom)) or (
                isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant) and isinstance(one.value.value, str)
            ):
                aside.update(range(one.lineno, (one.end_lineno or one.lineno) + 1))
    code = [line for place, line in enumerate(source.splitlines(), 1) if line.strip() and place not in aside]
    assert len(code) <= LINES
