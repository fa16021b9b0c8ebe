"""Known failures: a note while they last, a regression once they hold or expire, no way around the base's judge."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest
from gate.project import CONFIG, KERNEL, Project

from gradoracle.gate.known_failures import read
from gradoracle.model.comparison import Kind, Weight
from gradoracle.model.errors import UsageError

ENTRY = """
[[failure]]
kernel = "my_rmsnorm"
property = "{property_name}"
reason = "the scale is off"
issue = "https://example.org/1"
expires = {expires}
"""
PROPERTIES = "*_matches_the_oracle"


def known(clone: Project, property_name: str = PROPERTIES, expires: str = "2999-01-31") -> None:
    """Commit a kernel that is wrong, and that it is known to be."""
    clone.edit(KERNEL, ("dx = r * gw", "dx = (1 + 2**-10) * r * gw"))
    clone.edit(CONFIG, ("[tool.gradoracle]\n", '[tool.gradoracle]\nknown-failures = "known.toml"\n'))
    (clone.folder / "known.toml").write_text(ENTRY.format(property_name=property_name, expires=expires))
    clone.commit("a fault that is known")


def test_one_that_lasts_is_a_note_and_one_that_holds_a_regression(clone: Project) -> None:
    known(clone)
    clone.edit(KERNEL, ("2**-10", "2**-9"))
    found = clone.answer("--base", "HEAD")
    assert found.code == 0 and "the scale is off" in found.says(Kind.KNOWN, Weight.NOTE)
    clone.edit(KERNEL, ("(1 + 2**-9) * ", ""))
    found = clone.answer("--base", "HEAD")
    (line,) = found.lines(Kind.KNOWN, Weight.RED)
    assert found.code == 1 and "now holds" in line.text and "remove the entry" in line.text


def test_one_that_has_expired_is_red_and_excuses_nothing(clone: Project) -> None:
    known(clone, expires="2020-01-31")
    clone.edit(KERNEL, ("2**-10", "2**-8"))
    found = clone.answer("--base", "HEAD")
    assert found.code == 1 and "has expired" in found.says(Kind.KNOWN, Weight.RED)


def test_an_entry_that_matches_no_property_is_a_regression(clone: Project) -> None:
    known(clone, property_name="vjp_matches_the_orakle")
    clone.edit(KERNEL, ("gw", "weighted"))
    found = clone.answer("--base", "HEAD")
    assert found.code == 1 and "matches no property" in found.says(Kind.KNOWN, Weight.RED)


def test_a_change_cannot_excuse_itself(clone: Project) -> None:
    clone.edit(KERNEL, ("dx = r * gw", "dx = (1 + 2**-10) * r * gw"))
    clone.edit(CONFIG, ("[tool.gradoracle]\n", '[tool.gradoracle]\nknown-failures = "known.toml"\n'))
    (clone.folder / "known.toml").write_text(ENTRY.format(property_name=PROPERTIES, expires="2999-01-31"))
    found = clone.answer("--base", "HEAD")
    assert found.code == 1 and "the known failures" in found.edited_judges()
    assert found.regressed() == {("vjp_matches_the_oracle", "float32")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "expected only [[failure]] entries"),
        ("[[failure]]\nkernel = 'k'", "failure 1 has no property; expected kernel, property, reason, issue, expires"),
        (
            ENTRY.format(property_name="*", expires="'soon'"),
            "failure 1: expires is 'soon'; expected a date such as 2027-01-31",
        ),
        (ENTRY.format(property_name="*", expires="2027-01-31T00:00:00"), "expected a date such as"),
        (ENTRY.format(property_name=" ", expires="2027-01-31"), "failure 1: property is ' '; expected a string"),
        (ENTRY.format(property_name="*", expires="2027-01-31") + "until = 3", "failure 1: 'until' is unknown"),
        ("[[failure]", "known.toml is not valid TOML"),
    ],
)
def test_a_file_that_is_not_as_it_should_be_is_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "known.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as raised:
        read(file, "known.toml")
    assert said in str(raised.value)
    with pytest.raises(UsageError, match="no such file"):
        read(tmp_path / "none.toml", "none.toml")


def test_the_last_day_counts(tmp_path: Path) -> None:
    file = tmp_path / "known.toml"
    file.write_text(ENTRY.format(property_name="*", expires="2027-01-31"))
    (entry,) = read(file, "known.toml")
    assert not entry.has_expired(datetime.date(2027, 1, 31)) and entry.has_expired(datetime.date(2027, 2, 1))
    assert entry.matches("my_rmsnorm", "anything", "float16") and not entry.matches("other", "anything", "float16")
