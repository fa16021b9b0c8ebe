"""The planted regressions are of the kernels as they are: each is found in its file, changes it, and leaves Python."""

from __future__ import annotations

import ast

import pytest
from gate_regressions import PLANTS, ROOT

from gradoracle.project.shipped_names import family_names


def test_every_family_has_its_regressions() -> None:
    assert set(PLANTS) == set(family_names())
    assert all(set(kinds) == {"scale", "tail", "cast", "refactoring"} for kinds in PLANTS.values())


@pytest.mark.parametrize("family, kind", [(family, kind) for family, kinds in PLANTS.items() for kind in kinds])
def test_a_regression_applies_to_the_shipped_kernel(family: str, kind: str) -> None:
    name, before, after = PLANTS[family][kind]
    text = (ROOT / "kernels" / family / name).read_text(encoding="utf-8")
    assert before in text
    changed = ast.dump(ast.parse(text.replace(before, after)))
    assert changed != ast.dump(ast.parse(text))
