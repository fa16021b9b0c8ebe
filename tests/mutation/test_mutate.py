"""`gradoracle mutate`: from a target to a score; what it cannot mutate it says in one sentence."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import programs
import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PLAIN = """
import gradoracle
from jaxtyping import Float
from torch import Tensor


@gradoracle.family(dims={{"N": gradoracle.sizes(1, 40)}}, dtypes=("float32",))
def twice(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    return 2 * x


@gradoracle.kernel(twice)
def kernel(x):
    return {body}
"""


def mutate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder."""
    return programs.gradoracle("mutate", *words, cwd=folder)


def test_faults_of_a_users_kernel_are_caught_and_known_the_next_time(tmp_path):
    shutil.copy(ROOT / "examples" / "rmsnorm.py", tmp_path)
    words = ("rmsnorm.py", "--mutants", "8", "--examples", "9", "--format", "json", "--output", "found.json")
    ran = mutate(tmp_path, *words)
    assert ran.returncode == 0, ran.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["schema"] == "gradoracle-mutation/2" and found["cases"] == 9 and len(found["mutants"]) == 8
    assert len({each["operator"] for each in found["mutants"]}) == 8, "operators take turns"
    killed = [each for each in found["mutants"] if each["fate"] == "killed"]
    assert len(killed) >= 3 and all(each["property"] and each["case"] and each["seconds"] > 0 for each in killed)
    assert f"score {found['score']:.3f}" in ran.stdout
    again = mutate(tmp_path, *words)
    assert again.returncode == 0 and "8 of them known" in again.stdout
    assert json.loads((tmp_path / "found.json").read_text())["mutants"] == found["mutants"]
    (tmp_path / "rmsnorm.py").write_text((tmp_path / "rmsnorm.py").read_text() + "\n# another file\n")
    cut = mutate(tmp_path, *words[:5], "--seconds", "0.01", "--workers", "1")
    assert cut.returncode == 4 and "8 not run" in cut.stdout, "outcomes of another source were taken for this one's"


def test_an_interrupted_run_reports_what_it_knows_and_goes_on_where_it_ended(tmp_path):
    shutil.copy(ROOT / "examples" / "rmsnorm.py", tmp_path)
    words = ("rmsnorm.py", "--mutants", "8", "--examples", "9", "--workers", "1")
    command = [sys.executable, "-m", "gradoracle", "mutate", *words]
    ran = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    assert ran.stderr is not None
    assert any("2 of 8 mutants" in line for line in ran.stderr), "it ended before that"  # the first is on the disk
    os.killpg(ran.pid, signal.SIGINT)  # as ctrl-C does, to the workers too
    said, wrong = ran.communicate(timeout=60)
    assert ran.returncode == 4 and "Traceback" not in wrong, wrong
    assert "interrupted; " in said and "resumes" in said and "not run" in said
    again = mutate(tmp_path, *words)
    assert again.returncode == 0 and " of them known" in again.stdout, again.stderr
    assert "1 of 8 mutants" not in again.stderr, "all were tried again, survivors among them"


@pytest.mark.parametrize(
    ("body", "words", "code", "said"),
    [
        (
            "2 * x",
            (),
            2,
            "gradoracle: plain.py has nothing to mutate; expected a function decorated with triton.jit, an ",
        ),
        ("3 * x", ("--source", "torch.nn.parameter"), 2, "has nothing to mutate"),
        ("2 * x", ("--source", "no.such.module"), 2, "gradoracle: --source no.such.module: cannot be imported: "),
        ("2 * x", ("--equivalents", "none.toml"), 2, "gradoracle: --equivalents none.toml: no such file"),
        ("2 * x", ("--since", "none.json"), 2, "gradoracle: --since none.json: no such file"),
        ("2 * x", ("--mutants", "some"), 2, "expected a number, or all"),
        ("2 * x", ("--least", "2"), 2, "gradoracle: --least must be from 0 to 1, got 2"),
        ("2 * x", ("--workers", "0"), 2, "gradoracle: --workers must be at least 1, got 0"),
    ],
)
def test_what_cannot_be_mutated_is_one_sentence(tmp_path, body, words, code, said):
    (tmp_path / "plain.py").write_text(PLAIN.format(body=body))
    ran = mutate(tmp_path, "plain.py", *words)
    assert ran.returncode == code and said in ran.stderr and "Traceback" not in ran.stderr, ran.stderr


def test_options_of_check_hold_for_every_case(tmp_path):
    """The kernel is right with one value of its option alone, and has one dtype of the family."""
    text = (ROOT / "examples" / "rmsnorm.py").read_text()
    text = text.replace('w, *, eps=1e-6):\n    """RMSNorm in', 'w, *, eps=1e-6, factor=2):\n    """RMSNorm in')
    text = text.replace("_RMSNorm.apply(x, w, eps)", "_RMSNorm.apply(x, w, eps) * factor")
    (tmp_path / "scaled.py").write_text(text)
    words = ("scaled.py", "--mutants", "1", "--examples", "6", "--dtype", "bfloat16")
    wrong = mutate(tmp_path, *words)
    assert wrong.returncode == 1 and "forward_matches_the_oracle in bfloat16" in wrong.stderr, wrong.stderr
    shown = wrong.stderr.rpartition(": ")[2].removesuffix(" shows the case\n")
    asked = ["scaled.py", "--dtype", "bfloat16", "--examples", "6", "--device", "cpu"]
    assert shlex.split(shown) == ["gradoracle", "check", *asked]
    options = ("--arg", "factor=1", "--contract", "bfloat16=eager-bf16", "--format", "json", "--output", "one.json")
    right = mutate(tmp_path, *words, *options)
    assert right.returncode == 0 and "unmutated kernel on 6 cases" in right.stdout, right.stderr
    said = ["--dtype bfloat16", "--contract bfloat16=eager-bf16", "--arg factor=1"]
    assert json.loads((tmp_path / "one.json").read_text())["options"] == said
    again = mutate(tmp_path, *words, "--arg", "factor=1", "--since", "one.json")
    assert "of them known" not in again.stdout, "outcomes under another contract are not these"
    assert "one.json" in again.stdout and f"of other options: {' '.join(said)}" in again.stdout


def test_a_kernel_that_violates_a_property_is_reported_and_not_mutated(tmp_path):
    text = (ROOT / "examples" / "rmsnorm.py").read_text()
    (tmp_path / "wrong.py").write_text(text.replace("r * gw - x", "r * gw + x"))
    ran = mutate(tmp_path, "wrong.py", "--mutants", "2", "--examples", "6")
    assert ran.returncode == 1
    last = ran.stderr.strip().splitlines()[-1]
    assert "unmutated" in last and "triton_rmsnorm violates vjp_matches_the_oracle" in last, ran.stderr
