"""Reports as strict JSON: everything that is known, under a schema with a version."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradoracle.model.claims import standings
from gradoracle.model.errors import UsageError, why
from gradoracle.model.serialize import Unreadable, from_plain, to_plain
from gradoracle.model.sums import EXPECTED
from gradoracle.model.verdict import Report, exit_code

SCHEMA = "gradoracle-report/4"  # raised when a field is renamed or removed, or changes its meaning


def render(reports: Sequence[Report]) -> str:
    """The reports of a run as one JSON document.

    Fields are those of Report, Verdict, Counterexample and Finding, by name; a finding's ``pool`` is left out. A report
    of a shard holds in ``shard`` what else ``gradoracle merge`` needs.
    Numbers that JSON lacks are the strings "inf", "-inf" and "nan", which ``float`` reads.
    """
    document = {"schema": SCHEMA, "exit_code": exit_code(reports), "reports": [_report(report) for report in reports]}
    return json.dumps(to_plain(document), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


def read(text: str) -> list[Report]:
    """The reports of a document that ``render`` made; pools of findings are not in it.

    Raises:
        Unreadable: no JSON, another schema, or a field that is missing or of another type.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise Unreadable(f"it is not JSON: {error}") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        raise Unreadable(f"its schema is {schema!r}; expected {SCHEMA!r}")
    return from_plain(list[Report], document.get("reports"), "reports")


def read_shards(files: Sequence[Path]) -> list[tuple[str, list[Report]]]:
    """The reports that are in files, each with the name of its file, for ``check.merge``.

    Raises:
        UsageError: a file that cannot be read, or that holds no report.
    """
    return [(str(file), _read_shard(file)) for file in files]


def _read_shard(file: Path) -> list[Report]:
    try:
        reports = read(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: {why(error)}; {EXPECTED}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file} is not text; {EXPECTED}") from None
    except Unreadable as error:
        raise UsageError(f"{file} cannot be merged: {error}; {EXPECTED}") from None
    if not reports:
        raise UsageError(f"{file} does not contain a report; {EXPECTED}")
    return reports


def _report(report: Report) -> dict[str, Any]:
    """The fields of a report, and what follows from them."""
    return {
        **{field.name: getattr(report, field.name) for field in dataclasses.fields(report)},
        "exit_code": report.exit_code,
        "inconclusive": report.inconclusive(),
        "properties_checked": report.properties_checked,
        "derivatives": {
            name: {each.value: str(known) for each, known in standings(report, name).items()} for name in report.kernels
        },
    }
