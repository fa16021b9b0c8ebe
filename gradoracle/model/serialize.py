"""Serialize: dataclasses to values that JSON can hold, and back by their type hints.

Floats that JSON lacks are the strings "inf", "-inf" and "nan", which ``float`` reads.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")
NOT_WRITTEN: Mapping[str, bool] = {"written": False}  # metadata of a field that only ``to_brief`` writes
NAMED_PROPERTY: Mapping[str, str] = {"key": "property"}  # metadata of a field that is written as ``property``
_MAPPINGS = (dict, collections.abc.Mapping)
_SEQUENCES = {list: list, tuple: tuple, collections.abc.Sequence: list}
_UNIONS = (typing.Union, types.UnionType)


class Unreadable(ValueError):
    """A document does not match its schema; the message names the place."""


def to_plain(value: object) -> Any:
    """A value as JSON can hold it: a dataclass becomes its fields by ``key_of``, an unknown object its text."""
    if isinstance(value, Enum):
        return to_plain(value.value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")  # UTF-8 has no lone surrogates
    if isinstance(value, Mapping):
        return {to_plain(str(key)): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field for field in dataclasses.fields(value) if field.metadata != NOT_WRITTEN)
        return {key_of(field): to_plain(getattr(value, field.name)) for field in fields}
    return to_plain(str(value))


def to_brief(value: object) -> Any:
    """As ``to_plain``, without the fields that have their default, which ``from_plain`` fills in."""
    if value is None or type(value) in (bool, int, str) or isinstance(value, Enum):
        return to_plain(value)
    if isinstance(value, (list, tuple)):
        return [to_brief(item) for item in value]
    if isinstance(value, Mapping):
        return {to_plain(str(key)): to_brief(item) for key, item in value.items()}
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return to_plain(value)
    own = vars(value)
    return {key: to_brief(own[name]) for name, key, default in _written(type(value)) if own[name] != default}


@functools.cache
def _written(kind: type) -> list[tuple[str, str, Any]]:
    """(name, key, default) of the fields of a dataclass; a field without a default has one that equals nothing."""
    found = []
    for field in dataclasses.fields(kind):
        made = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        found.append((field.name, key_of(field), object() if made is dataclasses.MISSING else made))
    return found


def key_of(field: dataclasses.Field[Any]) -> str:
    """The key under which a field of a dataclass is written: ``key`` of its metadata, or else its name."""
    return str(field.metadata.get("key", field.name))


def from_plain(kind: type[T], value: object, place: str = "") -> T:
    """Read a value of type ``kind`` from what ``to_plain`` made of one.

    Keys that a dataclass does not have are ignored; missing ones take the field's default.

    Args:
        kind: a dataclass, or a type hint made of dataclasses and values of JSON.
        value: the value as ``json.loads`` returns it.
        place: what error messages call the value; by default the name of ``kind``.

    Raises:
        Unreadable: a field without a default is missing, or a value has another type.
    """
    return _read(kind, value, place or getattr(kind, "__name__", str(kind)))  # type: ignore[no-any-return]


def _read(kind: Any, value: object, place: str) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any:
        return value
    if origin in _UNIONS:
        return _either(typing.get_args(kind), value, place)
    if origin in _SEQUENCES:
        return _SEQUENCES[origin](_items(typing.get_args(kind), value, place))
    if origin in _MAPPINGS:
        item = typing.get_args(kind)[1]
        return {key: _read(item, each, f"{place}.{key}") for key, each in _object(value, place).items()}
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, _object(value, place), place)
    if issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            raise _wrong(place, f"one of {', '.join(str(each.value) for each in kind)}", value) from None
    return _scalar(kind, value, place)


def _either(kinds: tuple[Any, ...], value: object, place: str) -> Any:
    """The value as the first of several types that accepts it; else the complaint of the first."""
    if value is None and type(None) in kinds:
        return None
    first: Unreadable | None = None
    for kind in kinds:
        if kind is not type(None):
            try:
                return _read(kind, value, place)
            except Unreadable as error:
                first = first or error
    raise first or _wrong(place, "nothing", value)


def _items(kinds: tuple[Any, ...], value: object, place: str) -> list[Any]:
    """The items of a list whose type arguments are ``kinds``: ``(X,)``, ``(X, ...)``, or one for each item."""
    if not isinstance(value, list):
        raise _wrong(place, "a list", value)
    if len(kinds) == 1 or kinds[-1] is Ellipsis:
        kinds = (kinds[0],) * len(value)
    if len(kinds) != len(value):
        raise _wrong(place, f"{len(kinds)} items", value)
    return [_read(each, item, f"{place}[{i}]") for i, (each, item) in enumerate(zip(kinds, value, strict=True))]


def _object(value: object, place: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise _wrong(place, "an object", value)
    return value


def _dataclass(kind: Any, value: dict[str, object], place: str) -> Any:
    hints, given = _hints(kind), {}
    for field in dataclasses.fields(kind):
        key = key_of(field)
        if key in value:
            given[field.name] = _read(hints[field.name], value[key], f"{place}.{key}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise Unreadable(f"{place} has no field {key!r}")
    return kind(**given)


_hints = functools.cache(typing.get_type_hints)


def _scalar(kind: Any, value: Any, place: str) -> Any:
    if kind is float and not isinstance(value, bool):
        try:
            return float(value)
        except (TypeError, ValueError):
            raise _wrong(place, "a number", value) from None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _wrong(place, kind.__name__, value)
    return value


def _wrong(place: str, expected: str, value: object) -> Unreadable:
    shown = repr(value)
    return Unreadable(f"{place} is {shown if len(shown) <= 60 else f'{shown[:57]}...'}; expected {expected}")
