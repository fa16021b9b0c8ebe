"""Merge: the reports of the shards of one run, put together."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradoracle import options, showing
from gradoracle.commands.arguments import Formats, Outputs


def merge(
    context: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="What check --shard I/N --format json --output FILE wrote, each shard's."
        ),
    ],
    format: Formats = None,
    output: Outputs = None,
) -> None:
    """Put the reports of all shards of a run together: the report that one process would have given."""
    from gradoracle.merge import merge as merge_files
    from gradoracle.report import FORMATS, exit_code

    views = options.outputs(context.obj.words, FORMATS)
    reports = merge_files([Path(file) for file in files])
    showing.show_reports(views, reports)
    raise typer.Exit(exit_code(reports))
