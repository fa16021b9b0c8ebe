"""A saved baseline: compared both ways; the gate never passes where it is missing, damaged, foreign or outdated."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gate.project import KERNEL, Project
from programs import gradoracle

from gradoracle.gate.baseline import Unusable, load
from gradoracle.model import ledger_file
from gradoracle.model.comparison import Kind
from gradoracle.model.ledger import CaseRecord, Header, Record, Section
from gradoracle.model.ledger_file import SCHEMA, read, text_of

FILE = "gradoracle-baseline.jsonl"


def save(clone: Project, *words: str) -> subprocess.CompletedProcess[str]:
    """Save a baseline in a clone."""
    return gradoracle("baseline", "save", *words, cwd=clone.folder)


def same(record: Any, is_first: bool = True) -> Any:
    return record


def rewrite(
    clone: Project, header: Callable[[Header], Header] = same, record: Callable[..., Record | None] = same
) -> None:
    """Change the records of a baseline; ``record`` gets each case and whether it is the first."""
    file = clone.folder / FILE
    ((section,),) = [ledger.sections for ledger in read(file)]
    records: list[Record] = []
    for each in section.records:
        is_first = not any(isinstance(own, CaseRecord) for own in records)
        made = record(each, is_first) if isinstance(each, CaseRecord) else each
        records += [] if made is None else [made]
    file.write_text(text_of([Section(header(section.header), records)]))


def test_it_is_compared_with_in_both_directions(clone: Project) -> None:
    done = save(clone)
    assert done.returncode == 0 and f"{FILE} written: 1 kernels, 15 cases" in done.stdout, done.stderr
    same = clone.answer("--baseline", FILE)
    assert same.code == 0 and same.comparison.unchanged and same.comparison.base == f"the baseline {FILE}"
    clone.edit(KERNEL, ("dx = r * gw", "dx = (1 + 2**-10) * r * gw"))
    worse = clone.answer("--baseline", FILE)
    assert worse.code == 1 and worse.regressed() == {("vjp_matches_the_oracle", "float32")}
    clone.edit(KERNEL, ("dx = (1 + 2**-10) * r * gw", "dx = 1.0 * r * gw"))
    rewrite(
        clone,
        record=lambda each, is_first: replace(each, case=each.case.replace("seed=", "seed=9")) if is_first else each,
    )
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


HEADER = Header("k.py", "f", "cpu", 0, {}, {}, (), {}, 0, "")
WHOLE = text_of([Section(HEADER)])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "does not exist; gradoracle baseline save"),
        ("", "holds no ledger"),
        (WHOLE[:-9], "holds no ledger"),
        (WHOLE + WHOLE[:-9], "the baseline is damaged: "),
        (WHOLE.replace('"cpu"', '"tpu"'), "line 1 is not what was written"),
        (json.dumps({"schema": "gradoracle-report/4"}), "holds no ledger"),
        (text_of([Section(HEADER)]), "is the ledger of a check; expected one that gradoracle baseline save writes"),
    ],
)
def test_each_file_that_is_no_baseline_has_its_own_message(tmp_path: Path, text: str | None, said: str) -> None:
    file = tmp_path / "base.jsonl"
    if text is not None:
        file.write_text(text)
    with pytest.raises(Unusable) as raised:
        load(file)
    assert said in str(raised.value)


def test_one_of_another_schema_says_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_file, "SCHEMA", "gradoracle-ledger/0")
    (tmp_path / "base.jsonl").write_text(text_of([Section(HEADER)]))
    monkeypatch.undo()
    with pytest.raises(Unusable, match=f"its schema is 'gradoracle-ledger/0'; expected '{SCHEMA}'"):
        load(tmp_path / "base.jsonl")


def test_one_of_another_version_or_of_no_case_is_not_green(clone: Project) -> None:
    save(clone)
    file = clone.folder / FILE
    known = file.read_text()
    rewrite(clone, lambda header: replace(header, environment={**header.environment, "gradoracle": "0.0.1"}))
    clone.edit(KERNEL, ("gw", "weighted"))
    code, out, _ = clone.gate("--baseline", FILE)
    assert code == 4 and "was saved by gradoracle 0.0.1" in out
    file.write_text(known)
    rewrite(clone, record=lambda each, is_first: None)
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
