"""Documents that gradoracle writes, as tests read them: reports, and schemas that refuse what they do not name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from gradoracle.model.serialize import from_plain
from gradoracle.model.verdict import Report


def reports_in(text: str) -> list[Report]:
    """The reports of a JSON document; pools of findings are not in it."""
    return from_plain(list[Report], json.loads(text)["reports"], "reports")


def closed(schema: Any) -> Any:
    """A schema that refuses fields which it does not name; the published one leaves room for what will be added.

    A definition stays open that a schema with fields of its own refers to: its fields are among that one's.
    """
    open_ = {each["$ref"] for each in _with_fields(schema) if "$ref" in each}

    def within(part: Any, place: str) -> Any:
        if isinstance(part, list):
            return [within(each, place) for each in part]
        if not isinstance(part, dict):
            return part
        found = {key: within(value, f"{place}/{key}") for key, value in part.items()}
        is_closed = _has_fields(part) and place not in open_
        return found | {"unevaluatedProperties": False} if is_closed else found

    return within(schema, "#")


def _has_fields(schema: dict[str, Any]) -> bool:
    return "required" in schema and isinstance(schema.get("properties"), dict)


def _with_fields(schema: Any) -> Iterator[dict[str, Any]]:
    """Every part of a schema that names fields."""
    if isinstance(schema, dict) and _has_fields(schema):
        yield schema
    parts = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    for part in parts:
        yield from _with_fields(part)
