"""The wheel holds every package of the tree, and a further family is found in it without another file being edited."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOTS = {"gradoracle": "gradoracle", "kernels": "gradoracle/kernels", "properties": "gradoracle/properties"}
META = ("pyproject.toml", "setup.py", "conftest.py", "README.md", "LICENSE")

KERNEL = '''"""Scaling."""
from gradoracle.kernels.fifth.inner import scaled

__all__ = ["scaled"]
'''
INNER = '''"""The kernel's own folder may hold folders."""

import torch


class Scaled(torch.autograd.Function):
    """``x * by``, and the gradient that autograd would have."""

    @staticmethod
    def forward(ctx, x, by):
        """``x * by``."""
        ctx.by = by
        return x * by

    @staticmethod
    def backward(ctx, g):
        """``g * by``."""
        return g * ctx.by, None


def scaled(x, *, by=2.0):
    """``x * by``."""
    return Scaled.apply(x, by)
'''
FAMILY = '''"""Family fifth."""

from gradoracle.kernels.fifth import scaled
from jaxtyping import Float
from torch import Tensor

from gradoracle.model.family import family
from gradoracle.model.kernel import Kernel


def fifth(x: Float[Tensor, "B N"], *, by: float = 2.0) -> Float[Tensor, "B N"]:
    """``x * by``."""
    return x * by


FAMILY = family(fifth, options={"by": (2.0, 0.5)}, dtypes=("float32",))
KERNELS = [Kernel("kernel", "fifth", scaled)]
'''


def run(*words: str, path: Path, cwd: Path) -> str:
    own = {**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, cwd=cwd, env=own)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with a fifth family: one folder in kernels/ and one in properties/."""
    copy = tmp_path_factory.mktemp("tree")
    for name in ROOTS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in META:
        shutil.copy(ROOT / name, copy / name)
    (copy / "kernels" / "fifth" / "inner").mkdir(parents=True)
    (copy / "kernels" / "fifth" / "__init__.py").write_text(KERNEL)
    (copy / "kernels" / "fifth" / "inner" / "__init__.py").write_text(INNER)
    (copy / "properties" / "fifth").mkdir()
    (copy / "properties" / "fifth" / "__init__.py").write_text(FAMILY)
    return copy


@pytest.fixture(scope="module")
def wheel(tree: Path) -> ZipFile:
    """The wheel of that copy, built with the setuptools that is installed."""
    build = "import setuptools.build_meta as b; print('wheel', b.build_wheel('dist'))"
    name = run("-c", build, path=tree, cwd=tree).split()[-1]
    return ZipFile(tree / "dist" / name)


def test_every_package_of_the_tree_is_in_the_wheel(tree: Path, wheel: ZipFile) -> None:
    folders = {
        "/".join((inside, *init.parent.relative_to(tree / top).parts))
        for top, inside in ROOTS.items()
        for init in (tree / top).rglob("__init__.py")
    }
    held = {name.removesuffix("/__init__.py") for name in wheel.namelist() if name.endswith("/__init__.py")}
    assert held == folders and {"gradoracle/kernels/fifth/inner", "gradoracle/kernels/sdpa"} <= held
    assert "gradoracle/py.typed" in wheel.namelist()


def test_the_wheel_has_no_other_top_level_name(wheel: ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert "gradoracle" in tops and {top for top in tops if not top.endswith(".dist-info")} == {"gradoracle"}


def test_a_fifth_family_is_listed_and_checked_with_nothing_else_edited(wheel: ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    listed = run("-m", "gradoracle", "list", path=tmp_path, cwd=tmp_path)
    assert "\n  fifth(x[B N], *, by=2.0) -> out[B N]\n      kernels: kernel\n" in listed
    words = ("check", "fifth", "--device", "cpu", "--examples", "6", "--workers", "0", "--property", "vjp_matches*")
    checked = run("-m", "gradoracle", *words, path=tmp_path, cwd=tmp_path)
    assert "✓ fifth: every checked property holds" in checked
    found = run("-c", "import gradoracle.kernels.fifth as f; print(f.__file__)", path=tmp_path, cwd=tmp_path)
    assert Path(found.strip()).is_relative_to(tmp_path)


def test_pytest_over_properties_has_the_fifth_familys_properties(tree: Path, wheel: ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "installed")
    for name in ("pyproject.toml", "conftest.py"):  # beside properties/ and away from the tree's own gradoracle/
        shutil.copy(tree / name, tmp_path / name)
    shutil.copytree(tree / "properties", tmp_path / "properties")
    words = ("-m", "pytest", "properties", "--family", "fifth", "--examples", "2", "-n", "0", "-k", "vjp_matches")
    out = run(*words, "-p", "no:cacheprovider", "-q", path=tmp_path / "installed", cwd=tmp_path)
    assert "1 passed" in out, "one property in one dtype"


def test_a_fifth_family_is_mutated_and_gated_with_nothing_else_edited(tree: Path, tmp_path: Path) -> None:
    """In a working tree of its own, whose kernel then loses a factor in its gradient."""
    own, view = tmp_path / "own", tmp_path / "view" / "gradoracle"
    shutil.copytree(tree, own, ignore=shutil.ignore_patterns("__pycache__", "dist", "build", "editable", "*.egg-info"))
    view.mkdir(parents=True)  # the packages put together, as an editable install does
    for place in (*(own / "gradoracle").iterdir(), own / "kernels", own / "properties"):
        (view / place.name).symlink_to(place)
    program = f"import sys; sys.path[0] = {str(view.parent)!r}; from gradoracle.__main__ import main; main()"
    few = ("--examples", "6", "--workers", "1")
    mutated = run("-c", program, "mutate", "fifth", "--mutants", "4", *few, path=view.parent, cwd=own)
    assert "score 1.000" in mutated
    git = ("git", "-C", str(own), "-c", "user.name=a", "-c", "user.email=a@b.c")
    for words in (("init", "-q"), ("add", "-A"), ("commit", "-qm", "base")):
        subprocess.run([*git, *words], check=True)
    kernel = own / "kernels" / "fifth" / "inner" / "__init__.py"
    kernel.write_text(kernel.read_text().replace("return g * ctx.by, None", "return g, None"))
    command = [sys.executable, "-c", program, "gate", "--base", "HEAD", "fifth", "--device", "cpu", *few]
    variables = {**os.environ, "PYTHONPATH": str(view.parent), "GRADORACLE_CACHE": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=own, env=variables)
    assert done.returncode == 1 and "vjp_matches_the_oracle" in done.stdout, done.stdout + done.stderr


def test_an_editable_install_maps_the_three_folders(tree: Path, tmp_path: Path) -> None:
    build = "import setuptools.build_meta as b; print('wheel', b.build_editable('editable'))"
    name = run("-c", build, path=tree, cwd=tree).split()[-1]
    ZipFile(tree / "editable" / name).extractall(tmp_path)
    torch = "import sys; from types import SimpleNamespace as N; sys.modules['torch'] = N(autograd=N(Function=object))"
    imports = (
        f"{torch}; import site; site.addsitedir('.');"
        "import gradoracle.kernels.fifth.inner as i, gradoracle.properties as p"
    )
    spec = (
        "import importlib.util as u; print(i.__file__, p.__file__, u.find_spec('kernels'), u.find_spec('properties'))"
    )
    found = run("-S", "-c", f"{imports}; {spec}", path=tmp_path, cwd=tmp_path).split()
    assert found == [
        str(tree / "kernels/fifth/inner/__init__.py"),
        str(tree / "properties/__init__.py"),
        "None",
        "None",
    ]
