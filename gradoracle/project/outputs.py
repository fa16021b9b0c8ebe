"""Outputs: the views of a report that a command line asks for, and where each goes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from gradoracle.model.errors import UsageError, why
from gradoracle.project.values import one_of

_FLAGS = (
    "--help",
    "--verbose",
    "--fresh",
    "--all",
    "--touched",
    "--resume",
    "--fail-fast",
    "--no-cache",
)  # options of commands with views that take no value


@dataclass(frozen=True)
class Output:
    """One view of the report: its format and its file (None: standard output)."""

    format: str
    path: Path | None = None


def outputs(words: Sequence[str], formats: Mapping[str, Sequence[str]]) -> list[Output]:
    """The views that a command line asks for; an --output belongs to the --format before it.

    Args:
        words: the command line.
        formats: the formats that the command has, each with the packages that it needs.

    If every view goes to a file, the terminal view is printed too. Each file is opened here, so that one that cannot be
    written is an error before anything runs, and so is a format whose packages are not installed.
    """
    found: list[Output] = []
    for option, value in _options(words):
        if option == "--format":
            found.append(Output(one_of("--format", value, formats)))
        elif option == "--output":
            if not found or found[-1].path is not None:
                raise UsageError(
                    f"--output {value} has no --format of its own; expected --format FORMAT --output {value}"
                )
            found[-1] = Output(found[-1].format, writable("--output", value))
    printed = [output.format for output in found if output.path is None]
    if len(printed) > 1:
        raise UsageError(f"the formats {' and '.join(printed)} cannot share standard output; give one an --output PATH")
    files = [output.path for output in found if output.path is not None]
    if len({file.resolve() for file in files}) < len(files):
        raise UsageError(f"two formats have the same output file: {', '.join(map(str, files))}")
    for format in {output.format for output in found}:
        lacking = [package for package in formats[format] if find_spec(package) is None]
        if lacking:
            names = " and ".join(lacking)
            raise UsageError(f"--format {format} needs {names}: expected pip install 'gradoracle[report]'")
    return found if printed else [*found, Output("terminal")]


def writable(option: str, given: str) -> Path:
    """A path, after opening it for writing; an existing file keeps its content."""
    path = Path(given)
    new = not path.exists()
    try:
        with path.open("a"):
            pass
    except OSError as error:
        raise UsageError(f"{option} {given} cannot be written: {why(error)}") from None
    if new:
        path.unlink(missing_ok=True)
    return path


def _options(words: Sequence[str]) -> Iterable[tuple[str, str]]:
    """(option, value) in the order of the command line; all but ``_FLAGS`` take a value."""
    position = 0
    while position < len(words) and words[position] != "--":
        option, equals, value = words[position].partition("=")
        position += 1
        if option.startswith("--") and option not in _FLAGS:
            if not equals:
                value = words[position] if position < len(words) else ""
                position += 1
            yield option, value
