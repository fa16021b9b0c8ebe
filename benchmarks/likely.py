"""How often the likely cause that a report names is the planted one, by cause, from records of `gradoracle mutate`.

    gradoracle mutate sdpa --format json --output sdpa.json
    python benchmarks/likely.py sdpa.json ...       (by default benchmarks/results/mutation/*.json)
    python benchmarks/likely.py --rows sdpa.json ...  (by family, as rows of benchmarks/results/likely.csv)

Counts mutants that a property killed and whose operator determines the cause. Reports name a cause if its rate is
90 % or better (`NAMED` in gradoracle/check/diagnosis/diagnosis.py).
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path

COLUMNS = ("planted", "named", "hit")
RECORDS = Path(__file__).resolve().parent / "results" / "mutation"


def counts(file: Path) -> Counter[tuple[str, str]]:
    """Of one record: (cause, "planted" | "named" | "hit") -> mutants."""
    found: Counter[tuple[str, str]] = Counter()
    for mutant in json.loads(file.read_text())["mutants"]:
        cause, said = mutant.get("cause"), mutant.get("diagnosis", "")
        if mutant["fate"] == "killed" and cause:
            found[cause, "planted"] += 1
            found[said, "named"] += bool(said)
            found[said, "hit"] += said == cause
    return found


def main(words: list[str]) -> None:
    files = [Path(word) for word in words if word != "--rows"] or sorted(RECORDS.glob("*.json"))
    records = {file.stem: counts(file) for file in files}
    if "--rows" in words:
        for family, found in records.items():
            for cause in sorted({cause for cause, _ in found} - {""}):
                print(family, cause, *(found[cause, column] for column in COLUMNS), sep=",")
        return
    total = sum(records.values(), Counter())
    print("| cause | planted | named | of these planted | hit rate |")
    print("|---|--:|--:|--:|--:|")
    for cause in sorted({cause for cause, _ in total} - {""}, key=lambda cause: (-total[cause, "named"], cause)):
        _row(cause, *(total[cause, column] for column in COLUMNS))
    _row("all", *(sum(n for (_, each), n in total.items() if each == column) for column in COLUMNS))


def _row(cause: str, planted: int, named: int, hit: int) -> None:
    print(f"| {cause} | {planted} | {named} | {hit} | {f'{hit / named:.0%}' if named else '-'} |")


if __name__ == "__main__":
    main(sys.argv[1:])
