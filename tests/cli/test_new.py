"""``gradoracle new``: what it writes runs once the definition is filled in, and is an error before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from programs import Run

FEW = ("--device", "cpu", "--workers", "0", "--examples", "3", "--property", "[fv][oj][rp]*_matches_the_oracle")

MINE = """
import torch
from torch import nn

def scaled(x, w, mask, eps=0.5):
    return (x * w + eps).masked_fill(mask, 0.0)

def picked(table, index):
    return table[index.long()]

def chosen(table, index):
    return table[index.long()], index + 1, index > 3

def anything(*args):
    return args[0]

def inputs():
    return torch.randn(4, 7), torch.randn(7), torch.rand(4, 7) > 0.5

def options():
    return torch.randn(4, 7), torch.randn(7), torch.rand(4, 7) > 0.5, 0.25

def picks():
    return torch.randn(11, 3), torch.randint(0, 11, (5,), dtype=torch.int32)

layer = nn.Linear(7, 3)

def rows():
    return torch.randn(4, 7)
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The current folder holds mine.py."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)


def filled(file: Path, line: str) -> None:
    """Fill in a definition."""
    text, count = re.subn(r"raise NotImplementedError\(.*\)", line, file.read_text())
    assert count == 1
    file.write_text(text)


@pytest.mark.parametrize(
    ("kernel", "like", "right", "wrong"),
    [
        ("scaled", ("--like", "mine.py:inputs"), "(x * w + 0.5).masked_fill(mask, 0.0)", "x * w * (1 + 0 * mask)"),
        (
            "scaled",
            ("--like", "options"),
            "(x * w + eps).masked_fill(mask, 0.0)",
            "(x * w + eps).masked_fill(~mask, 0.0)",
        ),
        ("picked", ("--like", "mine.py:picks"), "table[index.long()]", "2 * table[index.long()]"),
        (
            "chosen",
            ("--like", "mine.py:picks"),
            "table[index.long()], index + 1, index > 3",
            "2 * table[index.long()], index + 1, index > 3",
        ),
        ("layer", ("--like", "mine.py:rows"), "input @ weight.T + bias", "input @ weight.T + 2 * bias"),
    ],
)
def test_what_it_writes_runs_once_the_definition_is_filled_in(
    run: Run, kernel: str, like: tuple[str, ...], right: str, wrong: str
) -> None:
    file = Path(f"{kernel}_family.py")
    code, out, err = run("new", f"mine.py:{kernel}", *like)
    assert (code, err) == (0, "") and out.startswith(f"{file} is written") and "fill in" in out
    code, out, err = run("check", str(file), *FEW)
    assert (code, out) == (2, "") and f"fill in {kernel}_definition in {file}, then run" in err
    empty = file.read_text()
    filled(file, f"return {right}")
    assert run("check", str(file), *FEW)[0] == 0
    file.write_text(empty)
    filled(file, f"return {wrong}")
    assert run("check", str(file), *FEW)[0] == 1


def test_without_an_example_the_parameters_without_a_default_are_tensors(run: Run) -> None:
    assert run("new", "mine.py:scaled")[0] == 0
    text = Path("scaled_family.py").read_text()
    assert 'x: Float[Tensor, "B N"]' in text and "eps: float = 0.5" in text and "# correct the dims" in text


def test_an_existing_file_is_overwritten_only_with_force(run: Run) -> None:
    Path("scaled_family.py").write_text("mine")
    code, _, err = run("new", "mine.py:scaled")
    assert code == 2 and "scaled_family.py exists" in err and "--output" in err and "--force" in err
    assert Path("scaled_family.py").read_text() == "mine"
    assert run("new", "mine.py:scaled", "--force")[0] == 0
    assert run("new", "mine.py:scaled", "--output", "other.py")[0] == 0 and Path("other.py").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("mine.py",), "target 'mine.py' is invalid; expected path/to/file.py:kernel"),
        (("mine.py:gone",), "has no callable named 'gone'"),
        (("gone.py:f",), "no file gone.py"),
        (("mine.py:anything",), "takes any arguments; give an example of them with --like"),
        (("mine.py:scaled", "--like", "mine.py:rows"), "missing a required argument: 'w'"),
        (("mine.py:scaled", "--output", "x.txt"), "is no Python file"),
        (("mine.py:scaled", "--output", "no/x.py"), "no/x.py cannot be written"),
    ],
)
def test_a_mistake_is_one_sentence(run: Run, words: tuple[str, ...], says: str) -> None:
    code, out, err = run("new", *words)
    assert (code, out) == (2, "") and says in err and len(err.splitlines()) == 1


@pytest.mark.parametrize(("like", "is_said"), [("square", True), ("oblong", False)])
def test_sizes_that_are_equal_are_one_dim_and_the_file_says_so(
    run: Run, tmp_path: Path, like: str, is_said: bool
) -> None:
    (tmp_path / "mine.py").write_text(
        "import torch\n\ndef twice(x):\n    return 2 * x\n\n"
        "def square():\n    return (torch.randn(4, 4),)\n\ndef oblong():\n    return (torch.randn(4, 5),)\n"
    )
    assert run("new", "mine.py:twice", "--like", f"mine.py:{like}")[0] == 0
    said = "# equal sizes of the example are one dim; give those that are equal by chance names of their own"
    assert (said in Path("twice_family.py").read_text()) is is_said
