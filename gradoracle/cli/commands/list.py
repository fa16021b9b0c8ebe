"""List: the shipped families, their kernels and properties, and the precision contracts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gradoracle.report.showing import say

if TYPE_CHECKING:
    from gradoracle.model.property import Property
    from gradoracle.project.target import Target


def list_() -> None:
    """List families, kernels, properties and precision contracts."""
    from gradoracle.model.contract import PRESETS
    from gradoracle.report.catalogue import listing

    targets, universal = catalogue()
    say(listing(targets, universal, PRESETS))


def catalogue() -> tuple[list[Target], Sequence[Property]]:
    """Every shipped family, and the universal properties."""
    from gradoracle.check.judge_case import universal_laws
    from gradoracle.execution import device as devices
    from gradoracle.project.target import shipped

    devices.prepare(devices.choose("auto"))
    return list(shipped().values()), universal_laws()
