"""What compilations gave is looked up by their TTIR: never for another kernel, and as it would be compiled anew."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from gradoracle.properties import offline

from gradoracle.model import cache
from gradoracle.model.cache import Cache

SOURCE = """
import triton
import triton.language as tl


@triton.jit
def scaled_product(x, y, out, scale, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tile = i[:, None] * SIZE + i[None, :]
    product = tl.dot(tl.load(x + tile), tl.load(y + tile))
    tl.store(out + tile, product * scale)


def compilations(dtype):
    kinds = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "scale": "fp32", "SIZE": "constexpr"}
    yield "product", scaled_product, kinds, {"SIZE": 32}, {"num_warps": 4}
"""
WIDER = {"product": {"SIZE": 64}}


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of what is kept, with nothing in it, and nothing kept in this process."""
    monkeypatch.setenv(cache.VARIABLE, str(tmp_path / "cache"))
    offline._compiled.cache_clear()
    yield tmp_path / "cache" / "compiled"
    offline._compiled.cache_clear()


def kernel(folder: Path, text: str = SOURCE) -> ModuleType:
    """A file of a kernel, imported."""
    folder.mkdir(exist_ok=True)
    file = folder / f"{folder.name}_kernels.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def allotted(module: ModuleType, changed: Any = None) -> offline.Allotments:
    """What its compilations take, by another process."""
    offline._compiled.cache_clear()
    return offline.allotments(module.compilations, "float32", changed)


def planted(kept: Path) -> None:
    """Have all that is kept say 7 bytes."""
    entries = Cache("compiled", kept.parent)
    for file in kept.iterdir():
        entries.write(file.name, {**entries.read(file.name), "bytes": 7})


def taken(found: offline.Allotments) -> list[int]:
    assert all(isinstance(each, offline.Allotment) for each in found.values())
    return [each.bytes for each in found.values() if isinstance(each, offline.Allotment)]


def test_the_same_kernel_is_looked_up_wherever_it_lies(kept: Path, tmp_path: Path) -> None:
    first = kernel(tmp_path / "one")
    found = allotted(first)
    assert len(found) == len(offline.SHARED_MEMORY) == 4 and min(taken(found)) > 7
    assert len(list(kept.iterdir())) == 8  # by source and by TTIR
    assert allotted(first) == found
    elsewhere = allotted(kernel(tmp_path / "another"))
    assert {place for each in elsewhere.values() for place in each.origins if "one_kernels" in place} == set()  # type: ignore[union-attr]
    texts = [str(each).replace("another/another_kernels", "one/one_kernels") for each in elsewhere.values()]
    assert texts == [str(each) for each in found.values()]
    planted(kept)
    assert taken(allotted(kernel(tmp_path / "third"))) == [7] * 4 and len(list(kept.iterdir())) == 16


CALLER = """
import triton
import triton.language as tl

import one_called


@triton.jit
def caller(x, out, SIZE: tl.constexpr):
    one_called.scaled(x, out, SIZE)


def compilations(dtype):
    yield "caller", caller, {"x": "*fp32", "out": "*fp32", "SIZE": "constexpr"}, {"SIZE": 32}, {"num_warps": 4}
"""
CALLED = """
import triton
import triton.language as tl


@triton.jit
def scaled(x, out, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tile = i[:, None] * SIZE + i[None, :]
    values = tl.load(x + tile)
    tl.store(out + tile, tl.dot(values, values))
"""


def test_a_function_that_a_kernel_calls_may_move_in_a_file_of_its_own(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "one"))
    places = []
    for text in (CALLED, f"# a line more\n{CALLED}"):
        (tmp_path / "one" / "one_called.py").write_text(text)
        monkeypatch.delitem(sys.modules, "one_called", raising=False)
        importlib.invalidate_caches()
        found = _all(allotted(kernel(tmp_path / "one", CALLER)))
        assert len(found) == 4 and len(list(kept.iterdir())) == 8 + 4 * len(places)  # of its TTIR it is known
        places.append([place for each in found for place in each.origins])
    assert places[0] and all("one_called" in place for place in places[0]) and places[0] != places[1]


def test_lines_and_names_of_values_do_not_matter(kept: Path, tmp_path: Path) -> None:
    """What is kept of a kernel is found again where its lines have moved, and says what lies where it now stands."""
    first = allotted(kernel(tmp_path / "one"))
    moved = SOURCE.replace("tile", "square").replace("    product =", "\n    # the product\n    product =")
    fresh = _without(kept, lambda: allotted(kernel(tmp_path / "two", moved)))
    again = allotted(kernel(tmp_path / "two", moved))
    assert again == fresh and [each.bytes for each in _all(again)] == taken(first)
    lines = [{place.rpartition(":")[0].rpartition(":")[2] for each in _all(found) for place in each.origins}
             for found in (first, again)]  # fmt: skip
    assert all(lines) and lines[0] != lines[1]
    planted(kept)
    assert taken(allotted(kernel(tmp_path / "three", moved))) == [7] * 4


def _all(found: offline.Allotments) -> list[offline.Allotment]:
    return [each for each in found.values() if isinstance(each, offline.Allotment)]


def _without(kept: Path, compiled: Callable[[], offline.Allotments]) -> offline.Allotments:
    """What a call gives where nothing is kept."""
    aside = kept.rename(kept.with_name("aside"))
    found = compiled()
    shutil.rmtree(kept)
    aside.rename(kept)
    return found


@pytest.mark.parametrize(
    ("before", "after"),
    [("product * scale", "product + scale"), ('"SIZE": 32', '"SIZE": 64'), ('"num_warps": 4', '"num_warps": 8'),
     ('"x": "*fp32"', '"x": "*fp16"')],
)  # fmt: skip
def test_another_kernel_is_compiled(kept: Path, tmp_path: Path, before: str, after: str) -> None:
    allotted(kernel(tmp_path / "one"))
    planted(kept)
    assert before in SOURCE
    other = SOURCE.replace(before, after).replace('"y": "*fp32"', '"y": "*fp16"' if "fp16" in after else '"y": "*fp32"')
    assert min(taken(allotted(kernel(tmp_path / "two", other)))) > 7 and len(list(kept.iterdir())) == 16


def test_changed_constants_and_shapes_are_kept_apart(kept: Path, tmp_path: Path) -> None:
    module = kernel(tmp_path / "one")
    plain = allotted(module)
    same = allotted(module, {"product": {"SIZE": 32}})
    assert all(each.shapes for each in same.values()) and not any(each.shapes for each in plain.values())  # type: ignore[union-attr]
    wider = allotted(module, WIDER)
    assert len(list(kept.iterdir())) == 24 and wider == allotted(module, WIDER) and wider != same
    assert plain == allotted(module) and same == allotted(module, {"product": {"SIZE": 32}})


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"bytes": 7}', "\x00"])
def test_what_cannot_be_read_is_compiled_again(
    kept: Path, tmp_path: Path, text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    module = kernel(tmp_path / "one")
    found = allotted(module)
    for file in kept.iterdir():
        file.write_text(text)
    capfd.readouterr()
    assert allotted(module) == found
    said = capfd.readouterr().err
    assert said.count("is damaged") == 1 and "computed again" in said
    planted(kept)
    assert taken(allotted(module)) == [7] * 4  # they were written anew


def test_where_nothing_can_be_kept_everything_is_compiled(kept: Path, tmp_path: Path) -> None:
    kept.parent.write_text("a file in the place of a folder")
    found = allotted(kernel(tmp_path / "one"))
    assert min(taken(found)) > 7 and kept.parent.is_file()


def test_what_does_not_compile_is_not_kept(kept: Path, tmp_path: Path) -> None:
    wrong = SOURCE.replace("tl.store(out + tile", "tl.store(out + i")
    for _ in range(2):
        assert all(isinstance(each, str) for each in allotted(kernel(tmp_path / "one", wrong)).values())
    assert not kept.exists()
