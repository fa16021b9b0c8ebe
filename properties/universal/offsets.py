"""The property of large offsets: an element may be further from the first than a 32-bit offset reaches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import torch
from gradoracle.properties.agreement import agree
from gradoracle.properties.applicability import small_enough
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.evidence import Evidence, Tensors
from gradoracle.model.call_errors import Crashed, Refused, Unavailable, Wrong
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding, Outcome
from gradoracle.model.property import property
from gradoracle.model.tensor_bits import NoAddresses, addresses
from gradoracle.model.wrong_accesses import Kind, WrongAccess

FAR = 1 << 31  # elements
NEARBY = "the same where no offset passes 2^31: a stride is ignored"
_ADDRESSES = 1 << 42  # bytes of one tensor on a CPU, which gives a process 2^47
_ASKED = (Derivative.VJP, Derivative.JVP, Derivative.HVP)


@property(applies=small_enough, one_in=5, cause="offset")
def offsets_past_2_31_give_the_same(evidence: Evidence) -> Iterator[Finding]:
    """Tensors that reach past element 2^31 of their storage do not change the results, in any derivative of the kernel.

    Holds because: an address is base plus index times stride in 64 bits; only arithmetic in 32 bits wraps round. Along
    one dim, another from case to case, the stride fits 32 bits and the last index times it does not. On a CPU all
    inputs, cotangents and tangents are laid so, with the largest such stride, which an index of 2 takes past 2^31:
    memory that nothing touches is only addresses. On a GPU one tensor is, with the least, since memory there is taken
    at once.
    Catches: a program id or row index multiplied by a stride in 32 bits, in the forward or in any derivative. Where
    the same gaps between members change the results though no offset passes 2^31, a stride is ignored, and it says so.
    Cannot catch: a dim of one or two members, where the stride itself needs 64 bits; a kernel that copies its arguments
    before it computes; a GPU without the memory: not checked.
    """
    fars = _fars(evidence.sample, evidence.case.seed // 7)
    if not fars:
        raise Unavailable("no tensor has a dim of more than one member")
    on_gpu = evidence.subject.device != "cpu"
    if on_gpu:
        fars = [fars[evidence.case.seed // 7 % len(fars)]]
    label = f", {fars[0]} past 2^31" if on_gpu else ", all arguments past 2^31"
    found = _derivatives(evidence, fars)
    findings = [(finding, made) for made in found for finding in agree(evidence, *made.pair, label=label)]
    wrong = any(finding.outcome is Outcome.VIOLATED for finding, _ in findings)
    ignored = wrong and _is_wrong_nearby(evidence, fars)
    alone = _alone(evidence, fars) if wrong and not ignored and not on_gpu else []
    for finding, made in findings:
        if finding.outcome is Outcome.VIOLATED:
            why = [NEARBY] if ignored else _why(made, alone)
            finding = replace(finding, message="; ".join(filter(None, (finding.message, *why))))
            finding = replace(finding, cause="layout") if ignored else finding
        yield finding


@dataclass(frozen=True)
class _Far:
    """A tensor of a sample and the axis along which its stride is to be large."""

    group: str
    name: str
    axis: int

    def __str__(self) -> str:
        return f"{self.group} {self.name} along dim {self.axis}"


@dataclass(frozen=True)
class _Made:
    """What the kernel gives of a far sample and of the case's own, and its wrong accesses on the far one."""

    pair: tuple[Tensors, Tensors]
    faults: tuple[WrongAccess, ...]


def _is_wrong_nearby(evidence: Evidence, fars: list[_Far]) -> bool:
    """Whether the kernel is wrong with gaps along the same dims, too, where no offset passes 2^31."""
    with suppress(Refused, Unavailable, Wrong, Crashed):
        made = _derivatives(evidence, fars, far=False)
        return any(f.outcome is Outcome.VIOLATED for each in made for f in agree(evidence, *each.pair, label="nearby"))
    return False


def _alone(evidence: Evidence, fars: list[_Far]) -> list[_Far]:
    """Those of the inputs and cotangents which change outputs or gradients when they alone are far.

    Tangents are left out: PyTorch's forward mode copies one that is laid otherwise than its input, gaps included.
    """
    found = []
    for far in (each for each in fars if each.group != "tangent"):
        with suppress(Refused, Unavailable, Wrong, Crashed):
            made = _derivatives(evidence, [far], (Derivative.VJP,))
            if any(f.outcome is Outcome.VIOLATED for each in made for f in agree(evidence, *each.pair, label="")):
                found.append(far)
    return found


def _why(made: _Made, alone: list[_Far]) -> Iterator[str]:
    """The tensors whose offsets wrap round, and the first line that accesses memory outside of its tensor."""
    if alone:
        yield f"the same with {' or '.join(map(str, alone))} alone past 2^31"
    outside = (fault for fault in made.faults if fault.kind in (Kind.READ_OUTSIDE, Kind.WRITTEN_OUTSIDE))
    if (first := next(outside, None)) is not None:
        yield str(first)


def _groups(sample: Sample) -> dict[str, Mapping[str, Tensor]]:
    return {"input": sample.inputs, "cotangent": sample.cotangents, "tangent": sample.tangents}


def _fars(sample: Sample, turn: int) -> list[_Far]:
    """Each tensor that has a dim of several members, with one of these dims; a tangent has that of its input.

    The longest has two turns, since a kernel goes along it tile by tile. A tangent laid otherwise than its input is
    copied by PyTorch's forward mode, gaps included.
    """
    found = []
    for group, tensors in _groups(sample).items():
        for number, (name, tensor) in enumerate(tensors.items()):
            most = 3 if max(tensor.shape, default=1) > 2 else 2
            axes = [axis for axis, size in enumerate(tensor.shape) if size >= most]
            if axes:
                axes.append(max(axes, key=tensor.shape.__getitem__))
                place = number if group == "cotangent" else list(sample.inputs).index(name)
                found.append(_Far(group, name, axes[(turn + place) % len(axes)]))
    return found


def _derivatives(
    evidence: Evidence, fars: list[_Far], asked: Sequence[Derivative] = _ASKED, far: bool = True
) -> list[_Made]:
    """What the kernel gives of the far sample and of the case's own: outputs and gradients, tangents, products.

    ``far``: whether the gaps reach past 2^31; else they are small.
    """
    on_gpu = evidence.subject.device != "cpu"
    changed: dict[str, dict[str, Tensor]] = {group: {} for group in _groups(evidence.sample)}
    for each in fars:
        own = _groups(evidence.sample)[each.group][each.name]
        changed[each.group][each.name] = _laid(own, each.axis, far, on_gpu)
    moved = evidence.sample.with_inputs(**changed["input"]).with_cotangents(**changed["cotangent"])
    moved = moved.with_tangents(**changed["tangent"])
    found: list[_Made] = []
    for derivative in asked:
        try:
            expected = evidence.vjp() if derivative is Derivative.VJP else evidence.tensors(derivative)
        except (Refused, Unavailable):
            if derivative is Derivative.VJP:
                raise
            continue  # the property of that derivative says so
        tensors, facts = getattr(evidence.subject, derivative.value)(moved, evidence.blocks)
        found.append(_Made((tensors, expected), facts.faults))
    return found


def _laid(tensor: Tensor, axis: int, far: bool, on_gpu: bool) -> Tensor:
    """The tensor with its last member along an axis beyond element 2^31 of its storage, and the rest of it dense.

    Not ``far``, a gap of 16 elements or more is between members.
    """
    rest = torch.empty([size for other, size in enumerate(tensor.shape) if other != axis], device="meta")
    last = tensor.shape[axis] - 1
    most = 0 if on_gpu else min(FAR - 16, _ADDRESSES // (last * tensor.element_size()))
    step = 16 * -(-max(most, FAR // last + 1, rest.numel()) // 16) if far else 16 * (rest.numel() // 16 + 2)
    count = last * step + rest.numel()
    strides = list(rest.stride())
    strides.insert(axis, step)
    try:
        storage = addresses(count, tensor.dtype)
    except NoAddresses as error:
        raise Unavailable(str(error)) from None
    return storage.as_strided(tensor.shape, tuple(strides), 0).copy_(tensor)
