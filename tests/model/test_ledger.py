"""The records of a ledger and their file: every field comes back, what is published is what is written."""

from __future__ import annotations

import importlib.util
import json
import random
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from documents import closed
from places import ROOT

from gradoracle.check.run import check
from gradoracle.model.fault import VerdictKey
from gradoracle.model.finding import EditedDefinition
from gradoracle.model.ledger import (
    EndRecord,
    Header,
    JudgeRecord,
    Ledger,
    Piece,
    Section,
    SeverityRecord,
    SmallerRecord,
)
from gradoracle.model.ledger_file import KINDS, LedgerFile, LedgerTail, fields_of, read, record_of, text_of
from gradoracle.model.sealed_lines import sealed
from gradoracle.model.severity import Severity
from gradoracle.project.request import Request
from tests.check.test_ledgers import FILE

KEY = VerdictKey("vjp", "k", "float32")
HEADER = Header("k.py", "f", "cpu", 0, {}, {}, (KEY,), {"k in float32": 3}, 3, "00", fail_on=Severity.WRONG)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ledger of a kernel that is wrong on some cases and raises on others."""
    path = tmp_path_factory.mktemp("ledger") / "run.jsonl"
    file = LedgerFile(path)
    for kernel in ("loses_its_tail", "raises_index_error", "refuses_odd"):
        check(Request(f"{FILE}:{kernel}", device="cpu", examples=8, workers=0), file=file)
    file.close()
    assert not file.lost
    return path


def tool() -> Any:
    spec = importlib.util.spec_from_file_location("ledger_schema", ROOT / "docs" / "ledger_schema.py")
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_what_is_published_is_what_the_classes_say() -> None:
    for file, content in tool().written().items():
        assert file.read_text() == content, f"python docs/ledger_schema.py writes {file.name}"


def test_every_line_is_as_the_schema_says(written: Path) -> None:
    schema = tool().schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(closed(schema))
    extra = [
        SmallerRecord(KEY, 3, "case:1", None, "m", "n", EditedDefinition("with another sign", "sign")),
        SeverityRecord(KEY, 3, Severity.WRONG, "why", True),
        JudgeRecord(
            "k", {"dtype": "float32", "require": ["a"]}, {"k.py": "0"}, {"the definition": Piece("x", "k")}, "e"
        ),
    ]
    lines = [*written.read_text().splitlines(), *text_of([Section(HEADER, [*extra])]).splitlines()]
    kinds = set()
    for line in lines:
        document = json.loads(line)
        validator.validate(document)
        kinds.add(document["record"])
    assert kinds == set(KINDS)
    wrong = json.loads(lines[0]) | {"another": 1}
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(wrong)


def test_every_record_comes_back(written: Path) -> None:
    lines = written.read_text().splitlines()
    for line in lines:
        fields = json.loads(line)
        seal = fields.pop("seal")
        record = record_of(fields)
        assert fields_of(record) == fields and len(seal) == 32
    again = text_of([section for ledger in read(written) for section in ledger.sections])
    assert again == written.read_text()


def test_a_tail_sees_lines_as_they_come(tmp_path: Path, written: Path) -> None:
    content = written.read_bytes()
    path, tail, seen, random_ = tmp_path / "run.jsonl", None, [], random.Random(0)
    with path.open("wb") as file:
        at = 0
        while at < len(content):
            size = random_.randrange(1, 40_000)
            file.write(content[at : at + size])
            file.flush()
            at += size
            tail = tail or LedgerTail(path)
            seen += tail.more()
    assert tail is not None and not tail.lines.damage and not tail.lines.cut
    whole = [each for ledger in read(written) for section in ledger.sections for each in section.records]
    assert list(map(fields_of, seen)) == list(map(fields_of, whole))


def test_a_seal_covers_its_line_and_all_before_it() -> None:
    first, seal = sealed({"a": 1}, "")
    _, one = sealed({"b": 1}, seal)
    assert json.loads(first) == {"a": 1, "seal": seal}
    assert one not in (sealed({"b": 1}, "")[1], sealed({"b": 2}, seal)[1])


def test_a_file_that_another_program_changes_meanwhile_is_lost(tmp_path: Path) -> None:
    for spoil in (lambda text: text.replace("cpu", "gpu"), lambda text: "", lambda text: text + text):
        path = tmp_path / "run.jsonl"
        path.unlink(missing_ok=True)
        file = LedgerFile(path)
        file.begin(HEADER)
        file.add(EndRecord(1.0))
        path.write_text(spoil(path.read_text()))
        file.close()
        assert "is not what was written: another program changed it" in file.lost


def test_a_disk_that_is_full_ends_the_ledger_and_not_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    file = LedgerFile(Path("/dev/full"))
    for _ in range(3):
        file.add(HEADER)
    file.close()
    assert "no space left on device" in file.lost
    assert capsys.readouterr().err.count("the run goes on without it") == 1


def test_a_part_ends_as_its_last_process_did() -> None:
    killed, early = Section(HEADER), Section(HEADER, [EndRecord(interrupted="interrupted after 1 of 3 cases")])
    done = Section(HEADER, [EndRecord(stopped={"k: vjp": 3.0})])
    for sections, said in (
        ([killed], "the run was ended from outside, after 0 of 3 cases"),
        ([killed, early], "interrupted after 1 of 3 cases"),
        ([early, done], ""),
        ([killed, done], ""),
    ):
        for own in (sections, sections[::-1]):
            (part,) = Ledger(own).parts.values()
            assert part.interrupted == said
