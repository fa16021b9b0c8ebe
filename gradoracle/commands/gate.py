"""Gate: the kernels of a change beside those of its base."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gradoracle import forkserver, options, showing
from gradoracle.commands.arguments import Device, Examples, Formats, Kernels, Laws, Outputs, Profile, Seed, Workers
from gradoracle.commands.check import given
from gradoracle.errors import UsageError, why


def gate(
    context: typer.Context,
    targets: Kernels = None,
    base: Annotated[
        str | None, typer.Option(metavar="REF", help="Compare with the commit that REF and HEAD have in common.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Compare with what baseline save wrote, where the base cannot be built."),
    ] = None,
    speed: Annotated[
        bool, typer.Option("--speed", help="On a GPU: time both sides in turns too. Times close no gate.")
    ] = False,
    timed: Annotated[
        list[str] | None,
        typer.Option(metavar='"T=4096 D=64"', help="A problem to time; other dims as they usually are. Repeatable."),
    ] = None,
    fail_fast: Annotated[
        bool, typer.Option("--fail-fast", help="Stop once a kernel is known to be worse than the base's.")
    ] = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Check the base anew, also where an earlier gate kept how it stands.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Check kernels too that have not changed.")] = False,
    profile: Profile = None,
    device: Device = "auto",
    examples: Examples = None,
    seed: Seed = 0,
    property: Laws = "*",
    workers: Workers = "auto",
    format: Formats = None,
    output: Outputs = None,
) -> None:
    """Check the kernels that a change touches, beside those of its base, by the base's own judge.

    Exit codes: 0 nothing is worse; 1 a law that held is violated, something is no longer checked, accuracy fell, or
    what judges has changed; 4 something could not be compared.
    """
    forkserver.warm(has_engine=False)  # imports what both sides need while this process reads both trees
    from gradoracle import report, settings
    from gradoracle.gate.run import Asked, GateFault
    from gradoracle.gate.run import gate as run_gate
    from gradoracle.report import FORMATS as formats

    views = options.outputs(context.obj.words, formats)
    if (base is None) == (baseline is None):
        raise UsageError("the gate compares with one thing; wanted --base REF, such as origin/main, or --baseline FILE")
    own = given(context, settings.NAMES)
    chosen = settings.fields(own)
    if speed:
        _require_timing(baseline, chosen.get("device", "auto"))
    elif timed:
        raise UsageError("--timed says what --speed times; wanted --speed with it")
    file = None if baseline is None else Path(baseline)
    asked = Asked(base or "", tuple(targets or ()), profile, own, every, baseline=file, speed=speed)
    asked = replace(asked, fail_fast=fail_fast, keeps=not no_cache)
    fault: GateFault | None = None
    try:
        found = run_gate(asked, showing.tell)
    except GateFault as error:
        fault, found = error, error.reports
    showing.show_reports(views, found)
    if fault is not None:
        raise fault
    raise typer.Exit(report.exit_code(found))


def _require_timing(baseline: str | None, device: str) -> None:
    """Refuse to time what says nothing: a baseline's times are another run's, an interpreter's are no kernel's."""
    from gradoracle.device import choose

    if baseline is not None:
        raise UsageError("--speed times both sides in one run, and a baseline has no kernel to run; wanted --base REF")
    if choose(device) != "cuda":
        raise UsageError("--speed needs a GPU: what the interpreter takes says nothing of a kernel; wanted no --speed")


baseline = typer.Typer(help="What the gate compares with where the base cannot be built.")


@baseline.callback()
def _baselines() -> None:
    """What the gate compares with where the base cannot be built."""


@baseline.command()
def save(
    context: typer.Context,
    targets: Kernels = None,
    output: Annotated[
        str | None, typer.Option(metavar="PATH", help="The file. Default: gradoracle-baseline.json.")
    ] = None,
    profile: Profile = None,
    device: Device = "auto",
    examples: Examples = None,
    seed: Seed = 0,
    property: Laws = "*",
    workers: Workers = "auto",
) -> None:
    """Check this tree's kernels and keep how each stands, case by case, for gate --baseline.

    What is violated is kept as violated: a gate then asks that it be no worse. Exit code: 0 the file is written.
    """
    from gradoracle import settings
    from gradoracle.gate.baseline import FILE
    from gradoracle.gate.baseline import save as write
    from gradoracle.gate.run import Asked, standings
    from gradoracle.report import summary

    own = given(context, settings.NAMES)
    settings.fields(own)
    path = options.writable("--output", output or FILE)
    found, reports = standings(Asked("", tuple(targets or ()), profile, own), showing.tell)
    for each in reports:
        showing.say(f"{summary.MARKS[each.exit_code]} {summary.outcome(each)}\n")
    try:
        write(path, found)
    except OSError as error:
        raise UsageError(f"--output {path} cannot be written: {why(error)}") from None
    showing.say(
        f"{path} written: {len(found.standings)} kernels, {sum(len(s.cases) for s in found.standings.values())} cases\n"
    )
