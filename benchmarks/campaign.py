"""Campaigns: correct kernels, shipped and outside ones, on many cases, where every alarm is a false one.

`python benchmarks/campaign.py [FAMILY...]` runs the lines of some families (or single lines by name), each as a
`gradoracle check` of its own, and writes one row for each into benchmarks/results/campaigns.csv. The full record of a
run is `campaign_LINE[_widened][_cuda][_seed_S][_I_of_N].json` and `.txt`. With `--widened` the property of the widened
kernel judges, and nothing else: as many cases as `--cases` says, about, drawn from a stream of three times as many.
`python benchmarks/campaign.py --table` adds up all rows: docs/background/false_alarms.md.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradoracle.properties.universal import UNIVERSAL

from gradoracle.model.errors import UsageError, why
from gradoracle.project import values

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import campaign_rows  # noqa: E402
import false_alarms  # noqa: E402
from kernel_speed.content import content  # noqa: E402

ROWS, TABLE = ROOT / "benchmarks" / "results" / campaign_rows.NAME, ROOT / "docs" / "background" / "false_alarms.md"
RECORDS = ROOT / ".gradoracle" / "campaign"
PROPERTIES = "*_matches_the_oracle"
WIDENED = "definition_is_exact_when_widened"
_DRAWN = next(prop.one_in for prop in UNIVERSAL if prop.name == WIDENED)  # it is judged on one case in so many
_EAGER = ("--contract", "bfloat16=eager-bf16", "--contract", "float16=eager-fp16")
_WORST_FIRST = (1, 3, 2, 4, 0)  # exit codes of a line: violated, internal error, usage, inconclusive


@dataclass(frozen=True)
class Line:
    """One correct kernel and the options of its check.

    Attributes:
        name: of the line, in file names and in the table.
        family: of the kernel.
        target: as for ``gradoracle check``.
        words: options for contracts and dims.
        rarer: the campaign's number of cases is divided by this, where cases are more expensive.
    """

    name: str
    family: str
    target: str
    words: tuple[str, ...] = ()
    rarer: int = 1


LINES = (
    Line("sdpa_shipped", "sdpa", "sdpa"),
    Line("sdpa_fused", "sdpa", "examples/torch_sdpa.py:fused"),
    Line("sdpa_eager", "sdpa", "examples/torch_sdpa.py:eager", _EAGER),
    Line("lse_shipped", "lse", "lse"),
    Line("lse_upcast", "lse", "examples/torch_lse.py:upcast"),
    Line("lightning_shipped", "lightning", "lightning"),
    Line("lightning_quadratic", "lightning", "examples/torch_lightning.py:quadratic"),
    Line("lightning_chunked", "lightning", "examples/torch_lightning.py:chunked", _EAGER),
    Line("semicrf_shipped", "semicrf", "semicrf"),
    # many labels and durations, beyond the sizes drawn by default, take three times as long
    Line("semicrf_many_states", "semicrf", "semicrf", ("--dim", "C=5:24", "--dim", "K=13:64"), rarer=33),
    Line("semicrf_recursion", "semicrf", "examples/torch_semicrf.py:recursion"),
)


@dataclass(frozen=True)
class Plan:
    """Options that all lines of a run share, as on the command line.

    Attributes:
        cases: of each line; widened, how many the property is judged on, about.
        widened: whether the property of the widened kernel judges, and nothing else.
        dims: restrictions of sizes, so that a run on a GPU compiles less.
    """

    device: str = "cpu"
    cases: int = 10_000
    shard: tuple[int, int] = (1, 1)
    seconds: float | None = None
    workers: int | None = None
    seed: int = 0
    widened: bool = False
    dims: tuple[str, ...] = ()

    def cases_of(self, line: Line) -> int:
        """The number of cases of a line."""
        return max(1, self.cases // line.rarer)


def chosen(names: Sequence[str], lines: Sequence[Line] = LINES) -> list[Line]:
    """The lines of some families and those given by name, in the order of the table; by default all.

    Raises:
        UsageError: a name is neither a family nor a line.
    """
    for name in names:
        values.one_of("FAMILY", name, list(dict.fromkeys(each for n in lines for each in (n.family, n.name))))
    return [line for line in lines if not names or line.family in names or line.name in names]


def words(line: Line, plan: Plan) -> list[str]:
    """The command-line arguments of ``gradoracle`` that run a line."""
    found = ["check", line.target, *(["--family", line.family] if line.target != line.family else [])]
    found += ["--device", plan.device, *line.words]
    drawn, properties = (_DRAWN, WIDENED) if plan.widened else (1, PROPERTIES)
    found += ["--examples", str(plan.cases_of(line) * drawn), "--property", properties]
    found += [word for dim in plan.dims for word in ("--dim", dim)]
    found += ["--shard", "{}/{}".format(*plan.shard)] if plan.shard != (1, 1) else []
    found += ["--seconds", f"{plan.seconds:g}"] if plan.seconds is not None else []
    found += ["--workers", str(plan.workers)] if plan.workers is not None else []
    return found + (["--seed", str(plan.seed)] if plan.seed else [])


def run(line: Line, plan: Plan, folder: Path, rows: Path) -> int:
    """Run one line in a process of its own, write its files and its row, and report its end; returns the exit code.

    A line whose process dies leaves neither files nor a row, not even those of an earlier run.
    """
    stem = campaign_rows.stem(line.name, plan.device, plan.shard, plan.widened, plan.seed)
    written, shown = folder / f"{stem}.json", folder / f"{stem}.txt"
    for file in (written, shown):
        file.unlink(missing_ok=True)
    campaign_rows.forget(rows, stem)
    own = words(line, plan)
    command = [sys.executable, "-m", "gradoracle", *own, "--format", "json", "--output", str(written)]
    print(f"{line.name}: gradoracle {shlex.join(own)}", flush=True)
    begun = time.monotonic()
    with shown.open("w", encoding="utf-8") as text:
        code = subprocess.run(command, cwd=ROOT, stdout=text).returncode
    seconds = time.monotonic() - begun
    if not written.is_file():
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        print(f"{line.name}: {how} after {seconds:.0f} s and left no result", flush=True)
        return code if code in (2, 3) else 3
    document: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
    if line.target == line.family:
        document["reports"][0]["environment"]["kernels"] = content(line.family)
    document["campaign"] = {
        "line": line.name,
        "command": f"gradoracle {shlex.join(own)}",
        "device": plan.device,
        "widened": plan.widened,
        "cases": plan.cases_of(line),
        "shard": list(plan.shard),
        "exit_code": code,
        "seconds": round(seconds, 1),
    }
    written.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    row = campaign_rows.of_document(document)
    campaign_rows.record(rows, row)
    print(f"{line.name}: {false_alarms.sentence(row)}, exit code {code}, {seconds:.0f} s", flush=True)
    if code == 1:
        print(shown.read_text(encoding="utf-8"), flush=True)
    return code if code in _WORST_FIRST else 3


def table(files: Sequence[Path], out: Path) -> None:
    """Write the table of all rows in some files.

    Raises:
        UsageError: no rows, or rows that cannot be added up.
    """
    names = [line.name for line in LINES]
    rows = [row for file in files for row in campaign_rows.read(file, names)]
    earlier = [row for row in rows if row.superseded]
    out.write_text(
        false_alarms.markdown(false_alarms.totals(rows, names), (PROPERTIES, WIDENED), earlier), encoding="utf-8"
    )
    print(f"{out.name} written", flush=True)


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="campaign", description="Correct kernels on many cases, without an alarm.")
    parser.add_argument("families", nargs="*", metavar="FAMILY", help="families or lines; default: all")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--cases", default=10_000, type=int, metavar="N", help="of each line, before sharding")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="the I-th of N parts of each line's cases")
    parser.add_argument("--seconds", type=float, metavar="S", help="stop each line after a whole case")
    parser.add_argument("--workers", default="auto", metavar="N|auto", help="processes of each line")
    parser.add_argument("--seed", default=0, type=int, metavar="N", help="of the stream of cases")
    parser.add_argument("--dim", action="append", default=[], metavar="D=16,64", help="as of check; repeatable")
    parser.add_argument("--widened", action="store_true", help="judge the widened kernel, and nothing else; on the CPU")
    parser.add_argument("--output", metavar="PATH", help="folder of rows and records; of --table, the file it writes")
    parser.add_argument("--table", nargs="*", metavar="FILE", help="only add up rows, by default all that are kept")
    parser.add_argument("--list", action="store_true", help="print the lines")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run the command line; returns the worst exit code of its lines."""
    given = _parsed(arguments)
    lines = chosen(given.families)
    if given.list:
        print("\n".join(f"{line.name:<20} {line.target} {' '.join(line.words)}".rstrip() for line in lines))
        return 0
    if given.table is not None:
        if given.families:
            raise UsageError("--table adds up all that is in its files; name no FAMILY before it")
        table([Path(file) for file in given.table] or [ROWS], Path(given.output or TABLE))
        return 0
    plan = Plan(
        given.device,
        values.at_least("--cases", given.cases, 1),
        values.shard(given.shard),
        values.seconds(given.seconds),
        values.workers(given.workers),
        values.at_least("--seed", given.seed, 0),
        given.widened,
        tuple(given.dim),
    )
    if plan.widened and plan.device != "cpu":
        raise UsageError("--widened runs in Triton's interpreter; expected --device cpu")
    folder = Path(given.output or RECORDS).resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--output {given.output} is no folder: {why(error)}") from None
    rows = folder / ROWS.name if given.output else ROWS
    codes = [run(line, plan, folder, rows) for line in lines]
    return next(code for code in _WORST_FIRST if code in codes)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        print(f"campaign: {error}", file=sys.stderr)
        sys.exit(2)
