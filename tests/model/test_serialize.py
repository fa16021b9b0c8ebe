"""The key under which a field is written: its name, or the one that its metadata gives."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

import pytest

from gradoracle.model.fault import VerdictKey
from gradoracle.model.serialize import NOT_WRITTEN, Unreadable, from_plain, key_of, to_plain


@dataclass
class Named:
    """One field with a key of its own, one without, and one that is not written."""

    first_name: str = field(metadata={"key": "property"})
    second: int = 2
    third: int = field(default=3, metadata=NOT_WRITTEN)


def test_a_field_is_written_and_read_under_its_key() -> None:
    assert [key_of(each) for each in fields(Named)] == ["property", "second", "third"]
    plain = to_plain(Named("a", 5, 7))
    assert plain == {"property": "a", "second": 5}
    assert from_plain(Named, plain) == Named("a", 5, 3)


def test_a_key_is_needed_where_its_field_has_no_default_and_the_name_is_not_read() -> None:
    with pytest.raises(Unreadable, match="Named has no field 'property'"):
        from_plain(Named, {"first_name": "a"})
    with pytest.raises(Unreadable, match=r"Named\.property is 3; expected str"):
        from_plain(Named, {"property": 3})


def test_a_verdict_is_identified_by_its_property() -> None:
    key = VerdictKey("vjp_matches_the_oracle", "k", "float32")
    assert to_plain(key) == {"property": "vjp_matches_the_oracle", "kernel": "k", "dtype": "float32"}
    assert from_plain(VerdictKey, to_plain(key)) == key
