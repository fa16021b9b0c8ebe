"""Plain: dataclasses as what JSON has, and back again, by their own type hints.

Numbers that JSON lacks are the strings "inf", "-inf" and "nan", which ``float`` reads.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import functools
import math
import types
import typing
from enum import Enum
from typing import Any, TypeVar

T = TypeVar("T")
_MAPPINGS = (dict, collections.abc.Mapping)
_SEQUENCES = {list: list, tuple: tuple, collections.abc.Sequence: list}
_UNIONS = (typing.Union, types.UnionType)


class Unreadable(ValueError):
    """A document does not hold what its schema says; the message names the place."""


def to_plain(value: Any) -> Any:
    """Nothing but what JSON has: a dataclass is its fields by name; what is unknown is its text."""
    if isinstance(value, Enum):
        return to_plain(value.value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")  # lone surrogates are no text
    if isinstance(value, dict):
        return {to_plain(str(key)): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [to_plain(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    return to_plain(dict(value)) if hasattr(value, "keys") else to_plain(str(value))


def from_plain(kind: type[T], value: Any, place: str = "") -> T:
    """A dataclass (or anything that is made of such) from what ``to_plain`` made of it.

    Fields of the value that the dataclass does not have are passed over; those that are missing take its default.

    Args:
        kind: what is expected.
        value: as ``json.loads`` gives it.
        place: how to call the value where it is not understood.

    Raises:
        Unreadable: a field is missing or of another type.
    """
    return _read(kind, value, place or getattr(kind, "__name__", str(kind)))  # type: ignore[no-any-return]


def _read(kind: Any, value: Any, place: str) -> Any:
    origin = typing.get_origin(kind)
    if kind is Any:
        return value
    if origin in _UNIONS:
        return _either(typing.get_args(kind), value, place)
    if origin in _SEQUENCES:
        return _SEQUENCES[origin](_items(kind, value, place))
    if origin in _MAPPINGS:
        if not isinstance(value, dict):
            raise _wrong(place, "an object", value)
        item = typing.get_args(kind)[1]
        return {key: _read(item, each, f"{place}.{key}") for key, each in value.items()}
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, place)
    if isinstance(kind, type) and issubclass(kind, Enum):
        try:
            return kind(value)
        except ValueError:
            raise _wrong(place, f"one of {', '.join(str(each.value) for each in kind)}", value) from None
    return _scalar(kind, value, place)


def _either(kinds: tuple[Any, ...], value: Any, place: str) -> Any:
    """The first of several types that takes a value."""
    if value is None and type(None) in kinds:
        return None
    fault: Unreadable | None = None
    for kind in kinds:
        if kind is not type(None):
            try:
                return _read(kind, value, place)
            except Unreadable as error:
                fault = fault or error
    raise fault or _wrong(place, "nothing", value)


def _items(kind: Any, value: Any, place: str) -> list[Any]:
    if not isinstance(value, list):
        raise _wrong(place, "a list", value)
    kinds = typing.get_args(kind)
    if len(kinds) == 1 or kinds[-1] is Ellipsis:
        return [_read(kinds[0], each, f"{place}[{position}]") for position, each in enumerate(value)]
    if len(kinds) != len(value):
        raise _wrong(place, f"{len(kinds)} items", value)
    return [_read(each, item, f"{place}[{i}]") for i, (each, item) in enumerate(zip(kinds, value, strict=True))]


def _dataclass(kind: Any, value: Any, place: str) -> Any:
    if not isinstance(value, dict):
        raise _wrong(place, "an object", value)
    hints, given = _hints(kind), {}
    for field in dataclasses.fields(kind):
        if field.name in value:
            given[field.name] = _read(hints[field.name], value[field.name], f"{place}.{field.name}")
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise Unreadable(f"{place} has no field {field.name!r}")
    return kind(**given)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _scalar(kind: Any, value: Any, place: str) -> Any:
    if kind is float and not isinstance(value, bool):
        try:
            return float(value)
        except (TypeError, ValueError):
            raise _wrong(place, "a number", value) from None
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _wrong(place, getattr(kind, "__name__", str(kind)), value)
    return value


def _wrong(place: str, expected: str, value: Any) -> Unreadable:
    shown = repr(value)
    return Unreadable(f"{place} is {shown if len(shown) <= 60 else f'{shown[:57]}...'}; expected {expected}")
