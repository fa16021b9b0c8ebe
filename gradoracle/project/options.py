"""Options: the table of a check's options, for the command line, pyproject.toml, pytest and the request.

A value is kept as on the command line: a word, or a list of words of a repeatable option. So the command line and
pyproject.toml share their rules and error messages.
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
    """One option of a check.

    Attributes:
        name: the name after ``--`` on the command line, and in pyproject.toml.
        read: a function that makes the field's value of the word, or of the words of a repeatable option, or raises
            UsageError.
        metavar: a word for the value in ``--help``.
        help: a sentence for ``--help``.
        default: the word for the default, where there is one.
        form: how often it may be given.
        example: an example of its value in pyproject.toml.
        words: a function that makes words of the field's value, one for each time that the option is given.
        decides: whether verdicts depend on it; they also depend on the target, the device and the seed.
        joined: whether a word may hold several values, separated by commas, and be given more than once.
        in_file: whether pyproject.toml may set it.
        of_kernel: whether only the table of a kernel may set it there.
        field: the field of a Request; by default ``parameter``.
    """

    name: str
    read: Callable[[Any], Any]
    metavar: str
    help: str = ""
    default: str | None = None
    form: Form = Form.WORD
    example: str = "a number or a string"
    words: Callable[[Any], Sequence[str]] = lambda value: [str(value)]
    decides: bool = False
    joined: bool = False
    in_file: bool = True
    of_kernel: bool = False
    field: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "field", self.field or self.parameter)

    @property
    def parameter(self) -> str:
        """Its name as a parameter of a command."""
        return self.name.replace("-", "_")

    def given(self, request: Request) -> list[str]:
        """The words of a request's value; none for the default."""
        value = getattr(request, self.field)
        is_default = value == type(request).__dataclass_fields__[self.field].default or value in ({}, ())
        return [] if is_default else list(self.words(value))

    def again(self, request: Request) -> list[str]:
        """A request's value as on a command line; nothing for the default."""
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
            str,
            "NAME|FILE.py:NAME",
            "Family that an outside callable implements: a shipped one, file.py:name or module:name.",
            decides=True,
            of_kernel=True,
        ),
        Option(
            "reference",
            str,
            "FILE.py:NAME",
            "PyTorch function that computes the same, instead of a family. Needs --like.",
            of_kernel=True,
            field="family",
        ),
        Option(
            "like",
            str,
            "FILE.py:NAME",
            "Example of the arguments, a function or a value. Equal sizes are one dim; override with --dim x=B,N.",
            of_kernel=True,
            field="family",
        ),
        Option(
            "device",
            lambda w: values.one_of("--device", w, values.DEVICES),
            "auto|cpu|cuda",
            "Device to run kernels on; auto: a GPU if PyTorch finds one.",
            "auto",
        ),
        Option(
            "python",
            values.python,
            "PATH",
            "Python in which kernels run, with its own PyTorch and Triton: an interpreter, or the folder of its "
            "environment. Default: this one.",
            in_file=False,  # a place on one machine
        ),
        Option(
            "dtype",
            values.dtypes,
            "float32,...",
            "Dtypes to check. Default: all that the kernel supports.",
            example='["float32", "bfloat16"]',
            words=lambda value: [",".join(value)],
            decides=True,
            joined=True,
            field="dtypes",
        ),
        Option(
            "contract",
            values.contracts,
            "DTYPE=PRESET",
            "Roundings that a correct kernel may make: a preset for a dtype, as in float32=tf32. Repeatable.",
            form=Form.BY_NAME,
            example='{ float32 = "tf32" }',
            words=_assignments,
            decides=True,
            field="contracts",
        ),
        Option(
            "claim",
            values.claims,
            "forward,vjp,...",
            "Derivatives that the kernel claims; others are not judged. Default: as declared, else forward, VJP and "
            "what it offers on purpose; a double backward that autograd derives is judged, too.",
            example='["forward", "vjp"]',
            words=lambda value: [",".join(value)],
            decides=True,
            joined=True,
            of_kernel=True,
            field="claims",
        ),
        Option(
            "arg",
            values.arguments,
            "NAME=VALUE",
            "Fix the value of a kernel's option, such as causal=True. Repeatable.",
            form=Form.BY_NAME,
            example="{ causal = true }",
            words=_literals,
            decides=True,
            field="arguments",
        ),
        Option(
            "dim",
            values.dims,
            "T=1:4096",
            "Restrict the sizes of a dim: T=16:4096:16, D=64,128. Repeatable.",
            form=Form.BY_NAME,
            example='{ T = "1:4096", D = [64, 128] }',
            words=_sizes,
            decides=True,
            field="dims",
        ),
        Option(
            "inputs",
            values.saved,
            "saved.pt",
            "Check tensors saved by torch.save({'q': q, 'do': cotangent, ...}) instead of generated ones.",
            in_file=False,
        ),
        Option(
            "oracle",
            lambda word: values.one_of("--oracle", word, values.ORACLES),
            "auto|float64|certified|mpmath",
            "Arithmetic in which true values are computed.",
            "auto",
            decides=True,
        ),
        Option(
            "examples",
            values.count("--examples", 1),
            "N",
            "Number of cases; by default 126 on a CPU and 200 on a GPU.",
            decides=True,
        ),
        Option(
            "seconds",
            values.duration("--seconds"),
            "S",
            "Stop starting cases after S seconds.",
        ),
        Option(
            "call-seconds",
            values.duration("--call-seconds"),
            "S",
            "Time limit for one kernel call; a longer call is reported as a hang. Default: 60.",
            words=_seconds,
            decides=True,
        ),
        Option("seed", values.count("--seed", 0), "N", "Seed of the stream of cases.", "0"),
        Option(
            "property",
            str,
            "GLOB",
            "Check only properties that match. Repeatable.",
            "*",
            example='"vjp*" or a list of globs',
            decides=True,
            joined=True,
        ),
        Option(
            "not-property",
            tuple,
            "GLOB",
            "Do not check properties that match; the report says so. Repeatable.",
            form=Form.LIST,
            example="a list of properties, or globs",
            words=lambda value: list(value),
            decides=True,
        ),
        Option(
            "require",
            tuple,
            "GLOB",
            "Properties that must be checked; if one is not, exit with 4. Repeatable.",
            form=Form.LIST,
            example="a list of properties, or globs",
            words=lambda value: list(value),
            decides=True,
        ),
        Option(
            "fail-on",
            values.severity,
            "wrong|precision|robustness",
            "Exit with 1 if a violation is at least this grave. Default: what is wrong, and any violation by a kernel "
            "whose contract is declared.",
            words=lambda value: [value.value],
        ),
        Option(
            "workers",
            values.workers,
            "N|auto",
            "Number of worker processes; 0: run kernels in this process, without protection from crashes.",
            "auto",
            example='4 or "auto"',
        ),
        Option("shard", values.shard, "I/N", "Check only the I-th of N parts of the cases.", "1/1", in_file=False),
        Option(
            "scheduler",
            values.scheduler,
            "tcp://HOST:PORT",
            "Run cases on this dask cluster instead of in local worker processes.",
        ),
    )
}
