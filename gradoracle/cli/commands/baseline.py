"""Baseline: the results of a tree, saved for a gate that cannot build its base."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gradoracle.cli.arguments import Kernels, Profile, given, takes
from gradoracle.model.errors import UsageError, tell, why
from gradoracle.project import config
from gradoracle.project.outputs import writable
from gradoracle.report import showing

baseline = typer.Typer()


@baseline.callback()
def _baselines() -> None:
    """Save results for gate --baseline, where the base cannot be built."""


@baseline.command()
@takes("device", "python", "examples", "seed", "property", "workers")
def save(
    context: typer.Context,
    targets: Kernels = None,
    output: Annotated[
        str | None, typer.Option(metavar="PATH", help="File to write. Default: gradoracle-baseline.jsonl.")
    ] = None,
    profile: Profile = None,
    **options: Any,
) -> None:
    """Check this tree's kernels and save the results, case by case, for gate --baseline.

    Violations are saved too; a gate then fails only if they get worse. The exit code is 0 once the file is written.
    """
    from gradoracle.gate.baseline import FILE
    from gradoracle.gate.baseline import save as write
    from gradoracle.gate.run import Asked, judged_alone
    from gradoracle.report import summary

    own = given(context)
    config.fields(own)
    path = writable("--output", output or FILE)
    found, reports = judged_alone(Asked("", tuple(targets or ()), profile, own), tell)
    for each in reports:
        showing.say(f"{summary.MARKS[each.exit_code]} {summary.outcome(each)}\n")
    try:
        write(path, found)
    except OSError as error:
        raise UsageError(f"--output {path} cannot be written: {why(error)}") from None
    showing.say(
        f"{path} written: {len(found.answers)} kernels, {sum(len(s.cases) for s in found.answers.values())} cases\n"
    )
