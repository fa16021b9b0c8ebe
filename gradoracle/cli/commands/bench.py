"""Bench: how fast the kernels are."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gradoracle.cli.arguments import given, takes
from gradoracle.cli.installed import require_kernels_of_the_tree
from gradoracle.project import settings


@takes("device", seconds="Stop each gradcheck after this time and report how far it got.")
def bench(
    context: typer.Context,
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A shipped family.")],
    only: Annotated[str, typer.Option(metavar="TEXT", help="Only rows whose description contains TEXT.")] = "",
    output: Annotated[
        str | None, typer.Option(metavar="PATH", help="Also write the table to this file, as JSON.")
    ] = None,
    **options: Any,
) -> None:
    """Time shipped kernels against those of other libraries, and a verdict against gradcheck."""
    asked = settings.fields(given(context))
    require_kernels_of_the_tree([target])
    from gradoracle.execution.bench import run as run_bench

    run_bench(target, asked.get("device", "auto"), output, only, asked.get("seconds"))
