"""Arguments: what several commands take alike, each said once."""

from __future__ import annotations

from typing import Annotated

import typer

from gradoracle import completion

FORMATS = "terminal, json, junit, sarif, github, markdown or html"

Device = Annotated[str, typer.Option(metavar="auto|cpu|cuda")]
Examples = Annotated[int | None, typer.Option(metavar="N", help="How many cases.")]
Family = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|FILE.py:NAME",
        help="Which definition an outside callable claims to implement: a shipped family, file.py:name or module:name.",
    ),
]
Seed = Annotated[int, typer.Option(metavar="N", help="Of the stream of cases.")]
Laws = Annotated[str, typer.Option(metavar="GLOB", help="Only laws that match.", autocompletion=completion.laws)]
Workers = Annotated[str, typer.Option(metavar="N|auto", help="Processes; 0: in this one, unprotected.")]
Profile = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Settings of [tool.gradoracle.profiles.NAME] in pyproject.toml.",
        autocompletion=completion.profiles,
    ),
]
Kernels = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TARGET...]",
        autocompletion=completion.targets,
        help="Names of kernels in [tool.gradoracle] of pyproject.toml, or what check takes; by default all.",
    ),
]
Formats = Annotated[
    list[str] | None, typer.Option(metavar="terminal|json|...", help=f"How to report: {FORMATS}. Repeatable.")
]
Outputs = Annotated[
    list[str] | None, typer.Option(metavar="PATH", help="Where the --format before it goes. Repeatable.")
]
