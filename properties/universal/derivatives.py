"""Properties of derivatives against the truth: the function, J^T g, J t and H t, whole and one argument at a time."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gradoracle.properties.agreement import agree
from gradoracle.properties.applicability import OF_SEVERAL_OUTPUTS, all_of, small_enough, through_autograd
from gradoracle.properties.exactness import silenced

from gradoracle.check.acceptance import exactly, not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model.call_errors import NoDerivative, Unavailable
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.formats import FORMATS
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import PropertyKind, property


@property(needs=(Derivative.FORWARD,), decisive=True, kind=PropertyKind.ORACLE)
def forward_matches_the_oracle(evidence: Evidence) -> Iterator[Finding]:
    """The outputs equal those of the definition, within what rounding explains.

    Holds because: the definition is the mathematics that the kernel claims, and the budget is the rounding reading of
    it under the kernel's precision contract.
    Catches: any wrong output: a mask, a tail, a scale, a dropped tile, a cast that the contract does not have. A fault
    in one member or tile shows in the equivariance and block properties too.
    Cannot catch: a backward that is wrong while the forward is correct; vjp_matches_the_oracle does.
    """
    yield from evidence.compare(Derivative.FORWARD)


@property(needs=(Derivative.VJP,), decisive=True, kind=PropertyKind.ORACLE)
def vjp_matches_the_oracle(evidence: Evidence) -> Iterator[Finding]:
    """Each gradient J^T g equals that of the definition, within what rounding explains.

    Holds because: the VJP of the definition is derived from it by torch.func, not written by hand; the budget is
    the rounding reading of that derivative.
    Catches: any wrong gradient: a term or cotangent dropped, a wrong scale, sign, mask, tail or index, the row
    constant of a softmax backward taken from a rounded output. vjp_and_jvp_are_adjoint sees it too wherever the JVP is
    correct.
    Cannot catch: a fault on inputs, layouts or configurations that this case does not have; the layout, block and
    permutation properties vary these.
    """
    yield from evidence.compare(Derivative.VJP)


def _explicit_vjp(case: Case, kernel: Kernel) -> str | None:
    return None if kernel.vjp is not None else "the kernel has no explicit VJP"


@property(needs=(Derivative.VJP,), applies=_explicit_vjp, one_in=2, kind=PropertyKind.ORACLE)
def autograd_through_an_explicit_vjp_matches_the_oracle(evidence: Evidence) -> Iterator[Finding]:
    """If outputs require grad although the VJP is explicit, the gradients of autograd equal those of the definition.

    Holds because: whoever calls the kernel and then backward gets these gradients, and not those of the explicit VJP.
    Catches: an autograd backward that is wrong, or passes through a part of the kernel alone, where only the explicit
    VJP is judged by vjp_matches_the_oracle.
    Cannot catch: anything in a kernel whose outputs do not require grad; it is not checked there.
    """
    yield from evidence.compare(Derivative.VJP, evidence.by_autograd(Derivative.VJP))


@property(needs=(Derivative.JVP,), applies=small_enough, one_in=2, decisive=True, kind=PropertyKind.ORACLE)
def jvp_matches_the_oracle(evidence: Evidence) -> Iterator[Finding]:
    """Each output tangent J t equals that of the definition, within what rounding explains.

    Holds because: the JVP of the definition is derived from it by torch.func; the budget is the rounding reading of
    that derivative.
    Catches: any wrong tangent: statistics held frozen where they move, a tangent of one input dropped, a wrong scale.
    jvp_of_a_tangent_on_each_input_alone and vjp_and_jvp_are_adjoint see most of these too.
    Cannot catch: errors of the VJP; vjp_matches_the_oracle does.
    """
    yield from evidence.compare(Derivative.JVP)


def _explicit_jvp(case: Case, kernel: Kernel) -> str | None:
    return None if kernel.jvp is not None else "the kernel has no explicit JVP"


@property(needs=(Derivative.FORWARD,), applies=all_of(small_enough, _explicit_jvp), one_in=4)
def the_outputs_of_an_explicit_jvp_match_the_oracle(evidence: Evidence) -> Iterator[Finding]:
    """The outputs that an explicit JVP returned with the tangents equal those of the definition.

    Holds because: they are the same outputs, whichever pass computes them.
    Catches: a JVP with separate, wrong code for its outputs, which jvp_matches_the_oracle does not see.
    Cannot catch: wrong tangents; jvp_matches_the_oracle does.
    """
    found = evidence.jvp()
    outputs = {name: found[name] for name in evidence.names(Derivative.FORWARD) if name in found}
    if not outputs:
        raise Unavailable("its JVP returns no outputs")
    yield from evidence.compare(Derivative.FORWARD, outputs)


@property(needs=(Derivative.HVP,), applies=small_enough, one_in=3, decisive=True, kind=PropertyKind.ORACLE)
def hvp_matches_the_oracle(evidence: Evidence) -> Iterator[Finding]:
    """Each Hessian-vector product of <g, f> equals that of the definition, within what rounding explains.

    Holds because: the HVP of the definition is forward over reverse by torch.func; the budget is the rounding reading
    of that derivative.
    Catches: any wrong second derivative: a dropped term of the product rule, a statistic whose tangent is missing, a
    backward that is differentiable in name only. hvp_is_symmetric sees the unsymmetric ones too.
    Cannot catch: errors of first derivatives; vjp_matches_the_oracle and jvp_matches_the_oracle do.
    """
    yield from evidence.compare(Derivative.HVP)


@property(needs=(Derivative.JVP,), applies=small_enough, one_in=3)
def jvp_of_a_tangent_on_each_input_alone(evidence: Evidence) -> Iterator[Finding]:
    """With a tangent on one input and none, or zero, on all others, output tangents equal those of the definition.

    Holds because: J t is a sum of one term for each input, and each term has a truth and a budget of its own. An absent
    tangent in forward mode and a zero tangent mean the same. The input changes from case to case, so a run
    meets all of them.
    Catches: a term that is missing, doubled or wrong but small compared with the others, a tangent routed to the wrong
    input, one that is computed only where another input has a tangent too. jvp_matches_the_oracle sees those that are
    not small, but for the last.
    Cannot catch: terms that mix two tangents: there are none in a first derivative; hvp_matches_the_oracle looks there.
    """
    primals = list(evidence.sample.tangents)
    chosen = primals[evidence.case.seed % len(primals)]
    tangents = silenced(evidence.sample.tangents, (chosen,))
    alone = evidence.variant(f"tangent of {chosen} alone", lambda sample: sample.with_tangents(**tangents))
    yield from alone.compare(Derivative.JVP)
    if evidence.kernel.jvp is None and len(primals) > 1:
        partial, _ = evidence.subject.jvp(alone.sample, evidence.blocks, along=(chosen,))
        yield from agree(alone, partial, alone.tensors(Derivative.JVP), label=f", no tangent but that of {chosen}")


@property(
    needs=(Derivative.VJP,), applies=all_of(small_enough, through_autograd), one_in=2, families=OF_SEVERAL_OUTPUTS
)
def vjp_of_a_cotangent_on_each_output_alone(evidence: Evidence) -> Iterator[Finding]:
    """With a cotangent on one output and none, or zero, on the others, gradients equal those of the definition.

    Holds because: J^T g is a sum of one term for each output. An absent cotangent in autograd and a zero
    cotangent mean the same. The output changes from case to case, so a run meets all of them.
    Catches: the cotangent of a second output silently dropped (log-sum-exp, final state), a backward that fails on
    a missing cotangent, a cotangent counted twice. vjp_matches_the_oracle sees the first and the last.
    Cannot catch: anything for a family with one output, which has no such property.
    """
    outputs = list(evidence.sample.cotangents)
    if len(outputs) < 2:
        raise Unavailable("this case has one output")
    chosen = outputs[evidence.case.seed % len(outputs)]
    cotangents = silenced(evidence.sample.cotangents, (chosen,))
    alone = evidence.variant(f"cotangent of {chosen} alone", lambda sample: sample.with_cotangents(**cotangents))
    yield from alone.compare(Derivative.VJP)
    partial, _ = evidence.subject.vjp(alone.sample, evidence.blocks, upstream=(chosen,))
    gradients = alone.tensors(Derivative.VJP)
    yield from agree(alone, partial, gradients, label=f", no cotangent but that of {chosen}")


@property(needs=(Derivative.FORWARD,))
def finite_where_the_truth_is_finite(evidence: Evidence) -> Iterator[Finding]:
    """No output or gradient is infinite or NaN where the truth, rounded to the stored dtype, is finite.

    Holds because: a correct kernel loses a finite truth only where an intermediate declared by its contract overflows;
    only such elements are exempt.
    Catches: exp without its maximum subtracted, inf - inf on masked rows, 0 * inf, log of 0, an fp16 accumulator.
    forward_matches_the_oracle and vjp_matches_the_oracle see it too; this property names it.
    Cannot catch: wrong finite values; those two do.
    """
    for derivative in (Derivative.FORWARD, Derivative.VJP):
        try:
            tensors = evidence.tensors(derivative)
        except NoDerivative:
            continue
        for name, got in tensors.items():
            truth, undecided = evidence.truths(derivative)[name].value, evidence.truths(derivative)[name].undecided
            compared = truth.isfinite() & (truth.abs() <= FORMATS[evidence.dtype(name)].largest)
            compared &= ~undecided if undecided is not None else True
            got = got.detach().to("cpu", torch.float64)
            if not got.isfinite().all():
                overflow = evidence.allowance(derivative, name).overflow
                compared &= ~overflow if overflow is not None else True
            if not compared.any():
                yield not_checked(name, "no element has a truth that is known to be finite")
                continue
            wrong = compared & ~got.isfinite()
            message = f"{int(wrong.sum())} elements are not finite where the truth is"
            yield exactly(name, wrong, message, lost=True, axes=evidence.axes(name))
