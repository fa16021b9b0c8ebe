"""Check and replay: kernels on drawn cases, or on one."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradoracle.cli import completion
from gradoracle.cli.commands.arguments import Formats, Outputs, Profile, given, takes
from gradoracle.cli.commands.installed import require_kernels_of_the_tree
from gradoracle.execution import fork_server
from gradoracle.model.errors import UsageError
from gradoracle.project.config import Config, Entry, load
from gradoracle.project.options import OPTIONS
from gradoracle.project.outputs import Output, outputs
from gradoracle.report import showing
from gradoracle.report.showing import say

if TYPE_CHECKING:
    from gradoracle.model.verdict import Report
    from gradoracle.project.request import Request

_LEAST_SECONDS = 1e-3  # of a target whose command has none left: it says that no case of it was judged


@takes(*(name for name in OPTIONS if name != "timed"))
def check(
    context: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET...]",
            autocompletion=completion.targets,
            help="A shipped family or all, path/to/file.py, path/to/file.py:callable, package.module:callable, or the "
            "name of a kernel in [tool.gradoracle] of pyproject.toml; by default all of those.",
        ),
    ] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first violation or crash.")] = False,
    profile: Profile = None,
    touched: Annotated[
        bool, typer.Option("--touched", help="TARGETs are files that changed: check the kernels made of them.")
    ] = False,
    format: Formats = None,
    output: Outputs = None,
    **options: Any,
) -> None:
    """Check kernels: cases x laws -> verdicts."""
    from gradoracle.project import settings
    from gradoracle.report.formats import FORMATS

    views = outputs(context.obj.words, FORMATS)
    own = given(context)
    if own.get("workers") != "0":
        fork_server.warm()  # imports what workers need while this process does the same
    project = load()
    chosen = project.profile(profile)
    entries = _touched(project, targets or []) if touched else project.chosen(targets or [])
    if touched and not entries:
        say(f"no kernel of the project is made of {', '.join(targets or ['no file'])}, so none was checked\n")
        raise typer.Exit(0)
    layers = ((each.target, (project.settings, each.settings, chosen, own)) for each in entries)
    merged = [(target, settings.together(each)) for target, each in layers]
    fields = [(target, settings.fields({k: v for k, v in each.items() if k != "timed"})) for target, each in merged]
    from gradoracle.check.run import check as check_target
    from gradoracle.project.request import Request
    from gradoracle.project.target import expand
    from gradoracle.report.progress import progress

    requests: list[Request] = []
    for target, field in fields:
        each = [Request(target=name, fail_fast=fail_fast, **field) for name in expand(target)]
        requests += [request for request in each if request not in requests]
    require_kernels_of_the_tree(request.target for request in requests)
    until = context.obj.begun + float(str(own["seconds"])) if "seconds" in own else None

    def checked(request: Request, left: int) -> Report:
        """Check a target, and leave each of those that come after it as much of the command's time."""
        if until is not None:
            request = replace(request, seconds=max(_LEAST_SECONDS, (until - time.monotonic()) / left))
        return check_target(request, progress())

    runs = [partial(checked, request, len(requests) - place) for place, request in enumerate(requests)]
    raise typer.Exit(showing.report(views, runs))


def _touched(config: Config, files: Sequence[str]) -> list[Entry]:
    """The project's kernels that are made of some files."""
    from gradoracle.gate.tree import project

    tree = project()
    if not tree.config.kernels:
        raise UsageError("--touched needs kernels in [tool.gradoracle] of pyproject.toml; expected at least one")
    paths = {Path(file).resolve() for file in files}
    return [
        config.kernels[name]
        for name, entry in tree.config.kernels.items()
        if paths & {tree.root / file for file in tree.files(entry, entry.settings)}
    ]


@takes(
    "family",
    "property",
    "oracle",
    "call-seconds",
    device="Default: that of the case.",
    contract="As the check had it. Repeatable.",
    arg="As the check had it. Repeatable.",
)
def replay(
    context: typer.Context,
    case: Annotated[str, typer.Argument(metavar="CASE", help="A case line, in quotes, as a failure prints it.")],
    script: Annotated[bool, typer.Option("--script", help="Print a reproduction that needs torch only.")] = False,
    **options: Any,
) -> None:
    """Judge one case again, by every law that applies to it."""
    from gradoracle.project import settings

    fields = settings.fields(given(context))
    if script and "arguments" in fields:
        raise UsageError("--arg cannot go with --script: a script calls the kernel with the options of the case alone")
    if script and "call_seconds" in fields:
        raise UsageError("--call-seconds cannot go with --script: a script calls the kernel without a time limit")
    from gradoracle.model.case import parse

    with contextlib.suppress(ValueError):  # of a line that is none, told below
        require_kernels_of_the_tree([parse(case)[0]])
    fork_server.warm()
    if script:
        from gradoracle.check.reproduction import reproduce

        say(reproduce(case, **fields))
        return
    from gradoracle.check.run import replay as replay_case
    from gradoracle.report.progress import progress

    raise typer.Exit(showing.report([Output("terminal")], [lambda: replay_case(case, progress(), **fields)]))
