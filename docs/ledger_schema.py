"""The schema of ledgers and the tables of their page, from the classes of ``model/ledger.py``; run it to write both."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from gradoracle.model.ledger_file import KINDS, SCHEMA
from gradoracle.model.serialize import key_of

FOLDER = Path(__file__).parent
FILE, PAGE = FOLDER / "ledger.schema.json", FOLDER / "reference" / "ledger.md"
MARK = "<!-- from here on written by docs/ledger_schema.py -->\n"
_SCALARS = {str: "string", int: "integer", bool: "boolean", type(None): "null"}


def schema() -> dict[str, Any]:
    """The JSON schema of one line."""
    lines = [
        {
            "$ref": f"#/$defs/{kind.__name__}",
            "required": ["record", "seal", *(["schema"] if name == "header" else [])],
            "properties": {
                "record": {"const": name},
                "seal": {"type": "string", "pattern": "^[0-9a-f]{32}$", "description": _SEAL},
                **({"schema": {"const": SCHEMA}} if name == "header" else {}),
            },
        }
        for name, kind in KINDS.items()
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{SCHEMA}: a line of a ledger",
        "description": "What `gradoracle check --ledger FILE` writes. The number is raised when a field is renamed or "
        "removed, or changes its meaning; fields may be added. A field that has its default is left out.",
        "oneOf": lines,
        "$defs": dict(sorted(_defined().items())),
    }


_SEAL = "Of the line: the first 32 digits of the SHA-256 of the seal before it and the line without this field."


def tables() -> str:
    """The fields of each kind of line as tables, in Markdown."""
    found, text = _defined(), []
    named = {kind.__name__: name for name, kind in KINDS.items()}
    for name in [*named, *(name for name in found if name not in named)]:
        own = found[name]
        if "properties" not in own:
            continue
        title = f"`{named[name]}`" if name in named else name
        text.append(f"## {title}\n\n{own['description']}\n\n| field | type | contains |\n|---|---|---|\n")
        for field, each in own["properties"].items():
            needed = field in own["required"]
            default = "" if needed else ", optional"
            text.append(f"| `{field}` | {_in_words(each)}{default} | {each.get('description', '')} |\n")
        text.append("\n")
    return "".join(text).rstrip() + "\n"


def _defined() -> dict[str, Any]:
    """The schema of each class that a line is made of, those of lines first."""
    found: dict[str, Any] = {}
    for kind in KINDS.values():
        _define(kind, found)
    return found


def _define(kind: Any, found: dict[str, Any]) -> dict[str, Any]:
    """The reference to a class, which is added to what is defined if it is not there."""
    name = kind.__name__
    if name not in found:
        found[name] = {}
        if issubclass(kind, Enum):
            found[name] = {"type": "string", "description": _summary(kind), "enum": [each.value for each in kind]}
        else:
            hints, said = typing.get_type_hints(kind), dict(_attributes(kind))
            fields = dataclasses.fields(kind)
            found[name] = {
                "type": "object",
                "description": _summary(kind),
                "required": [key_of(each) for each in fields if _is_needed(each)],
                "properties": {
                    key_of(each): _of(hints[each.name], found)
                    | ({"description": said[each.name]} if each.name in said else {})
                    for each in fields
                },
            }
    return {"$ref": f"#/$defs/{name}"}


def _is_needed(field: dataclasses.Field[Any]) -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _of(hint: Any, found: dict[str, Any]) -> dict[str, Any]:
    """The schema of a type hint."""
    origin, own = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_of(each, found) for each in own]}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": _of(own[1], found)}
    if origin in (list, tuple, Sequence):
        if origin is tuple and own[-1] is not Ellipsis:
            return {"type": "array", "prefixItems": [_of(each, found) for each in own], "items": False}
        return {"type": "array", "items": _of(own[0], found)}
    if hint is float:
        return {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}
    return {"type": _SCALARS[hint]} if hint in _SCALARS else _define(hint, found)


def _summary(kind: Any) -> str:
    """The first sentence of a docstring."""
    text = inspect.cleandoc(kind.__doc__ or "").partition("\n\n")[0]
    return _plain(text)


def _attributes(kind: Any) -> Iterator[tuple[str, str]]:
    """(name, description) of the attributes that a docstring describes."""
    _, _, rest = inspect.cleandoc(kind.__doc__ or "").partition("Attributes:\n")
    for names, text in re.findall(r"^    (\w+(?:, \w+)*): (.*?)(?=^    \w|^\S|\Z)", rest, flags=re.S | re.M):
        for name in names.split(", "):
            yield name, _plain(text)


def _plain(text: str) -> str:
    """A text of a docstring in one line of Markdown."""
    return " ".join(text.split()).replace("``", "`").replace("|", r"\|")


def _in_words(each: Mapping[str, Any]) -> str:
    """A schema in a table."""
    if "$ref" in each:
        return str(each["$ref"]).rpartition("/")[2]
    if "anyOf" in each:
        if {"type": "number"} in each["anyOf"]:
            return "number"
        return " or ".join(_in_words(one) for one in each["anyOf"])
    if each["type"] == "array":
        inner = each["prefixItems"] if "prefixItems" in each else [each["items"]]
        return f"list of {', '.join(dict.fromkeys(map(_in_words, inner)))}"
    if each["type"] == "object":
        return f"object of {_in_words(each['additionalProperties'])}"
    return str(each["type"])


def written() -> dict[Path, str]:
    """What each file should hold."""
    intro = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    text = json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"
    return {FILE: text, PAGE: f"{intro}{MARK}\n{tables()}"}


if __name__ == "__main__":
    for file, content in written().items():
        file.write_text(content, encoding="utf-8")
