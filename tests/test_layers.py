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
        "causes",
        "hashing",
        "constraints",
        "signature",
        "dims",
        "contract",
        "derivative",
        "errormap",
        "finding",
        "fields",
        "location",
        "modules",
        "toml",
        "plain",
        "comparison",
        "forked",
        "forkserver",
        "process",
        "worker",
        "closure",
    },
    {"recipes", "layouts", "likeness", "pattern", "interpreter", "memory", "device", "called"},
    {"case", "shard", "verdict", "shortfall", "rules", "symptom", "diagnosis", "measurements"},
    {
        "report",
        "environment",
        "script",
        "options",
        "showing",
        "settings",
        "config",
        "completion",
        "cache",
        "machine_code",
    },
    {"kernel", "property", "family"},
    {"oracle"},
    {"relation", "subject", "evidence", "capacity", "mixed", "formula"},
    {
        "request",
        "domain",
        "drawing",
        "provider",
        "shrinking",
        "situations",
        "stream",
        "strategies",
        "target",
        "saved",
        "substitution",
    },
    {"compiling", "examine", "tally", "warmed"},
    {
        "check",
        "command",
        "counterexamples",
        "crashes",
        "bench",
        "reproduction",
        "jobs",
        "sharding",
        "remote",
        "cluster",
        "merge",
    },
    {"mutation"},
    {"gate"},
    {"testing", "commands", "cli"},
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
    top = path.relative_to(ROOT).parts[:-1] if path.is_relative_to(ROOT) else ()
    package = ".".join(top if top[:1] == ("gradoracle",) else ("gradoracle", *top))
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


def families() -> set[str]:
    """The families that are shipped: modules of properties/ that define FAMILY."""
    return {path.stem for path in PROPERTIES if any(li.startswith("FAMILY") for li in path.read_text().splitlines())}


def family_of(module: str) -> str | None:
    """The family whose kernels or laws a module holds; None for what families share, and outside the two folders."""
    parts = module.split(".")
    if parts[0] != "gradoracle" or len(parts) < 3 or parts[1] not in ("kernels", "properties"):
        return None
    owners = [name for name in families() if parts[2] == name or parts[2].startswith(f"{name}_")]
    return max(owners, key=len, default=None)


def crossing(own: str | None, modules: set[str]) -> set[str]:
    """The modules of other families among those that a module imports."""
    return {module for module in modules if family_of(module) not in (None, own)}


@pytest.mark.parametrize("path", [*KERNELS, *PROPERTIES], ids=named)
def test_a_familys_modules_import_no_other_familys(path):
    own = family_of(".".join(("gradoracle", *path.relative_to(ROOT).with_suffix("").parts)))
    assert not crossing(own, imported(path)), f"{named(path)} is of {own or 'no family'}"


def test_an_import_from_another_family_is_seen():
    assert {family_of(f"gradoracle.{m}") for m in ("properties.members", "kernels.tiles", "oracle.trace")} == {None}
    assert family_of("gradoracle.properties.lse_masks") == family_of("gradoracle.kernels.lse.fused") == "lse"
    foreign = "gradoracle.properties.sdpa_scores.supports"
    assert crossing("lse", {foreign, "gradoracle.properties.lse_scores", "torch"}) == {foreign}
    assert crossing(None, {foreign}) == {foreign} and not crossing("sdpa", {foreign})


@pytest.mark.parametrize("path", EVERYTHING, ids=named)
def test_files_are_short_and_named_by_their_noun(path):
    assert len(path.read_text().splitlines()) <= LONGEST, f"{named(path)} is longer than {LONGEST} lines; split by noun"
    assert path.stem not in BANNED, f"{named(path)} is named for nothing in particular"


def test_every_family_has_a_kernel_folder_and_the_reverse():
    folders = {path.relative_to(ROOT / "kernels").parts[0] for path in KERNELS if path.parent != ROOT / "kernels"}
    assert families() == folders


def test_every_public_name_can_be_imported():
    gradoracle = importlib.import_module("gradoracle")
    assert sorted(gradoracle.__all__) == gradoracle.__all__
    assert set(gradoracle.__all__) == set(gradoracle._HOMES)
    for name in gradoracle.__all__:
        assert getattr(gradoracle, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gradoracle.nonsense
