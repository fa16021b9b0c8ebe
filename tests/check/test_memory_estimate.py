"""Capacity: what cannot be held in memory is refused in a sentence before a tensor is made; what can be is not."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
from case_families import attention
from jaxtyping import Float, Int
from places import TESTS
from torch import Tensor

import gradoracle
from gradoracle.check import memory_estimate
from gradoracle.execution import environment
from gradoracle.model.case import Case, Draw
from gradoracle.model.errors import UsageError

FILE = TESTS / "scaled.py"
SIZES = {"B": 1, "H": 1, "T": 3, "D": 4, "M": 5, "Dv": 6}
GIB = 1 << 30


@gradoracle.family(dims={"N": gradoracle.sizes(1, 10**9)}, outputs=("y",))
def outer(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    return (x[:, None] * x).sum(-1)


@gradoracle.family(outputs=("y",))
def spread(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    return x * x[:1].expand(x.numel(), x.numel())[0]


@gradoracle.family(outputs=("y",), domains={"i": gradoracle.IndexDomain("N")})
def reads_values(x: Float[Tensor, "N"], i: Int[Tensor, "N"]) -> Float[Tensor, "N"]:
    return x * i.max().item()


@gradoracle.family(dims={"T": gradoracle.sizes(1, 10**7)}, outputs=("y",))
def recurrence(x: Float[Tensor, "T D"]) -> Float[Tensor, "T D E"]:
    def step(state: Tensor, now: Tensor) -> tuple[Tensor, Tensor]:
        state = 0.5 * state + now[:, None] * now
        return state, state

    return gradoracle.scan(step, x.new_zeros(x.shape[1], x.shape[1]), x)[1]


def test_the_tensors_of_a_case_are_counted() -> None:
    needed = memory_estimate.demand(Case("attention", SIZES, "float16"), attention, 1 << 60)
    q, k, v, o = 3 * 4, 5 * 4, 5 * 6, 3 * 6
    assert needed.held == 2 * (2 * (q + k + v) + o)


def test_the_largest_tensor_of_the_definition_is_counted() -> None:
    needed = memory_estimate.demand(Case("outer", {"N": 100_000}), outer, GIB)
    assert needed.held == 8 * (100_000**2 + 100_000)
    assert "[100000, 100000]" in needed.largest


def test_of_a_recurrence_one_step_is_run_and_all_results_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_estimate, "_MOST_OPERATORS", 20)
    needed = memory_estimate.demand(Case("recurrence", {"T": 1_000_000, "D": 8, "E": 8}), recurrence, GIB)
    assert "[1000000, 8, 8]" in needed.largest and needed.held == 8 * 1_000_000 * (64 + 8)


def test_a_view_takes_no_memory() -> None:
    assert memory_estimate.demand(Case("spread", {"N": 100_000}), spread, GIB).held < 4_000_000


def test_a_definition_that_reads_values_is_judged_by_its_tensors() -> None:
    needed = memory_estimate.demand(Case("reads_values", {"N": 100_000}), reads_values, GIB)
    assert needed.held == 100_000 * (3 * 4 + 8)


@pytest.mark.parametrize(
    ("family", "case", "says"),
    [
        (outer, Case("outer", {"N": 20_000}), "(a tensor [20000, 20000] inside the definition, in float64, 2.98 GiB)"),
        (outer, Case("outer", {"N": 10**12}), "(x alone 3.64 TiB); available here: 1 GiB; choose smaller"),
        (attention, Case("attention", SIZES | {"M": 10**9}, draws={"q": Draw("ties")}), "(v alone 22.4 GiB)"),
    ],
)
def test_what_is_too_large_is_one_sentence(
    family: gradoracle.Family, case: Case, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_estimate, "memory", lambda: GIB)
    with pytest.raises(UsageError) as caught:
        memory_estimate.require(case, family)
    assert says in str(caught.value) and str(caught.value).startswith("a float32 case of ")
    memory_estimate.require(case.with_dims(**dict.fromkeys(case.dims, 10)), family)


def test_there_is_no_more_memory_than_a_limit_leaves() -> None:
    limited = "import resource; resource.setrlimit(resource.RLIMIT_DATA, (1 << 33, 1 << 33)); "
    program = limited + "from gradoracle.execution import environment; print(environment.memory())"
    assert int(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout) <= 1 << 33
    assert 0 < environment.memory(free=True) <= environment.memory()
    assert resource.getrlimit(resource.RLIMIT_DATA)[0] != 1 << 33
