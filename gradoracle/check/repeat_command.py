"""Repeat command: the command line that reproduces a verdict where a case line alone does not."""

from __future__ import annotations

import shlex

from gradoracle.cases.saved_tensors import Given
from gradoracle.model.fault import VerdictKey
from gradoracle.model.ledger import Header
from gradoracle.model.property import PropertyKind
from gradoracle.model.verdict import Counterexample
from gradoracle.project.options import OPTIONS
from gradoracle.project.request import Request

# what a verdict depends on and a case line does not hold
_HELD = ("contract", "claim", "arg", "oracle", "call-seconds", "python")


def command(header: Header, key: VerdictKey, shown: Counterexample, *, is_of_all: bool) -> str:
    """The command that reproduces a verdict; "" where ``gradoracle replay LINE`` is enough.

    A case line holds neither contracts nor arguments that are no options, nor the values of saved tensors, nor the
    reading or the time limit of a call that were asked for. A property of compilations is replayed by its name alone,
    and what only all cases together show by all of them.

    Args:
        header: of the run.
        key: the verdict.
        shown: its counterexample.
        is_of_all: whether the cases are those of all parts of the run.
    """
    kernel, (part, parts) = header.kernels[key.kernel], header.part
    named = [f"--property {key.property_name}"]
    if shown.pooled:
        own = [f"--shard {part}/{parts}"] if parts > 1 and not is_of_all else []
        return " ".join([kernel.again, *own, *named])
    if kernel.saved:
        return " ".join([kernel.again_saved, *(named if kernel.again_saved.startswith("gradoracle ") else ())])
    is_compilation = header.properties[key.property_name].kind is PropertyKind.COMPILATION
    words = [*filter(None, [header.held]), *(named if is_compilation else ())]
    return " ".join(["gradoracle replay", shlex.quote(shown.case), *words]) if words else ""


def held(request: Request) -> str:
    """The options that a verdict depends on and a case line lacks, as words of a command."""
    return " ".join(options_of(request, *_HELD))


def again_saved(request: Request, target: str, device: str) -> str:
    """The command that judges the case of saved tensors again, without a property; "" where there are none."""
    if isinstance(request.inputs, Given):
        return "the same call again"
    if request.inputs is None:
        return ""
    return _check(request, target, device, [f"--inputs {shlex.quote(request.inputs)}"])


def repeated(request: Request, target: str, device: str) -> str:
    """The command that judges the cases of the whole run again.

    Args:
        request: the request of the run.
        target: the target, with the kernel's name where there are several.
        device: the device of the run.
    """
    return _check(request, target, device, options_of(request, "dtype", "dim", "examples"))


def asked(request: Request) -> dict[str, str]:
    """The options that decide the verdicts of a run, beyond target, device and seed; none that only sets its pace."""
    decisive = (option for option in OPTIONS.values() if option.decides)
    return {f"--{each.name}": " ".join(sorted(each.given(request))) or each.default or "" for each in decisive}


def _check(request: Request, target: str, device: str, own: list[str]) -> str:
    """``gradoracle check`` of a target with the words ``own`` and the options of the request."""
    words = ["gradoracle check", shlex.quote(target), *own, f"--device {device}"]
    return " ".join([*words, *options_of(request, "family", "seed", *_HELD)])


def options_of(request: Request, *names: str) -> list[str]:
    """The words for these options of a request, where they differ from the defaults."""
    return [word for name in names for word in OPTIONS[name].again(request)]
