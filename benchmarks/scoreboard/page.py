"""Page of the scoreboard: markdown from the results as plain values. Nothing is computed anew but sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from .peers import FUNCTION_RULES, RULES
from .rights import BUDGET, GRADCHECK, NAMES
from .run import best_peer, is_executed, rows_of
from .styles import (
    ENTRIES,
    LARGEST,
    LISTED,
    LONGEST,
    MOST,
    MOST_OF_A_BUG,
    OURS,
    SMALL,
    STYLES,
    TINY,
)

SCHEMA = "gradoracle-scoreboard/1"  # raised when a field is renamed or removed, or changes its meaning
BUGS = "real bugs"
_PLANTED = "planted faults"
_EXCUSED = "needs float64, which the kernel does not take | | | | "
_WORDS = """\
Made by `make scoreboard`; the numbers lie in `benchmarks/results/scoreboard.json`.
`caught`: the rule rejects the faulty kernel on a case on which it accepts the right one. `false alarms`: cases on which
it rejects the correct kernel, of those that it judges. `seconds`: kernel, reference and rule until caught, or until the
last case; the median is over the faults that are caught, the sum over all. Kernels run in the interpreter, on the CPU.\
"""


def markdown(document: Mapping[str, Any]) -> str:
    """The whole page."""
    parts: list[Mapping[str, Any]] = document["parts"]
    mutated = [part for part in parts if part["family"] != BUGS]
    lines = [
        "# Scoreboard: who catches what", "",
        *_headline(parts),
        _WORDS, "",
    ]  # fmt: skip
    if document.get("partial"):
        lines += [f"**Partial:** {document['partial']}", ""]
    lines += ["## Caught, in short", "", *_short(parts), ""]
    if len(mutated) > 1:
        lines += ["## All families together", "", *_together(mutated), ""]
    for part in parts:
        lines += [f"## {part['family'].capitalize() if part['family'] == BUGS else part['family']}", ""]
        lines += [*_said(part), "", *_tables(part), ""]
    if bugs := next((part for part in parts if part["family"] == BUGS), None):
        lines += ["### Bug by bug", "", *_bugs(bugs), ""]
    lines += [*_method(document), ""]
    return "\n".join(lines)


def ours_of(faults: Sequence[Mapping[str, Any]], cases: int, alarms: int = 0) -> dict[str, Any]:
    """gradoracle's own row over faults: every law, until the first is violated.

    Args:
        faults: entries.
        cases: of correct kernels that were judged.
        alarms: how many of these violated a law.
    """
    caught = [fault["ours"]["seconds"] for fault in faults if fault["ours"]["caught"]]
    executed = [fault for fault in faults if is_executed(fault, OURS)]
    return {
        "caught": len(caught),
        "faults": len(faults),
        "seen": sum(fault["ours"]["caught"] for fault in executed),
        "within": len(executed),
        "alarms": alarms,
        "right_cases": cases,
        "median": median(caught) if caught else None,
        "seconds": sum(fault["ours"]["seconds"] for fault in faults),
    }


def _headline(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for chosen, noun in (
        ([part for part in parts if part["family"] != BUGS], _PLANTED),
        ([part for part in parts if part["family"] == BUGS], "real bugs of released kernels"),
    ):
        if not chosen:
            continue
        faults = [fault for part in chosen for fault in part["faults"]]
        rows = rows_of(faults, [alarm for part in chosen for alarm in _alarms(part)])
        own = ours_of(faults, 0)
        best = [_best(rows, style) for style in STYLES]
        yield (
            f"Of {len(faults)} {noun} gradoracle's laws catch {_of(own['caught'], own['faults'])}; the best peer's "
            f"rule {best[0]} on peers' own inputs, {best[1]} on our cases."
        )
        seen = best_peer(rows, OURS)
        if noun == _PLANTED and seen is not None:
            yield (
                f"A forward and backward executes {own['within']} of these faults; the others lie in code of JVPs, "
                "HVPs and second backwards or of large sizes, at which no peer's rule looks. Of the "
                f"{own['within']} gradoracle's laws catch {_of(own['seen'], own['within'])}, the best peer's rule "
                f"{_of(seen['caught'], seen['within'])}."
            )
        yield ""


def _best(rows: Sequence[Mapping[str, Any]], style: str) -> str:
    row = best_peer(rows, style)
    if row is None:
        return "none"
    return f"{_of(row['caught'], row['faults'], row['rule'])} with {_alarmed(row)} false alarms"


def _of(part: int, whole: int, who: str = "") -> str:
    return f"{part} ({_share(part, whole)}{', ' if who else ''}{who})"


def _alarms(part: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Of a part: what each rule says of the correct kernels; bugs have them one by one."""
    return [*part["alarms"], *(alarm for fault in part["faults"] for alarm in fault.get("alarms", ()))]


def _short(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One row a part: ours, and the best peer's in both styles; of all faults and of those that are executed."""
    head = ("faults of", "faults", "gradoracle's laws", "best peer, its own inputs", "best peer, our cases")
    more = ("executed by forward and backward", "gradoracle's laws", "its budget alone", "best peer, our cases")
    yield f"| {' | '.join((*head, *more))} |"
    yield "|---" * len((*head, *more)) + "|"
    for part in parts:
        own = ours_of(part["faults"], part["cases"])
        alone = next((r["caught"] for r in part["rows"] if r["rule"] == BUDGET and r["style"] == OURS), 0)
        seen = best_peer(part["rows"], OURS)
        cells = [
            part["family"], str(own["faults"]), _of(own["caught"], own["faults"]),
            *(_best(part["rows"], style) for style in STYLES), str(own["within"]),
            _of(own["seen"], own["within"]), _of(alone, own["within"]),
            _of(seen["caught"], seen["within"]) if seen else "none",
        ]  # fmt: skip
        yield f"| {' | '.join(cells)} |"


def _together(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    faults = [fault for part in parts for fault in part["faults"]]
    whole = {
        "family": "all",
        "faults": faults,
        "cases": sum(part["cases"] for part in parts),
        "rows": rows_of(faults, [alarm for part in parts for alarm in _alarms(part)]),
    }
    yield from _tables(whole)


def _said(part: Mapping[str, Any]) -> Iterator[str]:
    """What is in the tables of a part and what is not."""
    total = len(part["faults"])
    if part["family"] == BUGS:
        yield f"{total} faults of `tests/bugs`. gradoracle's laws were written with these in sight, and its tests"
        yield "require that each is caught by the law that it names: this share says nothing of the next bug."
        yield from _float64(part)
    else:
        yield f"{total} faults that `gradoracle mutate {part['family']}` scored."
    if part["apart"]:
        yield f"Left out, as there: {', '.join(f'{n} {fate}' for fate, n in sorted(part['apart'].items()))}."
    if part["untried"]:
        yield f"Not tried, as the time was up: {part['untried']}."
    if part["unrecorded"]:
        yield f"Not in the record, which is of a run that was cut or of other sources: {part['unrecorded']}."
    for name, how in part.get("failed", {}).items():
        yield f"`{name}` could not be judged: {how}."
    excuse = next((row["excuse"] for row in part["rows"] if row["rule"] == GRADCHECK and row["excuse"]), "")
    if excuse and part["family"] != BUGS:
        yield f"gradcheck needs float64, which the kernel does not take ({excuse})."


def _float64(part: Mapping[str, Any]) -> Iterator[str]:
    """How many of the bugs' kernels gradcheck could be run on."""
    said = [[own for own in fault["alarms"] if own["rule"] == GRADCHECK] for fault in part["faults"]]
    without = sum(not any(own["cases"] for own in each) for each in said)
    narrow = sum(any(own["alarms"] for own in each) for each in said)
    yield f"gradcheck needs float64: {without} of the {len(said)} correct kernels do not take it, or do not return it;"
    yield f"{narrow} others it rejects although they are right (a kernel that computes in float32 inside cannot pass)."


def _tables(part: Mapping[str, Any]) -> Iterator[str]:
    for style in STYLES:
        rows = [row for row in part["rows"] if row["style"] == style]
        if not rows:
            continue
        yield f"**{style[0].upper()}{style[1:]}.** {_within(rows)}"
        yield ""
        yield "| rule | caught | of those executed | false alarms | seconds, median | seconds, sum |"
        yield "|---|---|---|---|---|---|"
        if style == OURS:
            own = ours_of(part["faults"], part["cases"], part.get("our_alarms", 0))
            yield f"| **gradoracle, all laws** | {_numbers(own)} |"
        for row in rows:
            name = f"**{BUDGET}, forward and VJP alone**" if row["rule"] == BUDGET else row["rule"]
            yield f"| {name} | {_EXCUSED if row['excuse'] else _numbers(row)} |"
        yield ""


def _within(rows: Sequence[Mapping[str, Any]]) -> str:
    row = next((row for row in rows if row["rule"] == BUDGET), rows[0])
    return f"A forward and backward of these executes {row['within']} of the {row['faults']} faults."


def _numbers(row: Mapping[str, Any]) -> str:
    middle = "" if row["median"] is None else _figure(row["median"])
    seen = row.get("seen", row["caught"])  # all that a rule catches is executed by a forward and backward
    cells = (_of(row["caught"], row["faults"]), _of(seen, row["within"]), _alarmed(row), middle)
    return " | ".join((*cells, _figure(row["seconds"])))


def _figure(seconds: float) -> str:
    return f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"


def _alarmed(row: Mapping[str, Any]) -> str:
    return f"{row['alarms']} / {row['right_cases']}"


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "none"


def _bugs(part: Mapping[str, Any]) -> Iterator[str]:
    yield "| bug | reported at | law of gradoracle | rules that catch it on their own inputs | on our cases |"
    yield "|---|---|---|---|---|"
    peers = [name for name in NAMES if name != BUDGET]
    for fault in part["faults"]:
        by = {style: {v["rule"] for v in fault["verdicts"] if v["style"] == style and v["caught"]} for style in STYLES}
        cells = [f"{len(by[style] & set(peers))} of {len(peers)}" for style in STYLES]
        law = fault["ours"]["law"] if fault["ours"]["caught"] else f"not caught by {fault['ours']['law']}"
        yield f"| {fault['fault']} | {fault['cites']} | {law} | {' | '.join(cells)} |"


_HOW = """\
- The faults of a family are those that `gradoracle mutate` chooses (seed 0) and scores: killed by a law, or survived.
  What is equivalent, crashed, hung or refused there is left out here, as it is left out of that score. gradoracle's row
  is that record.
- A real bug is judged by the law that it names, on 12 cases, or 24 or 100 where it takes more. Its seconds are those of
  all these cases, not of those until the first violation.
- Each fault runs in a process of its own. One forward and VJP of the kernel serves all rules on tensors, and a rule
  must accept every output and every gradient. Where it rejects the correct kernel on a case, it catches nothing there.
- A kernel that raises, gives tensors of a wrong shape, dies or hangs on a case is caught by every rule there.
- What a kernel leaves unwritten holds NaN, as in `gradoracle check`. Peers' tests have no such aid: it helps them.
- References: the truth in float64, rounded where a rule says so, and eager PyTorch in the kernel's dtype (float32 where
  PyTorch has no such operator in 16 bits). A tensor that a kernel stores in float32 is compared in float32.
- KernelBench judges forward passes alone; here its rule judges gradients too.
- The seconds of gradoracle's laws are of all laws with their oracles; those of a rule are of that rule alone. A fault
  whose line no forward and backward executes (it lies in a JVP, an HVP or a second backward) no peer's rule can see."""
_OWN = """\
Peers' own: normal, contiguous tensors with a normal cotangent, seed 42, each rule in the dtypes that its tests take.
Scaled down from what the tests have: members of a batch, heads, and lengths above 256."""
_CASES = f"""\
Families of real bugs without a list: dims of 64 and 32 or the next power of two below, {SMALL} for differences.
Our cases: those of `gradoracle check` (seed 0) whose longest dim is at most {LONGEST}, and the product of all dims
at most {LARGEST:g}. A fault is tried on the first {MOST} of these that execute its line, a real bug on {MOST_OF_A_BUG}
of its law's own stream. gradcheck is given what has at most {ENTRIES} entries, and of our cases two."""
_RUN = """\
```sh
make scoreboard                             # reads what gradoracle mutate left in .gradoracle/mutation
make scoreboard ARGS="--records FOLDER"     # FOLDER/FAMILY.json, by gradoracle mutate FAMILY --format json
make scoreboard ARGS="--families lse --mutants 20 --seconds 300"
```"""


def _method(document: Mapping[str, Any]) -> Iterator[str]:
    yield from ("## How it is judged", "", _HOW, "", "## Rules", "")
    yield from ("| rule | source | accepts where |", "|---|---|---|")
    said = [(rule.name, rule.source, rule.statement) for rule in RULES]
    said += [(rule.name, rule.source, rule.statement) for rule in FUNCTION_RULES]
    own = "no element, slope or mean square is beyond what rounding explains"
    said += [(BUDGET, "docs/background/budgets.md", own)]
    for name, source, statement in said:
        escaped = statement.replace("|", "\\|")
        yield f"| {name} | `{source}` | {escaped} |"
    yield from ("", "## Inputs", "", _OWN, "", "| family | case | dtypes | like |", "|---|---|---|---|")
    for family, listed in LISTED.items():
        for each in listed:
            only = f" ({each.only} alone)" if each.only else ""
            yield f"| {family} | `{each.line}` | {', '.join(each.dtypes)} | {each.like}{only} |"
    for family, lines in TINY.items():
        for line in lines:
            yield f"| {family} | `{line}` | float64 | gradcheck |"
    yield from ("", _CASES, "", "## Run", "", _RUN, "")
    took = ", ".join(f"{part['family']} {part['took']:.0f} s{_known(part)}" for part in document["parts"])
    yield f"Measured with {document['workers']} processes: {took}. {_environment(document['environment'])}."


def _known(part: Mapping[str, Any]) -> str:
    return f" ({part['earlier']} of {len(part['faults'])} faults known from an earlier run)" if part["earlier"] else ""


def _environment(found: Mapping[str, str]) -> str:
    return "; ".join(f"{name} {value}" for name, value in found.items())
