"""Where a kernel is written: on the line of its ``def``, relative to the working tree, whatever it is wrapped in."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest

from gradoracle.model.kernel import Kernel
from gradoracle.model.location import location_of, working_tree

SOURCE = '''"""Kernels."""
import functools


def kept(call):
    @functools.wraps(call)
    def inner(*given):
        return call(*given)
    return inner


@kept
@functools.lru_cache(
    maxsize=None,
)
def decorated(x):
    return x


class Called:
    def __call__(self, x):
        return x

    def method(self, x):
        return x


partial = functools.partial(functools.partial(decorated), 1)
instance = Called()
bound = instance.method
anonymous = lambda x: x
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    (tmp_path / ".git").mkdir()
    folder = tmp_path / "of kernels"
    folder.mkdir()
    (folder / "located_kernels.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(folder))
    import importlib

    yield importlib.import_module("located_kernels")
    sys.modules.pop("located_kernels")


LINES = {"decorated": 16, "partial": 16, "instance": 21, "bound": 24, "anonymous": 31}


@pytest.mark.parametrize("name", LINES)
def test_the_line_is_that_of_the_definition(module: object, name: str, tmp_path: Path) -> None:
    kernel = Kernel(name, "f", getattr(module, name))
    for folder in (tmp_path, tmp_path / "of kernels"):
        found = location_of(kernel, folder)
        assert found is not None and (found.file, found.line) == ("of kernels/located_kernels.py", LINES[name])


def test_a_kernel_elsewhere_or_without_a_source_has_none(module: object, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / ".git").mkdir(parents=True)
    assert location_of(Kernel("k", "f", module.decorated), other) is None  # type: ignore[attr-defined]
    assert location_of(Kernel("k", "f", len), tmp_path) is None
    assert location_of(Kernel("k", "f", functools.partial(print)), tmp_path) is None


def test_a_folder_without_a_repository_is_its_own_tree(tmp_path: Path) -> None:
    assert working_tree(tmp_path) in (tmp_path.resolve(), *tmp_path.resolve().parents)
    (tmp_path / ".git").write_text("gitdir: elsewhere\n")
    assert working_tree(tmp_path) == tmp_path.resolve()
