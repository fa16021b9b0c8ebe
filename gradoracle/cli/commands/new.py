"""New: a family file for a kernel, with the definition to be filled in."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradoracle.model.errors import UsageError, why
from gradoracle.model.files import write
from gradoracle.report.showing import say


def new(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="path/to/file.py:kernel or package.module:kernel.")],
    like: Annotated[
        str | None, typer.Option(metavar="FILE.py:NAME", help="Example of the arguments, a function or a value.")
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="The file to write. Default: KERNEL_family.py in the kernel's folder."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
) -> None:
    """Write the family file of a kernel, with its annotations and a definition stub."""
    from gradoracle.execution import device as devices
    from gradoracle.project.new_family import new_family

    devices.prepare(devices.choose("auto"))
    place, colon, attribute = target.rpartition(":")
    if not colon or not place or not attribute:
        raise UsageError(f"target {target!r} is invalid; expected path/to/file.py:kernel or package.module:kernel")
    folder = Path(place).parent if place.endswith(".py") else Path()
    file = Path(output) if output is not None else folder / f"{attribute.replace('.', '_')}_family.py"
    if file.suffix != ".py":
        raise UsageError(f"--output {file} is no Python file; expected a name that ends in .py")
    if file.exists() and not force:
        raise UsageError(f"{file} exists; expected another --output, or --force to overwrite it")
    text = new_family(target, like, str(file))
    try:
        write(file, text)
    except OSError as error:
        raise UsageError(f"{file} cannot be written: {why(error)}") from None
    say(f"{file} is written; fill in its definition, then run: gradoracle check {file}\n")
