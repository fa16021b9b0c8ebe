"""Check: kernels on generated inputs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradoracle.cli import completion
from gradoracle.cli.arguments import Formats, Outputs, Profile, Verbose, given, takes
from gradoracle.cli.installed import require_kernels_of_the_tree
from gradoracle.cli.outcome import run_and_show
from gradoracle.execution import fork_server
from gradoracle.model.errors import UsageError
from gradoracle.project import config
from gradoracle.project.options import OPTIONS
from gradoracle.project.outputs import outputs
from gradoracle.report.formats import FORMATS
from gradoracle.report.showing import say

if TYPE_CHECKING:
    from gradoracle.model.verdict import Report
    from gradoracle.project.request import Request

_LEAST_SECONDS = 1e-3  # for a target when the time is up: its report says that no case was judged


@takes(*OPTIONS)
def check(
    context: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET...]",
            autocompletion=completion.targets,
            help="A shipped family or all, path/to/file.py, path/to/file.py:callable, package.module:callable, or a "
            "kernel named in [tool.gradoracle] of pyproject.toml. Default: all named ones.",
        ),
    ] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first violation or crash.")] = False,
    profile: Profile = None,
    touched: Annotated[
        bool, typer.Option("--touched", help="TARGETs are changed files: check the kernels that depend on them.")
    ] = False,
    ledger: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write each judged case to FILE as it comes; merge makes reports of it."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Judge only the cases that the file of --ledger does not have.")
    ] = False,
    format: Formats = None,
    output: Outputs = None,
    verbose: Verbose = False,
    **options: Any,
) -> None:
    """Test kernels on generated inputs."""
    views = outputs(context.obj.words, FORMATS)
    if resume and ledger is None:
        raise UsageError("--resume needs --ledger FILE: the ledger of the run to go on with")
    own = given(context)
    if own.get("workers") != "0":
        fork_server.warm()  # imports what workers need while this process does the same
    project = config.load()
    chosen = project.profile(profile)
    entries = _touched(project, targets or []) if touched else project.chosen(targets or [])
    if touched and not entries:
        say(f"no kernel of the project depends on {', '.join(targets or ['no file'])}, so none was checked\n")
        raise typer.Exit(0)
    layers = ((each.target, (project.settings, each.settings, chosen, own)) for each in entries)
    merged = [(target, config.together(each)) for target, each in layers]
    fields = [(target, config.fields(each)) for target, each in merged]
    from gradoracle.check.run import check as check_target
    from gradoracle.model.ledger_file import LedgerFile
    from gradoracle.project.request import Request
    from gradoracle.project.target import expand
    from gradoracle.report.progress import progress

    requests: list[Request] = []
    for target, field in fields:
        each = [Request(target=name, fail_fast=fail_fast, **field) for name in expand(target)]
        requests += [request for request in each if request not in requests]
    require_kernels_of_the_tree(request.target for request in requests)
    file = None if ledger is None else LedgerFile(Path(ledger), resumes=resume)
    until = context.obj.begun + float(str(own["seconds"])) if "seconds" in own else None

    def checked(request: Request, left: int) -> Report:
        """Check a target within an equal share of the time left, so that the targets after it get theirs."""
        if until is not None:
            request = replace(request, seconds=max(_LEAST_SECONDS, (until - time.monotonic()) / left))
        return check_target(request, progress(), file)

    runs = [partial(checked, request, len(requests) - place) for place, request in enumerate(requests)]
    code = run_and_show(views, runs, verbose)
    if file is not None:
        file.close()
        if file.lost:
            raise UsageError(file.lost)
    raise typer.Exit(code)


def _touched(known: config.Config, files: Sequence[str]) -> list[config.Entry]:
    """The project's kernels that depend on some files."""
    from gradoracle.gate.tree import project

    tree = project()
    if not tree.config.kernels:
        raise UsageError("--touched needs kernels in [tool.gradoracle] of pyproject.toml; expected at least one")
    paths = {Path(file).resolve() for file in files}
    return [
        known.kernels[name]
        for name, entry in tree.config.kernels.items()
        if paths & {tree.root / file for file in tree.files(entry, entry.settings)}
    ]
