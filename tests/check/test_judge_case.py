"""One case through its properties: what a property does becomes a status, what it found before is kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from places import TESTS

from gradoracle.cases.saved_tensors import sample_of
from gradoracle.check.acceptance import exactly, not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.check.judge_property import judge_property
from gradoracle.check.setup import Setup, subjects
from gradoracle.check.usable_case import require_case
from gradoracle.check.worker import entry_of_one_process
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.model.call_errors import Crashed, Refused, Unavailable, Wrong
from gradoracle.model.case import Case
from gradoracle.model.errors import UsageError
from gradoracle.model.finding import Outcome
from gradoracle.model.job import Job
from gradoracle.model.property import property
from gradoracle.model.reason import Reason
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Status
from gradoracle.oracle.exact.definition import Undefined
from gradoracle.oracle.exact.graph import UnsupportedOperator
from gradoracle.oracle.truth import Oracle

FILE = TESTS / "scaled.py"
CASE = Case("scaled", {"B": 2, "N": 3})
SETUP = Setup(f"{FILE}:right", None, "cpu", "auto", {}, {})
WRONG, RIGHT = exactly("y", True, "is wrong"), exactly("y", False, "")


def evidence(setup: Setup = SETUP, case: Case = CASE) -> Evidence:
    family, kernels, _ = subjects(setup)
    (kernel,) = kernels.values()
    return Evidence(case, sample_of(case, family, None), KernelRunner(family, kernel), Oracle(family))


def does(*steps: Any) -> Any:
    """A property that yields findings and raises exceptions in this order."""

    @property()
    def some_property(evidence: Any) -> Iterator[Any]:
        """Something holds.

        Holds because: it does.
        Catches: what it catches.
        Cannot catch: what it does not.
        """
        for step in steps:
            if isinstance(step, Exception):
                raise step
            yield step

    return some_property


@pytest.mark.parametrize(
    ("steps", "status"),
    [
        ([RIGHT], Status.HOLDS),
        ([RIGHT, WRONG], Status.VIOLATED),
        ([not_checked("y", "no reason")], Status.NOT_CHECKED),
        ([not_checked("y", "no reason"), RIGHT], Status.HOLDS),
        ([Unavailable("no GPU")], Status.NOT_CHECKED),
        ([RIGHT, Unavailable("no GPU")], Status.NOT_CHECKED),
        ([WRONG, Unavailable("no GPU")], Status.VIOLATED),
        ([Refused("ValueError: no")], Status.REFUSED),
        ([WRONG, Refused("ValueError: no")], Status.VIOLATED),
        ([UnsupportedOperator("aten.svd", "rounding")], Status.NOT_CHECKED),
        ([Undefined("the definition of f raises")], Status.NOT_CHECKED),
        ([Wrong(WRONG)], Status.VIOLATED),
        ([RIGHT, Crashed("vjp: exited")], Status.CRASHED),
    ],
)
def test_what_a_property_does_becomes_a_status(steps: list[Any], status: Status) -> None:
    result = judge_property(does(*steps), evidence())
    assert result.status is status
    assert (status in (Status.REFUSED, Status.NOT_CHECKED, Status.CRASHED)) == bool(result.reason)
    assert (status is Status.VIOLATED) == any(f.outcome is Outcome.VIOLATED for f in result.findings)


def test_a_property_that_checks_nothing_is_an_error() -> None:
    result = judge_property(does(), evidence())
    assert result.status is Status.ERROR and result.reason.startswith("EmptyCheck: ")


@pytest.mark.parametrize("raised", [ZeroDivisionError("its own"), RuntimeError("its own"), KeyError("its own")])
def test_what_a_property_raises_is_an_error_of_that_property_alone_and_hides_no_violation(raised: Exception) -> None:
    result = judge_property(does(raised), evidence())
    assert result.status is Status.ERROR and "its own" in result.reason and type(raised).__name__ in result.trace
    assert judge_property(does(WRONG, raised), evidence()).status is Status.VIOLATED


def test_calls_that_are_barred_are_not_made() -> None:
    told: list[tuple[Any, ...]] = []
    work = entry_of_one_process(Setup(f"{FILE}:right", None, "cpu", "auto", {}, {}))
    properties = ("forward_matches_the_oracle", "jvp_matches_the_oracle")
    barred = (Reason.BARRED, "jvp was not called again")
    found = work(Job("right", CASE, properties, barred={"jvp": barred}), lambda *message: told.append(message))
    assert [(r.status, r.why, r.reason) for r in found.results] == [
        (Status.HOLDS, None, ""),
        (Status.NOT_CHECKED, Reason.BARRED, "jvp was not called again"),
    ]
    assert told == [("forward", None), (None, None)]


def test_arguments_are_held_fixed_or_passed_or_refused(tmp_path: Path) -> None:
    file = tmp_path / "options.py"
    file.write_text(
        "import gradoracle\nfrom jaxtyping import Float\nfrom torch import Tensor\n"
        "@gradoracle.family\n"
        "def times(x: Float[Tensor, 'N'], *, twice: bool = False) -> Float[Tensor, 'N']:\n"
        "    return 2 * x if twice else x\n"
        "@gradoracle.kernel(times)\n"
        "def mine(x, *, twice=False, offset=0):\n"
        "    return (2 * x if twice else x.clone()) + offset\n"
    )
    given = Setup(str(file), None, "cpu", "auto", {}, {"twice": True, "offset": 3})
    _, kernels, _ = subjects(given)
    assert kernels["mine"].options["twice"] == (True,)
    assert kernels["mine"](torch.zeros(2)).tolist() == [3.0, 3.0]
    case = evidence(given, Case("times", {"N": 3}, options={"twice": True}))
    assert case.subject.options(case.sample) == {"twice": True, "offset": 3}  # what explicit derivatives get
    with pytest.raises(UsageError, match="--arg nono: mine takes no such argument; it takes x, twice, offset"):
        subjects(Setup(str(file), None, "cpu", "auto", {}, {"nono": 1}))


def test_contracts_are_put_in_the_place_of_the_kernels_own() -> None:
    _, kernels, _ = subjects(Setup(f"{FILE}:right", None, "cpu", "auto", {"float32": "tf32"}, {}))
    assert kernels["right"].contract("float32").name == "tf32"
    assert kernels["right"].contract("bfloat16").name == "bf16"


@pytest.mark.parametrize(
    ("kernel", "explained"), [("right", ""), ("gives_another_shape", ""), ("gives_no_gradient_of_w", "")]
)
def test_presets_explain_no_malformed_answer(kernel: str, explained: str) -> None:
    work = entry_of_one_process(Setup(f"{FILE}:{kernel}", None, "cpu", "auto", {}, {}))
    job = Job(kernel, CASE, ("forward_matches_the_oracle", "vjp_matches_the_oracle"), with_severity=True)
    assert {result.preset for result in work(job, lambda *_: None).results} == {explained}


def test_a_violation_that_another_preset_explains_says_so(tmp_path: Path) -> None:
    file = tmp_path / "rounded.py"
    file.write_text(
        "import torch, gradoracle\nfrom jaxtyping import Float\nfrom torch import Tensor\n"
        "@gradoracle.family(dims={'B': gradoracle.sizes(1, 40), 'N': gradoracle.sizes(1, 40)})\n"
        "def product(x: Float[Tensor, 'B N'], w: Float[Tensor, 'N B']) -> Float[Tensor, 'B B']:\n"
        "    return x @ w\n"
        "def tf32(x):\n"
        "    bits = x.detach().contiguous().view(torch.int32)\n"
        "    return x + (((bits + 0x1000) & ~0x1FFF).view(torch.float32) - x.detach())\n"
        "@gradoracle.kernel(product)\n"
        "def narrow(x, w):\n"
        "    return tf32(x) @ tf32(w)\n"
    )
    work = entry_of_one_process(Setup(str(file), None, "cpu", "auto", {}, {}))
    case = Case("product", {"B": 24, "N": 32})
    (result,) = work(Job("narrow", case, ("forward_matches_the_oracle",), with_severity=True), lambda *_: None).results
    assert (result.status, result.preset) == (Status.VIOLATED, "tf32")


def test_no_severity_is_found_of_what_is_known_to_be_wrong() -> None:
    properties = ("forward_matches_the_oracle", "vjp_matches_the_oracle")
    work = entry_of_one_process(Setup(f"{FILE}:gives_nan", None, "cpu", "auto", {}, {}))
    known = frozenset({"vjp_matches_the_oracle"})
    job = Job("gives_nan", CASE, properties, with_severity=True, known_wrong=known)
    found = {each.property_name: each for each in work(job, lambda *_: None).results}
    assert found["forward_matches_the_oracle"].severity is Severity.WRONG
    assert (
        found["vjp_matches_the_oracle"].status is Status.VIOLATED and found["vjp_matches_the_oracle"].severity is None
    )


def test_a_case_must_fit_family_and_kernel() -> None:
    family, kernels, _ = subjects(SETUP)
    require_case(CASE, family, kernels["right"])
    for case, says in (
        (Case("other", {"B": 1, "N": 1}), "belongs to family 'other', but its target is checked against scaled"),
        (Case("scaled", {"B": 1}), "gives no size of dim N; scaled needs all of B, N"),
        (Case("scaled", {"B": 1, "N": 1}, blocks="big"), "right has no block configuration 'big'; it has none"),
    ):
        with pytest.raises(UsageError, match=says):
            require_case(case, family, kernels["right"])


@pytest.mark.parametrize(
    ("error", "where"),
    [
        (MemoryError(), "this machine"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), "this machine"),
        (RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), "the device"),
        (torch.OutOfMemoryError("no more"), "the device"),
    ],
)
def test_a_judge_that_runs_out_of_memory_says_where(error: Exception, where: str) -> None:
    result = judge_property(does(error), evidence())
    assert result.status is Status.NOT_CHECKED and result.why is Reason.MEMORY
    assert result.reason == f"not enough memory on {where} for the truth or its budgets"
