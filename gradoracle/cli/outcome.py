"""Outcome: what a command that checks targets one after the other shows and exits with; a failure loses no report."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gradoracle.model import exit_codes
from gradoracle.model.errors import UsageError, named
from gradoracle.project.outputs import Output
from gradoracle.report import showing

if TYPE_CHECKING:
    from gradoracle.model.verdict import Report


def run_and_show(views: Sequence[Output], runs: Sequence[Callable[[], Report]], verbose: bool = False) -> int:
    """Run each, show the reports in every view even if a later run fails, and return the exit code."""
    reports: list[Report] = []
    failure: BaseException | None = None
    for one in runs:
        try:
            reports.append(one())
        except (Exception, KeyboardInterrupt) as error:
            failure = error
        if failure is not None or reports[-1].interrupted:
            break
    if reports:
        showing.show_reports(views, reports, verbose)
    if failure is None:
        from gradoracle.model.verdict import exit_code

        return exit_code(reports)
    codes = {report.exit_code for report in reports}
    is_error = not isinstance(failure, (KeyboardInterrupt, UsageError))
    if is_error and exit_codes.VIOLATED in codes:  # which an error does not hide
        trace = "".join(traceback.format_exception(failure))
        return showing.fail(f"internal error: {named(failure)}; {showing.keep_trace(trace)}", exit_codes.VIOLATED)
    if isinstance(failure, KeyboardInterrupt) and reports:
        return exit_codes.VIOLATED if exit_codes.VIOLATED in codes else exit_codes.INCONCLUSIVE
    raise failure
