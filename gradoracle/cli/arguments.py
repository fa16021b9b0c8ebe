"""Arguments: what several commands share; the options of a check come from the table ``project.options``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer
from typer.models import OptionInfo

from gradoracle.cli import completion
from gradoracle.model.errors import UsageError
from gradoracle.model.wording import either
from gradoracle.project.config import Setting
from gradoracle.project.options import OPTIONS, Form, Option
from gradoracle.report.formats import FORMATS

_OFFERED = {"property": completion.properties}  # completions of an option's value

Profile = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Use the settings of [tool.gradoracle.profiles.NAME] in pyproject.toml.",
        autocompletion=completion.profiles,
    ),
]
Kernels = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[TARGET...]",
        autocompletion=completion.targets,
        help="Kernels named in [tool.gradoracle] of pyproject.toml, or any TARGET of check. Default: all named ones.",
    ),
]
Formats = Annotated[
    list[str] | None, typer.Option(metavar="terminal|json|...", help=f"Report format: {either(FORMATS)}. Repeatable.")
]
Outputs = Annotated[list[str] | None, typer.Option(metavar="PATH", help="File for the --format before it. Repeatable.")]
Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show all faults in full, all properties, reasons and coverage goals.")
]


@dataclass(frozen=True)
class Typed:
    """A command line: its words, and when its process began by the monotonic clock."""

    words: Sequence[str]
    begun: float


def takes(*names: str, **helps: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Replace a command's ``**options`` by options of the table; those in ``helps`` have a help text of their own.

    ``given`` returns those that are on the command line, which is not the same as those that differ from the default.
    """

    def give(command: Callable[..., None]) -> Callable[..., None]:
        chosen = [(OPTIONS[name], OPTIONS[name].help) for name in names]
        chosen += [(OPTIONS[name.replace("_", "-")], text) for name, text in helps.items()]
        signature = inspect.signature(command, eval_str=True)
        *own, _ = signature.parameters.values()
        place = next((n for n, each in enumerate(own) if _is_option(each)), len(own))
        own[place:place] = [_parameter(option, text) for option, text in chosen]
        parameters = [each.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for each in own]
        command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return give


def given(context: typer.Context) -> dict[str, Setting]:
    """The options of the table that are on the command line, as words.

    Raises:
        UsageError: an option that takes one value is given more than once.
    """
    found: dict[str, Setting] = {}
    for name, option in OPTIONS.items():
        source, words = context.get_parameter_source(option.parameter), context.params.get(option.parameter)
        if source is None or source.name != "COMMANDLINE" or words is None:
            continue
        if option.form is not Form.WORD:
            found[name] = list(words)
        elif len(words) == 1 or option.joined:
            found[name] = ",".join(words)
        else:
            raise UsageError(f"--{name} was given {len(words)} times: {' and '.join(words)}; expected one value")
    if "python" in found:  # the sides of a gate run in folders of their own
        found["python"] = OPTIONS["python"].read(found["python"])
    return found


def _is_option(parameter: inspect.Parameter) -> bool:
    return any(isinstance(each, OptionInfo) for each in getattr(parameter.annotation, "__metadata__", ()))


def _parameter(option: Option, text: str) -> inspect.Parameter:
    info = typer.Option(
        f"--{option.name}", metavar=option.metavar, help=text or None, autocompletion=_OFFERED.get(option.name)
    )
    default = [option.default] if option.default is not None and text == option.help else None
    return inspect.Parameter(
        option.parameter,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[list[str] | None, info],
    )
