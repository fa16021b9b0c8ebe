"""What a host answers that is no answer to what a property asked is a violation, and no error of gradoracle's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from gradoracle.properties.universal import UNIVERSAL
from torch import Tensor

from gradoracle.check.evidence import Evidence
from gradoracle.check.judge_property import judge_property
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.execution.own_host import OwnHost
from gradoracle.model.call import Call, Reply
from gradoracle.model.finding import Outcome
from gradoracle.model.job import PropertyResult
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import Property, lacking
from gradoracle.model.verdict import Status
from gradoracle.oracle.truth import Oracle
from gradoracle.project.target import shipped
from tests.properties import judging, toys
from tests.properties.judging import PROPERTIES
from tests.properties.lse.logsumexp import kernel as lse
from tests.properties.sdpa.attention import kernel as sdpa
from tests.properties.semicrf.plain import with_tables
from tests.properties.semicrf.segmentations import PLAIN as CHAIN
from tests.properties.semicrf.segmentations import kernel as semicrf
from tests.properties.universal import test_integers

Change = Callable[[Any], Any]
NONE_OF_THE_JUDGE = {"compilations"}
KERNELS = {
    "sdpa": (sdpa(), "case:1 sdpa cpu float32 B=1 H=1 T=5 M=6 D=4 Dv=3 seed=11"),
    "lse": (lse(), "case:1 lse cpu float32 B=1 H=1 T=5 G=1 M=6 D=4 seed=11"),
    "semicrf": (semicrf(), CHAIN),
    "semicrf with tables": (with_tables(), CHAIN),
}
ORACLES = {name: Oracle(shipped()[name].family) for name in ("sdpa", "lse", "semicrf")}


class Answering(OwnHost):
    """A host that changes a part of what it answers."""

    def __init__(self, kernel: Kernel, part: str, change: Change) -> None:
        super().__init__({kernel.name: kernel})
        self.part, self.change = part, change

    def call(self, call: Call) -> Reply:
        reply = super().call(call)
        if self.part not in reply.returned:
            return reply
        return replace(reply, returned={**reply.returned, self.part: self.change(reply.returned[self.part])})


def each(change: Callable[[Tensor], Any]) -> Change:
    """The same change of every tensor of an answer."""

    def made(answer: Any) -> Any:
        if isinstance(answer, Mapping):
            return {name: change(tensor) for name, tensor in answer.items()}
        return tuple(map(change, answer)) if isinstance(answer, tuple) else change(answer)

    return made


WRONG: dict[str, Change] = {
    "nothing": lambda answer: None,
    "a number": lambda answer: 3,
    "a text": lambda answer: "\x1b[2J" * 10_000,
    "no tensors": lambda answer: (),
    "tensors that nobody asked for": lambda answer: (torch.ones(3),) * 17,
    "other names": lambda answer: {"another": torch.ones(3)},
    "no names": lambda answer: {},
    "None for each": each(lambda tensor: None),
    "two for each": each(lambda tensor: (tensor, tensor)),
    "one element for each": each(lambda tensor: torch.ones(1)),
    "one dim more": each(lambda tensor: tensor[None]),
    "integers": each(lambda tensor: torch.zeros(tensor.shape, dtype=torch.int64)),
    "complex numbers": each(lambda tensor: tensor.to(torch.complex128)),
    "tensors without elements": each(lambda tensor: tensor.to("meta")),
}
STRANGE: dict[str, Change] = {
    "eight bits": each(lambda tensor: tensor.to(torch.float8_e5m2)),
    "sixteen bits": each(lambda tensor: tensor.to(torch.bfloat16)),
    "NaN": each(lambda tensor: torch.full_like(tensor, torch.nan)),
}


def judged(name: str, change: Change) -> list[PropertyResult]:
    """The results of those properties of a family that call entry points, where a host changes what these give."""
    kernel, line = KERNELS[name]
    family = ORACLES[kernel.family].family
    usual = judging.evidence(line, kernel, ORACLES[kernel.family])
    asking = [
        prop
        for prop in family.properties
        if prop.extras and not NONE_OF_THE_JUDGE & {*prop.extras} and lacking(prop.extras, kernel) is None
    ]
    assert asking
    results = []
    for prop in asking:
        subject = KernelRunner(family, kernel, host=Answering(kernel, "returned", change))
        own = Evidence(usual.case, usual.sample, subject, usual.oracle)
        if prop.applies(own.case, kernel) is None:
            results.append(judging.judge_on(prop, own))
    assert results
    return results


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("answer", WRONG)
def test_a_wrong_answer_of_an_entry_point_is_a_violation(name: str, answer: str) -> None:
    for found in judged(name, WRONG[answer]):
        assert found.status is Status.VIOLATED, (found.property_name, found.status, found.trace or found.reason)
        (wrong,) = (each for each in found.findings if each.outcome is Outcome.VIOLATED)
        assert wrong.malformed and len(wrong.message) < 1000 and wrong.message.isprintable()


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("answer", STRANGE)
def test_values_of_an_entry_point_are_judged_whatever_they_are(name: str, answer: str) -> None:
    for found in judged(name, STRANGE[answer]):
        assert found.status is not Status.ERROR, (found.property_name, found.trace)


PARTS: dict[str, Change] = {
    "no tensors": lambda answer: (),
    "None for each": each(lambda tensor: None),
    "one element for each": each(lambda tensor: torch.ones(1)),
    "complex numbers": each(lambda tensor: tensor.to(torch.complex128)),
    "tensors without elements": each(lambda tensor: tensor.to("meta")),
    "one too many": lambda answer: (*answer, torch.ones(3)),
}


def without_error(part: str, change: Change, own: Evidence, properties: Sequence[Property]) -> list[PropertyResult]:
    """The results of properties where a host changes a part of its answers: none is an error, one or more fail."""
    subject = KernelRunner(own.oracle.family, own.kernel, host=Answering(own.kernel, part, change))
    changed = Evidence(own.case, own.sample, subject, own.oracle)
    found = [judge_property(prop, changed) for prop in properties if prop.applies(own.case, own.kernel) is None]
    assert not [(each.property_name, each.trace) for each in found if each.status is Status.ERROR]
    return [each for each in found if each.status in (Status.VIOLATED, Status.CRASHED)]


@pytest.mark.parametrize(
    "part", ["outputs", "gradients", "tangents", "products", "first", "second", "outputs later", "gradients at once"]
)
@pytest.mark.parametrize("answer", PARTS)
def test_a_wrong_answer_to_a_derivative_is_a_violation(part: str, answer: str) -> None:
    properties = [prop for prop in UNIVERSAL if prop.scope == "case" and prop.name != test_integers.PROPERTY]
    assert without_error(part, PARTS[answer], toys.evidence(toys.RIGHT), properties)


@pytest.mark.parametrize("answer", PARTS)
def test_a_wrong_answer_for_integers_is_a_violation(answer: str) -> None:
    case, oracle = test_integers.CASE.format("float32", "normal"), Oracle(test_integers.peaks)
    own = judging.evidence(case, test_integers.right, oracle)
    (found,) = without_error("integers", PARTS[answer], own, [PROPERTIES[test_integers.PROPERTY]])
    assert found.status is Status.VIOLATED


@pytest.mark.parametrize("part", ["saved", "unpacked", "saved in the end"])
@pytest.mark.parametrize("answer", PARTS)
def test_a_wrong_answer_for_saved_tensors_is_a_violation_or_a_crash(part: str, answer: str) -> None:
    own = toys.evidence(toys.kernel(of_saved))
    found = without_error(part, PARTS[answer], own, [PROPERTIES["saved_tensors_are_unmodified"]])
    assert bool(found) == ((part, answer) != ("unpacked", "None for each"))  # then none was


class Saving(torch.autograd.Function):
    """softmax(x) y^2 and logsumexp(x), by whatever tensors are saved for it."""

    kept: Callable[[Tensor], Tensor] = staticmethod(Tensor.clone)
    later: Callable[[Tensor], None] = staticmethod(lambda tensor: None)

    @staticmethod
    def forward(ctx, x, y):
        ctx.kept = Saving.kept(x.detach())
        ctx.save_for_backward(x, y, ctx.kept)
        return toys.right(x, y)

    @staticmethod
    def backward(ctx, dp, ds):
        x, y, kept = ctx.saved_tensors
        Saving.later(kept)
        return toys.gradients(x, y, dp, ds)


def of_saved(x, y):
    return Saving.apply(x, y)


def resized(tensor: Tensor) -> None:
    tensor.data = torch.zeros(7)


@pytest.mark.parametrize(
    ("kept", "later", "status", "says"),
    [
        (Tensor.clone, lambda tensor: None, Status.HOLDS, ""),
        (lambda x: x.to(torch.complex128), lambda tensor: None, Status.HOLDS, ""),
        (lambda x: x.to(torch.complex128), lambda tensor: tensor.imag.add_(1), Status.VIOLATED, "21 of 21 elements"),
        (lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8), lambda tensor: None, Status.HOLDS, ""),
        (Tensor.clone, resized, Status.VIOLATED, "of shape (3, 7), and is a tensor of float32 of shape (7,)"),
    ],
    ids=["as they were", "complex", "complex and written to", "no dtype that is compared", "resized"],
)
def test_whatever_is_saved_for_a_backward_is_compared(
    kept: Callable[[Tensor], Tensor],
    later: Callable[[Tensor], None],
    status: Status,
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Saving, "kept", staticmethod(kept))
    monkeypatch.setattr(Saving, "later", staticmethod(later))
    found = toys.judged(PROPERTIES["saved_tensors_are_unmodified"], toys.kernel(of_saved))
    assert found.status is status, found.trace or found
    assert [says in each.message for each in found.findings if each.outcome is Outcome.VIOLATED] == [True] * bool(says)
