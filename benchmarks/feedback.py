"""How long gradoracle takes to answer its developers and its users, before and after a change, in one table.

`python benchmarks/feedback.py WHAT... [--at REF] [--label WORD] [--repeat N] [--output FILE]` measures a clone of this
repository at REF, on an otherwise idle machine, and adds rows to FILE, a CSV. The clone has its own environment or,
with `--python`, an interpreter in which that gradoracle is installed:
- suite: `make test` as a whole, and the seconds of its tests by folder, added up over the processes;
- first: `gradoracle --help`; and `gradoracle check FAMILY` from the start of the process until everything is imported,
  until the first case is judged, and, on a wrong kernel, until the first failure is found;
- check: `gradoracle check` of each family and of examples/rmsnorm.py, the default number of cases with nothing
  cached: until the first case is judged, as a whole, and the processor seconds of all its processes by what they do;
- fresh: `make check` in a new clone, which installs what it needs first;
- gate: `gradoracle gate` on the sixteen planted changes of gate_regressions.py with nothing kept (cold), with compiled
  code and the base's snapshot kept (warm), and warm with --fail-fast; and on an unchanged tree.

`python benchmarks/feedback.py` alone prints FILE as a table: the median of each figure, by label. Rows of default
checks on a GPU are made by `python benchmarks/gpu_checks.py` there.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import gate_regressions
from gate_regressions import PLANTS, planted

from gradoracle.execution.environment import cores

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "benchmarks/results/feedback.csv"
FOLDERS = 40  # rows of the suite: the folders and files that take longest
STATES: tuple[tuple[str, tuple[str, ...]], ...] = (("cold", ()), ("warm", ()), ("warm, --fail-fast", ("--fail-fast",)))
# Runs gradoracle and prints when something happens first. The run ends at its "imports", at a decided "case" or at a
# "failure", and goes on after "any" case.
FIRST = """
import os, sys, threading, time

def tell():
    print(file=sys.stderr)
    print("FIRST", time.time(), file=sys.stderr, flush=True)

def end(*_):
    tell()
    os._exit(0)

def watch(kind):
    while not hasattr(run := getattr(sys.modules.get("gradoracle.check.run"), "Run", None), "_take"):
        time.sleep(0.002)
    take = run._take

    def taken(self, result):
        statuses = {each.status.value for each in result.results}
        if kind == "any":
            run._take = take
            tell()
        elif statuses & ({"violated", "crashed"} if kind == "failure" else {"holds", "violated", "crashed"}):
            end()
        take(self, result)

    if kind == "imports":
        run.over = end
    else:
        run._take = taken

threading.Thread(target=watch, args=(sys.argv.pop(1),), daemon=True).start()
from gradoracle.__main__ import main
main()
"""

CHECKED = ("sdpa", "lse", "lightning", "gated_delta", "semicrf", "examples/rmsnorm.py")
# What a process does, by the files of the calls that it is in; of several, the first that is listed.
DOINGS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("imports", ("<frozen importlib",)),
    ("compiling", ("/offline.py", "/triton/compiler/", "/numba/core/")),
    ("interpreter", ("/host/interpreter/",)),
    ("budgets", ("/oracle/rounding/",)),
    ("truth", ("/oracle/",)),
)
OTHER = "the rest"
# Of every interpreter that starts with it on its path: the processor seconds by what the main thread does meanwhile.
_SAMPLER = """
import json, os, sys, threading, time
DOINGS, OTHER = json.loads(os.environ["FEEDBACK_DOINGS"])

def doing(frame):
    files = []
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    return next((name for name, parts in DOINGS if any(part in file for file in files for part in parts)), OTHER)

def sample(folder, thread):
    found, before, count = {}, 0.0, 0
    while True:
        time.sleep(0.02)
        frame, now = sys._current_frames().get(thread), time.process_time()
        name = doing(frame)
        found[name] = found.get(name, 0.0) + now - before
        before, count = now, count + 1
        if count % 10 == 0:
            with open(os.path.join(folder, f"{os.getpid()}.json"), "w") as file:
                json.dump(found, file)

threading.Thread(target=sample, args=(os.path.dirname(__file__), threading.get_ident()), daemon=True).start()
"""


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        label: the column of the table, such as "before".
        commit: the one measured.
        cores: of the machine.
        what: suite, first, check, fresh or gate.
        name: of the figure.
        seconds: taken.
    """

    label: str
    commit: str
    cores: int
    what: str
    name: str
    seconds: float


@dataclass(frozen=True)
class Measured:
    """A clone, the interpreter of its environment, and a folder for its caches."""

    folder: Path
    cache: Path
    python: str

    @property
    def environment(self) -> dict[str, str]:
        """The environment of its processes, which do not find the caches of other runs."""
        return {**os.environ, "GRADORACLE_CACHE": str(self.cache), "TRITON_HOME": str(self.cache / "triton")}

    def forget(self) -> None:
        """Empty the caches."""
        shutil.rmtree(self.cache, ignore_errors=True)


def clone(ref: str, folder: Path, python: str) -> Measured:
    """Clone this repository at a commit, and install it unless an interpreter is given."""
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder / "clone")], check=True)
    found = Measured(folder / "clone", folder / "cache", python or str(folder / "clone/.venv/bin/python"))
    subprocess.run(["git", "checkout", "--quiet", ref], cwd=found.folder, check=True)
    if not python:
        subprocess.run(["make", "setup"], cwd=found.folder, check=True, capture_output=True)
    return found


def suite(of: Measured) -> Iterator[tuple[str, float]]:
    """`make test`, and the seconds of its tests by folder."""
    report = of.folder.parent / "suite.xml"
    environment = {**of.environment, "PYTEST_ADDOPTS": f"--junitxml={report}"}
    begun = time.monotonic()
    done = subprocess.run(["make", "test"], cwd=of.folder, env=environment, stdout=subprocess.DEVNULL)
    yield f"make test (exit code {done.returncode})", time.monotonic() - begun
    folders: dict[str, float] = defaultdict(float)
    longest = ("", 0.0)
    for case in ElementTree.parse(report).iter("testcase"):
        module, seconds = case.get("classname", "").split("."), float(case.get("time", "0"))
        folders["/".join(module[: 2 if module[0] == "tests" else 1])] += seconds
        longest = max(longest, (case.get("name", ""), seconds), key=lambda each: each[1])
    for folder, seconds in sorted(folders.items(), key=lambda item: -item[1])[:FOLDERS]:
        yield folder, seconds
    yield "the longest test", longest[1]


def first(of: Measured, families: Sequence[str]) -> Iterator[tuple[str, float]]:
    """The help, and for each family the imports, the first case and the first failure."""
    for name in ("gradoracle --help, the first time", "gradoracle --help"):
        begun = time.time()
        subprocess.run([of.python, "-m", "gradoracle", "--help"], env=of.environment, check=True, capture_output=True)
        yield name, time.time() - begun
    for family in families:
        yield f"{family}: imports, up to the first case", _until_first(of, "imports", family)
        yield f"{family}: first judged case", _until_first(of, "case", family)
        with planted(of.folder, family, "scale"):
            yield f"{family}: first failure of a gradient scaled by 1 + 2^-10", _until_first(of, "failure", family)


def check(of: Measured) -> Iterator[tuple[str, float]]:
    """The default check of two targets with nothing cached: the first case, the whole, processor seconds by doing."""
    for target in CHECKED:
        of.forget()
        yield f"{target}: first judged case, nothing cached", _until_first(of, "case", target)
        of.forget()
        words = [of.python, "-m", "gradoracle", "check", target]
        begun = time.monotonic()
        subprocess.run(words, cwd=of.folder, env=of.environment, check=True, capture_output=True)
        yield f"{target}: whole run, nothing cached", time.monotonic() - begun
        of.forget()
        for name, seconds in _processor_seconds(of, words):
            yield f"{target}: processor seconds, {name}", seconds


def _processor_seconds(of: Measured, words: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Of a command and its descendants, each a new interpreter, so that they are its own: in all, and by doing."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(_SAMPLER)
        own = {"PYTHONPATH": folder, "FEEDBACK_DOINGS": json.dumps([DOINGS, OTHER]), "GRADORACLE_FORKSERVER": "off"}
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(words, cwd=of.folder, env=of.environment | own, check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        yield "in all", after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found: Counter[str] = Counter()
        for file in Path(folder).glob("*.json"):
            found.update(json.loads(file.read_text()))
        for name in (*(name for name, _ in DOINGS), OTHER):
            yield name, found[name]


def fresh(of: Measured) -> Iterator[tuple[str, float]]:
    """`make check` in a clone of its own, which installs what it needs first."""
    folder = of.folder.parent / "fresh"
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", str(of.folder), str(folder)], check=True)
    begun = time.monotonic()
    subprocess.run(["make", "check"], cwd=folder, env=of.environment, check=True, capture_output=True)
    yield "make check from a fresh clone", time.monotonic() - begun


def _until_first(of: Measured, kind: str, target: str) -> float:
    begun = time.time()
    words = [of.python, "-c", FIRST, kind, "check", target]
    done = subprocess.run(words, cwd=of.folder, env=of.environment, capture_output=True, text=True)
    moment = first_moment(done.stderr)
    if math.isnan(moment):
        raise SystemExit(f"{target}: no {kind}; the last line is {done.stderr.splitlines()[-1:]}")
    return moment - begun


def first_moment(errors: str) -> float:
    """The time that a run of ``FIRST`` printed; NaN where it printed none."""
    return next((float(line.split()[1]) for line in errors.splitlines() if line.startswith("FIRST ")), math.nan)


def gate(of: Measured, families: Sequence[str], kinds: Sequence[str]) -> Iterator[tuple[str, float]]:
    """The gate on each planted change, cold and warm, and on an unchanged tree."""
    words = [of.python, "-m", "gradoracle", "gate", "--base", "HEAD"]
    begun = time.monotonic()
    subprocess.run(words, cwd=of.folder, env=of.environment, check=True, capture_output=True)
    yield "unchanged tree", time.monotonic() - begun
    keeps = any((of.folder / "gradoracle/gate" / file).is_file() for file in ("snapshot_cache.py", "kept.py"))
    for family in families:
        for kind in (each for each in PLANTS[family] if each in kinds):
            of.forget()
            for state, more in STATES if keeps else STATES[:1]:
                found = gate_regressions.run(of.folder, family, kind, more, of.python, of.environment)
                wrong = "" if found["is_right"] else " WRONG"
                yield f"{family} {kind}, {state}{wrong}", found["seconds"]


def table(file: Path) -> str:
    """All rows: the median of each figure, one column for each label."""
    with file.open(encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    labels = list(dict.fromkeys(row["label"] for row in rows))
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        found.setdefault((row["what"], row["name"]), {}).setdefault(row["label"], []).append(float(row["seconds"]))
    commits = {row["label"]: row["commit"] for row in rows}
    head = " | ".join(f"{label} ({commits[label]}), s" for label in labels)
    lines = [f"| | {head} |", "|---|" + "--:|" * len(labels)]
    for (what, name), own in found.items():
        cells = " | ".join(f"{statistics.median(own[label]):.1f}" if label in own else "" for label in labels)
        lines.append(f"| {what}: {name} | {cells} |")
    return "\n".join(lines)


def add(file: Path, row: Row) -> None:
    """Write one row, and print it."""
    is_new = not file.exists()
    with file.open("a", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, [each.name for each in fields(Row)], lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(asdict(row))
    print(f"{row.what}: {row.name}: {row.seconds:.1f} s", flush=True)


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="feedback", description="How long gradoracle takes to answer.")
    parser.add_argument(
        "what", nargs="*", metavar="WHAT", help="suite, first, check, fresh, gate; none: print the table"
    )
    parser.add_argument("--at", default="HEAD", metavar="REF")
    parser.add_argument("--label", default="after", metavar="WORD")
    parser.add_argument("--repeat", type=int, default=1, metavar="N")
    parser.add_argument("--families", default=",".join(PLANTS), metavar="F,G")
    parser.add_argument("--kinds", default=",".join(PLANTS["sdpa"]), metavar="K,L", help="of planted changes")
    parser.add_argument("--python", default="", metavar="PATH", help="an interpreter that has it; default: a new one")
    parser.add_argument("--output", type=Path, default=FILE, metavar="FILE")
    given = parser.parse_args(arguments)
    families, planted_kinds = given.families.split(","), given.kinds.split(",")
    kinds = {
        "suite": suite,
        "first": lambda of: first(of, families),
        "check": check,
        "fresh": fresh,
        "gate": lambda of: gate(of, families, planted_kinds),
    }
    known = {"WHAT": kinds, "--families": PLANTS, "--kinds": PLANTS["sdpa"]}
    for option, words in (("WHAT", given.what), ("--families", families), ("--kinds", planted_kinds)):
        if unknown := [word for word in words if word not in known[option]]:
            parser.error(f"{option} {unknown[0]!r} is unknown; expected some of {', '.join(known[option])}")
    if given.what:
        commit = subprocess.run(["git", "rev-parse", "--short", given.at], cwd=ROOT, capture_output=True, text=True)
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
            of = clone(commit.stdout.strip(), Path(folder), given.python)
            for what in given.what * given.repeat:
                of.forget()
                for name, seconds in kinds[what](of):
                    row = Row(given.label, commit.stdout.strip(), cores(), what, name, round(seconds, 1))
                    add(given.output, row)
    print(table(given.output))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
