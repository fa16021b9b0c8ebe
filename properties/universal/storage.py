"""Properties of memory: results are written completely, nothing else is written, and arguments are unchanged."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gradoracle.properties.agreement import differing
from gradoracle.properties.applicability import all_of, small_enough, through_autograd
from torch import Tensor

from gradoracle.cases.saved_tensors import sample_of
from gradoracle.check.acceptance import exactly, not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model.call import derivative_of
from gradoracle.model.call_errors import Refused, Unavailable
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.property import PropertyKind, property
from gradoracle.model.severity import Severity
from gradoracle.model.tensor_bits import Change, differing_bits, is_poison, storage_bytes


@property(rank=7, kind=PropertyKind.MEMORY, severity=Severity.WRONG)
def no_memory_is_left_unwritten(evidence: Evidence) -> Iterator[Finding]:
    """Every element of an output, gradient, tangent or product is written; none keeps what torch.empty allocated.

    Holds because: while the kernel runs, torch.empty and its kin give memory filled with a NaN whose payload no
    arithmetic makes; a result that still holds it was never stored to, or was copied from memory that was not.
    Catches: a tail that is not stored, a grid that is too small, a branch that returns early, a gradient of masked or
    skipped tiles that is left as it was. The matching properties see it as NaN.
    Cannot catch: memory from torch.zeros that should have been written; the matching properties do.
    """
    for derivative in _run(evidence):
        for name, tensor in evidence.tensors(derivative).items():
            left = is_poison(tensor.detach()) if tensor.is_floating_point() else torch.zeros(())
            count = int(left.sum())
            message = f"{count} of {tensor.numel()} elements were never written"
            yield exactly(name, left.bool().cpu(), message, lost=True, axes=evidence.axes(name))


@property(rank=7, kind=PropertyKind.MEMORY, severity=Severity.WRONG)
def writes_stay_inside_their_tensors(evidence: Evidence) -> Iterator[Finding]:
    """Nothing is written before or behind a tensor that the kernel allocated.

    Holds because: each allocation lies between two bands of a NaN whose payload no arithmetic makes, and after the run
    the bands are as they were.
    Catches: a store without a mask, a tail that runs over, an index that is negative or counted in the wrong unit.
    Cannot catch: writes further out than the bands, into inputs, or into another tensor: the interpreter's record of
    addresses sees these, and inputs_and_cotangents_are_unmodified those into inputs.
    """
    _run(evidence)
    for call, facts in evidence.calls().items():
        found = facts.bands
        yield exactly(f"memory of {call}", bool(found), "; ".join(found[:3]), call=derivative_of(call))


@property(rank=9, kind=PropertyKind.MEMORY, severity=Severity.WRONG)
def inputs_and_cotangents_are_unmodified(evidence: Evidence) -> Iterator[Finding]:
    """No call changes a bit of its inputs, cotangents and tangents, or of the storage around them.

    Holds because: a function reads its arguments; only those that the kernel declares in ``mutates`` may change. They
    are compared bit for bit after each call, poison between the elements included, and put back, so that other
    properties judge the kernel on what it was given; in the end they are compared with a sample built anew.
    Catches: a scale applied in place, a cotangent reused as a buffer, a write into the gap of a sliced tensor, an
    output written over an input. This property leads the report.
    Cannot catch: a change that is undone before the call returns; a changed saved tensor, which
    saved_tensors_are_unmodified sees.
    """
    family, sample = evidence.oracle.family, evidence.sample
    refused = _refusal(evidence)
    if refused is not None and not sample.changes:
        raise refused
    fresh = sample_of(evidence.case, family, sample.source or None)
    fresh = fresh.without_tangents(evidence.kernel.no_gradient)
    groups = ((sample.inputs, fresh.inputs, ""), (sample.cotangents, fresh.cotangents, "d"))
    for mine, original, prefix in (*groups, (sample.tangents, fresh.tangents, "t")):
        for name, tensor in mine.items():
            if prefix == "" and name in (*evidence.kernel.mutates, *evidence.kernel.revealed):
                continue  # what it reveals it is not given
            yield _unchanged(f"{prefix}{name}", tensor, original[name], sample.changes.get(f"{prefix}{name}"))


@property(
    applies=all_of(small_enough, through_autograd),
    one_in=5,
    kind=PropertyKind.MEMORY,
    severity=Severity.WRONG,
    derivative=Derivative.VJP,
)
def saved_tensors_are_unmodified(evidence: Evidence) -> Iterator[Finding]:
    """Tensors saved for backward have the same bits when they are packed, when they are unpacked and after backward.

    Holds because: a saved tensor belongs to the graph; writing to it breaks a second backward, double backward
    and every other user of it. The hooks of torch.autograd.graph see every tensor given to save_for_backward.
    Catches: a backward that scales or overwrites a saved statistic or input in place, a workspace that is saved and
    used again. backward_twice_with_retain_graph_gives_the_same sees its effect.
    Cannot catch: tensors kept on ctx by other means, which no hook sees; that property does.
    """
    expected = [name for name in evidence.sample.tangents if name not in evidence.kernel.no_gradient]
    saved = evidence.subject.saved(evidence.sample, evidence.blocks, expected)
    if not saved:
        raise Unavailable("nothing is saved through save_for_backward")
    for index, (before, unpacked, after) in enumerate(saved):
        name = f"saved tensor {index} of shape {tuple(before.shape)}"
        if before.is_meta or before.is_quantized:
            yield not_checked(name, "elements of its dtype cannot be compared")
            continue
        early = unpacked is not None and bool(differing(unpacked, before).any())
        when = "between forward and backward" if early else "during backward"
        wrong = differing(after, before)
        yield exactly(name, wrong, f"{int(wrong.sum())} of {wrong.numel()} elements changed {when}")


def _run(evidence: Evidence) -> list[Derivative]:
    """The derivatives that were run on this sample, after forward and VJP have been."""
    evidence.forward()
    evidence.vjp()
    return [derivative for derivative in Derivative if evidence.has_run(derivative)]


def _refusal(evidence: Evidence) -> Refused | Unavailable | None:
    """What forward or VJP refused, if one did, after both were asked."""
    refused: Refused | Unavailable | None = None
    for call in (evidence.forward, evidence.vjp):
        try:
            call()
        except (Refused, Unavailable) as reason:
            refused = reason
    return refused


def _unchanged(name: str, tensor: Tensor, original: Tensor, noted: tuple[str, Change] | None) -> Finding:
    """Judge one tensor: what calls did and was undone; then elements, which have an index; then its storage."""
    if noted is not None:
        call, change = noted
        shown_by = derivative_of(call)
        if change.elements.any():
            wrong = change.elements
            message = f"{int(wrong.sum())} of {wrong.numel()} elements were changed by {call}"
            return exactly(name, wrong, message, call=shown_by)
        message = f"{change.around} bytes around the elements of {name} were changed by {call}"
        return exactly(name, True, message, elements=tensor.numel(), call=shown_by)
    wrong = differing_bits(tensor, original)
    if wrong.any():
        return exactly(name, wrong.cpu(), f"{int(wrong.sum())} of {wrong.numel()} elements were changed")
    whole, before = storage_bytes(tensor), storage_bytes(original)
    around = int((whole != before).sum()) if whole.shape == before.shape else 0
    message = f"{around} bytes around the elements of {name} were changed"
    return exactly(name, around > 0, message, elements=wrong.numel())
