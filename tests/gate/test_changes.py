"""The gate on changes of a kernel: it passes where nothing is worse, and reports regressions, by the base's judge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gate.project import CONFIG, HELPER, KERNEL, Project

from gradoracle.model.comparison import Kind, Weight

SCALED = (KERNEL, ("dx = r * gw", "dx = (1 + 2**-10) * r * gw"))


def test_an_unchanged_tree_is_green_and_says_that_nothing_was_checked(clone: Project) -> None:
    (clone.folder / "notes.md").write_text("of no kernel")
    code, out, _ = clone.gate("--base", "main")
    assert code == 0 and "no kernel has changed since" in out and "rmsnorm: unchanged" in out


def test_a_refactoring_is_checked_and_green(clone: Project) -> None:
    clone.edit(KERNEL, ("gw", "weighted"))
    code, out, err = clone.gate("--base", "main")
    assert code == 0, out + err
    assert "rmsnorm: no worse than" in out and "1 of 1 kernels" in err


@pytest.mark.parametrize("committed", [False, True], ids=["dirty", "committed"])
def test_a_scale_off_by_one_thousandth_is_red_on_the_gradient(clone: Project, committed: bool) -> None:
    clone.git("switch", "--quiet", "-c", "change")
    clone.edit(*SCALED)
    if committed:
        clone.commit()
    found = clone.answer("--base", "main")
    assert found.code == 1 and found.regressed() == {("vjp_matches_the_oracle", "float32")}
    assert found.wrong_tensors("vjp_matches_the_oracle") == {"dx"}


def test_a_fault_in_a_helper_is_a_change_of_the_kernel(clone: Project) -> None:
    clone.edit(HELPER, ("+ eps)", "+ eps).bfloat16().float()"))
    found = clone.answer("--base", "main")
    assert found.code == 1 and found.regressed() == {("forward_matches_the_oracle", "float32")}


def test_what_the_base_breaks_too_is_a_note(clone: Project) -> None:
    clone.edit(*SCALED)
    clone.commit("a base that is wrong")
    clone.edit(KERNEL, ("gw", "weighted"))
    found = clone.answer("--base", "HEAD")
    (line,) = found.comparison.lines
    assert found.code == 0 and (line.kind, line.weight) == (Kind.VIOLATED, Weight.NOTE)
    assert (line.property_name, line.dtype) == ("vjp_matches_the_oracle", "float32")
    code, out, _ = clone.gate("--base", "HEAD")
    assert code == 0 and "· WRONG" in out and "✗ WRONG" not in out


def test_cases_that_are_refused_now_are_a_regression(clone: Project) -> None:
    clone.edit(
        KERNEL, ("    return _Norm", "    if x.shape[1] > 32:\n        raise ValueError('narrow')\n    return _Norm")
    )
    found = clone.answer("--base", "main")
    assert found.code == 1 and "narrow" in found.says(Kind.UNCHECKED, Weight.RED)
    assert {line.property_name for line in found.lines(Kind.UNCHECKED)} == {"forward_matches_the_oracle"}


def test_accuracy_that_fell_within_its_budget_is_a_regression(clone: Project) -> None:
    checkered = "torch.where(torch.arange(dx.numel()).reshape(dx.shape) % 2 == 0, 1, -1)"
    clone.edit(KERNEL, ("return dx.to", f"dx = dx + dx * 2**-24 * {checkered}\n        return dx.to"))
    found = clone.answer("--base", "main", "--examples", "180")
    assert found.code == 1 and "rms error of dx in float32" in found.says(Kind.ACCURACY, Weight.RED)
    assert found.lines(Kind.VIOLATED) == []


def test_a_kernel_that_cannot_be_imported_is_red_and_a_base_that_cannot_is_open(clone: Project) -> None:
    clone.edit(HELPER, ("import torch", "import torchh"))
    code, out, _ = clone.gate("--base", "main")
    assert code == 1 and "the change cannot be checked" in out and "torchh" in out
    clone.commit("broken")
    clone.edit(HELPER, ("import torchh", "import torch"))
    code, out, _ = clone.gate("--base", "HEAD")
    assert code == 4 and "the base cannot be checked" in out and "--baseline FILE" in out


def test_a_base_that_cannot_be_imported_hides_no_violation(clone: Project) -> None:
    clone.edit(HELPER, ("import torch", "import torchh"))
    clone.commit("broken")
    clone.edit(HELPER, ("import torchh", "import torch"))
    clone.edit(*SCALED)
    found = clone.answer("--base", "HEAD")
    (line,) = found.lines(Kind.VIOLATED, Weight.RED)
    assert found.code == 1 and (line.property_name, line.dtype) == ("vjp_matches_the_oracle", "float32")
    assert found.regressed() == set(), "of a base that cannot be imported nothing is known"


def test_kernels_that_come_and_go(clone: Project) -> None:
    text = (clone.folder / CONFIG).read_text()
    (clone.folder / CONFIG).write_text(text.replace("kernels.rmsnorm", "kernels.normalised"))
    found = clone.answer("--base", "main")
    by_name = {report.target: report for report in found.reports}
    gone, new = by_name["rmsnorm"].comparison, by_name["normalised"].comparison
    assert found.code == 1 and gone is not None and new is not None
    assert [(line.kind, line.weight) for line in gone.lines] == [(Kind.UNCHECKED, Weight.RED)]
    assert [(line.kind, line.weight) for line in new.lines] == [(Kind.BASE, Weight.NOTE)]
    assert "normalised is new" in new.lines[0].text and by_name["normalised"].exit_code == 0


def test_a_base_without_gradoracle_leaves_the_kernels_new(clone: Project) -> None:
    text = (clone.folder / CONFIG).read_text()
    (clone.folder / CONFIG).unlink()
    clone.commit("without")
    (clone.folder / CONFIG).write_text(text)
    code, out, _ = clone.gate("--base", "HEAD")
    assert code == 0 and "rmsnorm is new" in out


def test_no_kernel_on_either_side_is_a_mistake(clone: Project) -> None:
    (clone.folder / CONFIG).unlink()
    clone.commit("without")
    code, out, err = clone.gate("--base", "HEAD")
    assert (code, out) == (2, "") and "there is no kernel to compare" in err


def test_it_says_the_same_each_time(clone: Project) -> None:
    """Lines, verdicts, and how it explains them: which are one fault, its likely cause, the smallest case of each."""
    clone.edit(*SCALED)
    said = set()
    for _ in range(3):
        code, out, _ = clone.gate("--base", "main", "--format", "json")
        (report,) = json.loads(out)["reports"]
        lines = [(line["weight"], line["text"]) for line in report["comparison"]["lines"]]
        counts = [
            (
                each["property"],
                each["dtype"],
                each["status"],
                *(each[key] for key in sorted(each) if key[:6] == "cases_"),
            )
            for each in report["verdicts"]
        ]
        explained = [fault["diagnosis"]["cause"] for fault in report["faults"]]
        explained += [each["counterexample"]["case"] for each in report["verdicts"] if each["counterexample"]]
        said.add((code, report["exit_code"], tuple(lines), tuple(counts), tuple(explained)))
    ((code, _, lines_, *_),) = said
    assert code == 1 and any(weight == "red" for weight, _ in lines_)


def test_all_formats_at_once(clone: Project, tmp_path: Path) -> None:
    clone.edit(*SCALED)
    words = []
    for name in ("json", "junit", "sarif", "github", "markdown"):
        words += ["--format", name, "--output", str(tmp_path / name)]
    code, out, _ = clone.gate("--base", "main", *words)
    assert code == 1 and "✗ gate: rmsnorm: regression" in out
    written = {file.name: file.read_text() for file in tmp_path.iterdir() if file.is_file()}
    assert '"weight": "red"' in written["json"] and "<failure" in written["junit"]
    (alarm,) = (line for line in written["github"].splitlines() if line.startswith("::error title=wrong "))
    assert "vjp_matches_the_oracle%2C my_rmsnorm" in alarm and f"in float32,file={KERNEL},line=" in alarm
    assert '"level": "error"' in written["sarif"] and "gate: rmsnorm: regression" in written["markdown"]
