"""Repeat command: the command line that shows a verdict again, where a case line alone does not."""

from __future__ import annotations

import shlex

from gradoracle.project.options import OPTIONS
from gradoracle.project.request import Request

_HELD = ("contract", "arg", "oracle", "call-seconds")  # what a case line does not hold and its verdict depends on


def command(request: Request, target: str, device: str, line: str, law: str) -> str:
    """What to type to see a law's verdict on a case again; "" where ``gradoracle replay LINE`` is enough.

    A case line holds neither contracts nor arguments that are no options, nor the values of saved tensors, nor the
    reading or the time limit of a call that were asked for.

    Args:
        request: what was checked.
        target: with the kernel's name where there are several.
        device: that the run was on.
        line: the case.
        law: its name.
    """
    held = _again(request, *_HELD)
    if request.inputs is None:
        return " ".join(["gradoracle replay", shlex.quote(line), *held]) if held else ""
    return _check(request, target, device, [f"--inputs {shlex.quote(request.inputs)}"], law)


def repeated(request: Request, target: str, device: str, law: str = "", shard: tuple[int, int] | None = None) -> str:
    """What to type to run one law over the same cases again: the verdict is theirs together, and no one's alone.

    Args:
        request: what was checked.
        target: with the kernel's name where there are several.
        device: that the run was on.
        law: its name; without one all laws are run.
        shard: part of the stream; that of the request by default.
    """
    part, parts = request.shard if shard is None else shard
    words = _again(request, "dtype", "dim", "examples")
    words += [f"--shard {part}/{parts}"] if (part, parts) != (1, 1) else []
    return _check(request, target, device, words, law)


def asked(request: Request) -> dict[str, str]:
    """What decides the verdicts of a run beside its target, device and seed, by option; nothing that sets its pace."""
    decisive = (option for option in OPTIONS.values() if option.decides)
    return {f"--{each.name}": " ".join(sorted(each.given(request))) or each.default or "" for each in decisive}


def _check(request: Request, target: str, device: str, own: list[str], law: str) -> str:
    """``gradoracle check`` of a target with one law, ``own`` words, and all that the request holds."""
    words = ["gradoracle check", shlex.quote(target), *own, f"--device {device}", *_again(request, "family", "seed")]
    return " ".join([*words, *_again(request, *_HELD), *([f"--property {law}"] if law else [])])


def _again(request: Request, *names: str) -> list[str]:
    """Words for these options of a request, where they are not the defaults."""
    return [word for name in names for word in OPTIONS[name].again(request)]
