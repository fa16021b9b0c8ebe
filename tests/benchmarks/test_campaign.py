"""Campaigns: exact bounds, shards added up once each, cut runs said, a planted wrong kernel an alarm by its case."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import campaign
import false_alarms
import mpmath
import pytest
from false_alarms import totals, upper_bound

from gradoracle.model.errors import UsageError

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
        "law": "forward_matches_the_oracle",
        "kernel": "k",
        "dtype": dtype,
        "status": "holds",
        "cases_held": 90,
        "cases_violated": 0,
        "cases_crashed": 0,
        "tensors_compared": 180,
        "counterexample": None,
    } | fields


def written(folder: Path, name: str, *verdicts: dict[str, Any], **fields: Any) -> Path:
    """A file of results with a report of one verdict, 100 cases of which 90 are judged."""
    report = {
        "device": "cuda" if "_cuda" in name else "cpu",
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
    folder.mkdir(exist_ok=True)
    file = folder / name
    file.write_text(json.dumps({"reports": [{k: v for k, v in report.items() if v is not None}]}))
    return file


def test_shards_add_up_and_devices_are_lines_of_their_own(tmp_path: Path) -> None:
    for place in (1, 2):
        written(tmp_path, f"campaign_lse_shipped_{place}_of_2.json")
    written(tmp_path, "campaign_lse_shipped_cuda.json")
    written(tmp_path, "campaign_sdpa_eager.json")
    found = totals([tmp_path], LINES)
    assert [(t.parts[0].line, t.parts[0].device, t.run, t.judged, t.tensors) for t in found] == [
        ("sdpa_eager", "cpu", 100, 90, 180),
        ("lse_shipped", "cpu", 200, 180, 360),
        ("lse_shipped", "cuda", 100, 90, 180),
    ]
    text = false_alarms.markdown(found, "*")
    assert "| lse_shipped | cpu | 200 | 180 | 1 | 360 | 0 | 1.7e-02 |" in text
    assert "0 alarms on 360 judged cases of 3 lines." in text and "## Alarms" not in text


def test_a_cut_run_and_a_missing_shard_are_said(tmp_path: Path) -> None:
    written(tmp_path, "campaign_lse_shipped_2_of_3.json", cases_run=40, cases_judged=38)
    text = false_alarms.markdown(totals([tmp_path], LINES), "*")
    assert "| 40 of 100 (1 of 3 shards) | 38 |" in text
    assert "- lse_shipped on cpu was cut: 40 of 100 planned cases ran." in text
    assert "- lse_shipped on cpu lacks the shards 1/3, 3/3." in text


def test_alarms_are_told_by_law_and_case_and_raise_the_bound(tmp_path: Path) -> None:
    shown = {"case": "case:1 lse cpu float32 N=3", "pooled": False}
    broken = verdict(status="violated", cases_held=88, cases_violated=2, counterexample=shown)
    pooled = verdict("float16", status="violated", counterexample={"case": "case:1 lse cpu float16", "pooled": True})
    written(tmp_path, "campaign_lse_shipped.json", broken, pooled, cases_alarming=2)
    (total,) = totals([tmp_path], LINES)
    text = false_alarms.markdown([total], "*")
    assert "| 2 and 1 pooled | 6.9e-02 |" in text
    assert "float32: violated (2 cases): `case:1 lse cpu float32 N=3`" in text
    assert "float16: violated (pooled): `case:1 lse cpu float16`" in text


def test_superseded_runs_are_in_no_row_and_their_alarms_are_told_with_the_commit(tmp_path: Path) -> None:
    broken = verdict(status="violated", counterexample={"case": "case:1 lse cpu float32 N=3", "pooled": False})
    written(tmp_path, "campaign_lse_shipped_1_of_2.json")
    for place in ("1_of_1", "1_of_2"):  # parts that overlap
        written(tmp_path / "superseded", f"campaign_lse_shipped_{place}.json", broken, cases_alarming=2)
    text = false_alarms.markdown(totals([tmp_path], LINES), "*", false_alarms.superseded([tmp_path], LINES))
    assert "0 alarms on 90 judged cases of 1 lines." in text and "## Alarms of superseded runs" in text
    told = "- lse_shipped on cpu, forward_matches_the_oracle, float32: violated (0 cases): `case:1 lse cpu float32 N=3`"
    assert text.count(f"{told}, commit abc") == 2


def test_older_files_count_the_least_that_was_judged_and_the_most_that_alarmed(tmp_path: Path) -> None:
    verdicts = [
        verdict(tensors_compared=None),
        verdict(
            tensors_compared=None, law="vjp_matches_the_oracle", cases_held=94, cases_violated=1, status="violated"
        ),
        verdict("float16", tensors_compared=None, cases_held=5, cases_crashed=2, status="crashed"),
    ]
    verdicts = [{k: v for k, v in each.items() if k != "tensors_compared"} for each in verdicts]
    written(tmp_path, "campaign_lse_shipped.json", *verdicts, cases_judged=None, cases_alarming=None)
    (total,) = totals([tmp_path], LINES)
    assert (total.judged, total.alarming, total.tensors) == (95 + 7, 3, None)


def test_what_cannot_be_added_up_is_refused_in_a_sentence(tmp_path: Path) -> None:
    def told(*names: str, **fields: Any) -> str:
        folders = [tmp_path / str(len(list(tmp_path.iterdir())) + n) for n in range(2)]
        for folder in folders:
            folder.mkdir()
        for place, name in enumerate(names):
            written(folders[place % 2], name, **(fields if place else {}))
        with pytest.raises(UsageError) as error:
            totals(folders, LINES)
        return str(error.value)

    shard = "campaign_lse_shipped_1_of_2.json"
    assert told(shard, shard) == "lse_shipped on cpu: shard 1/2 is there 2 times"
    assert "was split in 1 and in 2 parts, which overlap" in told("campaign_lse_shipped.json", shard)
    assert "different seeds" in told(shard, "campaign_lse_shipped_2_of_2.json", seed=1)
    assert "different contracts" in told(shard, "campaign_lse_shipped_2_of_2.json", contracts={"float32": "tf32"})
    assert "was run on cuda; its name says otherwise" in told(shard, "campaign_lse_upcast.json", device="cuda")
    assert "LINE one of sdpa_shipped" in told("campaign_nosuch.json")
    assert "no campaign_*.json is there" in told()
    with pytest.raises(UsageError, match="is no folder"):
        totals([tmp_path / "nosuch"], LINES)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "campaign_lse_shipped.json").write_text("{")
    with pytest.raises(UsageError, match="holds no report of one target"):
        totals([tmp_path / "bad"], LINES)


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
    assert " ".join(campaign.words(line, plan)) == (
        "check semicrf --device cuda --dim C=5:24 --dim K=13:64 --examples 3030 --property *_matches_the_oracle "
        "--shard 2/4 --seconds 600 --workers 64 --seed 3"
    )
    assert campaign.stem(line, plan) == "campaign_semicrf_many_states_cuda_2_of_4"


def test_a_wrong_kernel_is_an_alarm_with_its_case_and_a_right_one_beside_it_is_none(tmp_path: Path) -> None:
    (tmp_path / "kernel.py").write_text(WRONG)
    plan = campaign.Plan(cases=3, workers=0)
    wrong = campaign.Line("sdpa_eager", "sdpa", f"{tmp_path / 'kernel.py'}:wrong")
    assert campaign.run(wrong, plan, tmp_path) == 1
    assert campaign.run(campaign.chosen(["sdpa_fused"])[0], plan, tmp_path) in (0, 4), "three cases may not decide all"
    fused, eager = totals([tmp_path], LINES)
    assert (fused.parts[0].line, fused.alarming, fused.judged) == ("sdpa_fused", 0, 3)
    assert 0 < eager.alarming <= eager.judged == 3 and eager.tensors
    text = false_alarms.markdown([fused, eager], campaign.LAWS)
    assert (
        f"violated ({eager.parts[0].alarms[0]['cases_violated']} cases): `case:" in text
        and "kernel.py:wrong cpu" in text
    )
    assert (tmp_path / "campaign_sdpa_eager.txt").read_text().startswith("gradoracle ")


def test_a_line_whose_process_dies_is_said_and_leaves_nothing_of_an_earlier_run(tmp_path: Path, capfd: Any) -> None:
    (tmp_path / "kernel.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    stale = written(tmp_path, "campaign_sdpa_eager.json")
    line = campaign.Line("sdpa_eager", "sdpa", f"{tmp_path / 'kernel.py'}:gone")
    assert campaign.run(line, campaign.Plan(cases=6, workers=0), tmp_path) == 3
    assert not stale.exists()
    assert "sdpa_eager: was killed by signal 9 after" in capfd.readouterr().out


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
