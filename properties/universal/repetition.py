"""Properties of repetition: equal calls give equal results, however often and in whichever way they are made."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gradoracle.properties.agreement import agree
from gradoracle.properties.applicability import (
    OF_SEVERAL_PRIMALS,
    all_of,
    has_block_configurations,
    small_enough,
    through_autograd,
)
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import exactly
from gradoracle.check.evidence import Evidence
from gradoracle.model import layouts
from gradoracle.model.call_errors import Refused, Unavailable
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.property import PropertyKind, property
from gradoracle.model.severity import Severity


@property(applies=small_enough, one_in=4, kind=PropertyKind.REPETITION, severity=Severity.WRONG)
def runs_are_bit_identical(evidence: Evidence) -> Iterator[Finding]:
    """A second run returns the same bits where determinism is claimed, and the same values within rounding elsewhere.

    Holds because: determinism means equal bits; without it only the order of sums may change, and the
    rounding of both runs bounds what that does.
    Catches: atomics in what is claimed deterministic, a race, uninitialised memory that enters a result, state that
    one run leaves to the next. no_memory_is_left_unwritten names the third.
    Cannot catch: a wrong answer that is given every time; the matching properties do.
    """
    again = evidence.variant("again", lambda sample: sample)
    yield from agree(evidence, again.results(), evidence.results(), exact=evidence.kernel.deterministic)


@property(applies=small_enough, one_in=5, kind=PropertyKind.REPETITION, severity=Severity.WRONG)
def first_call_equals_second(evidence: Evidence) -> Iterator[Finding]:
    """The result of a call depends neither on earlier calls nor on whose memory its arguments reuse.

    Holds because: a derivative is a function of its arguments. The kernel is called as in two steps of a training: on
    inputs that have a grad_fn, then after an optimiser has halved their leaves in place. Both answers are compared with
    those for leaves in memory of their own.
    Catches: results cached by address, parameter, shape or version, a workspace that is not cleared between calls, a
    first call that tunes itself on the caller's tensors and leaves them changed, a backward for leaves alone.
    Cannot catch: state that is the same at every call; runs_are_bit_identical sees what differs between equal calls.
    """
    exact = evidence.kernel.deterministic
    own, halves = evidence.vjp(), _halves(evidence.sample)
    kept, second, first = evidence.subject.vjp_in_the_same_memory(evidence.sample, halves, evidence.blocks)
    yield from agree(evidence, kept, own, exact=exact, label=", first")
    halved = evidence.variant("inputs halved", lambda sample: sample.with_inputs(**halves))
    yield from agree(halved, second, halved.vjp(), exact=exact, label=", other inputs in the same memory")
    yield from agree(evidence, first, kept, exact=True, label=", kept from the first call")


@property(
    applies=all_of(small_enough, through_autograd),
    one_in=5,
    kind=PropertyKind.REPETITION,
    severity=Severity.WRONG,
    derivative=Derivative.VJP,
)
def backward_twice_with_retain_graph_gives_the_same(evidence: Evidence) -> Iterator[Finding]:
    """Two backward passes over one retained graph give the same gradients.

    Holds because: retain_graph=True keeps what forward saved, and a backward that reads it and does not write it
    cannot tell the first pass from the second.
    Catches: a backward that overwrites saved tensors or its cotangent, frees them, accumulates into a buffer that it
    does not clear, or counts its calls. saved_tensors_are_unmodified names the first.
    Cannot catch: a gradient that is wrong both times; vjp_matches_the_oracle does.
    """
    evidence.vjp()
    try:
        first, second = evidence.subject.vjp_twice(evidence.sample, evidence.blocks)
    except Refused as refusal:
        yield exactly("second backward", True, f"one backward works, two over a retained graph raise: {refusal}")
        return
    yield from agree(evidence, second, first, exact=evidence.kernel.deterministic)


@property(
    applies=all_of(small_enough, through_autograd), one_in=5, families=OF_SEVERAL_PRIMALS, derivative=Derivative.VJP
)
def every_subset_of_requires_grad_gives_the_same_gradients(evidence: Evidence) -> Iterator[Finding]:
    """A gradient is the same whichever other inputs require one.

    Holds because: a gradient does not depend on whether another is requested. Each case tries one input alone
    and all inputs but that one; which one changes from case to case.
    Catches: a gradient that is computed only as a by-product of another, gradients returned in the wrong place when
    some are None, an output that loses its graph, needs_input_grad read at the wrong index.
    Cannot catch: a gradient that is wrong in every subset; vjp_matches_the_oracle does.
    """
    names = [name for name in evidence.sample.tangents if name not in evidence.kernel.no_gradient]
    if len(names) < 2:
        raise Unavailable("only one input of this case has a gradient")
    chosen = names[evidence.case.seed % len(names)]
    whole = evidence.vjp()
    for expected in ([chosen], [name for name in names if name != chosen]):
        part, _ = evidence.subject.vjp(evidence.sample, evidence.blocks, expected)
        label = f", requires_grad of {', '.join(expected)} alone"
        yield from agree(evidence, part, {name: whole[name] for name in part}, label=label)


@property(applies=all_of(small_enough, has_block_configurations), one_in=5)
def every_block_configuration_agrees(evidence: Evidence) -> Iterator[Finding]:
    """The results of each block configuration equal those of the kernel's own choice, within the rounding of both.

    Holds because: blocks decide the order of sums and nothing else. Which configuration is forced changes from case to
    case, so that a run meets all of them; the next one replaces one that does not fit this GPU. On a GPU only those
    are forced that the kernel declares for the case (``Kernel.fits``): others may take minutes to compile.
    Catches: a fault that only some tile sizes have: a mask that a full tile hides, a loop bound by the wrong block, a
    configuration that was never run because the autotuner does not choose it. Cases that force blocks let
    vjp_matches_the_oracle see it too.
    Cannot catch: a fault of all configurations; the matching properties do.
    """
    names = [name for name in _configurations(evidence) if name != evidence.blocks]
    if not names:
        raise Unavailable("the kernel has no second block configuration for this case")
    first = evidence.case.seed // 5 % len(names)
    refusals = []
    for chosen in (*names[first:], *names[:first]):
        forced = evidence.variant(f"blocks {chosen}", lambda sample: sample, blocks=chosen)
        try:
            found = forced.results()
        except Refused as refusal:
            refusals.append(refusal)
            continue
        own = forced if forced.algorithm != evidence.algorithm else None
        yield from agree(evidence, found, evidence.results(), label=f", blocks {chosen}", other=own)
        return
    raise refusals[0]


def _configurations(evidence: Evidence) -> Collection[str]:
    """The block configurations that may be forced on a case; the interpreter compiles none and runs all of them."""
    kernel, case = evidence.kernel, evidence.case
    if kernel.fits is None or evidence.subject.device == "cpu":
        names: Collection[str] = kernel.blocks
        return names
    fitting = kernel.fits(case.dtype, case.dims)
    return [name for name in kernel.blocks if name in fitting]


def _halves(sample: Sample) -> dict[str, Tensor]:
    floats = {name: tensor for name, tensor in sample.inputs.items() if tensor.is_floating_point()}
    return {name: layouts.scaled(tensor, 0.5) for name, tensor in floats.items()}
