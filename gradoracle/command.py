"""Command: the command line that shows a verdict again, where a case line alone does not."""

from __future__ import annotations

import shlex

from gradoracle.dims import written
from gradoracle.request import Request


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
    held = _held(request)
    if request.inputs is None:
        return " ".join(["gradoracle replay", shlex.quote(line), *held]) if held else ""
    return _check(request, target, device, ["--inputs", request.inputs], law)


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
    words = ["--dtype", ",".join(request.dtypes)] if request.dtypes else []
    words += [word for dim, domain in request.dims.items() for word in ("--dim", written(dim, domain))]
    words += ["--examples", str(request.examples)] if request.examples else []
    words += ["--shard", f"{part}/{parts}"] if (part, parts) != (1, 1) else []
    return _check(request, target, device, words, law)


def asked(request: Request) -> dict[str, str]:
    """What decides the verdicts of a run beside its target, device and seed, by option; nothing that sets its pace."""
    domains = (written(dim, domain) for dim, domain in sorted(request.dims.items()))
    return {
        "--family": request.family or "",
        "--dtype": ",".join(request.dtypes or ()),
        "--examples": str(request.examples or ""),
        "--dim": " ".join(domains),
        "--contract": " ".join(f"{dtype}={preset}" for dtype, preset in sorted(request.contracts.items())),
        "--arg": " ".join(f"{name}={value!r}" for name, value in sorted(request.arguments.items())),
        "--oracle": request.oracle,
        "--call-seconds": str(request.call_seconds or ""),
        "--property": request.property,
        "--require": " ".join(request.require),
    }


def _check(request: Request, target: str, device: str, own: list[str], law: str) -> str:
    """``gradoracle check`` of a target with one law, ``own`` words, and all that the request holds."""
    words = ["gradoracle", "check", target, *own, "--device", device]
    words += ["--family", request.family] if request.family else []
    words += ["--seed", str(request.seed)] if request.seed else []
    return " ".join([shlex.join(words), *_held(request), *(["--property", law] if law else [])])


def _held(request: Request) -> list[str]:
    """Words for what a case line does not hold."""
    held = [f"--contract {dtype}={preset}" for dtype, preset in request.contracts.items()]
    held += [f"--arg {shlex.quote(f'{name}={value!r}')}" for name, value in request.arguments.items()]
    held += [f"--oracle {request.oracle}"] if request.oracle != "auto" else []
    limit = "" if request.call_seconds is None else str(request.call_seconds).removesuffix(".0")
    return [*held, f"--call-seconds {limit}"] if limit else held
