"""The gate on changes of a kernel: it passes where nothing is worse, and reports regressions, by the base's judge."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gate.project import CONFIG, HELPER, KERNEL, Project

SCALED = (KERNEL, ("dx = r * gw", "dx = (1 + 2**-10) * r * gw"))


def test_an_unchanged_tree_is_green_and_says_that_nothing_was_checked(clone: Project) -> None:
    (clone.folder / "notes.md").write_text("of no kernel")
    code, out, _ = clone.gate("--base", "main")
    assert code == 0 and "no kernel has changed since" in out and "rmsnorm: unchanged" in out


def test_a_refactoring_is_checked_and_green(clone: Project) -> None:
    clone.edit(KERNEL, ("gw", "weighted"))
    code, out, err = clone.gate("--base", "main")
    assert code == 0, out + err
    assert "rmsnorm: no worse than" in out and "1 of 1 kernels to check: rmsnorm" in err


@pytest.mark.parametrize("committed", [False, True], ids=["dirty", "committed"])
def test_a_scale_off_by_one_thousandth_is_red_on_the_gradient(clone: Project, committed: bool) -> None:
    clone.git("switch", "--quiet", "-c", "change")
    clone.edit(*SCALED)
    if committed:
        clone.commit()
    code, out, _ = clone.gate("--base", "main")
    assert code == 1 and "✗ violated vjp_matches_the_oracle held in the base and is violated in float32 (in the" in out
    assert "forward_matches_the_oracle held" not in out
    assert "\n  dx " in out


def test_a_fault_in_a_helper_is_a_change_of_the_kernel(clone: Project) -> None:
    clone.edit(HELPER, ("+ eps)", "+ eps).bfloat16().float()"))
    code, out, _ = clone.gate("--base", "main")
    assert code == 1 and "forward_matches_the_oracle held in the base and is violated" in out


def test_what_the_base_breaks_too_is_a_note(clone: Project) -> None:
    clone.edit(*SCALED)
    clone.commit("a base that is wrong")
    clone.edit(KERNEL, ("gw", "weighted"))
    code, out, _ = clone.gate("--base", "HEAD")
    assert code == 0
    assert "vjp_matches_the_oracle is violated in float32, and was violated in the base on the same cases" in out
    assert "· WRONG" in out and "✗ WRONG" not in out


def test_cases_that_are_refused_now_are_a_regression(clone: Project) -> None:
    clone.edit(
        KERNEL, ("    return _Norm", "    if x.shape[1] > 32:\n        raise ValueError('narrow')\n    return _Norm")
    )
    code, out, _ = clone.gate("--base", "main")
    assert code == 1 and "decided in the base but not in the change" in out and "narrow" in out


def test_accuracy_that_fell_within_its_budget_is_a_regression(clone: Project) -> None:
    checkered = "torch.where(torch.arange(dx.numel()).reshape(dx.shape) % 2 == 0, 1, -1)"
    clone.edit(KERNEL, ("return dx.to", f"dx = dx + dx * 2**-24 * {checkered}\n        return dx.to"))
    code, out, _ = clone.gate("--base", "main", "--examples", "180")
    assert code == 1 and "accuracy fell: rms error of dx in float32" in out
    assert "is violated" not in out


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
    code, out, _ = clone.gate("--base", "HEAD")
    assert code == 1 and "✗ violated vjp_matches_the_oracle is violated" in out


def test_kernels_that_come_and_go(clone: Project) -> None:
    text = (clone.folder / CONFIG).read_text()
    (clone.folder / CONFIG).write_text(text.replace("kernels.rmsnorm", "kernels.normalised"))
    code, out, _ = clone.gate("--base", "main")
    assert code == 1 and "rmsnorm was checked in the base and no longer exists in this tree" in out
    assert "normalised is new: it is judged by its own definition" in out and "normalised: no regression" in out


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
    assert f"::error title=wrong vjp_matches_the_oracle%2C my_rmsnorm in float32,file={KERNEL},line=" in (
        written["github"].replace(", ", "%2C ")
    )
    assert '"level": "error"' in written["sarif"] and "gate: rmsnorm: regression" in written["markdown"]
