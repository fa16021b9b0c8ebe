"""Which files and packages make a run: what a kernel reads and is, and nothing that a check leaves behind."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import pytest

from gradoracle.check.run import check
from gradoracle.cli import main
from gradoracle.model.errors import UsageError
from gradoracle.model.ledger_file import read
from gradoracle.project import provenance
from gradoracle.project.provenance import files_of, packages_of
from gradoracle.project.request import Request
from tests.check.test_ledgers import FILE, FORWARD, merge, written


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A kernel in a folder of its own, which is the current one."""
    file = tmp_path / "own.py"
    file.write_text(FILE.read_text())
    monkeypatch.chdir(tmp_path)
    return file


def shard(file: Path, part: int) -> Path:
    asked = Request(f"{file}:right", device="cpu", property=FORWARD, examples=4, workers=0, shard=(part, 2))
    path = file.with_name(f"shard_{part}.jsonl")
    path.unlink(missing_ok=True)
    written(path, asked)
    return path


@pytest.mark.parametrize("name", ["tuned.json", "tuned.toml", "tuned.yaml", "lib.so", "kernel.cubin", "weights.pt"])
def test_another_table_or_library_of_the_kernel_is_another_run(own: Path, name: str) -> None:
    own.with_name(name).write_text('{"BLOCK": 64}')
    first = shard(own, 1)
    assert merge([first, shard(own, 2)]), "the same content, and the report of another shard"
    own.with_name(name).write_text('{"BLOCK": 128}')
    with pytest.raises(UsageError, match=f"come from different runs: the content of {name} is "):
        merge([first, shard(own, 2)])


def test_what_a_check_writes_is_no_part_of_a_kernel(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_of([], f"{own}:right")
    assert list(before) == ["own.py"]
    words = ["check", f"{own}:right", "--property", FORWARD, "--examples", "2", "--device", "cpu", "--workers", "0"]
    words += ["--ledger", str(own.with_name("found.jsonl"))]
    for format, name in (("json", "found.json"), ("sarif", "found.sarif.json"), ("terminal", "found.txt")):
        words += ["--format", format, "--output", name]
    assert main.run(words) == 0 and own.with_name("found.sarif.json").is_file()
    capsys.readouterr()
    own.with_name("baseline.json").write_text(json.dumps({"schema": "gradoracle-baseline/1"}))
    assert files_of([], f"{own}:right") == before


def test_a_text_of_a_package_is_part_of_it_and_a_broken_table_too(own: Path) -> None:
    own.with_name("table.txt").write_text("64")
    own.with_name("table.json").write_text("no json")
    assert sorted(files_of([], f"{own}:right")) == ["own.py", "table.json"]
    own.with_name("__init__.py").touch()
    assert {"table.txt", "table.json", "own.py"} <= set(files_of([], f"{own}:right"))


def test_the_package_of_a_kernel_is_reported_with_its_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site-packages"
    (site / "fast_product").mkdir(parents=True)
    (site / "fast_product" / "__init__.py").write_text("def product(x, w):\n    return x * w\n")
    (site / "fast_product-2.5+cu122.dist-info").mkdir()
    (site / "fast_product-2.5+cu122.dist-info" / "METADATA").write_text("Name: fast-product\nVersion: 2.5+cu122\n")
    (site / "fast_product-2.5+cu122.dist-info" / "top_level.txt").write_text("fast_product\n")
    monkeypatch.syspath_prepend(str(site))
    provenance._distributions.cache_clear()
    asked = Request("fast_product:product", f"{FILE}:scaled", "cpu", property=FORWARD, examples=4, workers=0)
    try:
        written(tmp_path / "shard.jsonl", dataclasses.replace(asked, shard=(1, 2)))
        (ledger,) = read(tmp_path / "shard.jsonl")
        assert ledger.header.packages == {"fast-product": "2.5"}
        assert packages_of([importlib.import_module("json").loads, len, check]) == {}
    finally:
        provenance._distributions.cache_clear()
        sys.modules.pop("fast_product", None)
