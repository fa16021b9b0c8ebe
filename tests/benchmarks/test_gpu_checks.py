"""Checks on a GPU: what a run writes, and that the committed results are of the kernels of the tree."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import campaign
import campaign_rows
import feedback
import gpu_checks
import pytest
from gpu_checks import COMMAND, DEFAULT, RESULTS, ROWS
from kernel_speed.content import content

from gradoracle.project.shipped_names import family_names


def rows(file: Path = RESULTS / ROWS) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


@pytest.mark.parametrize("family", family_names())
def test_committed_checks_belong_to_the_committed_kernels_and_are_green(family: str) -> None:
    """A default run of other kernels than those of this tree is no result of it."""
    found = [row for row in rows() if row["family"] == family and row["run"].startswith(f"{DEFAULT}_")]
    if not found:
        pytest.skip(f"no default run of {family} on a GPU is committed yet; `{COMMAND} {family}` makes one")
    stale = sorted(
        {f"{row['run']} ({row['gpu']}, {row['commit']})" for row in found if row["kernels"] != content(family)}
    )
    assert not stale, (
        f"the checks of {family} in {RESULTS.name}/{ROWS} are of other kernels: {', '.join(stale)}; run "
        f"`{COMMAND} {family}` on these GPUs and commit what it writes"
    )
    for row in found:
        assert row["exit_code"] == "0" and row["cases"] == row["planned"], f"{row['run']} of {family} is not green"


def report(**fields: Any) -> dict[str, Any]:
    verdicts = [{"status": "holds"}, {"status": "holds"}, {"status": "not checked"}]
    environment = {"gradoracle": "0.1.0", "gpu": "NVIDIA H200, CUDA 13.0", "commit": "abc"}
    own = {"seed": 0, "cases_planned": 200, "cases_run": 200, "properties_checked": 2, "exit_code": 0}
    times = {"seconds_compiling": 800.0, "longest_compilation": 14.0}
    return {**own, **times, "verdicts": verdicts, "environment": environment, **fields}


def test_a_row_replaces_that_of_the_same_run_and_keeps_all_others(tmp_path: Path) -> None:
    file = tmp_path / ROWS
    file.write_text("run,note,family,seconds\ncheck,kept,sdpa,221.9\n", encoding="utf-8")
    for seconds in (150.0, 120.04):
        gpu_checks.keep(file, gpu_checks.row_of("sdpa", "default_h200", ["--workers", "8"], report(), seconds))
    first, second = rows(file)
    assert (first["note"], first["seconds"], first["kernels"]) == ("kept", "221.9", "")
    assert (second["statuses"], second["seconds"], second["cases"]) == ("1 not checked; 2 holds", "120.0", "200")
    assert second["command"].split() == ["gradoracle", "check", "sdpa", "--device", "cuda", "--workers", "8"]
    assert second["kernels"] == content("sdpa") and second["gpu"] == "NVIDIA H200, CUDA 13.0"


def test_a_run_is_timed_to_its_first_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in of the program, on the CPU."""
    monkeypatch.setattr(gpu_checks, "FIRST", gpu_checks.FIRST.replace("main()\n", "sys.argv[3:5] = []\nmain()\n"))
    words = ["--device", "cpu", "--examples", "3", "--property", "forward_matches*", "--workers", "1"]
    found, first, seconds = gpu_checks.checked("sdpa", words, str(tmp_path / "cache"), tmp_path)
    assert found["cases_run"] == 3 and found["exit_code"] == 0 and 0 < first <= seconds
    assert "float32" in (tmp_path / "default_sdpa.txt").read_text()


def test_what_a_run_elsewhere_wrote_becomes_the_committed(tmp_path: Path) -> None:
    there, here = tmp_path / "there", tmp_path / "here"
    for folder in (there, here):
        folder.mkdir()
    (here / ROWS).write_text("run,note,family,kernels\ndefault_h200,old,sdpa,0123\n", encoding="utf-8")
    for family in ("sdpa", "lse"):
        gpu_checks.keep(there / ROWS, gpu_checks.row_of(family, "default_h200", [], report(), 100.0))
    feedback.add(there / "feedback.csv", feedback.Row("after", "abc", 16, "h200, cold", "sdpa: the whole run", 100.0))
    gpu_checks.merge(there, here)
    assert [(row["family"], row["note"], row["kernels"]) for row in rows(here / ROWS)] == [
        ("sdpa", "", content("sdpa")), ("lse", "", content("lse")),
    ]  # fmt: skip
    assert (here / "feedback.csv").read_text() == (there / "feedback.csv").read_text()


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in ((["sdpaa"], "'sdpaa' is unknown"), (["sdpa"], "PyTorch sees no CUDA device here")):
        with pytest.raises(SystemExit) as end:
            gpu_checks.main(arguments)
        assert end.value.code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize("family", family_names())
def test_campaigns_on_a_gpu_are_of_the_committed_kernels(family: str) -> None:
    """Rows of earlier kernels are superseded; those before hashes were kept are of kernels that nobody can tell."""
    found = [row for row in campaigns() if (row.device, row.target) == ("cuda", family) and not row.superseded]
    command = f"python benchmarks/campaign.py {family}_shipped --device cuda --cases 100000 --seed N"
    known = [row for row in found if row.environment.get("kernels")]
    stale = [row.name for row in known if row.environment["kernels"] != content(family)]
    assert not stale, f"campaigns of other kernels: {', '.join(stale)}; mark them superseded, and run `{command}`"
    if not known:
        pytest.skip(f"no campaign of {family} on a GPU says of which kernels it is; `{command}` makes one")


def campaigns() -> list[campaign_rows.Row]:
    return campaign_rows.read(RESULTS / campaign_rows.NAME, [line.name for line in campaign.LINES])


def test_a_campaign_may_have_fewer_widths_of_tiles_to_compile() -> None:
    plan = campaign.Plan("cuda", 10, dims=("D=16", "Dv=1:16"))
    words = campaign.words(campaign.chosen(["sdpa_shipped"])[0], plan)
    assert words[:6] == ["check", "sdpa", "--device", "cuda", "--examples", "10"]
    assert words[-4:] == ["--dim", "D=16", "--dim", "Dv=1:16"]
