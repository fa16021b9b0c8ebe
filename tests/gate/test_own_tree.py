"""The gate in gradoracle's own tree, where a change may break what the families import."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from gate.project import Project

ROOT = Path(__file__).resolve().parents[2]
PIECES = ("pyproject.toml", "gradoracle", "kernels", "properties")


@pytest.fixture
def tree(tmp_path: Path) -> Project:
    """This tree with one commit; what runs it is installed elsewhere."""
    made = Project(tmp_path / "tree")
    made.folder.mkdir()
    for name in PIECES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, made.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, made.folder)
    made.git("init", "--quiet", "--initial-branch=main")
    made.commit("the base")
    return made


def test_a_shipped_kernel_that_cannot_be_imported_is_red_and_no_fault_of_gradoracle(tree: Project) -> None:
    file = "kernels/lse/fused.py"
    lines = (tree.folder / file).read_text().count("\n")
    with (tree.folder / file).open("a") as appended:
        appended.write("def broken(:\n")
    code, out, _ = tree.gate("--base", "main", "lse")
    said = (
        f"the change cannot be checked: lse cannot be imported: SyntaxError: invalid syntax ({file}, line {lines + 1})"
    )
    assert code == 1 and said in " ".join(out.split())
    tree.git("checkout", "--quiet", ".")
    tree.edit("kernels/lse/__init__.py", ("import lse\n", "import lsee as lse\n"))
    code, out, _ = tree.gate("--base", "main", "lse")
    assert code == 1 and "cannot import name 'lsee'" in " ".join(out.split())


def test_a_property_that_cannot_be_imported_is_gradoracle_s_own_fault(tree: Project) -> None:
    with (tree.folder / "properties/lse/__init__.py").open("a") as appended:
        appended.write("1 / 0\n")
    tree.commit()
    tree.edit("kernels/lse/fused.py", ("total", "sum_of_tiles"))
    code, _, said = tree.gate("--base", "HEAD", "lse")
    assert code == 3 and "ZeroDivisionError" in said
