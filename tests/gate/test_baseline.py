"""A saved baseline: compared both ways; the gate never passes where it is missing, damaged, foreign or outdated."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from gate.project import KERNEL, Project
from programs import gradoracle

from gradoracle.gate.baseline import SCHEMA, Unusable, load
from gradoracle.model.comparison import Kind
from gradoracle.model.serialize import to_plain

FILE = "gradoracle-baseline.json"


def save(clone: Project, *words: str) -> subprocess.CompletedProcess[str]:
    """Save a baseline in a clone."""
    return gradoracle("baseline", "save", *words, cwd=clone.folder)


def test_it_is_compared_with_in_both_directions(clone: Project) -> None:
    done = save(clone)
    assert done.returncode == 0 and f"{FILE} written: 1 kernels, 15 cases" in done.stdout, done.stderr
    same = clone.answer("--baseline", FILE)
    assert same.code == 0 and same.comparison.unchanged and same.comparison.base == f"the baseline {FILE}"
    clone.edit(KERNEL, ("dx = r * gw", "dx = (1 + 2**-10) * r * gw"))
    worse = clone.answer("--baseline", FILE)
    assert worse.code == 1 and worse.regressed() == {("vjp_matches_the_oracle", "float32")}
    clone.edit(KERNEL, ("dx = (1 + 2**-10) * r * gw", "dx = 1.0 * r * gw"))
    document = json.loads((clone.folder / FILE).read_text())
    cases = document["snapshots"]["rmsnorm"]["cases"]
    lost = next(line for line in cases if "float32" in line)
    cases[lost.replace("seed=", "seed=9")] = cases.pop(lost)
    (clone.folder / FILE).write_text(json.dumps(document))
    code, out, _ = clone.gate("--baseline", FILE)
    assert code == 1 and "the change has no such case" in out


def test_a_definition_that_has_changed_since_is_a_regression(clone: Project) -> None:
    save(clone)
    clone.edit(KERNEL, ("+ 1e-6) * w\n", "+ 1e-5) * w\n"), ("root(x32, 1e-6)", "root(x32, 1e-5)"))
    found = clone.answer("--baseline", FILE)
    assert found.code == 1 and found.edited_judges() == {"the definition of rmsnorm": "changed"}
    assert found.lines(Kind.VIOLATED) == []


def test_without_a_baseline_the_kernels_are_judged_alone_and_it_is_not_green(clone: Project) -> None:
    code, out, _ = clone.gate("--baseline", FILE)
    assert code == 4 and f"the baseline {FILE} does not exist" in " ".join(out.split()) and "15 cases" in out
    clone.edit(KERNEL, ("dx = r * gw", "dx = (1 + 2**-10) * r * gw"))
    assert clone.gate("--baseline", FILE)[0] == 1


def document(**fields: object) -> str:
    whole = {"schema": SCHEMA, "gradoracle": "0", "engine": "", "made": {}, "snapshots": {}}
    return json.dumps(to_plain(whole | fields))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "does not exist; gradoracle baseline save"),
        ("", "is damaged: it is not valid JSON"),
        (document()[:-9], "is damaged: it is not valid JSON"),
        (json.dumps([1]), "is not a baseline: its schema is None"),
        (json.dumps({"schema": "gradoracle-report/4"}), "is not a baseline"),
        (
            document(schema="gradoracle-baseline/0"),
            "has the schema 'gradoracle-baseline/0', and this gradoracle reads",
        ),
        (document(snapshots=3), "is damaged: base.json.snapshots is 3; expected an object"),
        (document(snapshots={"a": {"target": "a", "cases": {"c": {}}}}), "has no field 'kernel'"),
    ],
)
def test_each_file_that_is_no_baseline_has_its_own_message(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "base.json"
    if text is not None:
        file.write_text(text)
    with pytest.raises(Unusable) as raised:
        load(file)
    assert said in str(raised.value)


def test_one_of_another_version_or_of_no_case_is_not_green(clone: Project) -> None:
    save(clone)
    file = clone.folder / FILE
    known = json.loads(file.read_text())
    file.write_text(json.dumps(known | {"gradoracle": "0.0.1"}))
    clone.edit(KERNEL, ("gw", "weighted"))
    code, out, _ = clone.gate("--baseline", FILE)
    assert code == 4 and "was saved by gradoracle 0.0.1" in out
    known["snapshots"]["rmsnorm"]["cases"] = {}
    file.write_text(json.dumps(known))
    code, out, _ = clone.gate("--baseline", FILE)
    assert code == 4 and "no case in common" in out


def test_a_kernel_that_cannot_be_checked_leaves_no_baseline_and_the_old_one_as_it_was(clone: Project) -> None:
    (clone.folder / FILE).write_text("the old one")
    clone.edit(KERNEL, ("import torch\n", "import torchh\n"))
    done = save(clone)
    assert done.returncode == 2 and "no baseline is saved" in done.stderr and "torchh" in done.stderr
    assert (clone.folder / FILE).read_text() == "the old one"


def test_a_full_disk_keeps_the_old_baseline(clone: Project) -> None:
    done = save(clone, "--output", "/dev/full")
    assert done.returncode == 2 and "--output /dev/full" in done.stderr and "no space left" in done.stderr
