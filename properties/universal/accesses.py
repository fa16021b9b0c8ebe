"""Properties of accesses: what programs of a launch touch, as Triton's interpreter records it; exact, on the CPU."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from gradoracle.properties.agreement import differing

from gradoracle.check.acceptance import exactly, not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model.call import Facts, derivative_of
from gradoracle.model.call_errors import Crashed, DeviceLost, Refused, Unavailable, Wrong
from gradoracle.model.finding import Finding
from gradoracle.model.property import PropertyKind, property
from gradoracle.model.severity import Severity
from gradoracle.model.wrong_accesses import Kind

_SHOWN = 3


@property(rank=8, kind=PropertyKind.MEMORY, severity=Severity.WRONG)
def every_access_stays_inside_its_tensor(evidence: Evidence) -> Iterator[Finding]:
    """No program accesses memory outside the tensor whose pointer it received.

    Holds because: a kernel may touch what it was given; what lies between the elements of a view, or beyond them in the
    same storage, is not part of it. A pointer keeps its tensor through any arithmetic on it.
    Catches: a mask that is missing or one element too wide, also on a load whose value is discarded; an index into
    the wrong tensor; a stride that is assumed.
    Cannot catch: a wrong index inside the tensor, which the matching properties see; accesses on a GPU, where
    writes_stay_inside_their_tensors sees stores near what the kernel allocated.
    """
    yield from _none_of(evidence, (Kind.READ_OUTSIDE, Kind.WRITTEN_OUTSIDE))


@property(rank=8, kind=PropertyKind.MEMORY, severity=Severity.WRONG)
def programs_of_a_launch_do_not_race(evidence: Evidence) -> Iterator[Finding]:
    """No two programs of one launch touch an element that one of them writes, unless atomics do it or order them.

    Holds because: programs run in any order and at the same time; only atomics order them. The interpreter runs them in
    one order, so that a race has the same result every time: what shows it is who touched what.
    Catches: partial sums stored to one place, a grid with an axis too many, a block that overlaps the next, an update
    without an atomic, a reduction in the launch that makes its terms.
    Cannot catch: races between launches on several streams; what runs_are_bit_identical sees of atomics' order.
    """
    yield from _none_of(evidence, (Kind.RACE,))


@property(rank=8, kind=PropertyKind.MEMORY, severity=Severity.WRONG)
def a_barrier_stands_between_a_store_and_a_load(evidence: Evidence) -> Iterator[Finding]:
    """No program loads what it stored, or stores what it loaded, with no barrier between the two.

    Holds because: Triton orders the threads of a program only at a barrier. Different threads may make a store and a
    load of one address, in either order.
    Catches: a ring buffer in global memory that is written and read by one program, partial sums kept there, a row
    that is permuted or shifted in place, a block divided in place by an element of it that every thread loads. For a
    kernel from outside, a store to what was loaded is a note, not a violation, if the same place of a block loaded it,
    or threads exchanged values between (a reduction, a dot, a transposition): it is safe if the value stored to each
    element depends on the value loaded from it, so that the store has to wait.
    Cannot catch: what threads do to shared memory, which Triton orders itself; a layout in which one thread has all
    elements that are loaded and stored at different places, as in a block of few elements, which is a violation too.
    """
    kinds = [Kind.STORED_AND_LOADED, Kind.LOADED_APART_AND_STORED]
    if not evidence.kernel.outside:
        kinds.append(Kind.LOADED_AND_STORED)
    yield from _none_of(evidence, kinds)
    if evidence.kernel.outside:
        safe = "safe if the value stored to each element depends on the value loaded from it"
        yield from _noted(evidence, Kind.LOADED_AND_STORED, "updates in place", safe)


@property(rank=8, kind=PropertyKind.MEMORY, severity=Severity.WRONG)
def a_barrier_stands_between_two_stores(evidence: Evidence) -> Iterator[Finding]:
    """No program stores an element at two lines of the source, or stores it and adds to it atomically, with no barrier
    between the two.

    Holds because: Triton orders the threads of a program only at a barrier. Different threads may make two stores to
    one address, and the earlier value may be the one that stays.
    Catches: memory that is cleared and then filled by one program, a clear that reaches too far, a result that a later
    line corrects. For a kernel from outside this is a note, not a violation: it is safe if both lines distribute their
    tiles over the threads in the same way, so that each thread overwrites its own store.
    Cannot catch: one line that stores an element twice, in a loop or from two places of a tile.
    """
    if evidence.kernel.outside:
        safe = "safe if the same thread makes both stores to an element"
        yield from _noted(evidence, Kind.STORED_AND_STORED, "second stores", safe)
    else:
        yield from _none_of(evidence, [Kind.STORED_AND_STORED])


@property(rank=8, kind=PropertyKind.MEMORY, severity=Severity.WRONG)
def nothing_is_loaded_before_it_is_written(evidence: Evidence) -> Iterator[Finding]:
    """No program, and no PyTorch operator, uses memory allocated by torch.empty and never written.

    Holds because: while the kernel runs, torch.empty and its kin return memory filled with a pattern that no
    arithmetic produces; whoever reads it would read arbitrary data. An operator reads the elements that it
    selects; a view reads none; of the elements that it writes, an operator reads those that it adds to. What is read
    may be discarded, as by tl.where: a call that reads such memory is made twice more, with the largest number of
    either sign instead of the pattern, and uses it if a bit of its results differs.
    Catches: partial sums of blocks that were skipped and not set to zero, whether a program adds them up or torch.sum,
    a conversion or a copy; a workspace that is longer than what was written; a tail of a saved statistic.
    Cannot catch: memory from torch.zeros that should have been written; what operators of other libraries than PyTorch
    read; what autograd itself reads of a gradient where forward allocated nothing; elements of one byte.
    """
    own, recorded = _recorded(evidence)
    for call, facts in recorded.items():
        found = [str(fault) for fault in facts.faults if fault.kind is Kind.UNWRITTEN]
        yield _among(own, call, found if found and not _discards(own, call) else [])


def _discards(evidence: Evidence, call: str) -> bool:
    """Whether the results of a derivative are the same bits whatever memory holds that nothing wrote."""
    if derivative_of(call) is None:
        return False  # a further entry point, which is not called again
    results = getattr(evidence, call)()
    for sign in (1, -1):
        subject = evidence.subject.labelled(f"unwritten memory filled with {sign}").made(fill=sign)
        try:
            again, _ = getattr(subject, call)(evidence.sample, evidence.blocks)
        except DeviceLost:
            raise
        except (Refused, Unavailable, Crashed, Wrong):
            return False
        if any(bool(differing(again[name], tensor).any()) for name, tensor in results.items()):
            return False
    return True


def _none_of(evidence: Evidence, kinds: Collection[Kind]) -> Iterator[Finding]:
    own, recorded = _recorded(evidence)
    for call, facts in recorded.items():
        yield _among(own, call, [str(fault) for fault in facts.faults if fault.kind in kinds])


def _among(own: Evidence, call: str, found: Sequence[str]) -> Finding:
    """The finding about the launches of a call, with the first faults found."""
    more = f"; and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    name, message = f"launches of {own.subject.label}{call}", "; ".join(found[:_SHOWN]) + more
    return exactly(name, bool(found), message, call=derivative_of(call))


def _noted(evidence: Evidence, kind: Kind, shown: str, safe: str) -> Iterator[Finding]:
    """Note what would be a fault of a shipped kernel; a kernel from outside may mean it."""
    own, recorded = _recorded(evidence)
    for call, facts in recorded.items():
        found = [fault for fault in facts.faults if fault.kind is kind]
        name = f"{shown} of {own.subject.label}{call}"
        if not found:
            yield exactly(name, False, "")
            continue
        lines = dict.fromkeys(
            f"{each.place}: {each.kernel} {each.kind.value} ({each.tensor}): {safe}" for each in found
        )
        yield replace(not_checked(name, f"{safe}: {found[0]}"), notes=tuple(lines)[:_SHOWN])


def _recorded(evidence: Evidence) -> tuple[Evidence, dict[str, Facts]]:
    """The calls that launched Triton kernels, and whose: with contiguous tensors where a case's layouts are refused."""
    if not evidence.subject.interprets:
        raise Unavailable("needs Triton's interpreter, which records accesses: --device cpu")
    own = evidence
    try:
        calls = _calls(own)
    except Refused:
        dense = evidence.sample.map(lambda tensor: tensor.contiguous())
        before = evidence.sample.tensors()
        if all(tensor is before[name] for name, tensor in dense.tensors().items()):
            raise
        subject = evidence.subject.labelled("contiguous inputs", recorded=True)
        own = evidence.keep(
            "contiguous inputs",
            lambda: Evidence(evidence.case, dense, subject, evidence.oracle, evidence.blocks, evidence.is_variant),
        )
        calls = _calls(own)
    launched = {call: facts for call, facts in calls.items() if facts.launches}
    if not launched:
        raise Unavailable("no Triton kernel was launched")
    return own, launched


def _calls(evidence: Evidence) -> dict[str, Facts]:
    evidence.forward()
    evidence.vjp()
    return evidence.calls()
