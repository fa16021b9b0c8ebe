"""Gate: the kernels of a change beside those of its base."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gradoracle import completion, options, showing
from gradoracle.commands.check import FORMATS, given
from gradoracle.errors import UsageError


def gate(
    context: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET...]",
            autocompletion=completion.targets,
            help="Names of kernels in [tool.gradoracle] of pyproject.toml, or what check takes; by default all.",
        ),
    ] = None,
    base: Annotated[
        str | None, typer.Option(metavar="REF", help="Compare with the commit that REF and HEAD have in common.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Compare with what baseline save wrote, where the base cannot be built."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Check kernels too that have not changed.")] = False,
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Settings of [tool.gradoracle.profiles.NAME] in pyproject.toml.",
            autocompletion=completion.profiles,
        ),
    ] = None,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda")] = "auto",
    examples: Annotated[int | None, typer.Option(metavar="N", help="How many cases.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the stream of cases.")] = 0,
    property: Annotated[
        str, typer.Option(metavar="GLOB", help="Only laws that match.", autocompletion=completion.laws)
    ] = "*",
    workers: Annotated[str, typer.Option(metavar="N|auto", help="Processes.")] = "auto",
    format: Annotated[
        list[str] | None, typer.Option(metavar="terminal|json|...", help=f"How to report: {FORMATS}. Repeatable.")
    ] = None,
    output: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="Where the --format before it goes. Repeatable.")
    ] = None,
) -> None:
    """Check the kernels that a change touches, beside those of its base, by the base's own judge.

    Exit codes: 0 nothing is worse; 1 a law that held is violated, something is no longer checked, accuracy fell, or
    what judges has changed; 4 something could not be compared.
    """
    from gradoracle import report, settings
    from gradoracle.gate.run import Asked, GateFault
    from gradoracle.gate.run import gate as run_gate
    from gradoracle.report import FORMATS as formats

    views = options.outputs(context.obj, formats)
    if (base is None) == (baseline is None):
        raise UsageError("the gate compares with one thing; wanted --base REF, such as origin/main, or --baseline FILE")
    own = given(context, settings.NAMES)
    settings.fields(own)
    asked = Asked(
        base or "", tuple(targets or ()), profile, own, every, baseline=None if baseline is None else Path(baseline)
    )
    fault: GateFault | None = None
    try:
        found = run_gate(asked, _tell)
    except GateFault as error:
        fault, found = error, error.reports
    showing.show(views, lambda view, width, color: report.render(found, view, width=width, color=color))
    if any(view.format == "github" for view in views):
        showing.summarise(report.render(found, "markdown"))
    if fault is not None:
        raise fault
    raise typer.Exit(report.exit_code(found))


baseline = typer.Typer(help="What the gate compares with where the base cannot be built.")


@baseline.callback()
def _baselines() -> None:
    """What the gate compares with where the base cannot be built."""


@baseline.command()
def save(
    context: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET...]",
            autocompletion=completion.targets,
            help="Names of kernels in [tool.gradoracle] of pyproject.toml, or what check takes; by default all.",
        ),
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="PATH", help="The file. Default: gradoracle-baseline.json.")
    ] = None,
    profile: Annotated[
        str | None, typer.Option(metavar="NAME", help="Settings of [tool.gradoracle.profiles.NAME] in pyproject.toml.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda")] = "auto",
    examples: Annotated[int | None, typer.Option(metavar="N", help="How many cases.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the stream of cases.")] = 0,
    property: Annotated[str, typer.Option(metavar="GLOB", help="Only laws that match.")] = "*",
    workers: Annotated[str, typer.Option(metavar="N|auto", help="Processes.")] = "auto",
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
    found, reports = standings(Asked("", tuple(targets or ()), profile, own), _tell)
    for each in reports:
        showing.say(f"{summary.MARKS[each.exit_code]} {summary.outcome(each)}\n")
    try:
        write(path, found)
    except OSError as error:
        raise UsageError(f"--output {path} cannot be written: {(error.strerror or str(error)).lower()}") from None
    showing.say(
        f"{path} written: {len(found.standings)} kernels, {sum(len(s.cases) for s in found.standings.values())} cases\n"
    )


def _tell(text: str) -> None:
    print(f"gradoracle: {text}", file=sys.stderr, flush=True)
