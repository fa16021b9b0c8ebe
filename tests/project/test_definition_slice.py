"""Of a file a judge executes what the definition needs, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from gradoracle.model.errors import TargetError
from gradoracle.project.definition_slice import needed, sliced

FILE = '''
from __future__ import annotations
import math, os
import torch
from collections import OrderedDict as Ordered, deque
from somewhere_that_is_not_there import kernel

torch.rsqrt = torch.ones_like
print("imported")
SIZES = {"N": 3}
SIZES["N"] = 4
SIZES.update(M=5)
OTHER = kernel(SIZES)

if math.pi > 3:
    LEAST = 1
else:
    LEAST = 2

try:
    import not_there
except ImportError:
    not_there = None


def helper(x):
    return x + LEAST + SIZES["N"]


class Kept:
    value: "Ordered" = None


def definition(x: "Kept") -> "math.inf":
    """The definition."""
    return helper(x), not_there


@kernel
def mine(x):
    return definition(x)
'''


def kept(text: str, *names: str) -> list[str]:
    return [ast.unparse(each).splitlines()[0] for each in needed(ast.parse(text), names)]


def test_what_a_definition_needs_is_kept_in_order_and_nothing_else() -> None:
    assert kept(FILE, "definition") == [
        "from __future__ import annotations", "import math", "from collections import OrderedDict as Ordered",
        "SIZES = {'N': 3}", "SIZES['N'] = 4", "SIZES.update(M=5)", "if math.pi > 3:", "try:",
        "def helper(x):", "class Kept:", "def definition(x: 'Kept') -> 'math.inf':",
    ]  # fmt: skip


def test_it_is_executed_without_the_rest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import torch

    before, file = torch.rsqrt, tmp_path / "mine.py"
    file.write_text(FILE)
    module = sliced(file, ["definition"])
    assert module.definition(1) == (6, None) and not hasattr(module, "mine")
    assert torch.rsqrt is before and capsys.readouterr().out == ""
    assert module.definition.__code__.co_filename == str(file) and sliced(file, ["definition"]) is module
    file.write_text(FILE.replace("x + LEAST", "x - LEAST"))
    assert sliced(file, ["definition"]).definition(1) == (4, None), "an edited file is read anew"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def other(): pass", "there is no definition definition"),
        ("from not_there import x\ndef definition(a=x): pass", "mine.py, line 1: the definition definition cannot be"),
        ("def definition(:", "cannot be read"),
        ("import sys\nX = sys.exit(0)\ndef definition(a=X): pass", "line 2"),
    ],
)
def test_what_cannot_be_executed_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(text)
    with pytest.raises(TargetError, match=said.replace("(", r"\(")):
        sliced(file, ["definition"])


def test_names_of_a_star_import_are_looked_for_there(tmp_path: Path) -> None:
    (tmp_path / "shared_by_star.py").write_text("LEAST = 7\n")
    file = tmp_path / "mine.py"
    file.write_text("from shared_by_star import *\ndef definition(x):\n    return x + LEAST\n")
    assert sliced(file, ["definition"]).definition(1) == 8
