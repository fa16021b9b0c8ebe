"""What a gate keeps of a tree answers for it in the next: the same lines, and never for another tree."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gate.answers import answer
from gate.project import CONFIG, HELPER, KERNEL, Project
from sweeps import slow

from gradoracle.gate import ledger_cache
from gradoracle.gate.ledger_cache import LedgerCache
from gradoracle.gate.tree import project
from gradoracle.model.job import PropertyResult
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import Status

KNOWN = "reusing the base's results from an earlier gate"
WRONG = ("dx = r * gw", "dx = (1 + 2**-8) * r * gw")


def lines(text: str) -> list[str]:
    """What a gate says, without its times."""
    return [re.sub(r" in [\d.]+ s", "", line) for line in text.splitlines()]


def test_a_second_gate_says_the_same_without_checking_the_base(clone: Project, tmp_path: Path) -> None:
    clone.edit(KERNEL, WRONG)
    cache = tmp_path / "cache"
    code, out, said = clone.gate("--base", "HEAD", cache=cache)
    assert code == 1 and KNOWN not in said and "rmsnorm: checking the base\n" in said
    again, same, said = clone.gate("--base", "HEAD", cache=cache)
    assert again == 1 and KNOWN in said and "rmsnorm: checking the base\n" not in said and lines(same) == lines(out)
    code, out, said = clone.gate("--base", "HEAD")
    assert code == 1 and KNOWN not in said and lines(out) == lines(same)  # --no-cache
    clone.edit(KERNEL, ("2**-8", "2**-8 + 2**-7"), ("dw = (g32", "dw = (1 + 2**-8) * (g32"))
    code, out, said = clone.gate("--base", "HEAD", cache=cache)
    assert code == 1 and KNOWN in said and "not decided" not in out


@pytest.mark.parametrize("file", [KERNEL, slow(HELPER), slow(CONFIG)])
def test_another_base_is_checked_anew(clone: Project, tmp_path: Path, file: str) -> None:
    cache = tmp_path / "cache"
    clone.edit(KERNEL, ("gw", "weighted"))
    assert KNOWN not in clone.gate("--base", "HEAD", cache=cache)[2]
    assert KNOWN in clone.gate("--base", "HEAD", cache=cache)[2]
    clone.git("stash", "--quiet")
    text = (clone.folder / file).read_text()
    (clone.folder / file).write_text(text.replace("examples = 15", "examples = 12") if file == CONFIG else f"{text}\n")
    clone.commit("another base")
    clone.edit(KERNEL, ("gw", "weighted"))
    assert KNOWN not in clone.gate("--base", "HEAD", cache=cache)[2]


def test_what_is_damaged_is_computed_anew_and_said_once(clone: Project, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    clone.edit(KERNEL, WRONG)
    before = clone.gate("--base", "HEAD", cache=cache)
    for file in (cache / "ledgers").iterdir():
        file.write_bytes(file.read_bytes()[:-40])
    code, out, said = clone.gate("--base", "HEAD", cache=cache)
    assert (code, lines(out)) == (before[0], lines(before[1]))
    assert said.count("is damaged") == 1 and "and computed again" in said and KNOWN not in said
    assert KNOWN in clone.gate("--base", "HEAD", cache=cache)[2]


def test_where_nothing_can_be_kept_the_gate_says_so_once_and_answers(clone: Project, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    clone.edit(KERNEL, WRONG)
    found = clone.answer("--base", "HEAD", cache=tmp_path / "cache")
    assert found.code == 1 and found.regressed() == {("vjp_matches_the_oracle", "float32")}
    assert found.err.count("no further results are kept") == 1


CASE = [PropertyResult("vjp", Status.HOLDS), PropertyResult("causal", Status.REFUSED, reason="no mask")]
LACKS = PropertyResult("causal", Status.NOT_CHECKED, reason="memory: little", why=Reason.MEMORY)


@pytest.mark.parametrize(
    ("second", "fields", "is_kept"),
    [
        (CASE, {}, True),
        (CASE, {"planned": 3}, False),
        (CASE, {"error": "killed"}, False),
        ([PropertyResult("causal", Status.CRASHED)], {}, False),
        ([PropertyResult("causal", Status.ERROR)], {}, False),
        ([LACKS], {}, False),
    ],
)
def test_only_what_any_machine_would_find_is_kept(
    tmp_path: Path, second: list[PropertyResult], fields: dict[str, Any], is_kept: bool
) -> None:
    given = answer({0: CASE, 1: second}, called={0: ["k.py:3", "other.py:1"]}, **fields)
    entries = LedgerCache(tmp_path, lambda text: None)
    entries.keep("name", given, {"k.py": "0"})
    found = entries.find("name")
    assert (found is not None) == is_kept
    if found is not None:
        (first, _) = found.cases.values()
        assert found.is_whole and found.judge.files == {"k.py": "0"}
        assert first.called == ("k.py:3",) and list(first.results) == CASE


def test_what_no_digest_covers_has_no_name(clone: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(clone.folder)
    tree, entries = project(), LedgerCache(tmp_path / "cache", lambda text: None)
    (entry,) = tree.entries(()).values()
    assert entries.name(entry, {}, tree, tree)
    assert entries.name(entry, {}, tree, tree) != entries.name(entry, {"device": "cpu"}, tree, tree)
    assert entries.name(entry, {}, tree, tree) == entries.name(entry, {"workers": "2"}, tree, tree)
    assert not entries.name(entry, {"seconds": "5"}, tree, tree)  # how many cases a machine judges in them
    assert not entries.name(replace(entry, target="torch:relu"), {}, tree, tree)  # of no file of the tree
    assert not LedgerCache(None, lambda text: None).name(entry, {}, tree, tree)
    before = entries.name(entry, {}, tree, tree)
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    assert entries.name(entry, {}, tree, tree) != before
    monkeypatch.setattr(ledger_cache, "_loose", lambda: True)  # something else is installed in place
    assert not entries.name(entry, {}, tree, tree)
