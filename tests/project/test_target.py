"""Targets: every form resolves, resolves again, and each mistake is one sentence."""

from __future__ import annotations

import importlib
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gradoracle.model.errors import TargetError, UsageError
from gradoracle.project import definition, target
from gradoracle.project import shipped_names as names
from gradoracle.project.definition import family_for
from gradoracle.project.target import expand, imported_from, resolve, shipped

FAMILY = """
    import torch
    from torch import Tensor
    from jaxtyping import Float
    from gradoracle.model.family import family
    from gradoracle.model.kernel import kernel

    @family
    def double(x: Float[Tensor, "B N"], *, negate: bool = False) -> Float[Tensor, "B N"]:
        return -2 * x if negate else 2 * x
"""
KERNELS = """
    @kernel(double)
    def added(x, *, negate=False):
        return -(x + x) if negate else x + x

    @kernel(double, deterministic=True)
    def shifted(x):
        return x * 2

    def plain(x):
        return x * 2

    def two(x, y):
        return x + y

    def keyword(x, *, y):
        return x + y

    NUMBER = 3
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., str]:
    def build(name: str, *parts: str) -> str:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(textwrap.dedent(part) for part in parts))
        return str(file)

    return build


@pytest.fixture(autouse=True)
def package(write: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of shipped families: one, a module without a family, and a test module that must not be imported."""
    name = f"shipped_{tmp_path.name}"
    write(f"{name}/__init__.py", "")
    write(f"{name}/double.py", FAMILY, KERNELS, "\nFAMILY = double\nKERNELS = (added, shifted)\n")
    write(f"{name}/universal.py", "PROPERTIES = ()\n")
    write(f"{name}/test_entry.py", "raise AssertionError('imported')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for module in (definition, target, names):
        monkeypatch.setattr(module, "SHIPPED", name)


def test_a_shipped_name_gives_its_family_and_all_its_kernels() -> None:
    found = resolve("double")
    assert (found.family.name, [kernel.name for kernel in found.kernels]) == ("double", ["added", "shifted"])
    assert (found.source, found.label) == (None, "double")
    assert [kernel.name for kernel in resolve("double:shifted").kernels] == ["shifted"]
    assert list(shipped()) == expand("all") == ["double"]
    assert expand("path/to/file.py") == ["path/to/file.py"]


def test_a_file_gives_every_kernel_that_it_declares(write: Callable[..., str]) -> None:
    file = write("mine.py", FAMILY, KERNELS)
    found = resolve(file)
    assert [kernel.name for kernel in found.kernels] == ["added", "shifted"]
    assert found.family.name == "double" and found.source == Path(file)
    assert [kernel.name for kernel in resolve(f"{file}:shifted").kernels] == ["shifted"]


def test_a_kernel_is_found_by_the_name_that_reports_print(write: Callable[..., str]) -> None:
    file = write("mine.py", FAMILY, "\n    @kernel(double, name='fast')\n    def added(x): return x + x\n")
    assert resolve(f"{file}:fast").kernels[0] is resolve(f"{file}:added").kernels[0]


def test_names_are_known_without_importing_a_kernel() -> None:
    expand("all")
    with pytest.raises(TargetError):
        resolve("nothing")
    assert f"{target.SHIPPED}.double" not in sys.modules


def test_a_kernel_can_be_imported_from_the_place_it_is_said_to_be(write: Callable[..., str]) -> None:
    file = write("mine.py", FAMILY, "\n    @kernel(double, name='fast')\n    def added(x): return x + x\n")
    hidden = write(
        "hidden.py", FAMILY, "\n    many = [kernel(double, name='hid')(lambda x: x + x)]\n    added = many[0]\n"
    )

    def place(text: str, family: str | None = None) -> Any:
        return imported_from(text, resolve(text, family).kernels[0])

    assert place(file) == place(f"{file}:fast") == (file, "added")
    assert place(f"{hidden}:added") == place(hidden) == (hidden, "added")
    module, name = place("double:shifted")
    assert getattr(importlib.import_module(module), name).name == "shifted"
    assert place("operator:neg", "double") == ("operator", "neg")


def test_a_case_line_names_a_family_only_where_its_target_does_not_know_it(write: Callable[..., str]) -> None:
    file = write("mine.py", FAMILY, KERNELS)
    line = "case:1 any cpu float32 family=double N=3 seed=1"
    assert family_for(line, f"{file}:added", "double") is None and family_for(line, "double", "double") is None
    assert family_for(line, "operator:neg", "double") == "double"
    assert family_for(line, "operator:neg", "nothing") is None
    assert family_for(line.replace("N=3", "from=a%20b.py:mine N=3"), "operator:neg", "nothing") == "a b.py:mine"


def test_a_family_that_the_file_imports_is_its_own(write: Callable[..., str]) -> None:
    write("defined.py", FAMILY)
    file = write("importing.py", "from defined import double\nfrom gradoracle.model.kernel import kernel\n", KERNELS)
    line = "case:1 any cpu float32 family=double N=3 seed=1"
    assert family_for(line, file, "double") is None and family_for(line, f"{file}:added", "double") is None
    outside = write("outside.py", "from neighbour import double\ndef other(x):\n    return double(x)\n")
    assert family_for(line, f"{outside}:double", "double") == family_for(line, f"{outside}:other", "double") == "double"


def test_a_plain_callable_is_judged_by_the_family_given_or_the_only_one_in_its_file(write: Callable[..., str]) -> None:
    file = write("mine.py", FAMILY, KERNELS)
    lonely = write("lonely.py", "def plain(x):\n    return 2 * x\n")
    for text, family in ((f"{file}:plain", None), (f"{lonely}:plain", "double"), (f"{lonely}:plain", f"{file}:double")):
        found = resolve(text, family)
        (kernel,) = found.kernels
        assert (found.family.name, kernel.name, kernel.outside) == ("double", "plain", True)
        assert kernel.options == {"negate": ()} and kernel(4) == 8


def test_a_callable_of_an_installed_package_needs_only_a_family(write: Callable[..., str]) -> None:
    found = resolve("operator:neg", "double")
    assert [kernel.name for kernel in found.kernels] == ["neg"] and found.source is None
    with pytest.raises(TargetError, match=r"^operator:neg is an outside callable: .*--family NAME \(one of double\)"):
        resolve("operator:neg")


def test_resolving_again_gives_the_same_objects_until_the_file_changes(write: Callable[..., str]) -> None:
    file = write("mine.py", FAMILY, KERNELS)
    first = resolve(file)
    assert resolve(file).kernels[0] is first.kernels[0]
    write("mine.py", FAMILY, KERNELS.replace("added", "summed"))
    assert resolve(file).kernels[0].name == "summed"


def test_a_file_may_import_its_neighbours_also_when_it_is_called(write: Callable[..., str]) -> None:
    write("neighbour_a.py", "TWO = 2\n")
    write("neighbour_b.py", "THREE = 3\n")
    file = write(
        "mine.py",
        "from neighbour_a import TWO\ndef late(x):\n    from neighbour_b import THREE\n    return x * TWO * THREE\n",
    )
    assert resolve(f"{file}:late", "double").kernels[0](4) == 24


def test_a_private_module_name_hides_nothing(write: Callable[..., str]) -> None:
    file = write("operator.py", "def plain(x):\n    return x\n")
    resolve(f"{file}:plain", "double")
    assert sys.modules["operator"].__name__ != resolve(f"{file}:plain", "double").kernels[0].call.__module__
    assert hasattr(sys.modules["operator"], "itemgetter")


@pytest.mark.parametrize(
    ("text", "family", "says"),
    [
        ("doubel", None, "unknown target 'doubel': did you mean double? shipped are double; expected a shipped name, "),
        ("torch.nn.functional.gelu", None, "did you mean torch.nn.functional:gelu?"),
        ("double", "other", "--family other cannot be combined with the shipped target double"),
        ("missing.py", None, "no file missing.py; expected"),
        ("some/folder", None, "no file some/folder; expected"),
        ("no.such.module:f", "double", "no module named 'no' can be imported"),
        ("double:halved", None, "double has no kernel named 'halved'; it has added, shifted"),
        ("operator:negate", "double", "operator has no callable named 'negate'"),
        ("operator:ne", "doubles", "unknown family 'doubles': did you mean double?"),
        ("operator:ne", "quadruple", "path/to/file.py:family or package.module:family"),
        (".", None, "unknown target '.': shipped are "),
        (":f", None, "target ':f' is invalid; expected"),
        ("{file}:", None, "is invalid; expected"),
        ("{file}:plian", None, "has no callable named 'plian'; did you mean plain?"),
        ("{file}:two", None, "two does not fit family double: it takes (x, y), expected the inputs (x) positionally"),
        ("{file}:keyword", None, "it takes (x, *, y), expected the inputs (x) positionally"),
        ("{file}:NUMBER", None, "NUMBER is of type int and not callable"),
        ("{file}:double", None, "double is a family, not a kernel"),
        ("{file}:added", "{file}:plain", "plain is a function; expected a @gradoracle.family"),
        ("{file}:added", "{empty}", "must name one family, as in {empty}:family; that file has none"),
        ("{empty}", None, "has no @gradoracle.kernel; declare one or name a callable, as in {empty}:callable"),
        ("{empty}:f", None, "name the family that it implements with --family NAME"),
        ("{several}", None, "of the families double, triple; choose one of {several}:one, {several}:three"),
        ("{orphan}", None, "is declared as a kernel of nothing, which is neither in that file nor shipped"),
        ("{syntax}", None, "syntax.py, line 2: cannot be imported: SyntaxError: "),
        ("{raises}", None, "raises.py, line 2: cannot be imported: ZeroDivisionError: division by zero"),
        ("{imports}", None, "imports.py, line 1: cannot be imported: ModuleNotFoundError: No module named 'no_such'"),
        ("{leaves}", None, "leaves.py, line 2: cannot be imported: SystemExit: 3"),
        ("{wrong}", None, "wrong.py, line 4: cannot be imported: TypeError: parameter 'x' of f is neither"),
        ("{function}:Apply", "double", "Apply is an autograd.Function; expected a function of tensors that calls"),
        ("{function}:raw", "double", "raw is a raw Triton kernel; expected the Python function that takes tensors"),
    ],
)
def test_each_mistake_is_one_sentence(write: Callable[..., str], text: str, family: str | None, says: str) -> None:
    triple = FAMILY.replace("double", "triple") + "\n    @kernel(triple)\n    def three(x): return 3 * x\n"
    files = {
        "file": write("mine.py", FAMILY, KERNELS),
        "empty": write("empty.py", "def f(x):\n    return x\n"),
        "several": write("several.py", FAMILY, "\n    @kernel(double)\n    def one(x): return x\n", triple),
        "orphan": write("orphan.py", "from gradoracle.model.kernel import Kernel\nk = Kernel('k', 'nothing', abs)\n"),
        "syntax": write("syntax.py", "x = 1\ndef f(:\n"),
        "raises": write("raises.py", "def f():\n    return 1 / 0\n\nf()\n"),
        "imports": write("imports.py", "import no_such\n"),
        "leaves": write("leaves.py", "import sys\nsys.exit(3)\n"),
        "wrong": write(
            "wrong.py", "from gradoracle.model.family import family\n\n\n@family\ndef f(x: int):\n    return x\n"
        ),
        "function": write(
            "function.py",
            "import torch\nclass Apply(torch.autograd.Function): pass\nclass JITFunction: pass\nraw = JITFunction()\n",
        ),
    }
    with pytest.raises(TargetError) as caught:
        resolve(text.format(**files), family and family.format(**files))
    message = str(caught.value)
    assert says.format(**files) in message
    assert "\n" not in message and isinstance(caught.value, UsageError)
