"""Campaigns: exact bounds, shards added up once each, cut runs said, a planted wrong kernel an alarm by its case."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import campaign
import campaign_rows
import false_alarms
import mpmath
import pytest
from false_alarms import upper_bound
from pages import line_with, table_rows

from gradoracle.model.errors import UsageError

PROPERTIES = (campaign.PROPERTIES, campaign.WIDENED)
LINES = [line.name for line in campaign.LINES]
WRONG = """
import torch

def wrong(q, k, v, *, scale=None, causal=False):
    p = torch.softmax(q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale), -1)
    return 1.01 * (p @ v)
"""


@pytest.mark.parametrize(("alarms", "cases"), [(0, 1), (0, 10_000), (1, 10_000), (7, 100_000), (3, 5), (99, 100)])
def test_the_bound_is_the_rate_at_which_so_few_alarms_have_five_percent(alarms: int, cases: int) -> None:
    found = upper_bound(alarms, cases)
    with mpmath.workdps(40):
        below = 1 - mpmath.betainc(alarms + 1, cases - alarms, 0, mpmath.mpf(found), regularized=True)
    assert float(below) == pytest.approx(0.05, rel=1e-7)


def test_the_bound_without_alarms_is_its_closed_form_and_with_nothing_judged_is_one() -> None:
    assert upper_bound(0, 100_000) == pytest.approx(1 - 0.05 ** (1 / 100_000), rel=1e-9)
    assert upper_bound(0, 0) == upper_bound(4, 4) == 1.0
    assert upper_bound(0, 100, 0.99) > upper_bound(0, 100, 0.95) > upper_bound(0, 101, 0.95)
    with pytest.raises(ValueError, match="5 alarms on 4 cases"):
        upper_bound(5, 4)


def test_a_printed_rate_is_never_below_the_bound() -> None:
    for alarms, cases in ((0, 9894), (0, 10_000), (1, 99_999), (0, 1), (0, 58)):
        shown = float(false_alarms._rate(alarms, cases))
        assert upper_bound(alarms, cases) <= shown <= 1.11 * upper_bound(alarms, cases)


def verdict(dtype: str = "float32", **fields: Any) -> dict[str, Any]:
    return {
        "property": "forward_matches_the_oracle",
        "kernel": "k",
        "dtype": dtype,
        "status": "holds",
        "cases_held": 90,
        "cases_violated": 0,
        "cases_crashed": 0,
        "tensors_compared": 180,
        "counterexample": None,
    } | fields


def document(
    line: str, device: str = "cpu", shard: tuple[int, int] = (1, 1), *verdicts: dict[str, Any], **fields: Any
) -> dict[str, Any]:
    """What a campaign writes: a report of one verdict, 100 cases of which 90 are judged."""
    report = {
        "device": device,
        "seed": 0,
        "contracts": {"float32": "ieee32"},
        "environment": {"cpu": "a CPU", "gpu": "a GPU", "commit": "abc", "torch": "2", "triton": "3"},
        "verdicts": list(verdicts) or [verdict()],
        "cases_planned": 100,
        "cases_run": 100,
        "cases_judged": 90,
        "cases_alarming": 0,
        "seconds": 1.0,
    } | fields
    ran = {"line": line, "device": device, "shard": list(shard), "cases": 200, "command": f"gradoracle check {line}"}
    return {"reports": [{k: v for k, v in report.items() if v is not None}], "campaign": ran}


def recorded(
    file: Path,
    line: str,
    device: str = "cpu",
    shard: tuple[int, int] = (1, 1),
    *verdicts: dict[str, Any],
    superseded: bool = False,
    widened: bool = False,
    of: int = 200,
    **fields: Any,
) -> None:
    """A row in a file, of a line of ``of`` cases."""
    row = campaign_rows.of_document(document(line, device, shard, *verdicts, **fields))
    campaign_rows.record(file, replace(row, superseded=superseded, widened=widened, cases=of))


def totals(*files: Path) -> list[false_alarms.Total]:
    return false_alarms.totals([row for file in files for row in campaign_rows.read(file, LINES)], LINES)


def test_shards_add_up_and_devices_are_lines_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "campaigns.csv"
    for place in (2, 1):
        recorded(file, "lse_shipped", "cpu", (place, 2))
    recorded(file, "lse_shipped", "cuda")
    recorded(tmp_path / "of another machine.csv", "sdpa_eager")
    found = totals(file, tmp_path / "of another machine.csv")
    assert [(t.parts[0].line, t.parts[0].device, t.run, t.judged, t.tensors) for t in found] == [
        ("sdpa_eager", "cpu", 100, 90, 180),
        ("lse_shipped", "cpu", 200, 180, 360),
        ("lse_shipped", "cuda", 100, 90, 180),
    ]
    text = false_alarms.markdown(found, PROPERTIES)
    shown = {(row["line"], row["device"]): row for row in table_rows(text, "line")}
    assert list(shown["lse_shipped", "cpu"].values()) == [
        "lse_shipped", "cpu", "200", "180", "1", "360", "0", "1.7e-02", "", "", "",
    ]  # fmt: skip
    assert list(shown) == [total.place for total in found]
    assert "0 alarms on 360 judged" in text and "## Alarms" not in text
    ran = line_with(text, "campaign_lse_shipped_1_of_2")
    facts = ("a CPU", "commit abc", "torch 2", "triton 3", "1 s", "`gradoracle check lse_shipped`")
    assert all(fact in ran for fact in facts)


def test_a_row_says_all_that_it_was_made_of_and_stands_in_place_of_an_earlier_one(tmp_path: Path) -> None:
    file = tmp_path / "campaigns.csv"
    told = verdict(status="violated", worst_in_sigma=3.14159, counterexample={"case": 'case:1, "q"', "pooled": True})
    row = campaign_rows.of_document(document("lse_shipped", "cuda", (2, 3), told, verdict("float16")))
    recorded(file, "lse_shipped", "cuda", (2, 3), seconds=7.0)
    recorded(file, "lse_shipped", "cuda", (2, 3), seed=8, superseded=True)
    recorded(file, "lse_shipped", "cuda", (2, 3), seed=8)
    recorded(file, "lse_shipped", "cuda", (1, 3))
    campaign_rows.record(file, row)
    found = campaign_rows.read(file, LINES)
    assert [(each.shard, each.seed, each.superseded) for each in found] == [
        ((2, 3), 0, False),
        ((2, 3), 8, True),
        ((2, 3), 8, False),
        ((1, 3), 0, False),
    ]
    assert found[0] == row and (row.verdicts[0].case, row.verdicts[0].pooled) == ('case:1, "q"', True)
    assert len(file.read_text().splitlines()) == 5, "one line a run"


def test_widened_runs_stand_beside_those_of_their_line_and_in_place_of_none(tmp_path: Path) -> None:
    file = tmp_path / "campaigns.csv"
    recorded(file, "lse_shipped")
    recorded(file, "lse_shipped", "cuda")
    worst = verdict(property=campaign.WIDENED, worst_in_sigma=3.21, cases_held=40)
    shown = {"case": "case:1 lse cpu float16 N=3", "pooled": False}
    broken = verdict("float16", property=campaign.WIDENED, status="violated", cases_violated=2, counterexample=shown)
    cut = {"widened": True, "cases_run": 50, "cases_judged": 48}
    for name in ("lse_shipped", "lse_upcast"):
        recorded(file, name, "cpu", (1, 1), worst, broken, **cut, cases_alarming=2)
    recorded(file, "lse_upcast", "cpu", (1, 1), worst, **cut)
    found = totals(file)
    assert [(t.name, t.judged, t.alarming) for t in found] == [
        ("lse_shipped on cpu", 90, 0),
        ("lse_shipped widened on cpu", 48, 2),
        ("lse_shipped on cuda", 90, 0),
        ("lse_upcast widened on cpu", 48, 0),
    ]
    text = false_alarms.markdown(found, PROPERTIES)
    assert "0 alarms on 180 judged" in text and "2 alarms on 96 widened" in text
    own, none = ["100", "90", "1", "180", "0", "3.3e-02"], [""] * 6
    assert [list(row.values()) for row in table_rows(text, "line")] == [
        ["lse_shipped", "cpu", *own, "48", "2", "3.2"],
        ["lse_shipped", "cuda", *own, "", "", ""],
        ["lse_upcast", "cpu", *none, "48", "0", "3.2"],
    ]
    assert "50 of 100" in line_with(text, f"- {found[1].name} was cut")
    alarm = line_with(text, f"`{shown['case']}`")
    assert campaign.WIDENED in alarm and "float16: violated (2 cases)" in alarm
    campaign_rows.forget(file, campaign_rows.stem("lse_shipped", "cpu", (1, 1), widened=True))
    assert [total.name for total in totals(file)][:2] == ["lse_shipped on cpu", "lse_shipped on cuda"]


def test_a_cut_run_and_a_missing_shard_are_said(tmp_path: Path) -> None:
    recorded(tmp_path / "rows.csv", "lse_shipped", "cpu", (2, 3), cases_run=40, cases_judged=38)
    (total,) = totals(tmp_path / "rows.csv")
    assert (total.run, total.planned, total.judged, total.missing) == (40, 100, 38, ["1/3", "3/3"])
    text = false_alarms.markdown([total], PROPERTIES)
    (row,) = table_rows(text, "line")
    assert (row["cases"], row["judged"]) == ("40 of 100 (1 of 3 shards)", "38")
    assert "40 of 100" in line_with(text, f"- {total.name} was cut")
    assert total.name in line_with(text, "1/3, 3/3")


def test_alarms_are_reported_by_property_and_case_and_raise_the_bound(tmp_path: Path) -> None:
    shown = {"case": "case:1 lse cpu float32 N=3", "pooled": False}
    broken = verdict(status="violated", cases_held=88, cases_violated=2, counterexample=shown)
    pooled = verdict("float16", status="violated", counterexample={"case": "case:1 lse cpu float16", "pooled": True})
    recorded(tmp_path / "rows.csv", "lse_shipped", "cpu", (1, 1), broken, pooled, cases_alarming=2)
    (total,) = totals(tmp_path / "rows.csv")
    text = false_alarms.markdown([total], PROPERTIES)
    (row,) = table_rows(text, "line")
    assert (row["alarms"], row["rate"]) == ("2 and 1 pooled", "6.9e-02")
    assert "float32: violated (2 cases)" in line_with(text, f"`{shown['case']}`")
    assert "float16: violated (pooled)" in line_with(text, f"`{pooled['counterexample']['case']}`")


def test_superseded_runs_are_in_no_row_and_their_alarms_are_reported_with_the_commit(tmp_path: Path) -> None:
    shown = {"case": "case:1 lse cpu float32 N=3", "pooled": False}
    broken = verdict(status="violated", counterexample=shown)
    file = tmp_path / "campaigns.csv"
    recorded(file, "lse_shipped", "cpu", (1, 2))
    for shard in ((1, 1), (1, 2)):  # parts that overlap
        recorded(file, "lse_shipped", "cpu", shard, broken, cases_alarming=2, superseded=True)
    campaign.table([file], tmp_path / "page.md")
    text, _, earlier = (tmp_path / "page.md").read_text().partition("## Alarms of superseded runs")
    assert "0 alarms on 90 judged" in text and shown["case"] not in text
    alarms = [line for line in earlier.splitlines() if shown["case"] in line]
    facts = ("lse_shipped on cpu", "forward_matches_the_oracle, float32", "violated", "commit abc")
    assert len(alarms) == 2 and all(fact in alarm for alarm in alarms for fact in facts)


def test_older_runs_count_the_least_that_was_judged_and_the_most_that_alarmed(tmp_path: Path) -> None:
    verdicts = [
        verdict(tensors_compared=None),
        verdict(
            tensors_compared=None, property="vjp_matches_the_oracle", cases_held=94, cases_violated=1, status="violated"
        ),
        verdict("float16", tensors_compared=None, cases_held=5, cases_crashed=2, status="crashed"),
    ]
    verdicts = [{k: v for k, v in each.items() if k != "tensors_compared"} for each in verdicts]
    file = tmp_path / "rows.csv"
    recorded(file, "lse_shipped", "cpu", (1, 1), *verdicts, cases_judged=None, cases_alarming=None)
    (total,) = totals(file)
    assert (total.judged, total.alarming, total.tensors) == (95 + 7, 3, None)


def test_runs_of_different_seeds_add_up_and_each_may_lack_shards(tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    for shard, seed in (((1, 1), 0), ((1, 2), 1), ((1, 2), 0)):
        recorded(file, "lse_shipped", "cpu", shard, seed=seed)
    with pytest.raises(UsageError, match="was split in 1 and in 2 parts"):
        totals(file)
    campaign_rows.forget(file, campaign_rows.stem("lse_shipped", "cpu", (1, 2)))
    (total,) = totals(file)
    assert [part.seed for part in total.parts] == [0, 1] and total.missing == ["2/2 of seed 1"]
    assert total.run == sum(part.run for part in total.parts)


def test_what_cannot_be_added_up_is_refused_in_a_sentence(tmp_path: Path) -> None:
    def told(*shards: tuple[int, int], **fields: Any) -> str:
        files = [tmp_path / f"{len(list(tmp_path.iterdir())) + n}.csv" for n in range(2)]
        for place, shard in enumerate(shards):
            recorded(files[place % 2], "lse_shipped", "cpu", shard, **(fields if place else {}))
        with pytest.raises(UsageError) as error:
            totals(*(file for file in files if file.exists()))
        return str(error.value)

    twice, overlapping = told((1, 2), (1, 2)), told((1, 1), (1, 2))
    assert twice.startswith("lse_shipped on cpu") and "shard 1/2" in twice and "2 times" in twice
    assert overlapping.startswith("lse_shipped on cpu") and "1 and in 2 parts" in overlapping
    assert overlapping.endswith("campaign_lse_shipped, campaign_lse_shipped_1_of_2")
    assert "different numbers of cases" in told((1, 2), (2, 2), of=7)
    assert "different contracts" in told((1, 2), (2, 2), contracts={"float32": "tf32"})
    assert "nothing was run" in told()
    recorded(tmp_path / "mended.csv", "lse_shipped", superseded=True)
    with pytest.raises(UsageError, match="nothing was run; expected rows that a campaign wrote, not superseded"):
        totals(tmp_path / "mended.csv")


def test_a_record_that_is_not_what_the_campaign_ran_is_refused_in_a_sentence() -> None:
    made = document("lse_upcast")
    made["reports"][0]["device"] = "cuda"
    with pytest.raises(UsageError, match=r"^lse_upcast was run on cuda; the campaign says cpu$"):
        campaign_rows.of_document(made)
    for broken in ({}, {"reports": []}, {"reports": [{}], "campaign": {}}, made | {"reports": made["reports"] * 2}):
        with pytest.raises(UsageError, match="holds no report of one target; expected what a campaign wrote"):
            campaign_rows.of_document(broken)


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("lse_shipped,cpu", "nosuch,cpu", r"row 1: line 'nosuch' is none of sdpa_shipped, "),
        ("lse_shipped,cpu", "lse_shipped,tpu", "row 1, lse_shipped, cannot be read: device 'tpu' is none of cpu, cuda"),
        (",1/2,", ",3/2,", "row 1, lse_shipped, cannot be read: shard 3/2 is out of range"),
        (",1/2,", ",half,", "row 1, lse_shipped, cannot be read"),
        (",1/2,,", ",1/2,no,", "superseded is 'no', neither yes nor empty"),
        (",100,100,90,", ",100,100,many,", "row 1, lse_shipped, cannot be read: .*'many'"),
        (",100,100,90,0,", ",100,100,90,91,", "row 1, lse_shipped, cannot be read: 91 alarms on 90 judged cases"),
        ('""forward', '"forward', "holds no rows of campaigns; expected a CSV that a campaign wrote"),
        ('""float32"",""holds"",90', '""float32"",""holds"",""90""', "is no verdict"),
        ("[[", "", "row 1, lse_shipped, cannot be read"),
        (",1/2,", ",1/2", "holds no rows of campaigns"),
        ("line,device", "line,where", "holds no rows of campaigns"),
    ],
)
def test_a_row_that_cannot_be_read_is_refused_in_a_sentence(
    tmp_path: Path, before: str, after: str, sentence: str
) -> None:
    file = tmp_path / "campaigns.csv"
    recorded(file, "lse_shipped", "cpu", (1, 2))
    assert len(totals(file)) == 1
    text = file.read_text()
    assert before in text
    file.write_text(text.replace(before, after))
    with pytest.raises(UsageError, match=sentence):
        totals(file)


def test_a_file_that_is_none_is_refused_and_never_written_over(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nosuch\.csv cannot be read: no such file"):
        totals(tmp_path / "nosuch.csv")
    (tmp_path / "other.csv").write_text("label,seconds\nbefore,1\n")
    with pytest.raises(UsageError, match="holds no rows of campaigns"):
        recorded(tmp_path / "other.csv", "lse_shipped")
    assert (tmp_path / "other.csv").read_text() == "label,seconds\nbefore,1\n"


def test_the_page_is_what_the_rows_that_are_kept_add_up_to(tmp_path: Path) -> None:
    campaign.table([campaign.ROWS], tmp_path / "page.md")
    assert (tmp_path / "page.md").read_text() == campaign.TABLE.read_text()


def test_every_line_has_a_name_of_its_own_and_a_family_is_all_its_lines() -> None:
    assert len(set(LINES)) == len(LINES) and not set(LINES) & {line.family for line in campaign.LINES}
    assert [line.name for line in campaign.chosen(["lse"])] == ["lse_shipped", "lse_upcast"]
    assert [line.name for line in campaign.chosen(["sdpa_fused", "lse_upcast"])] == ["sdpa_fused", "lse_upcast"]
    assert campaign.chosen([]) == list(campaign.LINES)
    with pytest.raises(UsageError, match="FAMILY 'ssdpa' is unknown: did you mean sdpa"):
        campaign.chosen(["ssdpa"])


def test_a_line_is_one_command() -> None:
    line = campaign.chosen(["semicrf_many_states"])[0]
    plan = campaign.Plan("cuda", 100_000, (2, 4), 600.0, 64, 3)
    assert campaign.words(line, plan) == [
        "check", "semicrf", "--device", "cuda", "--dim", "C=5:24", "--dim", "K=13:64", "--examples", "3030",
        "--property", "*_matches_the_oracle", "--shard", "2/4", "--seconds", "600", "--workers", "64", "--seed", "3",
    ]  # fmt: skip
    stem = campaign_rows.stem(line.name, plan.device, plan.shard, seed=plan.seed)
    assert stem == "campaign_semicrf_many_states_cuda_seed_3_2_of_4"


def test_a_widened_line_is_one_command_that_judges_about_as_many_cases_as_asked_for() -> None:
    line = campaign.chosen(["lse_upcast"])[0]
    plan = campaign.Plan(cases=500, workers=16, widened=True)
    assert campaign.words(line, plan) == [
        "check", "examples/torch_lse.py:upcast", "--family", "lse", "--device", "cpu", "--examples", "1500",
        "--property", campaign.WIDENED, "--workers", "16",
    ]  # fmt: skip
    assert campaign_rows.stem("lse_upcast", "cpu", (1, 2), widened=True) == "campaign_lse_upcast_widened_1_of_2"
    with pytest.raises(UsageError, match="--widened runs in Triton's interpreter; expected --device cpu"):
        campaign.main(["lse_upcast", "--widened", "--device", "cuda"])


def test_a_slip_that_the_dtype_hides_is_an_alarm_widened_and_a_correct_kernel_is_none(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(WRONG.replace("1.01", "1.00001"))
    plan, rows = campaign.Plan(cases=4, workers=0, widened=True), tmp_path / "campaigns.csv"
    wrong = campaign.Line("sdpa_eager", "sdpa", f"{tmp_path / 'kernel.py'}:wrong", ("--dtype", "bfloat16"))
    assert campaign.run(wrong, plan, tmp_path, rows) == 1
    right = replace(wrong, name="sdpa_fused", target="examples/torch_sdpa.py:fused")
    assert campaign.run(right, plan, tmp_path, rows) in (0, 4)
    fused, eager = totals(rows)
    assert (fused.name, eager.name) == ("sdpa_fused widened on cpu", "sdpa_eager widened on cpu")
    assert fused.alarming == 0 < fused.judged and 0 < eager.alarming <= eager.judged
    assert (tmp_path / "campaign_sdpa_eager_widened.json").exists()


def test_a_wrong_kernel_is_an_alarm_with_its_case_and_a_correct_one_is_none(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(WRONG)
    plan, rows = campaign.Plan(cases=3, workers=0), tmp_path / "campaigns.csv"
    wrong = campaign.Line("sdpa_eager", "sdpa", f"{tmp_path / 'kernel.py'}:wrong")
    assert campaign.run(wrong, plan, tmp_path, rows) == 1
    right = campaign.chosen(["sdpa_fused"])[0]
    assert campaign.run(right, plan, tmp_path, rows) in (0, 4), "three cases may not decide all"
    fused, eager = totals(rows)
    assert (fused.parts[0].line, fused.alarming, fused.judged) == ("sdpa_fused", 0, 3)
    assert 0 < eager.alarming <= eager.judged == 3 and eager.tensors
    text = false_alarms.markdown([fused, eager], PROPERTIES)
    assert f"violated ({eager.parts[0].alarms[0].violated} cases): `case:" in text and "kernel.py:wrong cpu" in text
    assert (tmp_path / "campaign_sdpa_eager.txt").read_text().startswith("gradoracle ")
    full = json.loads((tmp_path / "campaign_sdpa_eager.json").read_text())
    assert campaign_rows.of_document(full) == eager.parts[0]


def test_a_line_whose_process_dies_is_said_and_leaves_nothing_of_an_earlier_run(tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "kernel.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    stale, rows = tmp_path / "campaign_sdpa_eager.json", tmp_path / "campaigns.csv"
    stale.write_text("{}")
    for name in ("sdpa_eager", "sdpa_fused"):
        recorded(rows, name)
    line = campaign.Line("sdpa_eager", "sdpa", f"{tmp_path / 'kernel.py'}:gone")
    assert campaign.run(line, campaign.Plan(cases=6, workers=0), tmp_path, rows) == 3
    assert not stale.exists()
    assert [row.line for row in campaign_rows.read(rows, LINES)] == ["sdpa_fused"]
    assert line_with(capfd.readouterr().out, "signal 9").startswith("sdpa_eager: ")


def test_mistakes_are_one_sentence_and_exit_code_two(tmp_path: Path, capfd: Any) -> None:
    for words, sentence in (
        (["--cases", "0"], "--cases must be"),
        (["--shard", "3/2"], "--shard '3/2' is out of range"),
        (["lse", "--table", str(tmp_path)], "name no FAMILY"),
    ):
        with pytest.raises(UsageError, match=sentence):
            campaign.main(words)
    with pytest.raises(SystemExit) as left:
        campaign.main(["--device", "tpu"])
    assert left.value.code == 2 and "invalid choice" in capfd.readouterr().err
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="is no folder"):
        campaign.main(["lse", "--output", str(tmp_path / "file")])
