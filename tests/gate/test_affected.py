"""Which functions a change touches, and that the cases that ran one of them come first."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate.answers import answer, named

from gradoracle.gate.affected import affected
from gradoracle.model.ledger import JudgeRecord

FILES = {
    "kernels/near.py": '''
"""Near."""
import triton
from kernels.tiles import load

FAR = 1024
SCALE = 0.5


@triton.jit
def near_kernel(x, SIZE: int):
    load(x, SIZE)


def near(x):
    if x > FAR:
        return far(x)
    return near_kernel[(1,)](x, 4)


def far(x):
    return x * SCALE


class Near:
    def forward(self, x):
        return near(x)

    def backward(self, x):
        return x
''',
    "kernels/tiles.py": """
import triton


@triton.jit
def load(x, SIZE):
    return masked(x)


@triton.jit
def masked(x):
    return x
""",
}
LINES = {
    "near_kernel": "kernels/near.py:11",  # as an interpreted kernel has it: where its def is
    "near": "kernels/near.py:15",
    "far": "kernels/near.py:21",
    "forward": "kernels/near.py:26",
    "backward": "kernels/near.py:29",
}
CALLED = {"short": ("forward", "near", "near_kernel"), "long": ("forward", "near", "far"), "back": ("backward",)}


def tree(folder: Path, file: str = "", before: str = "", after: str = "") -> Path:
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        assert name != file or before in text
        (folder / name).write_text(text.replace(before, after) if name == file else text)
    return folder


@pytest.mark.parametrize(
    ("file", "before", "after", "expected"),
    [
        ("kernels/near.py", "return x * SCALE", "return x / SCALE", ["long"]),
        ("kernels/near.py", "SCALE = 0.5", "SCALE = 0.25", ["long"]),  # the function that uses it
        ("kernels/near.py", "FAR = 1024", "FAR = 512", ["short", "long"]),
        ("kernels/near.py", "    load(x, SIZE)", "    load(x, SIZE + 1)", ["short"]),
        ("kernels/near.py", "backward(self, x):\n        return x", "backward(self, x):\n        return -x", ["back"]),
        ("kernels/near.py", '"""Near."""', '"""Near and far."""\n# a comment\n', []),
        ("kernels/tiles.py", "    return x\n", "    return x + 0\n", ["short"]),  # at two removes of a launch
        ("kernels/near.py", "def far(x):\n    return x * SCALE\n", "", ["long"]),
    ],
)  # fmt: skip
def test_cases_that_ran_what_a_change_touches(
    tmp_path: Path, file: str, before: str, after: str, expected: list[str]
) -> None:
    there, here = tree(tmp_path / "there"), tree(tmp_path / "here", file, before, after)
    called = {number: [LINES[name] for name in names] for number, names in enumerate(CALLED.values())}
    base = answer(dict.fromkeys(called, ()), called=called, judge=JudgeRecord(files=dict.fromkeys(FILES, "0")))
    lines = dict(zip(CALLED, map(named, called), strict=True))
    assert affected(base, [file], there, here) == [lines[name] for name in expected]


def test_the_lines_are_those_of_the_file(tmp_path: Path) -> None:
    lines = FILES["kernels/near.py"].splitlines()
    for name, place in LINES.items():
        assert f"def {name}(" in lines[int(place.rpartition(":")[2]) - 1]
