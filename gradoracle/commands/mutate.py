"""Mutate and bench: how good the laws are, and how fast the kernels."""

from __future__ import annotations

from typing import Annotated

import typer

from gradoracle import options, showing
from gradoracle.commands.arguments import Family
from gradoracle.commands.installed import require_kernels_of_the_tree


def mutate(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A shipped family, path/to/file.py[:callable] or module:callable.")
    ],
    family: Family = None,
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

    wanted, enough = options.outputs(context.obj.words, views.FORMATS), options.score(least)
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
    require_kernels_of_the_tree([target])
    try:
        found = run_mutation(asked, progress)
    except WrongKernel as error:
        raise typer.Exit(showing.fail(str(error), 1)) from None
    showing.show(wanted, lambda view, width, color: views.render(found, view))
    raise typer.Exit(views.exit_code(found, enough))


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
    require_kernels_of_the_tree([target])
    from gradoracle.bench import run as run_bench

    run_bench(target, device, output, only, seconds)
