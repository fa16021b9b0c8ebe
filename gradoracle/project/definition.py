"""Definition: the family that judges a target, found without importing the target's kernels.

A shipped family is imported; of a user's file what its definition needs is executed (``definition_slice``).
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import torch
from torch import nn

from gradoracle.model.description import Description, HostedTarget
from gradoracle.model.errors import TargetError, UsageError, named
from gradoracle.model.family import Family
from gradoracle.model.formats import DTYPES
from gradoracle.model.wording import printable
from gradoracle.project.definition_slice import current_folder_last, sliced
from gradoracle.project.import_closure import contents
from gradoracle.project.naming import file_of, is_file, split, unknown
from gradoracle.project.provenance import closures
from gradoracle.project.shipped_names import SHIPPED, family_names
from gradoracle.project.values import LIKE


def family_apart(text: str, family: str | None) -> Family | None:
    """The family that --family names for a target that is not shipped; None where it is not found so.

    Raises:
        TargetError: it names none.
    """
    if family is None or LIKE in family or split(text)[0] in family_names():
        return None
    return named_family(family)


def definition(text: str, family: str | None, hosted: HostedTarget) -> Family:
    """The family of a TARGET and --family, where that is none that ``family_apart`` finds.

    Args:
        text: the target.
        family: as of ``target.resolve``; None, or a reference with an example.
        hosted: what the host of its kernels says of them: which family each declares, and by which name its file has
            it, if it has.

    Raises:
        TargetError: it cannot be read without the kernels.
    """
    place, _ = split(text)
    if place in family_names():
        return _shipped(place)
    current_folder_last()
    if family is not None and LIKE in family:
        return _derived(text, family, hosted)
    name = hosted.kernels[0].family
    if name not in hosted.families:
        return _shipped(name)
    file, package = _own_file(text, hosted)
    found = _in(file, hosted.families[name], package, f"{text}: family {name}")
    if found.name != name:
        raise TargetError(f"the host of {text} says that {hosted.families[name]} is family {name}; it is {found.name}")
    return found


def _own_file(text: str, hosted: HostedTarget) -> tuple[Path, str]:
    """The file of a target and its package, as they are found here: a host does not choose what its judge executes.

    Raises:
        TargetError: there is none, or its host has another.
    """
    try:
        file, package = file_of(split(text)[0])
    except TargetError as error:
        raise TargetError(f"{error}, where its family is looked for; name it with --family FILE.py:NAME") from None
    if str(file) != hosted.file:
        raise TargetError(f"the host of {text} says that it is {printable(hosted.file, 200)}; expected {file}")
    return file, package


def family_for(line: str, text: str, named: str) -> str | None:
    """The --family with which the target of a case line resolves: its ``from=``, or the shipped family of that name.

    None where the target knows its family: it is shipped, a file of declared kernels or one of these, or its file
    declares the family.
    """
    for word in line.split()[4:]:
        if word.startswith("from="):
            return unquote(word.removeprefix("from="))
    place, attribute = split(text)
    if not attribute or place in family_names() or named not in family_names():
        return None
    with contextlib.suppress(TargetError):  # a target that cannot be read is reported where it is resolved
        file, _ = file_of(place)
        if attribute in _declared(file, "kernel") or named in _declared(file, "family"):
            return None
    return named


def sources(text: str, family: str | None) -> dict[str, str]:
    """Digests of the files of a TARGET and --family, and of what these import, by absolute path."""
    texts = [text, *([] if family is None else re.split("[@=]", family.replace(LIKE, "@")))]
    found: set[Path] = set()
    for place in {each.rpartition(":")[0] or each for each in texts} - {*family_names()}:
        with contextlib.suppress(TargetError):  # what is no file has none; what names nothing is reported elsewhere
            found |= {file for _, files in closures((), str(file_of(place)[0])) for file in files}
    return contents(map(str, found))


def _shipped(name: str) -> Family:
    if name not in family_names():
        raise TargetError(f"family {name} is not shipped; expected one of {', '.join(family_names())}")
    found: Family = importlib.import_module(f"{SHIPPED}.{name}").FAMILY
    return found


def named_family(text: str) -> Family:
    """The family that --family names.

    Raises:
        TargetError: it names none, or several.
    """
    place, attribute = split(text)
    if not attribute and place in family_names():
        return _shipped(place)
    if not attribute and not is_file(place):
        raise TargetError(unknown("family", text))
    current_folder_last()
    file, package = file_of(place)
    names = [attribute] if attribute else list(_declared(file, "family"))
    if len(names) != 1:
        shown = ", ".join(names) or "none"
        raise TargetError(f"--family {text} must name one family, as in {text}:family; that file has {shown}")
    return _in(file, names[0], package, f"--family {text}")


def _in(file: Path, attribute: str, package: str, shown: str) -> Family:
    found = getattr(sliced(file, [attribute], package), attribute)
    if not isinstance(found, Family):
        raise TargetError(f"{shown} is a {type(found).__name__}; expected a @gradoracle.family")
    return found


def _derived(text: str, family: str, hosted: HostedTarget) -> Family:
    """The family of a reference and an example of the kernel's arguments."""
    from gradoracle.project.example import called, corrections, derive, seeded

    reference, _, rest = family.partition(LIKE)
    example, *words = rest.split("@")
    (kernel,) = hosted.kernels
    own = _own_file(text, hosted)
    with seeded():
        judged, given = _looked_up([reference, example], own)
        try:
            found = derive(
                _stand_in(kernel, hosted.parameters), judged, called(given, example), names=(text, reference),
                corrections=corrections(words),
            )  # fmt: skip
        except UsageError as error:
            raise TargetError(str(error)) from None
    return found.family


def _looked_up(texts: list[str], own: tuple[Path, str]) -> list[Any]:
    """What each ``place:name`` names; a name alone is of the target's own file. One slice of each file is executed."""
    places = [(file_of(text.rpartition(":")[0]) if ":" in text else own, text.rpartition(":")[2]) for text in texts]
    found = []
    for (file, package), attribute in places:
        wanted = [name.partition(".")[0] for where, name in places if where == (file, package)]
        value: Any = sliced(file, list(dict.fromkeys(wanted)), package)
        for part in attribute.split("."):
            value = getattr(value, part)
        found.append(value)
    return found


def _stand_in(kernel: Description, parameters: Mapping[str, tuple[str, tuple[int, ...]]]) -> Any:
    """A function with the parameters of a kernel that is elsewhere, or a module with those that become inputs, too."""

    def call(*_: Any, **__: Any) -> Any:
        raise TypeError(f"{kernel.name} is elsewhere")

    call.__name__ = kernel.name
    if kernel.call.parameters is not None:
        call.__signature__ = kernel.call.parameters.signature  # type: ignore[attr-defined]
    return _StandIn(call, parameters) if parameters else call


class _StandIn(nn.Module):
    """A module that is elsewhere, with the dtypes and shapes of its parameters."""

    def __init__(self, call: Any, parameters: Mapping[str, tuple[str, tuple[int, ...]]]) -> None:
        super().__init__()
        self.forward = call
        ones = (
            (name, torch.ones((), dtype=DTYPES[dtype]).expand(shape)) for name, (dtype, shape) in parameters.items()
        )
        self._own = {name: nn.Parameter(one) for name, one in ones}

    def named_parameters(self, *_: Any, **__: Any) -> Iterator[tuple[str, nn.Parameter]]:
        """As of a module; none is registered, since a name may be that of a method."""
        yield from self._own.items()


def _declared(file: Path, kind: str) -> Iterator[str]:
    """The names that a file binds to what it declares as a "family" or a "kernel"."""
    try:
        body = ast.parse(file.read_text(encoding="utf-8"), str(file)).body
    except (OSError, ValueError, SyntaxError) as error:
        raise TargetError(f"{file} cannot be read: {named(error)}") from None
    for each in body:
        if isinstance(each, ast.FunctionDef) and any(_declares(kind, node) for node in each.decorator_list):
            yield each.name
        elif isinstance(each, ast.Assign) and _declares(kind, each.value):
            yield from (target.id for target in each.targets if isinstance(target, ast.Name))


def _declares(kind: str, node: ast.expr) -> bool:
    while isinstance(node, ast.Call):
        node = node.func
    return getattr(node, "attr", getattr(node, "id", "")) == kind
