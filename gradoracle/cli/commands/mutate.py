"""Mutate and bench: how good the laws are, and how fast the kernels."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gradoracle.cli.commands.arguments import given, takes
from gradoracle.cli.commands.installed import require_kernels_of_the_tree
from gradoracle.project import settings, values
from gradoracle.project.outputs import outputs
from gradoracle.report import showing


@takes(
    "family",
    seconds="Try no further fault once this much time has passed.",
    seed="Of the choice of faults and of the cases.",
    examples="How many cases. Default: as check.",
    workers="Processes.",
)
def mutate(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A shipped family, path/to/file.py[:callable] or module:callable.")
    ],
    mutants: Annotated[
        str, typer.Option(metavar="N|all", help="How many faults, spread over operators and functions.")
    ] = "120",
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
    **options: Any,
) -> None:
    """Plant small faults in a kernel's source, and see which law catches each."""
    from gradoracle.mutation import views
    from gradoracle.mutation.run import Mutation, WrongKernel
    from gradoracle.mutation.run import mutate as run_mutation
    from gradoracle.report.progress import progress

    expected, enough = outputs(context.obj.words, views.FORMATS), values.score(least)
    own = given(context)
    values.some_workers(str(own.get("workers", "auto")))
    asked = Mutation(
        target,
        count=values.all_or("--mutants", mutants),
        equivalents=values.file("--equivalents", equivalents),
        fresh=fresh,
        sources=tuple(source or ()),
        **settings.fields(own),
    )
    require_kernels_of_the_tree([target])
    try:
        found = run_mutation(asked, progress)
    except WrongKernel as error:
        raise typer.Exit(showing.fail(str(error), 1)) from None
    showing.show(expected, lambda view, width, color: views.render(found, view))
    raise typer.Exit(views.exit_code(found, enough))


@takes("device", seconds="Stop each gradcheck after this long, and say how far it came.")
def bench(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A shipped family.")],
    only: Annotated[str, typer.Option(metavar="TEXT", help="Only rows whose description contains this.")] = "",
    output: Annotated[str | None, typer.Option(metavar="PATH", help="Also write the table there, as json.")] = None,
    **options: Any,
) -> None:
    """Time shipped kernels beside their peers, and a verdict beside gradcheck."""
    asked = settings.fields(given(context))
    require_kernels_of_the_tree([target])
    from gradoracle.execution.bench import run as run_bench

    run_bench(target, asked.get("device", "auto"), output, only, asked.get("seconds"))
