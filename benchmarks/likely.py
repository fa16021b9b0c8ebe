"""How often the likely cause that a report names is the planted one, by cause, from records of `gradoracle mutate`.

    gradoracle mutate sdpa --format json --output sdpa.json
    python benchmarks/likely.py sdpa.json ...       (by default benchmarks/results/mutation/*.json)

Counts mutants that a property killed and whose operator determines the cause. Reports name a cause if its rate is
90 % or better (`NAMED` in gradoracle/check/diagnosis/diagnosis.py).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

RECORDS = Path(__file__).resolve().parent / "results" / "mutation"


def main(files: list[str]) -> None:
    named: Counter[str] = Counter()
    hit: Counter[str] = Counter()
    planted: Counter[str] = Counter()
    for file in map(Path, files) if files else sorted(RECORDS.glob("*.json")):
        for mutant in json.loads(file.read_text())["mutants"]:
            cause, said = mutant.get("cause"), mutant.get("diagnosis", "")
            if mutant["fate"] == "killed" and cause:
                planted[cause] += 1
                named[said] += bool(said)
                hit[said] += said == cause
    print("| cause | planted | named | of these planted | hit rate |")
    print("|---|--:|--:|--:|--:|")
    for cause in sorted({*planted, *named} - {""}, key=lambda cause: (-named[cause], cause)):
        rate = f"{hit[cause] / named[cause]:.0%}" if named[cause] else "-"
        print(f"| {cause} | {planted[cause]} | {named[cause]} | {hit[cause]} | {rate} |")
    print(f"| all | {planted.total()} | {named.total()} | {hit.total()} | {hit.total() / max(named.total(), 1):.0%} |")


if __name__ == "__main__":
    main(sys.argv[1:])
