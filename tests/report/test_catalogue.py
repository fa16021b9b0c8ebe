"""A property's name that several families have: one text where they say the same, else one for each."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gradoracle.properties.universal.architectures import shared_memory_fits_each_architecture
from jaxtyping import Float
from torch import Tensor

from gradoracle.check.properties import properties_of
from gradoracle.cli import main
from gradoracle.cli.commands import explain
from gradoracle.execution import device
from gradoracle.model.family import Family, family
from gradoracle.model.property import Property, property
from gradoracle.project.shipped_names import family_names
from gradoracle.project.target import Target, resolve
from gradoracle.report.catalogue import explanation


def rows_sum_to_one(evidence):
    """Each row sums to 1.

    Holds because: it was normalised.
    Catches: a row that was not.
    Cannot catch: mass moved within a row.
    """
    yield from ()


ROWS = property()(rows_sum_to_one)


def owning(name: str, *properties: Property) -> Target:
    @family(name=name, properties=properties)
    def double(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
        return 2 * x

    return Target(double, [], None, name)


def explained(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *targets: Target) -> str:
    monkeypatch.setattr(explain, "catalogue", lambda has_kernels: (list(targets), []))
    explain.explain("rows_*")
    return capsys.readouterr().out


def test_families_that_say_different_things_under_one_name_are_told_apart(monkeypatch, capsys) -> None:
    other = replace(ROWS, statement="Each row of dS sums to 0.", because="softmax does not see a shift.")
    text = explained(monkeypatch, capsys, owning("first", ROWS), owning("second", other), owning("third", ROWS))
    assert text.count("rows_sum_to_one\n") == text.count("  Holds because:") == 2
    first, second = text.split("\n\n")
    assert "Each row sums to 1." in first and first.rstrip().endswith("Families:      first, third")
    assert "Each row of dS sums to 0." in second and second.rstrip().endswith("Families:      second")


def test_one_text_of_several_families_is_shown_once(monkeypatch, capsys) -> None:
    text = explained(monkeypatch, capsys, owning("first", ROWS), owning("second", ROWS))
    assert text.count("rows_sum_to_one\n") == 1 and text.rstrip().endswith("Families:      first, second")


@pytest.mark.parametrize("name", family_names())
def test_no_property_of_a_family_hides_another_of_its_properties(name: str) -> None:
    device.prepare(device.choose("auto"))
    own: Family = resolve(name).family
    names = [each.name for each in properties_of(own)]
    assert len(names) == len(set(names)) > len(own.properties)


def test_every_shipped_property_is_listed_and_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["list"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("families\n") and "\n  sdpa(q[B H T D]," in out
    assert main.run(["explain", "*"]) == 0
    explained = capsys.readouterr().out
    for name in (line.split()[0] for line in explained.splitlines() if line and not line.startswith(" ")):
        assert f"\n  {name}\n" in out
    assert explained.count("  Cannot catch:") == explained.count("  Holds because:") > 25


def test_a_property_of_compilations_says_where_it_is_checked() -> None:
    compiling, other = (explanation(prop, ["every family"]) for prop in (shared_memory_fits_each_architecture, ROWS))
    assert "gradoracle gate" in compiling and "--property" in compiling
    assert "gradoracle gate" not in other and "--property" not in other
