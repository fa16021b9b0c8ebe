"""How long it takes to render reports in each format, and how large the results are.

`python benchmarks/reports.py REPORT.json... [--output FILE]` renders reports of `gradoracle check TARGET... --format
json --output REPORT.json`, all of them in each format, in a process of its own, imports included. The table is printed,
and written as json.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gradoracle.execution.environment import cores, describe
from gradoracle.report.formats import FORMATS

VIEW = """
import sys, time
began = time.monotonic()
from pathlib import Path
from gradoracle.report.formats import render
from gradoracle.report.json import read
reports = [report for file in sys.argv[3:] for report in read(Path(file).read_text(encoding="utf-8"))]
loaded = time.monotonic()
text = render(reports, sys.argv[1])
Path(sys.argv[2]).write_text(text, encoding="utf-8")
print(len(reports), loaded - began, time.monotonic() - loaded, len(text.encode("utf-8")))
"""


def measure(format: str, files: Sequence[str], output: Path) -> dict[str, Any]:
    """Render all reports in one format."""
    words = [sys.executable, "-c", VIEW, format, str(output), *files]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    reports, loading, rendering, size = done.stdout.split()
    return {
        "format": format,
        "reports": int(reports),
        "loading_s": round(float(loading), 2),
        "rendering_s": round(float(rendering), 2),
        "bytes": int(size),
    }


def main(arguments: Sequence[str]) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="reports", description="Seconds and bytes of each view of some reports.")
    parser.add_argument("files", nargs="+", metavar="REPORT.json")
    parser.add_argument("--output", metavar="FILE", help="json of the table, with what it ran on")
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(format, given.files, Path(folder) / "view") for format in FORMATS]
    for row in rows:
        print(
            f"{row['format']:<9} {row['reports']} reports: rendered in {row['rendering_s']:.2f} s (reading them "
            f"{row['loading_s']:.2f} s), {row['bytes']} bytes"
        )
    print(f"all views: {sum(row['rendering_s'] for row in rows):.2f} s")
    if given.output:
        document = {"environment": dict(describe()), "cores": cores(), "rows": rows}
        Path(given.output).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
