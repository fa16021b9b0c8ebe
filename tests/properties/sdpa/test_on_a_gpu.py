"""The default run of SDPA on a GPU: few kinds of compilations, every coverage goal, no tile that compiles for long."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace

import pytest
from gradoracle.kernels.sdpa import blocks
from gradoracle.properties import sdpa
from gradoracle.properties.sdpa import kernels as declared
from gradoracle.properties.universal.repetition import _configurations

from gradoracle.cases.coverage import goals_of, wanted_goals
from gradoracle.cases.stream import _OF_A_KIND, stream
from gradoracle.check import plan as planning
from gradoracle.check.plan import CASES_ON_CPU, CASES_ON_CUDA, resolved
from gradoracle.check.properties import properties_of
from gradoracle.model.case import Case
from gradoracle.project.request import Request
from tests.properties.sdpa.attention import FAMILY

KERNEL = sdpa.KERNELS[0]
DTYPES = ("float32", "bfloat16", "float16")
MOST_KINDS = 45  # of about 70 kinds without that choice


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are chosen as on a GPU."""
    for module in (blocks, declared):
        monkeypatch.setattr(module, "interpreted", lambda: False)


def drawn(few_compilations: bool, seed: int = 0) -> list[Case]:
    own = FAMILY.on("cuda")
    return stream(own, KERNEL, dtypes=DTYPES, examples=CASES_ON_CUDA, seed=seed, few_compilations=few_compilations)


@pytest.mark.parametrize("seed", [0, 5])
def test_cases_are_of_few_kinds_and_meet_every_goal(compiled: None, seed: int) -> None:
    cases = drawn(True, seed)
    assert len(cases) == len(set(cases)) == CASES_ON_CUDA and cases == drawn(True, seed)
    kinds = {KERNEL.compiled_for(case) for case in cases}
    assert len(kinds) <= MOST_KINDS < len({KERNEL.compiled_for(case) for case in drawn(False, seed)})
    assert max(Counter(case.dtype for case in cases).values()) <= CASES_ON_CUDA // 3 + 1
    met = Counter(name for case in cases for name in goals_of(FAMILY.on("cuda"), KERNEL, case))
    goals = wanted_goals(FAMILY.on("cuda"), KERNEL, DTYPES, CASES_ON_CUDA)
    assert {name: (met[name], count) for name, count in goals.items() if met[name] < count} == {}
    for dtype in DTYPES:  # what a goal does not ask for is still there
        assert len({case.blocks for case in cases if case.dtype == dtype}) >= 4
        assert len({kind[2] for kind in kinds if kind[0] == dtype}) >= 3  # widths


def test_a_long_run_has_all_kinds(compiled: None) -> None:
    """There are at most 128 of a dtype; 2 000 cases may have so many."""
    assert _OF_A_KIND * 3 * 128 <= 2000


def test_every_property_of_a_case_falls_on_some(compiled: None) -> None:
    cases, family = drawn(True), FAMILY.on("cuda")
    for prop in (prop for prop in properties_of(family) if prop.scope == "case"):
        for dtype in DTYPES:
            applies = [case for case in cases if case.dtype == dtype and prop.applies(case, KERNEL) is None]
            assert sum(map(prop.falls_on, applies)) >= min(3, len(applies)), (prop.name, dtype)


def test_the_default_of_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr(planning, "stream", lambda *_, **fields: asked.append(fields) or [])
    subjects = resolved(Request("sdpa", device="cpu", workers=0))
    for device, examples in (("cpu", None), ("cuda", None), ("cuda", 2000)):
        request = Request("sdpa", device="cpu", workers=0, examples=examples)
        on = SimpleNamespace(**{**vars(subjects), "device": device, "request": request, "dtypes": subjects.dtypes})
        planning.plan(on)  # type: ignore[arg-type]
    assert [(each["examples"], each["few_compilations"]) for each in asked] == [
        (CASES_ON_CPU, False), (CASES_ON_CUDA, True), (2000, True),
    ]  # fmt: skip


def test_wide_rows_of_float32_have_no_tiles_that_triton_unrolls_for_long(compiled: None) -> None:
    wide, narrow = {"D": 65, "Dv": 8}, {"D": 64, "Dv": 64}
    assert KERNEL.fits is not None
    assert list(KERNEL.fits("float32", wide)) == ["small"]
    assert "medium" in KERNEL.fits("float32", narrow) and "large" in KERNEL.fits("bfloat16", wide)


def test_the_interpreter_has_all_configurations() -> None:
    assert KERNEL.fits is not None and set(KERNEL.fits("float32", {"D": 128, "Dv": 128})) == set(KERNEL.blocks)


def test_a_gpu_is_forced_to_configurations_that_fit_alone(compiled: None) -> None:
    case = SimpleNamespace(dtype="float32", dims={"D": 128, "Dv": 128})

    def found(device: str) -> list[str]:
        own = SimpleNamespace(kernel=KERNEL, case=case, subject=SimpleNamespace(device=device))
        return list(_configurations(own))  # type: ignore[arg-type]

    assert found("cuda") == ["small"] and found("cpu") == list(KERNEL.blocks)
