"""The architecture of docs/architecture.md: which way imports point, what files are named for, how long they are."""

from __future__ import annotations

import ast
import functools
import importlib
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from gradoracle.model.formats import FORMATS, OF_TRITON
from gradoracle.project.shipped_names import property_names

ROOT = Path(__file__).resolve().parent.parent
ENGINE = sorted(p for p in (ROOT / "gradoracle").rglob("*.py"))
KERNELS = sorted((ROOT / "kernels").rglob("*.py"))
PROPERTIES = sorted((ROOT / "properties").rglob("*.py"))
BESIDE = [file for folder in ("tests", "benchmarks") for file in sorted((ROOT / folder).rglob("*.py"))]
EVERYTHING = [*ENGINE, *KERNELS, *PROPERTIES, *BESIDE]
LOOSE = {"__init__.py", "__main__.py"}  # what lies at the root of the package, in no room
ROOMS = re.findall(r"^\| `([\w.]+)` \|", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
BANNED = {"utils", "helpers", "common", "misc", "base", "v2", "util", "helper"}
LONGEST = 100  # lines of a function; a jitted one is one piece, which inlining would not make shorter


def module(path: Path) -> str:
    """The name that a file of gradoracle is imported by."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    own = parts if parts[0] == "gradoracle" else ("gradoracle", *parts)
    return ".".join(own[:-1] if own[-1] == "__init__" else own)


MODULES = {module(path): path for path in (*ENGINE, *KERNELS, *PROPERTIES)}


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Every module that a file imports, at any depth of its code and for type checkers too.

    Of a package's names those that are modules count, and the package where one is not.
    """
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            name = node.module or ""
            if node.level:  # kernels import one another so
                own = module(path).split(".")
                own = own if path.name == "__init__.py" else own[:-1]
                name = ".".join([*own[: len(own) - node.level + 1], *([name] if name else [])])
            found |= {f"{name}.{a.name}" if f"{name}.{a.name}" in MODULES else name for a in node.names}
    return frozenset(found)


def room(name: str) -> str | None:
    """The room that a module belongs to, the innermost; None outside of them."""
    inside = name.removeprefix("gradoracle.") + "."
    return max((each for each in ROOMS if inside.startswith(f"{each}.")), key=len, default=None)


def circles(graph: dict[str, frozenset[str]]) -> list[set[str]]:
    """The groups of modules that import each other, directly or through others."""
    reach = {name: set(known) for name, known in graph.items()}
    changed = True
    while changed:
        changed = False
        for known in reach.values():
            more = set().union(*(reach[each] for each in known)) - known
            known |= more
            changed |= bool(more)
    found = []
    for name, known in reach.items():
        group = {other for other in known if name in reach[other]}
        if len(group) > 1 and group not in found:
            found.append(group)
    return found


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_module_of_the_engine_has_a_room():
    """The page's table names all rooms, and nothing but the package's own two files lies outside of them."""
    for path in ENGINE:
        if path.parent == ROOT / "gradoracle":
            assert path.name in LOOSE, (
                f"{named(path)} lies at the root; which room of docs/architecture.md owns its noun?"
            )
        else:
            assert room(module(path)), f"{named(path)} is in no room of docs/architecture.md"
    folders = {path.parent.name for path in ENGINE}
    assert len(ROOMS) == len(set(ROOMS)) and all(name.rpartition(".")[2] in folders for name in ROOMS)


@pytest.mark.parametrize("path", [path for path in ENGINE if path.parent != ROOT / "gradoracle"], ids=named)
def test_a_room_imports_only_from_those_before_it(path):
    own = room(module(path))
    for name in imported(path):
        assert not name.startswith(("gradoracle.kernels", "gradoracle.properties")), (
            f"the engine knows no family: {name}"
        )
        other = room(name)
        if name.startswith("gradoracle.") and other is not None:
            assert ROOMS.index(other) <= ROOMS.index(own), f"{named(path)} imports {name}, of a room behind its own"


def test_a_judge_never_imports_a_host():
    """What starts hosts, and a few that need no judge, are the exceptions."""
    known = {"execution", "mutation", "cli"}
    for path in (*ENGINE, *PROPERTIES):
        own = (room(module(path)) or "").partition(".")[0]
        if own == "host" or own in known or path.name in LOOSE:
            continue
        found = [name for name in imported(path) if name.startswith("gradoracle.host")]
        assert not found or path.name in ("worker.py", "setup.py", "execute.py", "script.py"), (
            f"{named(path)} imports {', '.join(found)}"
        )


def test_no_two_modules_import_each_other():
    graph = {name: imported(path) & MODULES.keys() - {name} for name, path in MODULES.items()}
    found = [{name.removeprefix("gradoracle.") for name in group} for group in circles(graph)]
    assert not found


def test_a_circle_is_seen():
    graph = {"a": frozenset("b"), "b": frozenset("c"), "c": frozenset("ad"), "d": frozenset()}
    assert circles(graph) == [{"a", "b", "c"}] and not circles({**graph, "c": frozenset("d")})


def test_files_that_the_page_names_exist():
    page = (ROOT / "docs" / "architecture.md").read_text()
    places = re.findall(
        r"`((?:model|host|project|cases|oracle|execution|check|report|gate|mutation|cli)/[\w/]+\.py)`", page
    )
    assert len(places) > 25
    for place in places:
        assert (ROOT / "gradoracle" / place).is_file() or place.endswith("/NAME.py"), place


def test_no_module_that_judges_reads_by_patterns():
    """What judges decides by values and fields, never by a sentence."""
    for path in ENGINE:
        judges = (room(module(path)) or "").partition(".")[0] in ("cases", "oracle", "host", "execution", "check")
        assert not judges or "re" not in imported(path), f"{named(path)} uses regular expressions"


def test_the_engine_knows_no_property_by_name():
    """What it must know of one, the property declares."""
    names = set(property_names())
    assert len(names) > 100
    for path in ENGINE:
        tree = ast.parse(path.read_text())
        texts = {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not texts & names, f"{named(path)} names {', '.join(texts & names)}"
        assert not any(
            text.startswith("_") and name.endswith(text) for text in texts for name in names if len(text) > 8
        )


@pytest.mark.parametrize("path", KERNELS, ids=named)
def test_kernels_import_nothing_of_ours_but_each_other(path):
    for name in imported(path):
        assert not name.startswith("gradoracle.") or name.startswith("gradoracle.kernels"), f"{named(path)}: {name}"
        assert name.split(".")[0] not in ("properties", "numpy", "hypothesis", "pytest"), f"{named(path)}: {name}"


def families() -> set[str]:
    """The families that are shipped: folders of properties/ that define FAMILY."""
    packages = (path for path in PROPERTIES if path.name == "__init__.py")
    return {path.parent.name for path in packages if re.search(r"^FAMILY\b", path.read_text(), re.MULTILINE)}


def family_of(name: str) -> str | None:
    """The family whose kernels or properties a module holds; None for what families share and for other folders."""
    parts = name.split(".")
    inside = parts[0] == "gradoracle" and len(parts) > 2 and parts[1] in ("kernels", "properties")
    return parts[2] if inside and parts[2] in families() else None


def crossing(own: str | None, names: Iterable[str]) -> set[str]:
    """The modules of other families among those that a module imports."""
    return {name for name in names if family_of(name) not in (None, own)}


@pytest.mark.parametrize("path", [*KERNELS, *PROPERTIES], ids=named)
def test_a_familys_modules_import_no_other_familys(path):
    own = family_of(module(path))
    assert not crossing(own, imported(path)), f"{named(path)} is of {own or 'no family'}"


def test_an_import_from_another_family_is_seen():
    assert {family_of(f"gradoracle.{m}") for m in ("properties.members", "kernels.tiles", "oracle.truth")} == {None}
    assert family_of("gradoracle.properties.lse.catalogue.masks") == family_of("gradoracle.kernels.lse.fused") == "lse"
    foreign = "gradoracle.properties.sdpa.scores"
    assert crossing("lse", {foreign, "gradoracle.properties.lse.scores", "torch"}) == {foreign}
    assert crossing(None, {foreign}) == {foreign} and not crossing("sdpa", {foreign})


@pytest.mark.parametrize("path", EVERYTHING, ids=named)
def test_files_are_named_by_their_noun_and_their_functions_are_short(path):
    """A file holds one noun, whole, and is as long as that takes; what one has to read at a time is a function."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and path not in KERNELS:
            own = node.end_lineno - node.lineno + 1
            assert own <= LONGEST, f"{named(path)}: {node.name} has {own} lines; at most {LONGEST}"
    assert path.stem not in BANNED, f"{named(path)} is named for nothing in particular"


def test_every_family_has_a_kernel_folder_and_the_reverse():
    folders = {path.relative_to(ROOT / "kernels").parts[0] for path in KERNELS if path.parent != ROOT / "kernels"}
    assert families() == folders


def test_every_public_name_can_be_imported():
    gradoracle = importlib.import_module("gradoracle")
    assert set(gradoracle.__all__) == {name for names in gradoracle._HOMES.values() for name in names}
    for name in gradoracle.__all__:
        assert getattr(gradoracle, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = gradoracle.nonsense


# dicts by format that hold no fact of a format
OWN_NUMBERS = {"model/tensor_bits.py": "the bits of poison"}


def numbers_by_format(tree: ast.AST) -> list[int]:
    """The lines of dicts from two number formats or more to numbers, or tuples with numbers."""
    named = {*FORMATS, *OF_TRITON}

    def is_format(key: ast.expr | None) -> bool:
        return (isinstance(key, ast.Constant) and key.value in named) or (
            isinstance(key, ast.Attribute) and key.attr in named
        )

    def is_number(value: ast.expr) -> bool:
        if isinstance(value, ast.Tuple):
            return any(map(is_number, value.elts))
        if isinstance(value, ast.BinOp):
            return is_number(value.left)
        value = value.operand if isinstance(value, ast.UnaryOp) else value
        return isinstance(value, ast.Constant) and type(value.value) in (int, float)

    dicts = [node for node in ast.walk(tree) if isinstance(node, ast.Dict)]
    return [
        node.lineno
        for node in dicts
        if sum(is_format(key) and is_number(value) for key, value in zip(node.keys, node.values, strict=True)) > 1
    ]


def test_number_formats_have_one_table():
    """Facts of a format are read from model/formats.py: no other module has a dict of numbers by format."""
    engine = ROOT / "gradoracle"
    found = {path.relative_to(engine).as_posix() for path in ENGINE if numbers_by_format(ast.parse(path.read_text()))}
    assert found == OWN_NUMBERS.keys()


def test_a_second_table_is_seen():
    for table in (
        '{"float32": 24, "bfloat16": 8}',
        "{torch.float16: 2.0**-14, torch.float32: 0.5}",
        '{"fp16": (5, 15), "fp32": (8, 127)}',
    ):
        assert numbers_by_format(ast.parse(f"BITS = {table}"))
    assert not numbers_by_format(ast.parse('{"float32": "ieee32", "float16": "fp16"}'))
