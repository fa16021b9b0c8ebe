"""Gate: the kernels of a change compared with those of its base."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gradoracle.cli.arguments import Formats, Kernels, Outputs, Profile, Verbose, given, takes
from gradoracle.execution import fork_server
from gradoracle.model.errors import UsageError, tell
from gradoracle.project import config
from gradoracle.project.outputs import outputs
from gradoracle.report import showing
from gradoracle.report.formats import FORMATS


@takes("device", "python", "examples", "seed", "property", "workers")
def gate(
    context: typer.Context,
    targets: Kernels = None,
    base: Annotated[
        str | None, typer.Option(metavar="REF", help="Compare with the merge base of REF and HEAD.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Compare with a file written by baseline save, where the base cannot be built."
        ),
    ] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first regression.")] = False,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Check the base again instead of using the results of an earlier gate.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Also check kernels that have not changed.")] = False,
    profile: Profile = None,
    format: Formats = None,
    output: Outputs = None,
    verbose: Verbose = False,
    **options: Any,
) -> None:
    """Compare the kernels of a change with those of its base.

    Kernels that the change does not affect are skipped. Both sides are judged by the base's definitions, contracts and
    properties.

    Exit codes: 0 no regression; 1 a property that held is violated, something is no longer checked, accuracy fell, or
    a definition, contract or property changed without acknowledgement; 4 something could not be compared.
    """
    fork_server.warm(has_engine=False)  # imports what both sides need while this process reads both trees
    from gradoracle.gate.run import Asked, GateFault
    from gradoracle.gate.run import gate as run_gate
    from gradoracle.model.verdict import exit_code

    views = outputs(context.obj.words, FORMATS)
    if (base is None) == (baseline is None):
        raise UsageError(
            "the gate needs one base to compare with; expected --base REF, such as origin/main, or --baseline FILE"
        )
    own = given(context)
    config.fields(own)
    file = None if baseline is None else Path(baseline)
    chosen = tuple(targets or ())
    asked = Asked(base or "", chosen, profile, own, every, baseline=file, fail_fast=fail_fast, keeps=not no_cache)
    fault: GateFault | None = None
    try:
        found = run_gate(asked, tell)
    except GateFault as error:
        fault, found = error, error.reports
    showing.show_reports(views, found, verbose)
    if fault is not None:
        raise fault
    raise typer.Exit(exit_code(found))
