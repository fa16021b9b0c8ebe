"""The house stands on its floors: import directions, complete exports, small files, names that mean something."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ENGINE = sorted(p for p in (ROOT / "gradoracle").rglob("*.py"))
KERNELS = sorted((ROOT / "kernels").rglob("*.py"))
PROPERTIES = sorted((ROOT / "properties").rglob("*.py"))
EVERYTHING = [*ENGINE, *KERNELS, *PROPERTIES, *sorted((ROOT / "tests").rglob("*.py"))]

# From the ground up; a module may import from its own floor's earlier names and from any floor below.
FLOORS = (
    {
        "errors",
        "hashing",
        "constraints",
        "signature",
        "dims",
        "contract",
        "derivative",
        "finding",
        "fields",
        "process",
        "worker",
    },
    {"recipes", "layouts", "pattern", "interpreter", "memory", "device"},
    {"case", "verdict", "rules"},
    {"report", "environment", "script", "options"},
    {"kernel", "property", "family"},
    {"oracle"},
    {"relation", "subject", "evidence", "capacity"},
    {"request", "domain", "drawing", "provider", "shrinking", "situations", "stream", "strategies", "target", "saved"},
    {"examine", "tally"},
    {"check", "command", "counterexamples", "crashes", "bench", "reproduction"},
    {"testing", "cli"},
    {"__init__", "__main__"},
)
HEIGHT = {name: height for height, floor in enumerate(FLOORS) for name in floor}
BANNED = {"utils", "helpers", "common", "misc", "base", "v2", "util", "helper"}
LONGEST = 400


def imported(path: Path) -> set[str]:
    """Every absolute module that a file imports, at any depth of its code; imports for type checkers left out."""
    found: set[str] = set()
    tree = ast.parse(path.read_text())
    typing_only = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
    ]
    skipped = {id(child) for node in typing_only for child in ast.walk(node)}
    package = ".".join(("gradoracle", *path.relative_to(ROOT / "gradoracle").parts[:-1])) if path in ENGINE else ""
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")
            base = ".".join(parts[: len(parts) - node.level + 1]) + "." if node.level else ""
            module = f"{base}{node.module or ''}".rstrip(".")
            found |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return found


def noun(module: str) -> str | None:
    """The part of gradoracle that a module name belongs to; None outside."""
    parts = module.split(".")
    return parts[1] if parts[0] == "gradoracle" and len(parts) > 1 else None


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", ENGINE, ids=named)
def test_the_engine_imports_only_from_below(path):
    own = path.relative_to(ROOT / "gradoracle").parts[0].removesuffix(".py")
    assert own in HEIGHT, f"{own} has no floor; give it one here and in docs/architecture.md"
    for module in imported(path):
        other = noun(module)
        assert other not in ("kernels", "properties"), f"{named(path)} imports {module}: the engine knows no family"
        if other in HEIGHT and other != own:
            assert HEIGHT[other] <= HEIGHT[own], f"{named(path)} imports {module} from a floor above its own"


@pytest.mark.parametrize("path", KERNELS, ids=named)
def test_kernels_import_nothing_of_ours_but_each_other(path):
    for module in imported(path):
        assert noun(module) in (None, "kernels"), f"{named(path)} imports {module}"
        assert module.split(".")[0] not in ("properties", "numpy", "hypothesis", "pytest"), f"{named(path)}: {module}"


@pytest.mark.parametrize("path", EVERYTHING, ids=named)
def test_files_are_short_and_named_by_their_noun(path):
    assert len(path.read_text().splitlines()) <= LONGEST, f"{named(path)} is longer than {LONGEST} lines; split by noun"
    assert path.stem not in BANNED, f"{named(path)} is named for nothing in particular"


def test_every_family_has_a_kernel_folder_and_the_reverse():
    families = {
        path.stem for path in PROPERTIES if any(line.startswith("FAMILY") for line in path.read_text().splitlines())
    }
    folders = {path.parent.name for path in KERNELS if path.parent != ROOT / "kernels"}
    assert families == folders


def test_packages_of_the_wheel_are_the_folders_of_the_tree():
    text = (ROOT / "pyproject.toml").read_text()
    for top, package in (
        ("gradoracle", "gradoracle"),
        ("kernels", "gradoracle.kernels"),
        ("properties", "gradoracle.properties"),
    ):
        for init in (ROOT / top).rglob("__init__.py"):
            inner = init.parent.relative_to(ROOT / top).parts
            assert f'"{".".join((package, *inner))}"' in text, f"{named(init.parent)} is missing in pyproject.toml"


def test_every_public_name_can_be_imported():
    gradoracle = importlib.import_module("gradoracle")
    assert sorted(gradoracle.__all__) == gradoracle.__all__
    assert set(gradoracle.__all__) == set(gradoracle._HOMES)
    for name in gradoracle.__all__:
        assert getattr(gradoracle, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gradoracle.nonsense
