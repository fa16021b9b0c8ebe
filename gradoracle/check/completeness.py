"""Shortfall: what a run should have checked and did not, as sentences; such a run is not green."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence

from gradoracle.model.verdict import Status, Verdict


def shortfall(
    verdicts: Iterable[Verdict],
    *,
    undecided: Sequence[str],
    require: Iterable[str],
    undefined: Sequence[str],
    cases: int,
    sizes: str,
) -> list[str]:
    """One sentence for each thing that is wanting.

    Args:
        verdicts: of the run.
        undecided: what ``Tally.undecided`` says.
        require: globs of laws that must have been checked.
        undefined: what is wrong with the definition, one sentence of each case on which something is.
        cases: how many were run.
        sizes: which sizes the definition is meant for, where it raises on some.
    """
    unmet = [*_unjudged(undecided, undefined, cases, sizes), *undecided]
    held = {verdict.law for verdict in verdicts if verdict.status in (Status.HOLDS, Status.VIOLATED)}
    for glob in require:
        if not fnmatch.filter(held, glob):
            unmet.append(f"--require {glob}: no law that matches was checked")
    return unmet


def _unjudged(undecided: Sequence[str], undefined: Sequence[str], cases: int, sizes: str) -> list[str]:
    """On how many cases the definition raises or cannot be read, and how; nothing where ``undecided`` says it."""
    if not undefined or any(reason in sentence for reason in undefined for sentence in undecided):
        return []
    hint = f"; {sizes}" if " raises " in undefined[0] else ""
    return [f"{len(undefined)} of {cases} cases could not be judged by every law: {undefined[0]}{hint}"]
