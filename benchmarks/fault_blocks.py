"""How many faults a report shows for one mistake, and whether its headline names a wrong tensor.

    python benchmarks/fault_blocks.py --collect FOLDER [FAMILY|bugs ...] [--every N]     (checks, reports as json)
    python benchmarks/fault_blocks.py FOLDER [--rows | --more]                           (what they add up to; markdown)

A mistake is a mutant that a property killed (of benchmarks/results/mutation/*.json), or a bug of a released kernel
(tests/bugs). Its kernel is checked by all properties on ``CASES`` cases, without shrinking, and mistakes that no
property sees there are counted and left out. Verdicts of the reports are grouped anew by the faults of today, so that
reports that were collected once show what a change of the grouping does.

A headline is right if it names a tensor that some property finds wrong by comparison with the oracle, or, where none
does so, a fact that needs no truth (an access, a changed input, an argument, a second call) or one tensor that another
entry of the kernel gives.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from gradoracle.check import minimise
from gradoracle.check.faults import diagnosed, grouped
from gradoracle.check.run import check
from gradoracle.execution import device
from gradoracle.model.dims import parse_sizes
from gradoracle.model.finding import Finding, Outcome
from gradoracle.model.property import PropertyKind
from gradoracle.model.signature import undifferentiated
from gradoracle.model.verdict import FAILING, Report, Status, Verdict
from gradoracle.mutation.fork import Lost, answer
from gradoracle.mutation.install import install
from gradoracle.mutation.mutant import Mutant
from gradoracle.mutation.plant import mutants_of
from gradoracle.mutation.sources import Source, sources_of
from gradoracle.project.request import Request
from gradoracle.project.target import resolve
from gradoracle.report import json as as_json

ROOT = Path(__file__).resolve().parent.parent
RECORDS = ROOT / "benchmarks" / "results" / "mutation"
FAMILIES = ("sdpa", "lse", "lightning", "semicrf")
COLUMNS = ("mistakes", "reports", "seen", "one block", "blocks", "headlines", "mean blocks")
CASES, SECONDS, LIMIT = 15, 100.0, 1000.0
DIRECT = (PropertyKind.ORACLE, PropertyKind.DEFINITION)


@dataclass(frozen=True)
class Plant:
    """A mistake: its name and what is checked; ``mutant``, if any, goes into its source before that."""

    name: str
    request: Request
    mutant: tuple[Mutant, Source] | None = None


def killed(family: str, sources: Sequence[Source]) -> list[tuple[Mutant, Source]]:
    """The mutants that a property killed and that can still be made."""
    record = json.loads((RECORDS / f"{family}.json").read_text(encoding="utf-8"))
    keys = {each["mutant"] for each in record["mutants"] if each["fate"] == "killed"}
    return [(m, s) for s in sources for m in mutants_of(s) if m.key in keys]


def of_family(family: str) -> Iterator[Plant]:
    """The killed mutants of a shipped family."""
    request = Request(family, device="cpu", examples=CASES, workers=0, seconds=SECONDS)
    for mutant, source in killed(family, sources_of(resolve(family))):
        yield Plant(f"{family}-{mutant.key}", request, (mutant, source))


def bugs() -> Iterator[Plant]:
    """The wrong kernels of tests/bugs, on the sizes of their test."""
    sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
    tests = importlib.import_module("tests.bugs.test_bugs")
    for module, bug in tests.CAUGHT:
        dims = dict(parse_sizes(text) for text in tests.SMALL.get(bug.family, ()))
        dims |= dict(parse_sizes(f"{dim}={size}") for dim, size in bug.dims.items())
        examples, where = max(CASES, tests.MORE.get(bug.name, 0)), tests.target(module, bug.wrong)
        yield Plant(
            f"bugs-{bug.name}",
            Request(where, bug.family or None, device="cpu", dims=dims, examples=examples, workers=0, seconds=SECONDS),
        )


def collect(folder: Path, names: Sequence[str], every: int, at_once: int) -> None:
    """Check the mistakes whose report is not there yet, each in a process of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    device.prepare("cpu")
    torch.set_num_threads(1)
    minimise.SHRINK_SECONDS = 0.0
    wanted = names or (*FAMILIES, "bugs")
    plants = [p for name in wanted for p in list(bugs() if name == "bugs" else of_family(name))[::every]]
    left = [plant for plant in plants if not (folder / f"{plant.name}.json").exists()]
    with ThreadPoolExecutor(at_once) as pool:
        for number, (plant, how) in enumerate(pool.map(lambda p: (p, _checked(p, folder)), left), 1):
            print(f"{number} of {len(left)}: {plant.name} {how}", flush=True)


def _checked(plant: Plant, folder: Path) -> str:
    def report() -> str:
        if plant.mutant is not None:
            install(*plant.mutant)
        return as_json.render([check(plant.request)])

    try:
        (folder / f"{plant.name}.json").write_text(answer(report, LIMIT), encoding="utf-8")
    except Lost as how:
        return str(how)
    except TimeoutError:
        return "takes too long"
    return "reported"


@dataclass(frozen=True)
class Shown:
    """What a report shows of one mistake: its faults, and whether its headline is right; no faults: not seen."""

    name: str
    blocks: int
    right: bool
    leads: str


def shown(name: str, report: Report) -> Shown:
    """The faults of a report as they are grouped today."""
    faults = diagnosed(grouped(report.verdicts), report.verdicts)
    known = {(verdict.property_name, verdict.kernel, verdict.dtype): verdict for verdict in report.verdicts}
    if not faults:
        return Shown(name, 0, False, "")
    leads = [known[f.verdicts[0].property_name, f.verdicts[0].kernel, f.verdicts[0].dtype] for f in faults]
    named = "; ".join(f"{v.property_name} {v.dtype} {','.join(_names(v))}" for v in leads)
    return Shown(name, len(faults), _is_right(leads[0], report.verdicts), named)


def _is_right(lead: Verdict, verdicts: Sequence[Verdict]) -> bool:
    """Whether a headline names a truly wrong tensor, or a fact where no tensor is compared with the truth."""
    if lead.status is not Status.VIOLATED or lead.kind in DIRECT:
        return lead.status is not Status.ERROR
    wrong = {undifferentiated(n) for v in verdicts if v.status in FAILING and v.kind in DIRECT for n in _names(v)}
    named = {undifferentiated(n) for n in _names(lead)[:1]}
    alone = all(len(finding.named) == 1 for finding in _violations(lead))
    return bool(named & wrong) if wrong else lead.kind is not PropertyKind.RELATION or alone


def _names(verdict: Verdict) -> list[str]:
    return list(dict.fromkeys(name for finding in _violations(verdict) for name in finding.named))


def _violations(verdict: Verdict) -> Iterator[Finding]:
    found = verdict.counterexample
    if found is not None:
        yield from (f for f in (found.first_findings or found.findings) if f.outcome is Outcome.VIOLATED)


def counted(name: str, every: Sequence[Shown]) -> dict[str, str]:
    seen = [each for each in every if each.blocks]
    blocks = sum(each.blocks for each in seen)
    return {
        "mistakes": name,
        "reports": str(len(every)),
        "seen": str(len(seen)),
        "one block": str(sum(each.blocks == 1 for each in seen)),
        "blocks": str(blocks),
        "headlines": str(sum(each.right for each in seen)),
        "mean blocks": f"{blocks / len(seen):.2f}" if seen else "",
    }


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="fault_blocks", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="of reports")
    parser.add_argument("names", nargs="*", metavar="FAMILY|bugs")
    parser.add_argument("--collect", action="store_true", help="check the mistakes whose report is not in FOLDER")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="every N-th mistake of a family")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--rows", action="store_true", help="csv, as in benchmarks/results/fault_blocks.csv")
    parser.add_argument("--more", action="store_true", help="each report with several blocks or a wrong headline")
    given = parser.parse_args(arguments)
    if given.collect:
        collect(given.folder, given.names, given.every, given.workers)
        return
    groups: dict[str, list[Shown]] = {}
    for file in sorted(given.folder.glob("*.json")):
        (report,) = as_json.read(file.read_text(encoding="utf-8"))
        groups.setdefault(file.stem.partition("-")[0], []).append(shown(file.stem, report))
    rows = [counted(name, each) for name, each in groups.items()]
    rows.append(counted("all", [each for group in groups.values() for each in group]))
    if given.more:
        for each in (each for group in groups.values() for each in group):
            if each.blocks > 1 or (each.blocks and not each.right):
                print(f"{each.name}: {each.blocks} blocks{'' if each.right else ', headline wrong'}: {each.leads}")
    separator = "," if given.rows else " | "
    for cells in (COLUMNS, *([] if given.rows else [("---",) * len(COLUMNS)]), *(tuple(r.values()) for r in rows)):
        print(separator.join(cells))


if __name__ == "__main__":
    main(sys.argv[1:])
