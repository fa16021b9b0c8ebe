"""Replay: kernels on one case."""

from __future__ import annotations

import contextlib
from typing import Annotated, Any

import typer

from gradoracle.cli.arguments import Verbose, given, takes
from gradoracle.cli.installed import require_kernels_of_the_tree
from gradoracle.cli.outcome import run_and_show
from gradoracle.execution import fork_server
from gradoracle.model.errors import UsageError
from gradoracle.project import config
from gradoracle.project.outputs import Output
from gradoracle.report.showing import say


@takes(
    "family",
    "property",
    "oracle",
    "call-seconds",
    "python",
    "fail-on",
    device="Device to run the kernel on. Default: the one in the case line.",
    contract="As given to check. Repeatable.",
    claim="As given to check.",
    arg="As given to check. Repeatable.",
)
def replay(
    context: typer.Context,
    case: Annotated[str, typer.Argument(metavar="CASE", help="A case line in quotes, as printed with a failure.")],
    script: Annotated[
        bool, typer.Option("--script", help="Print a reproduction that needs only torch and the kernel.")
    ] = False,
    verbose: Verbose = False,
    **options: Any,
) -> None:
    """Judge one case again by every property that applies."""
    fields = config.fields(given(context))
    if script and "arguments" in fields:
        raise UsageError("--arg cannot be combined with --script: a script uses only the options in the case line")
    if script and "call_seconds" in fields:
        raise UsageError("--call-seconds cannot be combined with --script: a script has no time limit")
    from gradoracle.model.case import parse

    with contextlib.suppress(ValueError):  # the line is no case line, which is reported below
        require_kernels_of_the_tree([parse(case)[0]])
    fork_server.warm()
    if script:
        from gradoracle.check.script import reproduce

        say(reproduce(case, **fields))
        return
    from gradoracle.check.run import replay as replay_case
    from gradoracle.report.progress import progress

    raise typer.Exit(run_and_show([Output("terminal")], [lambda: replay_case(case, progress(), **fields)], verbose))
