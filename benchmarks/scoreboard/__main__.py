"""Scoreboard: peers' acceptance rules compared with gradoracle's properties, on the same wrong and correct kernels.

`python -m benchmarks.scoreboard` writes docs/background/scoreboard.md and benchmarks/results/scoreboard.json. Results
are kept in .gradoracle/scoreboard, so that an interrupted run can be resumed. `--table` only rewrites the page.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "results" / "scoreboard.json", ROOT / "docs" / "background" / "scoreboard.md"
FOLDER = "tests/bugs"


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scoreboard", description="Who catches what: peers and gradoracle.")
    parser.add_argument("--families", metavar="NAME,...", help="sdpa, lse, lightning, semicrf, bugs; default: all")
    parser.add_argument("--records", metavar="FOLDER", help="of FAMILY.json, written by gradoracle mutate")
    parser.add_argument("--mutants", default=120, type=int, metavar="N", help="how many mutants of each family")
    parser.add_argument("--seconds", type=float, metavar="S", help="begin no further kernel of a part after this")
    parser.add_argument("--workers", default="auto", metavar="N|auto", help="processes")
    parser.add_argument("--bugs", default=FOLDER, metavar="FOLDER", help="of Python files that list real bugs as BUGS")
    parser.add_argument("--partial", default="", metavar="TEXT", help="a remark on the page about what is not measured")
    parser.add_argument("--output", default=str(RESULTS), metavar="PATH", help="of the json")
    parser.add_argument("--page", default=str(PAGE), metavar="PATH", help="of the markdown")
    parser.add_argument("--table", action="store_true", help="run nothing; write the page from the json")
    return parser.parse_args(arguments)


def _document(given: argparse.Namespace) -> dict[str, Any]:
    """The results of every part, each run in turn."""
    from gradoracle.execution import environment
    from gradoracle.project import values
    from gradoracle.report.progress import progress

    from .bugs import score_bugs
    from .page import SCHEMA
    from .run import FAMILIES, Asked, score_family

    names = given.families.split(",") if given.families else [*FAMILIES, "bugs"]
    for name in names:
        values.one_of("--families", name, [*FAMILIES, "bugs"])
    asked = Asked(
        Path(given.records) if given.records else None,
        values.at_least("--mutants", given.mutants, 1),
        values.seconds(given.seconds),
        values.some_workers(given.workers),
    )
    parts = []
    for name in names:
        print(f"scoreboard: {name}", file=sys.stderr, flush=True)
        begun = time.monotonic()
        bugs = name == "bugs"
        part = score_bugs(ROOT / given.bugs, asked, progress) if bugs else score_family(name, asked, progress)
        parts.append({**part, "took": round(time.monotonic() - begun, 1)})
    return {
        "schema": SCHEMA,
        "command": "make scoreboard",
        "workers": asked.processes,
        "partial": given.partial,
        "environment": environment.describe("cpu"),
        "parts": parts,
    }


def _written(document: dict[str, Any]) -> str:
    """The json, with one line for each wrong kernel."""
    parts = []
    for part in document["parts"]:
        faults = ",\n".join(json.dumps(each, ensure_ascii=False, separators=(",", ":")) for each in part["faults"])
        rest = json.dumps({**part, "faults": None}, indent=1, ensure_ascii=False)
        parts.append(rest.replace('"faults": null', f'"faults": [\n{faults}\n]'))
    rest = json.dumps({**document, "parts": None}, indent=1, ensure_ascii=False)
    return rest.replace('"parts": null', '"parts": [\n' + ",\n".join(parts) + "\n]") + "\n"


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    from gradoracle.model.errors import UsageError

    from .page import SCHEMA, markdown

    given = _parsed(arguments)
    output = Path(given.output)
    if given.table:
        try:
            document = json.loads(output.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"--output {output}: {error}; expected the json of an earlier run") from None
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise UsageError(f"--output {output} is no scoreboard; expected one with schema {SCHEMA}")
    else:
        document = _document(given)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(_written(document), encoding="utf-8")
    Path(given.page).write_text(markdown(document), encoding="utf-8")
    print(f"{Path(given.page).name} written", flush=True)
    return 0


if __name__ == "__main__":
    from gradoracle.execution.device import prepare, variables
    from gradoracle.model.errors import UsageError

    os.environ.update(variables("cpu"))  # before Triton, and what it must not find, is imported
    prepare("cpu")
    import torch

    torch.set_num_threads(1)  # threads do not survive a fork
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        print(f"scoreboard: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("scoreboard: stopped; results are kept, and the same command resumes from there", file=sys.stderr)
        sys.exit(130)
