"""The HTML view as text: all that is known is on the page, what kernels say is never markup, nothing runs or loads."""

from __future__ import annotations

import html
import math
import re
import time
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from example import compared, everything, holding, pictured, report, unchanged, violated, wrong
from grouping import with_faults

from gradoracle.model.comparison import Kind, Line, Weight
from gradoracle.model.error_map import errormap
from gradoracle.model.errors import UsageError
from gradoracle.model.finding import NOWHERE, Worst
from gradoracle.model.verdict import Report
from gradoracle.project.outputs import outputs
from gradoracle.report.formats import FORMATS, render
from gradoracle.report.html import MOST_PICTURES
from gradoracle.report.summary import all_compared, outcome

VOID = {"meta", "br", "img", "hr", "link", "input"}


class Tags(HTMLParser):
    """Elements and attributes of a page; an element that is not closed in its turn is an error."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"{tag} closes {self.open[-1:]}"
        self.open.pop()


def page(*reports: Report) -> str:
    return render(list(reports), "html")


def shown(*reports: Report) -> str:
    """What a reader sees: no tags, no style, one space between words."""
    text = re.sub(r"<style.*?</style>|<svg.*?</svg>", "", page(*reports), flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", text)).split())


ALL = [everything(), report(), report(holding()), pictured(), compared(), unchanged()]


@pytest.mark.parametrize("made", ALL, ids=lambda made: made.target)
def test_it_is_one_file_that_neither_runs_nor_loads_anything(made: Report) -> None:
    text = page(with_faults(made))
    tags = Tags(text)
    assert text.startswith("<!doctype html>")
    assert {"script", "link", "iframe", "img", "object", "form"}.isdisjoint({name for name, _ in tags.found})
    for _, attributes in tags.found:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("src", "href", "xlink:href"):
                assert value is not None and value.startswith(("#", "data:image/png;base64,"))
    assert not re.search(r"@import|url\((?!#)|https?://(?!www\.w3\.org/)", text)
    ids = [attributes["id"] for _, attributes in tags.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for target in re.findall(r'"#([^"]+)"|url\(#([^)]+)\)', text):
        assert "".join(target) in ids


def test_green_and_open_reports_say_so_first() -> None:
    green, empty = report(holding()), report()
    assert (green.exit_code, empty.exit_code) == (0, 4)
    assert f"✓ {outcome(green)}" in shown(green)
    assert f"? {outcome(empty)}" in shown(empty) and "because: nothing was checked" in shown(empty)


def test_no_text_is_taken_for_markup() -> None:
    awkward = "</style><script>alert(1)</script> <img src=x onerror=y> {{ 7 * 7 }} {% raw %} & &amp; \x1b[31m \ud800"
    made = report(violated(), target=awkward)
    made.verdicts[0].statement = made.verdicts[0].property_name = made.verdicts[0].kernel = made.verdicts[0].dtype = (
        awkward
    )
    made.goals = {awkward: 1}
    made.notes = [awkward]
    made.environment = {awkward: awkward}
    text = page(with_faults(made))
    tags = Tags(text)
    assert {"script", "img"}.isdisjoint({name for name, _ in tags.found})
    seen = awkward.replace("\x1b", "\ufffd").replace("\ud800", "\ufffd")
    assert shown(made).count(seen) >= 8
    assert text.encode("utf-8")


def test_pictures_say_what_they_show() -> None:
    text = shown(pictured())
    assert "(T = 65, D = 40," in text and "over H)" in text and "43 tensors compared" in text
    names = [each.get("aria-label") for tag, each in Tags(page(pictured())).found if tag == "svg"]
    assert len(names) == 2 + 1 + 3 and all(names)  # dk is a fact, which has no values
    assert "<svg" not in page(report(holding(), violated()))


def test_hostile_names_do_not_break_pictures() -> None:
    made = pictured()
    shown_ = made.verdicts[1].counterexample
    assert shown_ is not None
    first = shown_.findings[0]
    assert first.map is not None
    awkward = '"><script>$\\frac{</script>'
    seen = replace(first, tensor=awkward, map=replace(first.map, axes=(awkward, awkward)))
    made.verdicts[1].counterexample = replace(shown_, findings=(seen,))
    assert "script" not in {name for name, _ in Tags(page(made)).found}


def test_a_gate_leads_with_what_it_says_of_all_and_marks_what_is_new() -> None:
    note = Line(Kind.ACCURACY, Weight.NOTE, "o is 2 % more accurate", "triton_sdpa")
    made = [compared(note), unchanged()]
    (new,) = made[0].comparison.of(Weight.RED)
    text = shown(*made)
    assert text.index(f"{all_compared(made)} (exit code 1)") < text.index(f"{new.kind.value}: {new.text}")
    states = [each.get("class") for tag, each in Tags(page(compared())).found if tag == "article"]
    assert states == ["fault", "fault is-note"]


def test_the_same_reports_give_the_same_bytes() -> None:
    assert page(pictured(), everything()) == page(pictured(), everything())


def test_four_families_with_many_faults_stay_small() -> None:
    made = []
    for seed in range(4):
        each = pictured(seed)
        known = each.verdicts[1]
        assert known.counterexample is not None
        for number in range(40):
            tensor = f"d{'abcdefghij'[number % 10]}{number}"
            (found,) = known.counterexample.findings[:1]
            findings = (replace(found, tensor=tensor, place="", region=NOWHERE),)
            other = replace(known.counterexample, findings=findings)
            each.verdicts.append(replace(known, property_name=f"property_{number}", counterexample=other))
        made.append(with_faults(each))
    begun = time.monotonic()
    text = page(*made)
    assert len(text.encode()) <= 5 * 2**20
    assert text.count("<svg") == 4 * (MOST_PICTURES // 4 + 3)
    assert text.count("Not drawn") == 4 * (41 - MOST_PICTURES // 4 // 2)
    assert "VIOLATED property_39" in html.unescape(re.sub(r"<[^>]*>", "", text))
    print(f"{len(text)} characters in {time.monotonic() - begun:.1f} s")


def test_without_its_packages_it_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradoracle.project.outputs.find_spec", lambda name: None if name == "jinja2" else object())
    with pytest.raises(UsageError, match=r"--format html needs jinja2: expected pip install 'gradoracle\[report\]'"):
        outputs(["--format", "html"], FORMATS)
    assert outputs(["--format", "json"], FORMATS)[0].format == "json"


def test_a_tensor_that_is_only_lost_has_no_values_to_compare() -> None:
    text = shown(report(violated("vjp_matches_the_oracle", "float32", 5, replace(wrong(), worst=None))))
    assert "tensor worst at got true" not in text and "VIOLATED vjp_matches_the_oracle" in text


@pytest.mark.parametrize(
    ("tiles", "shape", "said", "lines"),
    [
        ((64, 0), (65, 40), "; dashed: tiles end every 64 of T", 1),
        ((16, 20), (65, 40), "; dashed: tiles end every 16 of T and dashed: tiles end every 20 of D", 5),
        ((64, 64), (65, 40), "; dashed: tiles end every 64 of T and one tile covers all of D", 1),
        ((64, 0), (8192, 40), "; tiles end every 64 of T", 0),
        ((0, 0), (65, 40), "; the kernel declares no tiles of these dims", 0),
    ],
)
def test_a_caption_names_the_tiles_that_are_drawn(
    tiles: tuple[int, int], shape: tuple[int, int], said: str, lines: int
) -> None:
    from gradoracle.report import html as view
    from gradoracle.report import plots

    seen = errormap(torch.ones(shape), axes=("T", "D"))
    assert seen is not None
    seen = replace(seen, tiles=tiles)
    assert view._of_map("dq", seen, wrong(pattern="")).endswith(said)
    without = plots.error(replace(seen, tiles=(0, 0)))
    assert plots.error(seen).count("stroke-dasharray") - without.count("stroke-dasharray") == lines


@pytest.mark.parametrize("largest", [1e308, 1.7976931348623157e308, math.inf, math.nan])
def test_numbers_that_no_picture_holds_are_counted(largest: float) -> None:
    from gradoracle.report import plots

    drawn = plots.against([(1.0, largest), (largest, -largest), (1.0, 1.5), (2.0, 2.5)], "dq")
    assert "(2 more NaN, infinite" in drawn
    assert "too large" not in plots.against([(1.0, 1.5)], "dq") and "<svg" in plots.against([(1.0, largest)], "dq")


def test_a_value_that_is_lost_is_in_the_table_and_a_fact_is_not() -> None:
    lost = replace(wrong(), worst=Worst((3,), math.nan, 1.25, math.inf))
    fact = replace(wrong("dk"), worst=Worst((4,), math.nan, math.nan, math.inf))
    text = shown(report(violated("vjp_matches_the_oracle", "float32", 5, lost, fact)))
    assert "dq [3] nan 1.25 inf 4.25" in text and "dk [4]" not in text


@pytest.mark.parametrize("name", ["a\x00b", "\x1b[31m", "\ud800"])
def test_control_characters_in_names_of_dims_break_no_picture(name: str) -> None:
    from gradoracle.report import plots

    seen = errormap(torch.ones(3, 4), axes=(name, name))
    assert seen is not None
    Tags(plots.error(seen))
    assert name not in plots.error(seen)
