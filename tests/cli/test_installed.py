"""In a clone of gradoracle, no command answers for kernels that are not the clone's."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from places import ROOT
from programs import gradoracle

from gradoracle.cli.installed import require_kernels_of_the_tree
from gradoracle.model.errors import UsageError

ROOT = ROOT
CASE = "case:1 sdpa cpu float32 B=1 H=1 T=1 D=1 M=1 Dv=1 seed=0"


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shipped kernels in a clone that is not what is installed; the current folder is below its top."""
    shutil.copytree(ROOT / "kernels", tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    for package in ("gradoracle", "properties"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path / "kernels")
    return tmp_path


@pytest.mark.parametrize("file", ["sdpa/gradients.py", "tiles.py"])
def test_a_kernel_that_differs_from_the_installed_one_is_refused(clone: Path, file: str) -> None:
    require_kernels_of_the_tree(["sdpa:attention"])
    with (clone / "kernels" / file).open("a") as edited:
        edited.write("# edited\n")
    with pytest.raises(UsageError, match=rf"^sdpa means the installed .*, which differs from kernels/{file} "):
        require_kernels_of_the_tree(["sdpa:attention"])


def test_a_file_more_or_less_is_a_difference_too(clone: Path) -> None:
    (clone / "kernels/lse/more.py").touch()
    with pytest.raises(UsageError, match=r"kernels/lse/more\.py"):
        require_kernels_of_the_tree(["lse"])
    (clone / "kernels/sdpa/moments.py").unlink()
    with pytest.raises(UsageError, match=r"kernels/sdpa/moments\.py"):
        require_kernels_of_the_tree(["sdpa"])


def test_other_families_and_targets_of_other_people_are_as_they_are(clone: Path) -> None:
    (clone / "kernels/lse/fused.py").write_text("")
    require_kernels_of_the_tree(["sdpa", "torch.nn.functional:scaled_dot_product_attention", "lse/fused.py", "nothing"])


def test_outside_of_gradoracle_s_own_tree_nothing_is_asked(clone: Path) -> None:
    (clone / "kernels/lse/fused.py").write_text("")
    (clone / "properties/__init__.py").unlink()
    require_kernels_of_the_tree(["lse"])


@pytest.mark.parametrize("words", [("check", "sdpa"), ("check", "all"), ("replay", CASE), ("mutate", "sdpa")])
def test_the_commands_that_run_a_kernel_say_so(clone: Path, words: tuple[str, ...]) -> None:
    (clone / "kernels/sdpa/gradients.py").write_text("")
    done = gradoracle(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("gradoracle: sdpa means ")
    assert "differs from kernels/sdpa/gradients.py" in done.stderr
    assert done.stderr.count("\n") == 1
