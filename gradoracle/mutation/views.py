"""Views of a mutation run: text for a terminal, json with a top-level score, markdown."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from gradoracle.model.exit_codes import HOLDS, INCONCLUSIVE, VIOLATED
from gradoracle.mutation.outcome import Diagnoses, Fate, MutantResult
from gradoracle.mutation.record import SCHEMA, Earlier, entry
from gradoracle.mutation.run import Found

FORMATS: Mapping[str, tuple[str, ...]] = {"terminal": (), "json": (), "markdown": ()}  # all without further packages
_DIES, _LIVES = (Fate.SURVIVED, Fate.KILLED), (Fate.KILLED, Fate.SURVIVED)
_APART = (Fate.CRASHED, Fate.HUNG, Fate.REFUSED, Fate.STILLBORN, Fate.EQUIVALENT, Fate.PROVEN, Fate.NOT_RUN)


def render(found: Found, format: str) -> str:
    """One run in one of ``FORMATS``."""
    return {"terminal": _terminal, "json": _json, "markdown": _markdown}[format](found)


def exit_code(found: Found, least: float | None = None) -> int:
    """0; 1: the score is below the least one; 4: mutants were not tried, or none could be scored."""
    if found.score is None or any(outcome.fate is Fate.NOT_RUN for outcome in found.outcomes):
        return INCONCLUSIVE
    return VIOLATED if least is not None and found.score < least else HOLDS


def _json(found: Found) -> str:
    asked = found.mutation
    document = {
        "schema": SCHEMA,
        "score": found.score,
        "target": asked.target,
        "family": asked.family,
        "seed": asked.seed,
        "options": list(found.options),
        "planted": found.planted,
        "cases": found.cases,
        "seconds": round(found.seconds, 1),
        "earlier": found.earlier,
        "fates": {fate.value: count for fate, count in _fates(found).items()},
        "killed_when_widened": len(_widened(found)),
        **({"since": _since_json(found.since, found.outcomes)} if found.since is not None else {}),
        "diagnoses": asdict(Diagnoses.of(found.outcomes)),
        "operators": {name: {f.value: n for f, n in fates.items()} for name, fates in _by_operator(found).items()},
        "notes": found.notes,
        "environment": dict(found.environment),
        "mutants": [
            {**entry(each), **({"diff": each.mutant.diff} if each.fate is Fate.SURVIVED else {})}
            for each in found.outcomes
        ],
    }
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def _since_json(since: Earlier, outcomes: Sequence[MutantResult]) -> dict[str, object]:
    return {
        "file": since.name,
        "mutants": len(since.same(outcomes)),
        "survived_and_killed": [outcome.mutant.key for outcome in since.turned(outcomes, *_DIES)],
        "killed_and_survived": [outcome.mutant.key for outcome in since.turned(outcomes, *_LIVES)],
    }


def _fates(found: Found) -> Counter[Fate]:
    return Counter(outcome.fate for outcome in found.outcomes)


def _by_operator(found: Found) -> dict[str, Counter[Fate]]:
    table: dict[str, Counter[Fate]] = {}
    for outcome in found.outcomes:
        table.setdefault(outcome.mutant.operator, Counter())[outcome.fate] += 1
    return dict(sorted(table.items()))


def _of(found: Found, fate: Fate) -> list[MutantResult]:
    return [outcome for outcome in found.outcomes if outcome.fate is fate]


def _widened(found: Found) -> list[MutantResult]:
    """The mutants that only the widened kernel kills."""
    return [outcome for outcome in _of(found, Fate.KILLED) if outcome.widened]


def _since(found: Found) -> list[str]:
    """The comparison with an earlier report, as lines: a sentence, then a mutant each."""
    if found.since is None:
        return []
    dies, lives = (found.since.turned(found.outcomes, *fates) for fates in (_DIES, _LIVES))
    lines = [
        f"since {found.since.name}: of {len(found.since.same(found.outcomes))} mutants in both, "
        f"{len(dies)} that survived are killed, {len(lives)} that were killed survive"
    ]
    lines += [f"  now killed    {_named(each)}, by {each.property_name}" for each in dies]
    return lines + [f"  now survives  {_named(each)}" for each in lives]


def _scored(found: Found) -> str:
    """The score as a sentence."""
    killed, survived = len(_of(found, Fate.KILLED)), len(_of(found, Fate.SURVIVED))
    if found.score is None:
        return "no score: no mutant was killed and none survived"
    alone = f", {len(_widened(found))} of them only when widened" if _widened(found) else ""
    return f"score {found.score:.3f}: {killed} of {killed + survived} mutants killed{alone}"


def _apart(found: Found) -> str:
    """The mutants that do not enter the score, in words."""
    counts = _fates(found)
    return ", ".join(f"{counts[fate]} {fate.value}" for fate in _APART if counts[fate])


def _diagnosed(found: Found) -> str:
    """How often the failure report names a cause, and the known one; "" where no killed mutant has a known one."""
    counts = Diagnoses.of(found.outcomes)
    if not counts.known:
        return ""
    return (
        f"cause named in the report: for {counts.named} of the {counts.known} killed mutants whose cause is known; "
        f"the right one for {counts.right}"
    )


def _terminal(found: Found) -> str:
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Found) -> Iterator[str]:
    operators = _by_operator(found)
    yield " ".join(["gradoracle mutate", found.mutation.target, *found.options])
    holds = f"every property holds on the unmutated kernel on {found.cases} cases"
    known = holds if found.cases else "every outcome is of an earlier run"
    yield f"  {len(found.outcomes)} of {found.planted} mutants, {len(operators)} operators; {known}"
    yield ""
    for name, fates in operators.items():
        yield f"  {name:<34} {', '.join(f'{count} {fate.value}' for fate, count in fates.items())}"
    yield ""
    for property_name, count in _killers(found).most_common():
        yield f"  {count:>4} killed first by {property_name}"
    if widened := _widened(found):
        yield ""
        yield "killed only when widened, every float in float64:"
        yield from (f"  {_named(outcome)}, by {outcome.property_name}" for outcome in widened)
    for outcome in _of(found, Fate.SURVIVED):
        yield ""
        yield f"SURVIVED  {_named(outcome)}; {_covered(outcome)}"
        yield from outcome.mutant.diff.splitlines()[2:]
    yield ""
    yield from (f"note  {note}" for note in found.notes)
    earlier = f", {found.earlier} of them known from an earlier run" if found.earlier else ""
    yield f"{len(found.outcomes)} mutants in {found.seconds:.1f} s{earlier}"
    if apart := _apart(found):
        yield f"not in the score: {apart}"
    if diagnosed := _diagnosed(found):
        yield diagnosed
    yield from _since(found)
    yield _scored(found)


def _killers(found: Found) -> Counter[str]:
    return Counter(outcome.property_name for outcome in _of(found, Fate.KILLED))


def _named(outcome: MutantResult) -> str:
    return f"{outcome.mutant.key}  {outcome.mutant.operator}, {_where(outcome)}"


def _where(outcome: MutantResult) -> str:
    return f"{outcome.mutant.module}:{outcome.mutant.line} in {outcome.mutant.function}"


def _covered(outcome: MutantResult) -> str:
    return outcome.reason or f"{outcome.covering} cases execute its line"


def _markdown(found: Found) -> str:
    """A table by operator, one of all mutants, and the survivors as diffs."""
    title = " ".join([found.mutation.target, *found.options])
    lines = [f"# Mutation of {title}", "", f"{_scored(found)}.", ""]
    if apart := _apart(found):
        lines += [f"Not in the score: {apart}.", ""]
    if diagnosed := _diagnosed(found):
        lines += [f"{diagnosed}.", ""]
    lines += _table(
        ("operator", *(fate.value for fate in Fate)),
        [
            (name, *(str(fates[fate]) if fates[fate] else "" for fate in Fate))
            for name, fates in _by_operator(found).items()
        ],
    )
    if widened := _widened(found):
        lines += ["", "## Killed only when widened", ""]
        lines += [f"- `{o.mutant.key}` {o.mutant.operator}, {_where(o)}, by {o.property_name}" for o in widened]
    if since := _since(found):
        lines += ["", f"## {since[0][:1].upper()}{since[0][1:]}", "", *(f"- {line.strip()}" for line in since[1:])]
    lines += ["", "## Survivors", ""]
    for outcome in _of(found, Fate.SURVIVED):
        lines += [f"`{outcome.mutant.key}` {outcome.mutant.operator}, {_where(outcome)}; {_covered(outcome)}", ""]
        lines += ["```diff", *outcome.mutant.diff.splitlines()[2:], "```", ""]
    lines += ["## Mutants", ""]
    lines += _table(
        ("mutant", "operator", "where", "before", "after", "fate", "property or reason", "cases", "seconds"),
        [
            (
                o.mutant.key,
                o.mutant.operator,
                _where(o),
                f"`{o.mutant.before}`",
                f"`{o.mutant.after}`",
                o.fate.value,
                o.property_name or o.reason,
                str(o.tried),
                f"{o.seconds:.1f}",
            )
            for o in found.outcomes
        ],
    )
    return "\n".join(lines) + "\n"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    def row(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |"

    return [row(head), row(["---"] * len(head)), *(row(each) for each in rows)]
