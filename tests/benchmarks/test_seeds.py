"""Seeds: every figure of a seed that docs/background/seeds.md marks with a star is one that the program prints."""

from __future__ import annotations

import re

import pytest
import torch
from places import ROOT
from seeds import lse, sdpa
from seeds.figures import off

_SECTION = r"`python -m benchmarks\.seeds {}`.*?\n## "


@pytest.mark.parametrize("seed", [sdpa, lse], ids=["sdpa", "lse"])
def test_the_page_says_what_is_measured(seed) -> None:
    torch.manual_seed(0)
    measured = [figure for _, figure in seed.rows() if isinstance(figure, float)]
    page = (ROOT / "docs/background/seeds.md").read_text()
    section = re.search(_SECTION.format(seed.__name__.rpartition(".")[2]), page, re.S)
    assert section is not None
    said = [float(figure) for figure in re.findall(r"\b(\d\.\d+e-\d+)\*", section[0])]
    assert len(said) > 5
    for figure in said:  # those that are rounding alone depend on the machine
        near = [found for found in measured if figure / 3 < found < figure * 3]
        assert near or figure < 1e-14, f"{figure:g} is not measured"


def test_an_error_is_of_all_tensors_together() -> None:
    one, two = torch.tensor([3.0]), torch.tensor([[4.0]])
    assert off((one, two), (one, 0 * two)) == pytest.approx(4 / 3) and off(two, two) == 0
