"""Hosted: what the process of a host is asked to load, and how it loads it; nothing that judges is imported for it.

It runs in another Python too, which needs numpy, PyTorch and what the kernels import.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gradoracle.execution.device import prepare
from gradoracle.host.autotuned import autotuners
from gradoracle.host.host import Host
from gradoracle.host.interpreter import explain_unavailable
from gradoracle.model.description import HostedTarget
from gradoracle.model.family import Family
from gradoracle.model.job import Phase
from gradoracle.model.kernel import Kernel
from gradoracle.model.serialize import from_plain
from gradoracle.model.signature import Signature
from gradoracle.model.versions import version
from gradoracle.model.wording import printable
from gradoracle.project.base_overlay import Apart, Places, enter, modules_of, require_apart
from gradoracle.project.target import described_target, kernels_of

ENTRY = "gradoracle.execution.hosted:host"
"""The entry point of a host's process, whose setup is a HostSetup as plain values."""


@dataclass(frozen=True)
class Outline:
    """A family as a host knows it, where its definition is the judge's alone."""

    name: str
    signature: Signature

    def family(self) -> Family:
        """It as a family that cannot be evaluated."""

        def definition(*_: Any, **__: Any) -> Any:
            raise TypeError(f"the definition of {self.name} is elsewhere")

        return Family(self.name, definition, self.signature, {})


@dataclass(frozen=True)
class HostSetup:
    """The kernels of a target, for a host.

    Attributes:
        target: as on the command line.
        family: likewise, of --family.
        device: cpu or cuda.
        outline: of the family that ``family`` names; None: the target's own file or a reference has it.
        places: the projects of the kernels and of their judge, if they are two.
        called_in: as of ``Host``.
        barred: a folder that no module of the target may come from; "": none.
    """

    target: str
    family: str | None
    device: str
    outline: Outline | None = None
    places: Places | None = None
    called_in: str = ""
    barred: str = ""


def host(setup: Mapping[str, Any], announce: Phase) -> Host:
    """The host that a process is asked for.

    Raises:
        TargetError: the target cannot be resolved.
        Apart: modules of another project were imported.
    """
    own = from_plain(HostSetup, setup)
    prepare(own.device)
    target, kernels = loaded(own)
    return Host(kernels, target=target, device=own.device, called_in=own.called_in, announce=announce, is_alone=True)


def loaded(setup: HostSetup) -> tuple[HostedTarget, dict[str, Kernel]]:
    """A target as its judge needs it, and the kernels by name.

    Raises:
        TargetError: the target cannot be resolved.
        Apart: modules of another project were imported.
    """
    if setup.places is not None:
        enter(setup.places.kernels, setup.places.judge)
    outline = None if setup.outline is None else setup.outline.family()
    kernels = [replace(own, name=_plain(own.name)) for own in kernels_of(setup.target, setup.family, outline)]
    if setup.places is not None and (left := modules_of(setup.places.judge)):
        raise Apart(f"it imports {left[0][1]} of its base")
    require_apart(setup.barred)
    if setup.device == "cpu" and version("triton") and (reason := explain_unavailable()) is not None:
        kernels = [replace(own, notes=(*own.notes, f"Triton's kernels cannot run here: {reason}")) for own in kernels]
    return described_target(setup.target, kernels, tuners), {kernel.name: kernel for kernel in kernels}


def tuners(kernel: Kernel) -> dict[str, int]:
    """How many configurations each of a kernel's autotuners has."""
    return {name: len(each.configs) for name, each in autotuners(kernel).items()}


def _plain(name: str) -> str:
    """The name of a kernel in one line."""
    return " ".join(printable(name, 100).split())
