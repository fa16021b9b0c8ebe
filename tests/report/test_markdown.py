"""The Markdown view: rendered, it shows each text as it is, and its table has a row for each property."""

from __future__ import annotations

import html
import re

from example import everything, holding, report, violated
from grouping import with_faults
from markdown_it import MarkdownIt

from gradoracle.model.verdict import Report
from gradoracle.report.formats import render


def rendered(*reports: Report) -> str:
    return str(MarkdownIt("commonmark", {"html": True}).enable("table").render(render(list(reports), "markdown")))


def shown(*reports: Report) -> str:
    """What a reader sees, without tags."""
    return html.unescape(re.sub(r"<[^>]*>", "", rendered(*reports)))


def test_the_table_has_a_row_for_each_property_and_a_column_for_each_dtype() -> None:
    found = rendered(everything())
    assert [html.unescape(head) for head in re.findall("<th>(.*?)</th>", found)] == [
        "property", "float32", "bfloat16", "float16",
    ]  # fmt: skip
    assert len(re.findall("<tr>", found)) == 1 + 6
    assert "<strong>vjp_matches_the_oracle</strong>" in found and "✓ 42 3.1σ 2e-6" in found


def test_missed_coverage_goals_stand_out_and_a_green_run_has_nothing_to_add() -> None:
    assert "T &gt; 100 000: 0 <strong>" in rendered(everything())
    assert "also" not in shown(report(holding())) and "because: nothing was checked" in shown(report())


def test_no_text_is_taken_for_markup() -> None:
    awkward = "a|b <img src=x> `code` **bold** [link](x) @someone #1 ~~x~~ \\ _y_ &amp; \x1b[31m"
    made = report(violated(), target="x\n\n# heading")
    made.verdicts[0].statement = awkward
    made.verdicts[0].property_name = "property|`x`"
    with_faults(made)
    found = shown(made)
    seen = awkward.replace("\x1b", "\ufffd")
    assert seen in found and "<img" not in rendered(made)
    assert "x # heading: 1 fault" in found
    assert len(re.findall("<td>", rendered(made))) == 2
