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
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")
NOT_WRITTEN: Mapping[str, bool] = {"written": False}  # metadata of a field that only ``to_brief`` writes
NAMED_PROPERTY: Mapping[str, str] = {"key": "property"}  # metadata of a field that is written as ``property``
_MAPPINGS = (dict, collections.abc.Mapping)
_SEQUENCES = {list: list, tuple: tuple, collections.abc.Sequence: list}
_NO_NUMBERS = ("inf", "-inf", "nan")  # floats that JSON lacks
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
    try:
        return _reader(kind)(value)  # type: ignore[no-any-return, arg-type]
    except _Wrong as wrong:
        raise Unreadable(f"{place or getattr(kind, '__name__', kind)}{wrong.place}{wrong.what}") from None


class _Wrong(Exception):
    """A value that is not what it should be; each container around it adds where it is."""

    def __init__(self, what: str) -> None:
        self.what, self.place = what, ""

    def within(self, place: str) -> _Wrong:
        """The same, seen from a container."""
        self.place = place + self.place
        return self


def _wrong(expected: str, value: object) -> _Wrong:
    shown = repr(value)
    return _Wrong(f" is {shown if len(shown) <= 60 else f'{shown[:57]}...'}; expected {expected}")


Reader = Callable[[Any], Any]


@functools.cache
def _reader(kind: Any) -> Reader:
    """What reads values of a type; made once, since a ledger and each reply of a host have thousands."""
    origin, own = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda value: value
    if origin in _UNIONS:
        return _of_union(own)
    if origin in _SEQUENCES:
        return _of_sequence(_SEQUENCES[origin], own)
    if origin in _MAPPINGS:
        return _of_mapping(own[1])
    if dataclasses.is_dataclass(kind):
        return _of_dataclass(kind)
    return _of_enum(kind) if issubclass(kind, Enum) else _of_scalar(kind)


def _of_union(kinds: tuple[Any, ...]) -> Reader:
    """The value as the first of several types that accepts it; else the complaint of the first."""
    has_none, texts = type(None) in kinds, str in kinds
    readers = [_reader(kind) for kind in kinds if kind is not type(None)]

    def read(value: Any) -> Any:
        if value is None and has_none:
            return None
        if texts and type(value) is str and value not in _NO_NUMBERS:  # which a float would be read from, too
            return value
        first: _Wrong | None = None
        for each in readers:
            try:
                return each(value)
            except _Wrong as wrong:
                first = first or wrong
        raise first or _wrong("nothing", value)

    return read


def _of_sequence(made: type, kinds: tuple[Any, ...]) -> Reader:
    """A list whose type arguments are ``kinds``: ``(X,)``, ``(X, ...)``, or one for each item."""
    is_alike = len(kinds) == 1 or kinds[-1] is Ellipsis
    readers = [_reader(kind) for kind in kinds[:1] if is_alike] or [_reader(kind) for kind in kinds]

    def read(value: Any) -> Any:
        if not isinstance(value, list):
            raise _wrong("a list", value)
        if not is_alike and len(readers) != len(value):
            raise _wrong(f"{len(readers)} items", value)
        items: list[Any] = []
        try:
            for each, item in zip(readers * len(value) if is_alike else readers, value, strict=True):
                items.append(each(item))
        except _Wrong as wrong:
            raise wrong.within(f"[{len(items)}]") from None
        return made(items)

    return read


def _of_mapping(kind: Any) -> Reader:
    each = _reader(kind)

    def read(value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise _wrong("an object", value)
        found, key = {}, ""
        try:
            for key, item in value.items():
                found[key] = each(item)
        except _Wrong as wrong:
            raise wrong.within(f".{key}") from None
        return found

    return read


def _of_dataclass(kind: Any) -> Reader:
    hints, missing = typing.get_type_hints(kind), dataclasses.MISSING
    own = {
        key_of(field): (field.name, functools.cache(lambda hint=hints[field.name]: _reader(hint)))
        for field in dataclasses.fields(kind)
    }
    needed = [
        key_of(field)
        for field in dataclasses.fields(kind)
        if field.default is missing and field.default_factory is missing
    ]

    def read(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong("an object", value)
        given, key = {}, ""
        try:
            for key, item in value.items():
                if key in own:
                    name, reader = own[key]
                    given[name] = reader()(item)
        except _Wrong as wrong:
            raise wrong.within(f".{key}") from None
        for key in needed:
            if key not in value:
                raise _Wrong(f" has no field {key!r}")
        return kind(**given)

    return read


def _of_enum(kind: type[Enum]) -> Reader:
    known = {each.value: each for each in kind}

    def read(value: Any) -> Any:
        try:
            return known[value]
        except (KeyError, TypeError):
            raise _wrong(f"one of {', '.join(str(each) for each in known)}", value) from None

    return read


def _of_scalar(kind: Any) -> Reader:
    def read(value: Any) -> Any:
        if type(value) is kind:
            return value
        if kind is float and not isinstance(value, bool):
            try:
                return float(value)
            except (TypeError, ValueError):
                raise _wrong("a number", value) from None
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise _wrong(kind.__name__, value)
        return value

    return read
