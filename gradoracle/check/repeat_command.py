"""Repeat command: the command line that reproduces a verdict where a case line alone does not."""

from __future__ import annotations

import shlex

from gradoracle.cases.saved_tensors import Given
from gradoracle.model.property import Property, PropertyKind
from gradoracle.project.options import OPTIONS
from gradoracle.project.request import Request

# what a verdict depends on and a case line does not hold
_HELD = ("contract", "claim", "arg", "oracle", "call-seconds")


def command(request: Request, target: str, device: str, line: str, prop: Property) -> str:
    """The command that reproduces a property's verdict on a case; "" where ``gradoracle replay LINE`` is enough.

    A case line holds neither contracts nor arguments that are no options, nor the values of saved tensors, nor the
    reading or the time limit of a call that were asked for. A property of compilations is replayed by its name alone.

    Args:
        request: the request of the run.
        target: the target, with the kernel's name where there are several.
        device: the device of the run.
        line: the case.
        prop: the property.
    """
    held = options_of(request, *_HELD)
    if prop.kind is PropertyKind.COMPILATION:
        held.append(f"--property {prop.name}")
    if isinstance(request.inputs, Given):
        return "the same call again"
    if request.inputs is None:
        return " ".join(["gradoracle replay", shlex.quote(line), *held]) if held else ""
    return _check(request, target, device, [f"--inputs {shlex.quote(request.inputs)}"], prop.name)


def repeated(
    request: Request, target: str, device: str, property_name: str = "", shard: tuple[int, int] | None = None
) -> str:
    """The command that runs one property over the same cases again, for a verdict on all of them together.

    Args:
        request: the request of the run.
        target: the target, with the kernel's name where there are several.
        device: the device of the run.
        property_name: the property's name; "" for all.
        shard: the part and the number of parts; by default that of the request.
    """
    part, parts = request.shard if shard is None else shard
    words = options_of(request, "dtype", "dim", "examples")
    words += [f"--shard {part}/{parts}"] if (part, parts) != (1, 1) else []
    return _check(request, target, device, words, property_name)


def asked(request: Request) -> dict[str, str]:
    """The options that decide the verdicts of a run, beyond target, device and seed; none that only sets its pace."""
    decisive = (option for option in OPTIONS.values() if option.decides)
    return {f"--{each.name}": " ".join(sorted(each.given(request))) or each.default or "" for each in decisive}


def _check(request: Request, target: str, device: str, own: list[str], property_name: str) -> str:
    """``gradoracle check`` of a target with one property, the words ``own``, and the options of the request."""
    words = ["gradoracle check", shlex.quote(target), *own, f"--device {device}"]
    words += options_of(request, "family", "seed", *_HELD)
    return " ".join([*words, f"--property {property_name}"] if property_name else words)


def options_of(request: Request, *names: str) -> list[str]:
    """The words for these options of a request, where they differ from the defaults."""
    return [word for name in names for word in OPTIONS[name].again(request)]
