"""What the shipped kernels compile to, on every architecture: judged here and by the gate, not by the default check.

All of them are compiled for the page docs/background/shared_memory.md, and by the slow tests; by default it is asked
whether the page is of these kernels.
"""

from __future__ import annotations

import re

import pytest
from gradoracle.properties.offline import of_each_architecture
from kernel_speed.content import ROOT, content
from sweeps import slow

from gradoracle.check.properties import properties_of
from gradoracle.check.run import check
from gradoracle.model.property import PropertyKind
from gradoracle.model.verdict import Status
from gradoracle.project.request import Request
from gradoracle.project.target import shipped

JUDGED = [
    (name, dtype, prop.name)
    for name, target in shipped().items()
    for (kernel,) in [target.kernels]
    for dtype in kernel.dtypes or target.family.dtypes
    for prop in properties_of(target.family)
    if prop.kind is PropertyKind.COMPILATION and prop.lacks(kernel) is None
    if any(True for _ in of_each_architecture(kernel.extras["compilations"], dtype))
]
COMPILED = [
    ("semicrf", "bfloat16", "shared_memory_fits_each_architecture"),
    ("lightning", "float32", "no_shared_allocation_has_two_chunk_axes"),
]
"""One of each property, in seconds."""
PAGE = (ROOT / "docs" / "background" / "shared_memory.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("family", shipped())
def test_the_page_is_of_these_kernels_and_each_fits_everywhere(family: str) -> None:
    (part,) = [each for each in PAGE.split("\n## ")[1:] if re.match(rf"{family}\b", each)]
    heading, *lines = part.splitlines()
    dtypes = {*(shipped()[family].kernels[0].dtypes or ())} - {"float64"}
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    rows = [row for row in rows if row[0] in dtypes]
    assert len(rows) >= 20 and all(re.fullmatch(r"\d+|–", cell) for row in rows for cell in row[2:])
    assert {row[0] for row in rows} == dtypes
    changed = "kernels have changed since the page was made; `make shared-memory` makes it anew, in some minutes"
    assert heading == f"{family} ({content(family, every_gpu=True)})", changed


@pytest.mark.parametrize(
    ("family", "dtype", "property_name"), [each if each in COMPILED else slow(*each) for each in JUDGED]
)
def test_every_compilation_keeps_the_properties_of_compilations(family: str, dtype: str, property_name: str) -> None:
    report = check(Request(family, device="cpu", dtypes=(dtype,), property=property_name, examples=1, workers=0))
    (verdict,) = report.verdicts
    assert verdict.status is Status.HOLDS, verdict.reasons


def test_every_shipped_kernel_names_its_compilations() -> None:
    """In each dtype but float64, which no GPU is meant for."""
    found = {
        (family, dtype)
        for family, dtype, property_name in JUDGED
        if property_name == "shared_memory_fits_each_architecture"
    }
    every = {(name, dtype) for name, target in shipped().items() for dtype in target.kernels[0].dtypes or ()}
    assert {family for family, _ in found} == set(shipped())
    assert {each for each in every if each[1] != "float64"} <= found
