"""The pytest entry, ``pytest -n auto properties/``: every shipped family x kernel x dtype x law (see conftest.py)."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest
from hypothesis import settings

from gradoracle import device
from gradoracle.target import shipped
from gradoracle.testing import Item, items


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One item a law; families by ``--family``, cases a dtype by ``--examples`` or the Hypothesis profile."""
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
        for item in items(name, target.family, target.kernels, examples=examples, device=chosen)
    ]
    metafunc.parametrize("item", found)


@pytest.fixture
def judged(item: Item) -> Item:
    """The item after its group has run; a run that fails is an error of each item and no failure of a law."""
    item.run()
    return item


def test_law(judged: Item) -> None:
    """The law holds on all cases of this run."""
    judged.judge()
