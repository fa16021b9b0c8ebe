"""Rows of campaigns: a CSV with one row for each run of a line or of a shard of it, from which the table is made."""

from __future__ import annotations

import csv
import fcntl
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, TextIO

from gradoracle.model.errors import UsageError, why

NAME = "campaigns.csv"
DEVICES = ("cpu", "cuda")
ALARMS = ("violated", "crashed")
_MADE_BY = ("gradoracle", "python", "commit", "torch", "triton", "cpu", "gpu", "kernels")
_COUNTS = ("planned", "run", "judged", "alarming")
_FACTS = ("line", "device", "shard", "superseded", "widened", "target", "family", "seed", "cases")
_FLAGS = ("superseded", "widened")
COLUMNS = (*_FACTS, *_COUNTS, "seconds", "exit_code", "command", *_MADE_BY, "contracts", "verdicts")


@dataclass(frozen=True)
class Verdict:
    """The result of one property for a kernel and dtype; the cell ``verdicts`` is a json list of these.

    Attributes:
        held, violated, crashed, refused, not_checked: numbers of cases.
        tensors: how many were compared; None in runs that did not count them.
        sigma: the largest error.
        case: the counterexample of an alarm.
        pooled: whether only all cases together violate the property.
    """

    property_name: str
    kernel: str
    dtype: str
    status: str
    held: int = 0
    violated: int = 0
    crashed: int = 0
    refused: int = 0
    not_checked: int = 0
    tensors: int | None = None
    sigma: float | None = None
    case: str = ""
    pooled: bool = False


@dataclass(frozen=True)
class Row:
    """One run: one shard of a line, on one device.

    Attributes:
        line: its name.
        device: cpu or cuda.
        shard: (i, n).
        superseded: whether its kernel or budget has been fixed since; such a run is not added up.
        widened: whether its cases were judged by the property of the widened kernel alone.
        cases: of the whole line; None where it was not recorded.
        counted: numbers of cases judged and of cases with an alarm; None in runs that did not count them.
        environment: versions, hardware, and for shipped kernels their hash (``kernel_speed.content``) as ``kernels``.
        contracts: by dtype, as json.
    """

    line: str
    device: str
    shard: tuple[int, int]
    superseded: bool
    widened: bool
    target: str
    family: str
    seed: int
    cases: int | None
    planned: int
    run: int
    counted: tuple[int, int] | None
    seconds: float
    exit_code: int | None
    command: str
    environment: Mapping[str, str]
    contracts: str
    verdicts: tuple[Verdict, ...]

    @property
    def judged(self) -> int:
        """How many cases some property decided; for runs that did not count them, a lower bound."""
        if self.counted is not None:
            return self.counted[0]
        most: dict[str, int] = {}
        for each in self.verdicts:
            most[each.dtype] = max(most.get(each.dtype, 0), each.held + each.violated + each.crashed)
        return sum(most.values())

    @property
    def alarming(self) -> int:
        """How many cases raised an alarm; for runs that did not count them, an upper bound."""
        if self.counted is not None:
            return self.counted[1]
        return min(sum(each.violated + each.crashed for each in self.verdicts), self.judged)

    @property
    def tensors(self) -> int | None:
        """How many tensors were compared; None in runs that did not count them."""
        counts = [each.tensors for each in self.verdicts]
        return None if None in counts else sum(count or 0 for count in counts)

    @property
    def sigma(self) -> float | None:
        """The largest error."""
        return max((each.sigma for each in self.verdicts if each.sigma is not None), default=None)

    @property
    def alarms(self) -> list[Verdict]:
        """The verdicts that are alarms."""
        return [each for each in self.verdicts if each.status in ALARMS]

    @property
    def name(self) -> str:
        """The name of the run and of the files of its full record."""
        return stem(self.line, self.device, self.shard, self.widened, self.seed)


def stem(line: str, device: str, shard: tuple[int, int], widened: bool = False, seed: int = 0) -> str:
    """The name of a run: campaign_LINE[_widened][_cuda][_seed_S][_I_of_N]."""
    part = (f"_seed_{seed}" if seed else "") + ("_{}_of_{}".format(*shard) if shard != (1, 1) else "")
    return f"campaign_{line}{'_widened' if widened else ''}{'_cuda' if device == 'cuda' else ''}{part}"


def of_document(document: Mapping[str, Any]) -> Row:
    """The row of a json report of ``gradoracle check`` to which the campaign has added its own facts.

    Raises:
        UsageError: it is not a report of one target, or was not run as the campaign says.
    """
    try:
        (report,) = document["reports"]
        campaign = document["campaign"]
        counts = (report.get("cases_judged"), report.get("cases_alarming"))
        found = Row(
            line=campaign["line"],
            device=report["device"],
            shard=(campaign["shard"][0], campaign["shard"][1]),
            superseded=False,
            widened=campaign.get("widened", False),
            target=report.get("target", ""),
            family=report.get("family", ""),
            seed=report["seed"],
            cases=campaign.get("cases"),
            planned=report["cases_planned"],
            run=report["cases_run"],
            counted=None if counts[0] is None or counts[1] is None else (int(counts[0]), int(counts[1])),
            seconds=round(report["seconds"], 3),
            exit_code=campaign.get("exit_code", document.get("exit_code")),
            command=campaign.get("command", ""),
            environment={name: report["environment"][name] for name in _MADE_BY if name in report["environment"]},
            contracts=json.dumps(report["contracts"], sort_keys=True),
            verdicts=tuple(map(_verdict, report["verdicts"])),
        )
    except (KeyError, TypeError, ValueError, IndexError):
        raise UsageError("the json holds no report of one target; expected what a campaign wrote") from None
    if campaign.get("device", found.device) != found.device:
        raise UsageError(f"{found.line} was run on {found.device}; the campaign says {campaign['device']}")
    return found


def _verdict(reported: Mapping[str, Any]) -> Verdict:
    shown, sigma = reported.get("counterexample") or {}, reported.get("worst_in_sigma")
    is_alarm = reported["status"] in ALARMS
    return Verdict(
        property_name=reported["property"],
        kernel=reported["kernel"],
        dtype=reported["dtype"],
        status=reported["status"],
        held=reported["cases_held"],
        violated=reported["cases_violated"],
        crashed=reported["cases_crashed"],
        refused=reported.get("cases_refused", 0),
        not_checked=reported.get("cases_not_checked", 0),
        tensors=reported.get("tensors_compared"),
        sigma=None if sigma is None else round(sigma, 3),
        case=shown.get("case", "") if is_alarm else "",
        pooled=bool(shown.get("pooled")) if is_alarm else False,
    )


def _cells(row: Row) -> dict[str, str]:
    """The cells of a row, by column."""
    found: dict[str, object] = {name: getattr(row, name) for name in (*_FACTS, "planned", "run", "seconds")}
    found |= {"shard": "{}/{}".format(*row.shard)}
    found |= {name: "yes" if getattr(row, name) else "" for name in _FLAGS}
    found |= dict(zip(("judged", "alarming"), row.counted or ("", ""), strict=True))
    found |= {"exit_code": row.exit_code, "command": row.command, "contracts": row.contracts}
    verdicts = [list(astuple(each)) for each in row.verdicts]
    found["verdicts"] = json.dumps(verdicts, separators=(",", ":"), ensure_ascii=False)
    found |= {name: row.environment.get(name, "") for name in _MADE_BY}
    return {name: "" if found[name] is None else str(found[name]) for name in COLUMNS}


def _row(cells: Mapping[str, str]) -> Row:
    """The row of some cells.

    Raises:
        ValueError, TypeError: a cell does not fit its column.
    """
    place, _, places = cells["shard"].partition("/")
    shard = (int(place), int(places))
    if not 1 <= shard[0] <= shard[1]:
        raise ValueError(f"shard {cells['shard']} is out of range")
    if cells["device"] not in DEVICES:
        raise ValueError(f"device {cells['device']!r} is none of {', '.join(DEVICES)}")
    for name in _FLAGS:
        if cells[name] not in ("", "yes"):
            raise ValueError(f"{name} is {cells[name]!r}, neither yes nor empty")
    counted = (int(cells["judged"]), int(cells["alarming"])) if cells["judged"] or cells["alarming"] else None
    if counted is not None and not 0 <= counted[1] <= counted[0]:
        raise ValueError(f"{counted[1]} alarms on {counted[0]} judged cases")
    return Row(
        line=cells["line"],
        device=cells["device"],
        shard=shard,
        superseded=cells["superseded"] == "yes",
        widened=cells["widened"] == "yes",
        target=cells["target"],
        family=cells["family"],
        seed=int(cells["seed"]),
        cases=int(cells["cases"]) if cells["cases"] else None,
        planned=int(cells["planned"]),
        run=int(cells["run"]),
        counted=counted,
        seconds=float(cells["seconds"]),
        exit_code=int(cells["exit_code"]) if cells["exit_code"] else None,
        command=cells["command"],
        environment={name: cells[name] for name in _MADE_BY if cells[name]},
        contracts=cells["contracts"],
        verdicts=tuple(_read_verdict(each) for each in json.loads(cells["verdicts"])),
    )


def _read_verdict(values: Sequence[Any]) -> Verdict:
    found = Verdict(*values)
    if not all(isinstance(value, str) for value in values[:4]) or not all(isinstance(n, int) for n in values[4:9]):
        raise ValueError(f"{values} is no verdict")
    return found


def read(file: Path, lines: Sequence[str]) -> list[Row]:
    """All rows of a file.

    Raises:
        UsageError: the file cannot be read or is not such a CSV, or a row has an unknown line or a wrong cell.
    """
    try:
        written = _parsed(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {why(error)}") from None
    except (ValueError, csv.Error):
        raise UsageError(f"{file} holds no rows of campaigns; expected a CSV that a campaign wrote") from None
    found = []
    for number, cells in enumerate(written, 1):
        if cells["line"] not in lines:
            raise UsageError(f"{file.name}, row {number}: line {cells['line']!r} is none of {', '.join(lines)}")
        try:
            found.append(_row(cells))
        except (ValueError, TypeError) as error:
            raise UsageError(f"{file.name}, row {number}, {cells['line']}, cannot be read: {error}") from None
    return found


def _parsed(text: str) -> list[dict[str, str]]:
    """The cells of the rows of a file, which may be empty.

    Raises:
        ValueError: its columns are different.
    """
    reader = csv.DictReader(io.StringIO(text), strict=True)
    if text and tuple(reader.fieldnames or ()) != COLUMNS:
        raise ValueError("other columns")
    found = list(reader)
    if any(None in each or None in each.values() for each in found):
        raise ValueError("a row of another length")
    return found


def record(file: Path, row: Row) -> None:
    """Write a row into a file, replacing that of an earlier run of the same line, device and shard, widened or not.

    A superseded row replaces none.

    Raises:
        UsageError: the file is not such a CSV.
    """
    cells = _cells(row)
    with _rows(file) as (stream, rows):
        places = [place for place, each in enumerate(rows) if _is_of(each, row.name)]
        if places and not row.superseded:
            rows[places[0]] = cells
        else:
            rows.append(cells)
        _write(stream, rows)


def forget(file: Path, name: str) -> None:
    """Remove the row of an earlier run of that name (``stem``) from a file, unless it is superseded."""
    if not file.exists():
        return
    with _rows(file) as (stream, rows):
        _write(stream, [each for each in rows if not _is_of(each, name)])


def _is_of(cells: Mapping[str, str], name: str) -> bool:
    place, _, places = cells["shard"].partition("/")
    shard, seed = (int(place), int(places)), int(cells["seed"])
    own = stem(cells["line"], cells["device"], shard, cells["widened"] == "yes", seed)
    return own == name and not cells["superseded"]


@contextmanager
def _rows(file: Path) -> Iterator[tuple[TextIO, list[dict[str, str]]]]:
    """The rows of a file, locked against other campaigns.

    Raises:
        UsageError: the file is not such a CSV.
    """
    with file.open("a+", encoding="utf-8", newline="") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        stream.seek(0)
        try:
            rows = _parsed(stream.read())
        except (ValueError, csv.Error):
            raise UsageError(f"{file} holds no rows of campaigns; expected a CSV that a campaign wrote") from None
        yield stream, rows


def _write(stream: TextIO, rows: Sequence[Mapping[str, str]]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    stream.seek(0)
    stream.truncate()
    stream.write(text.getvalue())
    stream.flush()
