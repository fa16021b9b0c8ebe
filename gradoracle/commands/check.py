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

from gradoracle import completion, forkserver, options, showing
from gradoracle.commands.arguments import Device, Examples, Family, Formats, Laws, Outputs, Profile, Seed, Workers
from gradoracle.commands.installed import require_kernels_of_the_tree
from gradoracle.config import Config, Entry, load
from gradoracle.errors import UsageError
from gradoracle.showing import say

if TYPE_CHECKING:
    from gradoracle.request import Request
    from gradoracle.verdict import Report

_LEAST_SECONDS = 1e-3  # of a target whose command has none left: it says that no case of it was judged


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
    family: Family = None,
    device: Device = "auto",
    dtype: Annotated[str | None, typer.Option(metavar="float32,...", help="Default: all that are supported.")] = None,
    contract: Annotated[
        list[str] | None,
        typer.Option(metavar="DTYPE=PRESET", help="What a right kernel may round, such as float32=tf32. Repeatable."),
    ] = None,
    arg: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Hold an option fixed, such as causal=True. Repeatable."),
    ] = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(metavar="T=1:4096", help="Sizes of a dim: T=16:4096:16, D=64,128. Repeatable."),
    ] = None,
    inputs: Annotated[
        str | None,
        typer.Option(
            metavar="saved.pt", help="Check on torch.save({'q': q, 'do': cotangent, ...}) instead of drawn cases."
        ),
    ] = None,
    oracle: Annotated[str, typer.Option(metavar="auto|float64|certified|mpmath")] = "auto",
    examples: Examples = None,
    seconds: Annotated[
        float | None,
        typer.Option(metavar="S", help="Of the whole command: begin nothing more once so much time has passed."),
    ] = None,
    fail_fast: Annotated[bool, typer.Option("--fail-fast", help="Stop at the first violation or crash.")] = False,
    call_seconds: Annotated[
        float | None, typer.Option(metavar="S", help="A kernel call that takes longer hangs. Default: 60.")
    ] = None,
    seed: Seed = 0,
    property: Laws = "*",
    require: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Laws that must have been checked. Repeatable.")
    ] = None,
    workers: Workers = "auto",
    shard: Annotated[str, typer.Option(metavar="I/N", help="The I-th of N parts of the stream.")] = "1/1",
    scheduler: Annotated[
        str | None, typer.Option(metavar="tcp://HOST:PORT", help="Run cases on this dask cluster instead of --workers.")
    ] = None,
    profile: Profile = None,
    touched: Annotated[
        bool, typer.Option("--touched", help="TARGETs are files that changed: check the kernels made of them.")
    ] = False,
    format: Formats = None,
    output: Outputs = None,
) -> None:
    """Check kernels: cases x laws -> verdicts."""
    from gradoracle import settings
    from gradoracle.report import FORMATS

    views = options.outputs(context.obj.words, FORMATS)
    if workers != "0":
        forkserver.warm()  # imports what workers need while this process does the same
    own = given(context, settings.NAMES)
    project = load()
    chosen = project.profile(profile)
    entries = _touched(project, targets or []) if touched else project.chosen(targets or [])
    if touched and not entries:
        say(f"no kernel of the project is made of {', '.join(targets or ['no file'])}, so none was checked\n")
        raise typer.Exit(0)
    layers = ((each.target, (project.settings, each.settings, chosen, own)) for each in entries)
    merged = [(target, settings.together(each)) for target, each in layers]
    fields = [(target, settings.fields({k: v for k, v in each.items() if k != "timed"})) for target, each in merged]
    from gradoracle.check import check as check_target
    from gradoracle.report.progress import progress
    from gradoracle.request import Request
    from gradoracle.target import expand

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
        raise UsageError("--touched needs kernels in [tool.gradoracle] of pyproject.toml; wanted at least one")
    paths = {Path(file).resolve() for file in files}
    return [
        config.kernels[name]
        for name, entry in tree.config.kernels.items()
        if paths & {tree.root / file for file in tree.files(entry, entry.settings)}
    ]


def given(context: typer.Context, names: Sequence[str]) -> dict[str, str | list[str]]:
    """The options among ``names`` that are on the command line, as they stand there."""
    found: dict[str, str | list[str]] = {}
    for name in names:
        key = name.replace("-", "_")
        source, value = context.get_parameter_source(key), context.params.get(key)
        if source is not None and source.name == "COMMANDLINE" and value is not None:
            found[name] = list(value) if isinstance(value, (list, tuple)) else str(value)
    return found


def replay(
    case: Annotated[str, typer.Argument(metavar="CASE", help="A case line, in quotes, as a failure prints it.")],
    family: Family = None,
    script: Annotated[bool, typer.Option("--script", help="Print a reproduction that needs torch only.")] = False,
    property: Laws = "*",
    device: Annotated[str | None, typer.Option(metavar="cpu|cuda", help="Default: that of the case.")] = None,
    contract: Annotated[
        list[str] | None, typer.Option(metavar="DTYPE=PRESET", help="As the check had it. Repeatable.")
    ] = None,
    arg: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="As the check had it. Repeatable.")
    ] = None,
    oracle: Annotated[str, typer.Option(metavar="auto|float64|certified|mpmath")] = "auto",
    call_seconds: Annotated[
        float | None, typer.Option(metavar="S", help="A kernel call that takes longer hangs. Default: 60.")
    ] = None,
) -> None:
    """Judge one case again, by every law that applies to it."""
    fields: dict[str, Any] = {"oracle": options.one_of("--oracle", oracle, options.ORACLES)}
    if family is not None:
        fields["family"] = family
    if device is not None:
        fields["device"] = options.one_of("--device", device, options.DEVICES)
    if property != "*":
        fields["property"] = property
    if contract:
        fields["contracts"] = options.contracts(contract)
    if arg:
        fields["arguments"] = options.arguments(arg)
    if script and arg:
        raise UsageError("--arg cannot go with --script: a script calls the kernel with the options of the case alone")
    if script and call_seconds is not None:
        raise UsageError("--call-seconds cannot go with --script: a script calls the kernel without a time limit")
    if call_seconds is not None:
        fields["call_seconds"] = options.seconds(call_seconds, "--call-seconds")
    from gradoracle.case import parse

    with contextlib.suppress(ValueError):  # of a line that is none, told below
        require_kernels_of_the_tree([parse(case)[0]])
    forkserver.warm()
    if script:
        from gradoracle.reproduction import reproduce

        say(reproduce(case, **fields))
        return
    from gradoracle.check import replay as replay_case
    from gradoracle.report.progress import progress

    raise typer.Exit(showing.report([options.Output("terminal")], [lambda: replay_case(case, progress(), **fields)]))
