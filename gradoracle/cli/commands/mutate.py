"""Mutate: what the properties catch."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gradoracle.cli.arguments import given, takes
from gradoracle.cli.installed import require_kernels_of_the_tree
from gradoracle.project import config, values
from gradoracle.project.outputs import outputs
from gradoracle.report import showing


@takes(
    "family",
    "dtype",
    "contract",
    "arg",
    seconds="Time limit; no mutant starts after it.",
    seed="Seed for choosing mutants and drawing cases.",
    examples="Number of cases. Default: as for check.",
    workers="Number of worker processes.",
)
def mutate(
    context: typer.Context,
    target: Annotated[
        str, typer.Argument(metavar="TARGET", help="A shipped family, path/to/file.py[:callable] or module:callable.")
    ],
    mutants: Annotated[
        str, typer.Option(metavar="N|all", help="Number of mutants, spread over operators and functions.")
    ] = "120",
    source: Annotated[
        list[str] | None, typer.Option(metavar="MODULE", help="A further module to mutate. Repeatable.")
    ] = None,
    equivalents: Annotated[
        str | None, typer.Option(metavar="FILE", help="TOML file with proofs that mutants are equivalent.")
    ] = None,
    since: Annotated[
        str | None, typer.Option(metavar="FILE", help="Earlier report in json: list the mutants that change sides.")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard the results of earlier runs.")] = False,
    least: Annotated[
        float | None, typer.Option(metavar="SCORE", help="Exit with 1 if the score is below this.")
    ] = None,
    format: Annotated[
        list[str] | None, typer.Option(metavar="terminal|json|markdown", help="Report format. Repeatable.")
    ] = None,
    output: Annotated[
        list[str] | None, typer.Option(metavar="PATH", help="File for the --format before it. Repeatable.")
    ] = None,
    **options: Any,
) -> None:
    """Make mutants of a kernel, each with one small mistake, and see which are killed.

    The report names the property that kills each mutant; the score is the share of mutants killed.
    """
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
        equivalents=None if equivalents is None else values.file("--equivalents", equivalents),
        fresh=fresh,
        sources=tuple(source or ()),
        since=None if since is None else values.file("--since", since),
        **config.fields(own),
    )
    require_kernels_of_the_tree([target])
    try:
        found = run_mutation(asked, progress)
    except WrongKernel as error:
        raise typer.Exit(showing.fail(str(error), 1)) from None
    showing.show(expected, lambda view, width, color: views.render(found, view))
    raise typer.Exit(views.exit_code(found, enough))
