"""The few cases of ``pytest properties --brief``: each property that the default cases are judged by has one among
them.
"""

from __future__ import annotations

import pytest
from gradoracle.properties.test_properties import brief

from gradoracle.cases.stream import stream
from gradoracle.check.properties import properties_of
from gradoracle.cli.testing import PROFILES
from gradoracle.project.target import shipped

TARGETS = shipped()


@pytest.mark.parametrize("name", TARGETS)
def test_every_property_of_the_default_cases_applies_to_one_of_the_few(name: str) -> None:
    family = TARGETS[name].family.on("cpu")
    for kernel in TARGETS[name].kernels:
        for dtype in family.dtypes if kernel.dtypes is None else kernel.dtypes:
            few = stream(family, kernel, dtypes=(dtype,), **brief(family))
            many = stream(family, kernel, dtypes=(dtype,), examples=PROFILES["dev"])
            left_out = {
                prop.name
                for prop in properties_of(family)
                if any(prop.applies(case, kernel) is None for case in many)
                and not any(prop.applies(case, kernel) is None for case in few)
            }
            assert not left_out, (kernel.name, dtype)
