"""What the shipped kernels compile to, on every architecture: judged here and by the gate, not by the default check."""

from __future__ import annotations

import pytest
from gradoracle.properties.offline import of_each_architecture
from sweeps import slow

from gradoracle.check.judge_case import laws_of
from gradoracle.check.run import check
from gradoracle.model.property import PropertyKind
from gradoracle.model.verdict import Status
from gradoracle.project.request import Request
from gradoracle.project.target import shipped

JUDGED = [
    (name, dtype, law.name)
    for name, target in shipped().items()
    for (kernel,) in [target.kernels]
    for dtype in kernel.dtypes or target.family.dtypes
    for law in laws_of(target.family)
    if law.kind is PropertyKind.COMPILATION and law.lacks(kernel) is None
    if any(True for _ in of_each_architecture(kernel.extras["compilations"], dtype))
]


# tiles of float16 are those of bfloat16
@pytest.mark.parametrize(("family", "dtype", "law"), [slow(*each) if each[1] == "float16" else each for each in JUDGED])
def test_every_compilation_keeps_the_properties_of_compilations(family: str, dtype: str, law: str) -> None:
    report = check(Request(family, device="cpu", dtypes=(dtype,), property=law, examples=1, workers=0))
    (verdict,) = report.verdicts
    assert verdict.status is Status.HOLDS, verdict.reasons


def test_every_shipped_kernel_names_its_compilations() -> None:
    """In each dtype but float64, which no GPU is meant for."""
    found = {(family, dtype) for family, dtype, law in JUDGED if law == "shared_memory_fits_each_architecture"}
    every = {(name, dtype) for name, target in shipped().items() for dtype in target.kernels[0].dtypes or ()}
    assert {family for family, _ in found} == set(shipped())
    assert {each for each in every if each[1] != "float64"} <= found
