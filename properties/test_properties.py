"""The pytest entry, ``pytest -n auto properties/``: every family x kernel x dtype x property (see conftest.py)."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import settings

from gradoracle.cli.testing import Item, items
from gradoracle.execution import device
from gradoracle.model.dims import sizes
from gradoracle.model.family import Family
from gradoracle.project.target import shipped

pytestmark = pytest.mark.timeout(0)  # the first item of a group runs all its cases; a call has a limit of its own


def brief(family: Family) -> dict[str, Any]:
    """Fields of the requests of ``--brief``: few small cases, of a seed that has a case for every property.

    ``tests/properties/test_brief.py`` says where that is no longer so; another seed is then to be looked for.
    """
    return {
        "examples": 5,
        "seed": 1972,
        "dims": {name: own.intersect(sizes(2, 40)) for name, own in family.dims.items()},
    }


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item a property; families by ``--family``, cases a dtype by ``--examples`` or the Hypothesis profile."""
    option = metafunc.config.getoption
    chosen, glob = device.choose(option("device")), option("family")
    examples = option("examples") or settings().max_examples
    device.prepare(chosen)
    targets = {name: target for name, target in shipped().items() if fnmatchcase(name, glob)}
    if not targets:
        raise pytest.Collector.CollectError(
            f"--family {glob!r} matches none of the shipped families {', '.join(shipped())}"
        )
    found = [
        item
        for name, target in targets.items()
        for item in items(
            name,
            target.family,
            target.kernels,
            device=chosen,
            **(brief(target.family) if option("brief") else {"examples": examples}),
        )
    ]
    metafunc.parametrize("item", found)


@pytest.fixture
def judged(item: Item) -> Item:
    """The item after its group has run; a run that fails is an error of each item and no failure of a property."""
    item.run()
    return item


def test_property(judged: Item) -> None:
    """The property holds on all cases of this run."""
    judged.judge()
