"""The command line: arguments in, exit code out.

Exit codes: 0 every checked property holds; 1 a property is violated, or the kernel crashed or hung on a valid case;
2 usage or configuration error; 3 internal error of gradoracle; 4 inconclusive. Heavy modules are imported when needed.
"""

from __future__ import annotations

import contextlib
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Annotated

import typer

from gradoracle.cli.arguments import Typed
from gradoracle.cli.commands import baseline, check, doctor, explain, gate, merge, mutate, new, replay
from gradoracle.cli.commands.list import list_
from gradoracle.model import exit_codes
from gradoracle.model.errors import UsageError
from gradoracle.report import showing

_INTERRUPTED = 130  # typer's exit code of a keyboard interrupt; older versions raise Abort

app = typer.Typer(
    name="gradoracle",
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def run(words: Sequence[str], begun: float | None = None) -> int:
    """Run a command line and return its exit code; no exception escapes.

    Args:
        words: the words of the command line, without the program's name.
        begun: when its time began, by the monotonic clock; None: now.
    """
    typed = Typed(words, time.monotonic() if begun is None else begun)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        code = app(args=list(words) or ["--help"], obj=typed, prog_name="gradoracle", standalone_mode=False)
    except UsageError as error:
        return showing.fail(str(error), exit_codes.USAGE)
    except KeyboardInterrupt:
        code = _INTERRUPTED
    except Exception as error:
        if hasattr(error, "format_message"):  # of typer's own parser, whose classes differ between its versions
            return showing.fail(" ".join(error.format_message().split()), exit_codes.USAGE)
        if type(error).__name__ != "Abort":
            return _fault(error)
        code = _INTERRUPTED
    if not words:
        return exit_codes.USAGE
    if code == _INTERRUPTED:
        return showing.fail("interrupted before anything was checked", exit_codes.INCONCLUSIVE)
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
    """Check the derivatives of GPU kernels against a definition in PyTorch; error budgets replace tolerances.

    Exit codes: 0 every checked property holds; 1 a property is violated, or a kernel crashed or hung; 2 usage or
    configuration error; 3 internal error of gradoracle; 4 inconclusive: something that should be checked was not.
    """


app.command()(check.check)
app.command()(replay.replay)
app.command()(merge.merge)
app.command("list")(list_)
app.command()(explain.explain)
app.command()(doctor.doctor)
app.command()(gate.gate)
app.add_typer(baseline.baseline, name="baseline")
app.command()(mutate.mutate)
app.command()(new.new)


def _fault(error: Exception) -> int:
    """Report an internal error in one sentence and keep its traceback: exit code 3."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    has_traceback = bool(lines) and lines[0].endswith(":")  # its last line says what happened
    shown = " ".join([lines[0], lines[-1]] if has_traceback else lines[:1])
    what = f"{type(error).__name__}{f': {shown}' if shown else ''}"
    where = showing.keep_trace("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    return showing.fail(f"internal error: {what}; {where}", exit_codes.ERROR)
