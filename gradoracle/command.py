"""Command: the command line that shows a verdict again, where a case line alone does not."""

from __future__ import annotations

import shlex

from gradoracle.request import Request


def command(request: Request, target: str, device: str, line: str, law: str) -> str:
    """What to type to see a law's verdict on a case again; "" where ``gradoracle replay LINE`` is enough.

    A case line holds neither contracts nor arguments that are no options, nor the values of saved tensors, nor the
    reading that was asked for.

    Args:
        request: what was checked.
        target: with the kernel's name where there are several.
        device: that the run was on.
        line: the case.
        law: its name.
    """
    held = [f"--contract {dtype}={preset}" for dtype, preset in request.contracts.items()]
    held += [f"--arg {shlex.quote(f'{name}={value!r}')}" for name, value in request.arguments.items()]
    held += [f"--oracle {request.oracle}"] if request.oracle != "auto" else []
    if request.inputs is None:
        return " ".join(["gradoracle replay", shlex.quote(line), *held]) if held else ""
    words = ["gradoracle", "check", target, "--inputs", request.inputs, "--device", device]
    words += ["--family", request.family] if request.family else []
    words += ["--seed", str(request.seed)] if request.seed else []
    return " ".join([shlex.join(words), *held, "--property", law])
