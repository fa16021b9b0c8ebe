"""Options: the one table of what a check can be asked, for the command line, pyproject.toml, pytest and the request.

An option's value is kept as the command line has it: a word, or a list of words where it is repeatable. So one set of
rules and sentences serves the command line and the file.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from gradoracle.project import values

if TYPE_CHECKING:
    from gradoracle.project.request import Request


class Form(Enum):
    """How often an option is given: once, once for each name (NAME=VALUE), or any number of times."""

    WORD = "word"
    BY_NAME = "by name"
    LIST = "list"


@dataclass(frozen=True)
class Option:
    """One thing that a check can be asked.

    Attributes:
        name: on the command line after ``--``, and in pyproject.toml.
        field: of a Request.
        read: the field's value of a word, or of the words of a repeatable option; raises UsageError.
        metavar: what help shows in place of the value.
        help: a sentence for ``--help``; empty where the metavar says it all.
        default: the word that stands for the default, where there is one.
        form: how often it is given.
        example: of its value in pyproject.toml.
        words: the words that give a field's value again, one for each time that the option is given.
        decides: whether verdicts depend on it, beside the target, the device and the seed.
        in_file: whether a project may set it; not so what is of one command line alone.
        of_kernel: whether a kernel's table may set it and no other.
    """

    name: str
    field: str
    read: Callable[[Any], Any]
    metavar: str
    help: str = ""
    default: str | None = None
    form: Form = Form.WORD
    example: str = "a number or a text"
    words: Callable[[Any], Sequence[str]] = lambda value: [str(value)]
    decides: bool = False
    in_file: bool = True
    of_kernel: bool = False

    @property
    def parameter(self) -> str:
        """The name of the parameter of a command."""
        return self.name.replace("-", "_")

    def given(self, request: Request) -> list[str]:
        """The words of a request's value; none where it is the default."""
        value = getattr(request, self.field)
        is_default = value == type(request).__dataclass_fields__[self.field].default or value in ({}, ())
        return [] if is_default else list(self.words(value))

    def again(self, request: Request) -> list[str]:
        """What to type to give a request's value again; nothing where it is the default."""
        return [f"--{self.name} {shlex.quote(word)}" for word in self.given(request)]


def _assignments(value: Mapping[str, Any]) -> list[str]:
    return [f"{name}={each}" for name, each in value.items()]


def _literals(value: Mapping[str, Any]) -> list[str]:
    return [f"{name}={each!r}" for name, each in value.items()]


def _sizes(value: Mapping[str, Any]) -> list[str]:
    from gradoracle.model.dims import written

    return [written(dim, sizes) for dim, sizes in value.items()]


def _seconds(value: float) -> list[str]:
    return [str(value).removesuffix(".0")]


OPTIONS: Mapping[str, Option] = {
    option.name: option
    for option in (
        Option(
            "family",
            "family",
            str,
            "NAME|FILE.py:NAME",
            "Which definition an outside callable claims to implement: a shipped family, file.py:name or module:name.",
            decides=True,
            of_kernel=True,
        ),
        Option("device", "device", lambda w: values.one_of("--device", w, values.DEVICES), "auto|cpu|cuda", "", "auto"),
        Option(
            "dtype",
            "dtypes",
            values.dtypes,
            "float32,...",
            "Default: all that are supported.",
            example='["float32", "bfloat16"]',
            words=lambda value: [",".join(value)],
            decides=True,
        ),
        Option(
            "contract",
            "contracts",
            values.contracts,
            "DTYPE=PRESET",
            "What a correct kernel may round, such as float32=tf32. Repeatable.",
            form=Form.BY_NAME,
            example='{ float32 = "tf32" }',
            words=_assignments,
            decides=True,
        ),
        Option(
            "arg",
            "arguments",
            values.arguments,
            "NAME=VALUE",
            "Hold an option fixed, such as causal=True. Repeatable.",
            form=Form.BY_NAME,
            example="{ causal = true }",
            words=_literals,
            decides=True,
        ),
        Option(
            "dim",
            "dims",
            values.dims,
            "T=1:4096",
            "Sizes of a dim: T=16:4096:16, D=64,128. Repeatable.",
            form=Form.BY_NAME,
            example='{ T = "1:4096", D = [64, 128] }',
            words=_sizes,
            decides=True,
        ),
        Option(
            "inputs",
            "inputs",
            values.saved,
            "saved.pt",
            "Check on torch.save({'q': q, 'do': cotangent, ...}) instead of drawn cases.",
            in_file=False,
        ),
        Option(
            "oracle",
            "oracle",
            lambda word: values.one_of("--oracle", word, values.ORACLES),
            "auto|float64|certified|mpmath",
            "",
            "auto",
            decides=True,
        ),
        Option("examples", "examples", values.count("--examples", 1), "N", "How many cases.", decides=True),
        Option(
            "seconds",
            "seconds",
            values.duration("--seconds"),
            "S",
            "Of the whole command: begin nothing more once so much time has passed.",
        ),
        Option(
            "call-seconds",
            "call_seconds",
            values.duration("--call-seconds"),
            "S",
            "A kernel call that takes longer hangs. Default: 60.",
            words=_seconds,
            decides=True,
        ),
        Option("seed", "seed", values.count("--seed", 0), "N", "Of the stream of cases.", "0"),
        Option("property", "property", str, "GLOB", "Only laws that match.", "*", decides=True),
        Option(
            "require",
            "require",
            tuple,
            "GLOB",
            "Laws that must have been checked. Repeatable.",
            form=Form.LIST,
            example="a list of names of laws, or globs",
            words=lambda value: list(value),
            decides=True,
        ),
        Option(
            "workers",
            "workers",
            values.workers,
            "N|auto",
            "Processes; 0: in this one, unprotected.",
            "auto",
            example='4 or "auto"',
        ),
        Option("shard", "shard", values.shard, "I/N", "The I-th of N parts of the stream.", "1/1", in_file=False),
        Option(
            "scheduler",
            "scheduler",
            values.scheduler,
            "tcp://HOST:PORT",
            "Run cases on this dask cluster instead of --workers.",
        ),
        Option(
            "timed",
            "timed",
            values.problems,
            '"T=4096 D=64"',
            "A problem to time; other dims as they usually are. Repeatable.",
            form=Form.LIST,
            example='a list of problems, such as ["B=4 T=4096"]',
        ),
    )
}
NAMES = tuple(OPTIONS)
