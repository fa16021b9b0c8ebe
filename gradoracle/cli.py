"""The command line: arguments in, exit code out.

Exit codes: 0 every checked property holds; 1 a property is violated, or the kernel crashed or hung on a valid case;
2 usage or configuration; 3 gradoracle's own fault; 4 inconclusive. Nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gradoracle import completion, options, showing
from gradoracle.errors import UsageError
from gradoracle.showing import INCONCLUSIVE, say

if TYPE_CHECKING:
    from gradoracle.property import Property
    from gradoracle.target import Target

USAGE, FAULT = 2, 3
_FORMATS = "terminal, json, junit, sarif, github or markdown"
_INTERRUPTED = 130  # what typer makes of a keyboard interrupt; older versions raise Abort

app = typer.Typer(
    name="gradoracle",
    help="Is the gradient of a GPU kernel right? Truth derived from one definition, budgets instead of tolerances.",
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def run(words: Sequence[str]) -> int:
    """Run a command line (without the program's name) and return its exit code; nothing escapes but the code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = app(args=list(words) or ["--help"], obj=list(words), prog_name="gradoracle", standalone_mode=False)
    except UsageError as error:
        return _fail(str(error), USAGE)
    except KeyboardInterrupt:
        return _fail("interrupted before anything was checked", INCONCLUSIVE)
    except Exception as error:
        if hasattr(error, "format_message"):  # of typer's own parser, whose classes differ between its versions
            return _fail(_sentence(error.format_message()), USAGE)
        if type(error).__name__ == "Abort":
            return _fail("interrupted before anything was checked", INCONCLUSIVE)
        return _fault(error)
    if not words:
        return USAGE
    if code == _INTERRUPTED:
        return _fail("interrupted before anything was checked", INCONCLUSIVE)
    return code if isinstance(code, int) else 0


def _version(asked: bool) -> None:
    if asked:
        from gradoracle import __version__

        print(f"gradoracle {__version__}")
        raise typer.Exit(0)


@app.callback()
def _program(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Is the gradient of a GPU kernel right? Truth derived from one definition, budgets instead of tolerances.

    Exit codes: 0 every checked property holds; 1 a property is violated, or the kernel crashed or hung; 2 usage;
    3 gradoracle's own fault; 4 inconclusive: what should have been checked was not.
    """


@app.command()
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
    family: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which definition an outside callable claims to implement.")
    ] = None,
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda")] = "auto",
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
    examples: Annotated[int | None, typer.Option(metavar="N", help="How many cases.")] = None,
    seconds: Annotated[
        float | None, typer.Option(metavar="S", help="Stop after a whole case once this much time has passed.")
    ] = None,
    call_seconds: Annotated[
        float | None, typer.Option(metavar="S", help="A kernel call that takes longer hangs. Default: 60.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the stream of cases.")] = 0,
    property: Annotated[
        str, typer.Option(metavar="GLOB", help="Only laws that match.", autocompletion=completion.laws)
    ] = "*",
    require: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Laws that must have been checked. Repeatable.")
    ] = None,
    workers: Annotated[str, typer.Option(metavar="N|auto", help="Processes; 0: in this one, unprotected.")] = "auto",
    shard: Annotated[str, typer.Option(metavar="I/N", help="The I-th of N parts of the stream.")] = "1/1",
    profile: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Settings of [tool.gradoracle.profiles.NAME] in pyproject.toml.",
            autocompletion=completion.profiles,
        ),
    ] = None,
    format: Annotated[
        list[str] | None, typer.Option(metavar="terminal|json|...", help=f"How to report: {_FORMATS}. Repeatable.")
    ] = None,
    output: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="Where the --format before it goes. Repeatable.")
    ] = None,
) -> None:
    """Check kernels: cases x laws -> verdicts."""
    from gradoracle import config, settings
    from gradoracle.report import FORMATS

    views = options.outputs(context.obj, FORMATS)
    given = _given(context, settings.NAMES)
    project = config.load()
    chosen = project.profile(profile)
    layers = ((each.target, (project.settings, each.settings, chosen, given)) for each in project.chosen(targets or []))
    fields = [(target, settings.fields(settings.together(own))) for target, own in layers]
    from gradoracle.check import check as check_target
    from gradoracle.report.progress import progress
    from gradoracle.request import Request
    from gradoracle.target import expand

    requests: list[Request] = []
    for target, own in fields:
        each = [Request(target=name, **own) for name in expand(target)]
        requests += [request for request in each if request not in requests]
    raise typer.Exit(showing.report(views, [partial(check_target, request, progress()) for request in requests]))


def _given(context: typer.Context, names: Sequence[str]) -> dict[str, str | list[str]]:
    """The options among ``names`` that are on the command line, as they stand there."""
    found: dict[str, str | list[str]] = {}
    for name in names:
        key = name.replace("-", "_")
        source, value = context.get_parameter_source(key), context.params.get(key)
        if source is not None and source.name == "COMMANDLINE" and value is not None:
            found[name] = list(value) if isinstance(value, (list, tuple)) else str(value)
    return found


@app.command()
def replay(
    case: Annotated[str, typer.Argument(metavar="CASE", help="A case line, in quotes, as a failure prints it.")],
    script: Annotated[bool, typer.Option("--script", help="Print a reproduction that needs torch only.")] = False,
    property: Annotated[
        str, typer.Option(metavar="GLOB", help="Only laws that match.", autocompletion=completion.laws)
    ] = "*",
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
    if script:
        from gradoracle.reproduction import reproduce

        say(reproduce(case, **fields))
        return
    from gradoracle.check import replay as replay_case
    from gradoracle.report.progress import progress

    raise typer.Exit(showing.report([options.Output("terminal")], [lambda: replay_case(case, progress(), **fields)]))


@app.command("list")
def list_() -> None:
    """Families, their kernels, laws and precision contracts."""
    from gradoracle.contract import PRESETS
    from gradoracle.report.catalogue import listing

    targets, universal = _catalogue()
    say(listing(targets, universal, PRESETS))


@app.command()
def explain(
    name: Annotated[
        str,
        typer.Argument(metavar="PROPERTY", help="The name of a law, or a glob.", autocompletion=completion.laws),
    ],
) -> None:
    """What a law says, why it holds, what it catches and what it cannot."""
    import difflib
    import fnmatch

    from gradoracle.report.catalogue import explanation

    targets, universal = _catalogue()
    known = [(law, law.families.words) for law in universal]
    known += [(law, target.family.name) for target in targets for law in target.family.properties]
    owners: dict[Property, list[str]] = {}  # laws of one name and text are one, of one name and other texts several
    for law, whose in known:
        owners.setdefault(law, []).append(whose)
    laws = list(dict.fromkeys(law.name for law in owners))
    found = [each for each in laws if fnmatch.fnmatchcase(each, name)]
    if not found:
        close = difflib.get_close_matches(name, laws, n=3, cutoff=0.5) or [each for each in laws if name in each][:3]
        hint = f"did you mean {', '.join(close)}?" if close else "gradoracle list prints them all"
        raise UsageError(f"no law is named {name!r}: {hint}")
    say("\n".join(explanation(law, owners[law]) for each in found for law in owners if law.name == each))


@app.command()
def doctor() -> None:
    """What is installed, what works here, and what each thing is for."""
    from gradoracle.environment import facilities

    found = facilities()
    for facility in found:
        mark = "ok     " if facility.found else "MISSING" if facility.required else "absent "
        say(f"{mark}  {facility.name:<18} {facility.found or '-':<44} {facility.purpose}\n")
        if not facility.found and facility.remedy:
            say(f"{'':<9}{'':<18} {facility.remedy}\n")
    lacking = [facility.name for facility in found if facility.required and not facility.found]
    if lacking:
        say(f"gradoracle cannot work here: {', '.join(lacking)} missing (exit code 1)\n")
    raise typer.Exit(1 if lacking else 0)


@app.command()
def mutate(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A shipped family, path/to/file.py[:callable] or module:callable.")
    ],
    family: Annotated[
        str | None, typer.Option(metavar="NAME", help="Which definition an outside callable claims to implement.")
    ] = None,
    mutants: Annotated[
        str, typer.Option(metavar="N|all", help="How many faults, spread over operators and functions.")
    ] = "120",
    seconds: Annotated[
        float | None, typer.Option(metavar="S", help="Try no further fault once this much time has passed.")
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the choice of faults and of the cases.")] = 0,
    examples: Annotated[int | None, typer.Option(metavar="N", help="How many cases. Default: as check.")] = None,
    workers: Annotated[str, typer.Option(metavar="N|auto", help="Processes.")] = "auto",
    source: Annotated[
        list[str] | None, typer.Option(metavar="MODULE", help="A further module to plant faults in. Repeatable.")
    ] = None,
    equivalents: Annotated[
        str | None, typer.Option(metavar="FILE", help="Proofs that faults are none, in TOML.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget what an earlier run found.")] = False,
    least: Annotated[float | None, typer.Option(metavar="SCORE", help="Exit with 1 below this score.")] = None,
    format: Annotated[
        list[str] | None, typer.Option(metavar="terminal|json|markdown", help="How to report. Repeatable.")
    ] = None,
    output: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="Where the --format before it goes. Repeatable.")
    ] = None,
) -> None:
    """Plant small faults in a kernel's source, and see which law catches each."""
    from gradoracle.mutation import views
    from gradoracle.mutation.run import Mutation, WrongKernel
    from gradoracle.mutation.run import mutate as run_mutation
    from gradoracle.report.progress import progress

    wanted, enough = options.outputs(context.obj, views.FORMATS), options.score(least)
    asked = Mutation(
        target,
        family,
        count=options.all_or("--mutants", mutants),
        seconds=options.seconds(seconds),
        seed=options.at_least("--seed", seed, 0),
        examples=None if examples is None else options.at_least("--examples", examples, 1),
        workers=options.some_workers(workers),
        equivalents=options.file("--equivalents", equivalents),
        fresh=fresh,
        sources=tuple(source or ()),
    )
    try:
        found = run_mutation(asked, progress)
    except WrongKernel as error:
        raise typer.Exit(_fail(str(error), 1)) from None
    showing.show(wanted, lambda view, width, color: views.render(found, view))
    raise typer.Exit(views.exit_code(found, enough))


@app.command()
def bench(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A shipped family.")],
    device: Annotated[str, typer.Option(metavar="auto|cpu|cuda")] = "auto",
    only: Annotated[str, typer.Option(metavar="TEXT", help="Only rows whose description contains this.")] = "",
    output: Annotated[str | None, typer.Option(metavar="PATH", help="Also write the table there, as json.")] = None,
    seconds: Annotated[
        float | None, typer.Option(metavar="S", help="Stop each gradcheck after this long, and say how far it came.")
    ] = None,
) -> None:
    """Time shipped kernels beside their peers, and a verdict beside gradcheck."""
    options.one_of("--device", device, options.DEVICES)
    options.seconds(seconds)
    from gradoracle.bench import run as run_bench

    run_bench(target, device, output, only, seconds)


def _catalogue() -> tuple[list[Target], Sequence[Property]]:
    """Every shipped family, and the laws of all of them."""
    from gradoracle import device as devices
    from gradoracle.examine import universal_laws
    from gradoracle.target import shipped

    devices.prepare(devices.choose("auto"))
    return list(shipped().values()), universal_laws()


def _sentence(text: str) -> str:
    return " ".join(text.split())


def _fail(text: str, code: int) -> int:
    print(f"gradoracle: {text}", file=sys.stderr)
    return code


def _fault(error: Exception) -> int:
    """Exit code 3: one sentence, and the traceback in a file (or here, with GRADORACLE_TRACEBACK=1)."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = " ".join([lines[0], lines[-1]] if lines and lines[0].endswith(":") else lines[:1])  # a traceback's last line
    what = f"{type(error).__name__}{f': {told}' if told else ''}"
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    if os.environ.get("GRADORACLE_TRACEBACK") == "1":
        print(text, file=sys.stderr)
        return _fail(f"a fault of its own: {what}", FAULT)
    where = "set GRADORACLE_TRACEBACK=1 to see the traceback"
    with contextlib.suppress(OSError):
        handle, name = tempfile.mkstemp(prefix="gradoracle-", suffix=".txt")
        with open(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
            where = f"the traceback is in {name}"
    return _fail(f"a fault of its own: {what}; {where}", FAULT)
