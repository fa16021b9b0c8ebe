"""Merge: the reports of the shards of one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradoracle.cli.arguments import Formats, Outputs, Verbose
from gradoracle.project.outputs import outputs as views_of
from gradoracle.report import showing
from gradoracle.report.formats import FORMATS


def merge(
    context: typer.Context,
    files: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...", help="Reports of all shards, written by check --shard I/N --format json --output FILE."
        ),
    ],
    format: Formats = None,
    output: Outputs = None,
    verbose: Verbose = False,
) -> None:
    """Merge the reports of all shards of a run.

    The result is the report that a single process would have written.
    """
    from gradoracle.check.merge import merge as merge_reports
    from gradoracle.model.verdict import exit_code
    from gradoracle.report.json import read_shards

    views = views_of(context.obj.words, FORMATS)
    reports = merge_reports(read_shards([Path(file) for file in files]))
    showing.show_reports(views, reports, verbose)
    raise typer.Exit(exit_code(reports))
