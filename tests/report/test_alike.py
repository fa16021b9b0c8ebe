"""What a kernel gave and what is true, where nine digits show them alike: every view prints the difference."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gradoracle.model.finding import Worst
from gradoracle.report.formats import render
from tests.report.example import report, violated, wrong


@pytest.mark.parametrize("view", ["terminal", "markdown", "html", "github", "junit", "sarif"])
def test_numbers_that_look_alike_are_shown_with_their_difference(view: str) -> None:
    alike = replace(wrong(), worst=Worst((3,), 20.0, 20.0 - 2.06e-9, 1e5))
    text = render(report(violated("vjp_matches_the_oracle", "float32", 5, alike)), view)
    assert text.count("difference +2.06e-09") == (2 if view == "html" else 1)
    assert "difference +" not in render(report(violated("vjp_matches_the_oracle", "float32", 5, wrong())), view)
