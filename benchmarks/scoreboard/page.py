"""Page of the scoreboard: markdown from the results as plain values. Nothing but sums is computed here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from .correct import BUDGET, GRADCHECK, NAMES
from .peers import FUNCTION_RULES, RULES
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

SCHEMA = "gradoracle-scoreboard/2"  # raised when a field is renamed or removed, or changes its meaning
BUGS = "real bugs"
_PLANTED = "mutants"
_EXCUSED = "needs float64, which the kernel does not take | | | | "
_QUESTION = """\
How many wrong kernels does gradoracle catch, compared with the rules by which other projects accept a kernel? Two kinds
of wrong kernels are tried: mutants of the shipped kernels, and real bugs of released kernels.\
"""
_WORDS = """\
`make scoreboard` writes this page; the numbers are in `benchmarks/results/scoreboard.json`. *Caught*: the rule rejects
the wrong kernel on a case on which it accepts the correct one. *False alarms*: cases on which it rejects the correct
kernel, of those that it judges. *Seconds*: kernel, reference and rule until the kernel is caught, or until the last
case; the median is over the wrong kernels that are caught, the sum over all. Kernels run interpreted, on the CPU.\
"""


def markdown(document: Mapping[str, Any]) -> str:
    """The whole page."""
    parts: list[Mapping[str, Any]] = document["parts"]
    mutated = [part for part in parts if part["family"] != BUGS]
    lines = [
        "# Scoreboard: who catches what", "",
        _QUESTION, "",
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
    """gradoracle's own row: every property, until the first is violated.

    Args:
        faults: entries.
        cases: how many cases of correct kernels were judged.
        alarms: how many of these violated a property.
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
            f"Of {len(faults)} {noun} gradoracle's properties catch {_of(own['caught'], own['faults'])}; the best "
            f"peer's rule {best[0]} on peers' own inputs, {best[1]} on our cases."
        )
        seen = best_peer(rows, OURS)
        if noun == _PLANTED and seen is not None:
            yield (
                f"A forward and backward executes {own['within']} of these mutants; the others change code of JVPs, "
                "HVPs and second backwards or of large sizes, which no peer's rule examines. Of the "
                f"{own['within']} gradoracle's properties catch {_of(own['seen'], own['within'])}, the best peer's "
                f"rule {_of(seen['caught'], seen['within'])}."
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
    """The verdicts of each rule on the correct kernels of a part; real bugs have them one by one."""
    return [*part["alarms"], *(alarm for fault in part["faults"] for alarm in fault.get("alarms", ()))]


def _short(parts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One row for each part: ours, and the best peer's in both styles; of all faults and of those executed."""
    head = ("family", "wrong kernels", "gradoracle", "best peer, its own inputs", "best peer, our cases")
    more = ("executed by forward and backward", "gradoracle", "its budget alone", "best peer, our cases")
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
    """What the tables of a part contain and what they do not."""
    total = len(part["faults"])
    if part["family"] == BUGS:
        yield f"{total} bugs in `tests/bugs`. gradoracle's properties were written with these in sight, and its tests"
        yield "require that each bug is caught by the property it names: this share does not predict the next bug."
        yield from _float64(part)
    else:
        yield f"{total} mutants that `gradoracle mutate {part['family']}` scored."
    if part["apart"]:
        yield f"Excluded, as from that score: {', '.join(f'{n} {fate}' for fate, n in sorted(part['apart'].items()))}."
    if part["untried"]:
        yield f"Not tried, because the time was up: {part['untried']}."
    if part["unrecorded"]:
        yield f"Not in the record, which is of an interrupted run or of other sources: {part['unrecorded']}."
    for name, how in part.get("failed", {}).items():
        yield f"`{name}` could not be judged: {how}."
    excuse = next((row["excuse"] for row in part["rows"] if row["rule"] == GRADCHECK and row["excuse"]), "")
    if excuse and part["family"] != BUGS:
        yield f"gradcheck needs float64, which the kernel does not take ({excuse})."


def _float64(part: Mapping[str, Any]) -> Iterator[str]:
    """On how many of the bugs' kernels gradcheck could be run."""
    judged = [[own for own in fault["alarms"] if own["rule"] == GRADCHECK] for fault in part["faults"]]
    without = sum(not any(own["cases"] for own in each) for each in judged)
    narrow = sum(any(own["alarms"] for own in each) for each in judged)
    yield f"gradcheck needs float64: {without} of the {len(judged)} correct kernels do not take or return it;"
    yield f"it rejects {narrow} others although they are correct (a kernel that computes in float32 cannot pass)."


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
            yield f"| **gradoracle, all properties** | {_numbers(own)} |"
        for row in rows:
            name = f"**{BUDGET}, forward and VJP alone**" if row["rule"] == BUDGET else row["rule"]
            yield f"| {name} | {_EXCUSED if row['excuse'] else _numbers(row)} |"
        yield ""


def _within(rows: Sequence[Mapping[str, Any]]) -> str:
    row = next((row for row in rows if row["rule"] == BUDGET), rows[0])
    return f"A forward and backward on these executes the wrong code in {row['within']} of the {row['faults']} kernels."


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
    yield "| bug | reported at | property of gradoracle | rules that catch it on their own inputs | on our cases |"
    yield "|---|---|---|---|---|"
    peers = [name for name in NAMES if name != BUDGET]
    for fault in part["faults"]:
        by = {style: {v["rule"] for v in fault["verdicts"] if v["style"] == style and v["caught"]} for style in STYLES}
        cells = [f"{len(by[style] & set(peers))} of {len(peers)}" for style in STYLES]
        property_name = (
            fault["ours"]["property"] if fault["ours"]["caught"] else f"not caught by {fault['ours']['property']}"
        )
        yield f"| {fault['fault']} | {fault['cites']} | {property_name} | {' | '.join(cells)} |"


_HOW = """\
- The mutants of a family are those that `gradoracle mutate` chooses (seed 0) and scores: killed by a property, or
  survived. What is equivalent, crashed, hung or refused is excluded here as from that score. gradoracle's row is that
  record.
- A real bug is judged by the property it names, on 12 cases, or on 24 or 100 where it takes more. Its seconds are those
  of all these cases, not only until the first violation.
- Each wrong kernel runs in a process of its own. One forward and VJP of the kernel serves all rules on tensors, and a
  rule must accept every output and every gradient. Where a rule rejects the correct kernel on a case, it catches
  nothing on that case.
- A kernel that raises, returns tensors of a wrong shape, dies or hangs on a case is caught by every rule on that case.
- Memory that a kernel leaves unwritten holds NaN, as in `gradoracle check`. Peers' tests do not do this; it helps
  their rules here.
- References: the truth in float64, rounded where a rule says so, and eager PyTorch in the kernel's dtype (float32 where
  PyTorch has no such operator in 16 bits). A tensor that a kernel stores in float32 is compared in float32.
- KernelBench judges only forward passes; here its rule judges gradients too.
- The seconds of gradoracle's properties include all properties with their oracles; those of a rule are of that rule
  alone. No peer's rule can see a change in a line that no forward and backward executes (in a JVP, an HVP or a second
  backward)."""
_OWN = """\
Peers' own: normal, contiguous tensors with a normal cotangent, seed 42, and each rule in the dtypes that its tests use.
Scaled down compared with the tests: members of a batch, heads, and lengths above 256."""
_CASES = f"""\
For families of real bugs without a list: dims of 64 and 32 or the next power of two below, {SMALL} for differences.
Our cases: those of `gradoracle check` (seed 0) whose longest dim is at most {LONGEST}, and the product of all dims
at most {LARGEST:g}. A mutant is tried on the first {MOST} of these that execute its line, a real bug on {MOST_OF_A_BUG}
of the stream of its own property. gradcheck is given inputs of at most {ENTRIES} entries, and two of our cases."""
_RUN = """\
```sh
make scoreboard                             # reads what gradoracle mutate left in .gradoracle/mutation
make scoreboard ARGS="--records FOLDER"     # FOLDER/FAMILY.json, by gradoracle mutate FAMILY --format json
make scoreboard ARGS="--families lse --mutants 20 --seconds 300"
```"""


def _method(document: Mapping[str, Any]) -> Iterator[str]:
    yield from ("## How it is judged", "", _HOW, "", "## Rules", "")
    yield from ("| rule | source | accepts where |", "|---|---|---|")
    rules = [(rule.name, rule.source, rule.statement) for rule in RULES]
    rules += [(rule.name, rule.source, rule.statement) for rule in FUNCTION_RULES]
    own = "no element, slope or mean square is beyond what rounding explains"
    rules += [(BUDGET, "docs/background/budgets.md", own)]
    for name, source, statement in rules:
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
