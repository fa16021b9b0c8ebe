"""Bugs of released kernels: the property that each names catches it and holds on the correct kernel."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import FunctionType
from typing import Any

import interpreted
import pytest
from sweeps import slow

from gradoracle.check import minimise
from gradoracle.check.run import check, replay
from gradoracle.host import interpreter
from gradoracle.model.dims import parse_sizes
from gradoracle.model.fault import PLANTED
from gradoracle.model.kernel import Kernel
from gradoracle.model.verdict import Report, Status
from gradoracle.mutation.bugs import Bug
from gradoracle.project.request import Request

pytestmark = interpreted.NEEDED
interpreter.activate()

SMALL = {
    "lightning": ("B=1:2", "H=1:3", "N=1:40", "D=1:20", "Dv=1:20"),
    "semicrf": ("T=1:12", "K=1:5"),
}
"""Sizes that are quick to judge, where a bug names no others."""

FEW, EXAMPLES = 6, 12  # the cases of a run; one that nobody limits has 126
MORE = {
    "cotangent_of_lse_ignored": EXAMPLES,
    "dk_with_the_strides_of_k": EXAMPLES,
    "dv_made_like_k": EXAMPLES,
    "exponentials_divided": EXAMPLES,
    "finite_mask_in_backward": EXAMPLES,
    "keys_counted_by_queries": EXAMPLES,
    "keys_counted_from_the_shrunk_grid": EXAMPLES,
    "log_of_underflowed_probabilities": EXAMPLES,
    "padding_capped": EXAMPLES,
    "partial_blocks_taken_for_full": EXAMPLES,
    "planes_of_one_length": EXAMPLES,
    "statistics_of_the_first_block": EXAMPLES,
    "zeros_stored_by_the_longest_length": EXAMPLES,
    "aligned_at_the_first_key": 24,
    "cotangent_of_the_entropy_ignored": 24,
    "empty_splits_combined": 24,
    "keys_scaled_for_the_backward_alone": 24,
    "strides_taken_before_contiguous": 24,
    "lse_of_swapped_heads": 24,
    "no_tangent_without_that_of_q": 24,
    "loss_of_the_unshifted_sum": 100,  # from 100 on each joint recipe is promised: here, logits near 10 000
}

Place = tuple[Any, Bug]
FILES = sorted(file for file in Path(__file__).parent.glob("*.py") if not file.name.startswith("test_"))
MODULES = [importlib.import_module(f"tests.bugs.{file.stem}") for file in FILES]
CAUGHT: list[Place] = [(module, bug) for module in MODULES for bug in module.BUGS]


def target(module: Any, subject: Any) -> str:
    """``file:callable`` of one of a module's kernels."""
    (name,) = (name for name, value in vars(module).items() if value is subject)
    return f"{Path(module.__file__)}:{name}"


def judged(module: Any, bug: Bug, subject: Any, examples: int) -> Report:
    """The bug's property on a kernel, on the same cases for the wrong and the correct one."""
    dims = dict(parse_sizes(text) for text in SMALL.get(bug.family, ()))
    dims |= dict(parse_sizes(f"{dim}={size}") for dim, size in bug.dims.items())
    where = target(module, subject)
    return check(
        Request(
            where, bug.family or None, device="cpu", property=bug.property_name, dims=dims, examples=examples, workers=0
        )
    )


@pytest.fixture(autouse=True)
def without_shrinking(monkeypatch):
    """The first case that violates a property is enough here."""
    monkeypatch.setattr(minimise, "SHRINK_SECONDS", 0.0)


@pytest.mark.parametrize(
    ("module", "bug", "examples"),
    [
        *(pytest.param(*place, MORE.get(place[1].name, FEW), id=place[1].name) for place in CAUGHT),
        *(slow(*place, EXAMPLES, id=f"{place[1].name}-more") for place in CAUGHT if place[1].name not in MORE),
    ],
)
def test_its_property_catches_the_bug_and_the_correct_kernel_holds(module, bug, examples):
    right = judged(module, bug, bug.right, examples)
    assert {verdict.status for verdict in right.verdicts} == {Status.HOLDS}
    assert not any(verdict.cases_refused or verdict.cases_crashed for verdict in right.verdicts)
    wrong = judged(module, bug, bug.wrong, examples)
    found = [verdict for verdict in wrong.verdicts if verdict.status is Status.VIOLATED]
    assert [verdict.property_name for verdict in found] == [bug.property_name] * len(found) and found
    lines = [verdict.counterexample.case for verdict in found]
    assert all(target(module, bug.wrong) in line for line in lines)
    lines = [line.replace(target(module, bug.wrong), target(module, bug.right)) for line in lines]
    same = [replay(line, property=bug.property_name, workers=0).verdicts[0].status for line in lines]
    assert Status.HOLDS in same and set(same) <= {Status.HOLDS, Status.NOT_CHECKED}


def test_each_bug_is_of_a_release_of_its_own():
    bugs = [bug for _, bug in CAUGHT]
    assert len({bug.name for bug in bugs}) == len(bugs) >= 86
    twice = {"biobenkj/flash-semicrf@HEAD", "OpenNLPLab/lightning-attention@lightning_attn2_no_decay"}
    cites = [bug.cites for bug in bugs]
    assert {cite for cite in cites if cites.count(cite) > 1} == twice and len(set(cites)) == len(bugs) - len(twice)


@pytest.mark.parametrize("bug", [bug for _, bug in CAUGHT], ids=lambda bug: bug.name)
def test_its_wrong_kernel_says_where_it_was_reported(bug):
    wrong, right = (one.call if isinstance(one, Kernel) else one for one in (bug.wrong, bug.right))
    repository, _, place = bug.cites.replace("#", "@").partition("@")
    assert repository.count("/") == 1 and place and "@" not in place
    if isinstance(wrong, FunctionType):
        assert wrong.__name__ == bug.name and wrong.__doc__.startswith(repository)
    else:
        assert wrong.__doc__.lower().startswith(repository.partition("/")[2])
    assert wrong.__doc__ != right.__doc__
    assert bug.cause in PLANTED or bug.cause == ""
