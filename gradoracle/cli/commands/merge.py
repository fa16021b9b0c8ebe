"""Merge: the report of ledgers."""

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
        typer.Argument(metavar="LEDGER...", help="Files written by check --ledger, of all shards of a run."),
    ],
    format: Formats = None,
    output: Outputs = None,
    verbose: Verbose = False,
) -> None:
    """Show the report of a run by its ledgers: of all its shards, or of a run that was interrupted.

    It is the report that a single process would have written.
    """
    from gradoracle.check.fold import report_of
    from gradoracle.model.ledger_file import read_all
    from gradoracle.model.verdict import exit_code

    views = views_of(context.obj.words, FORMATS)
    ledgers = read_all([Path(file) for file in dict.fromkeys(files)])
    reports = [report_of(ledger, whole=True) for ledger in ledgers]
    showing.show_reports(views, reports, verbose)
    raise typer.Exit(exit_code(reports))
