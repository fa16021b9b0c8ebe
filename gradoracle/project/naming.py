"""Naming: how a TARGET or --family names a kernel or a family, read without importing any."""

from __future__ import annotations

import difflib
import importlib.util
from pathlib import Path

from gradoracle.model.errors import TargetError, named
from gradoracle.project.shipped_names import family_names

FORMS = "expected a shipped name, path/to/file.py, path/to/file.py:callable or package.module:callable"


def split(text: str) -> tuple[str, str]:
    """(a shipped name, file or module; the name in it or "").

    Raises:
        TargetError: one of them is empty.
    """
    place, colon, attribute = text.rpartition(":")
    if not colon:
        return text, ""
    if not place or not attribute:
        raise TargetError(f"target {text!r} is invalid; {FORMS}")
    return place, attribute


def is_file(place: str) -> bool:
    """Whether it is a file, and not a module."""
    return place.endswith(".py") or "/" in place


def file_of(place: str) -> tuple[Path, str]:
    """The file of ``path/to/file.py`` or ``package.module``, and its package; no module of it is imported.

    Raises:
        TargetError: there is none.
    """
    if is_file(place):
        path = Path(place).resolve()
        if not path.is_file():
            raise TargetError(f"no file {place}; expected path/to/file.py:family or package.module:family")
        return path, ""
    first, *rest = place.split(".")
    try:
        spec = importlib.util.find_spec(first)
    except (ImportError, ValueError) as error:
        raise TargetError(f"{place} cannot be found: {named(error)}") from None
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if spec is not None and not rest and spec.origin:
        return Path(spec.origin).resolve(), first if places else ""
    for folder in places:
        path = Path(folder, *rest)
        if path.with_suffix(".py").is_file():
            return path.with_suffix(".py").resolve(), place.rpartition(".")[0]
        if (path / "__init__.py").is_file():
            return (path / "__init__.py").resolve(), place
    raise TargetError(f"no module named {place!r} can be found")


def unknown(what: str, text: str) -> str:
    """That a target or a family of that name is unknown, with what is near to it."""
    names = family_names()
    close = difflib.get_close_matches(text, names, n=1)
    if close:
        hint = f"did you mean {close[0]}? "
    elif "." in text and all(part.isidentifier() for part in text.split(".")):
        hint = f"did you mean {':'.join(text.rsplit('.', 1))}? "
    else:
        hint = ""
    forms = FORMS if what == "target" else FORMS.replace(":callable", ":family")
    return f"unknown {what} {text!r}: {hint}shipped are {', '.join(names)}; {forms}"
