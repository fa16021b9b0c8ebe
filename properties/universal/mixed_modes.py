"""Properties of mixed modes: second derivatives that mix forward and reverse mode, or are of some inputs alone."""

from __future__ import annotations

from collections.abc import Iterator

from gradoracle.properties.applicability import (
    OF_SEVERAL_PRIMALS,
    all_of,
    every_input_has_a_gradient,
    small_enough,
    through_autograd,
)
from gradoracle.properties.exactness import silenced

from gradoracle.check.acceptance import exactly
from gradoracle.check.evidence import Evidence
from gradoracle.model.call_errors import NoDerivative, Severed
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.property import PropertyKind, property
from gradoracle.model.severity import Severity

_SILENT = (
    "the gradients do not require grad although a cotangent does, and nothing raises: second derivatives through the "
    "kernel are 0; expected a backward that can be differentiated, or one under once_differentiable"
)
_APPLIES = all_of(small_enough, every_input_has_a_gradient, through_autograd)


@property(needs=(Derivative.HVP,), applies=_APPLIES, one_in=6, families=OF_SEVERAL_PRIMALS)
def hvp_of_some_inputs_alone(evidence: Evidence) -> Iterator[Finding]:
    """If only some inputs require grad, their Hessian-vector products equal those with the other inputs held fixed.

    Holds because: they are blocks of the Hessian; the truth is that of tangents which are zero on the other inputs.
    Catches: a double backward that skips what another input needs, or assumes that it is there.
    every_subset_of_requires_grad_gives_the_same_gradients sees this of the first backward.
    Cannot catch: subsets that no case takes; each case takes one.
    """
    evidence.hvp()  # a kernel that has none of all inputs has none of some
    primals = list(evidence.sample.tangents)
    bits = 1 + evidence.case.seed % (2 ** len(primals) - 2)  # neither none of them nor all
    expected = [name for number, name in enumerate(primals) if bits >> number & 1]
    tangents = silenced(evidence.sample.tangents, expected)
    variant = evidence.variant(f"tangents on {', '.join(expected)}", lambda sample: sample.with_tangents(**tangents))
    products = variant.subject.hvp_of_some_inputs(variant.sample, variant.blocks, expected)
    yield from variant.compare(Derivative.HVP, products)


@property(needs=(Derivative.HVP,), applies=_APPLIES, one_in=6)
def reverse_over_forward_gives_hvp_and_vjp(evidence: Evidence) -> Iterator[Finding]:
    """The gradient of <g, J t> is the Hessian-vector product in the inputs, and the VJP in the tangents.

    Holds because: <g, J(x) t> has the derivative H t in x, with H the Hessian of <g, f>, and is linear in t.
    Catches: a forward mode that is differentiated wrongly: a saved tensor of another pass, a tangent that is detached,
    a cotangent that is dropped. hvp_matches_the_oracle takes reverse over reverse and sees none of this.
    Cannot catch: anything in a kernel without such derivatives, where it is not checked.
    """
    evidence.vjp()
    products, gradients = evidence.subject.reverse_over_forward(evidence.sample, evidence.blocks)
    yield from evidence.compare(Derivative.HVP, products)
    yield from evidence.compare(Derivative.VJP, gradients)


@property(needs=(Derivative.HVP,), applies=_APPLIES, one_in=5)
def forward_over_reverse_gives_the_hvp(evidence: Evidence) -> Iterator[Finding]:
    """The tangent of the gradients along t is the Hessian-vector product.

    Holds because: d/dh of J(x + h t)^T g at h = 0 is H t.
    Catches: a backward whose forward mode is missing a term or a saved tensor's tangent. hvp_matches_the_oracle takes
    reverse over reverse and sees none of this.
    Cannot catch: anything in a kernel without such derivatives, where it is not checked.
    """
    evidence.vjp()
    products = evidence.subject.forward_over_reverse(evidence.sample, evidence.blocks)
    yield from evidence.compare(Derivative.HVP, products)


@property(needs=(Derivative.HVP,), applies=_APPLIES, one_in=6)
def double_backward_in_the_cotangents_gives_the_jvp(evidence: Evidence) -> Iterator[Finding]:
    """The gradient of <J^T g, t> in the cotangents g is J t.

    Holds because: J^T g is linear in g, so that its transpose along t is J t whatever g is.
    Catches: a double backward that drops the gradient of a cotangent, or hands it to another argument; a gradient
    penalty on a layer behind the kernel trains with it. hvp_matches_the_oracle asks for gradients in the inputs alone.
    Cannot catch: anything in a kernel without such derivatives, where it is not checked.
    """
    evidence.vjp()
    products = evidence.subject.jvp_by_cotangents(evidence.sample, evidence.blocks)
    yield from evidence.compare(Derivative.JVP, products)


@property(
    applies=all_of(small_enough, through_autograd),
    scope="kernel",
    kind=PropertyKind.SUPPORT,
    severity=Severity.WRONG,
    derivative=Derivative.HVP,
)
def an_absent_double_backward_raises(evidence: Evidence) -> Iterator[Finding]:
    """A kernel that has no double backward raises when it is differentiated twice.

    Holds because: a gradient depends on its cotangent. Where that requires grad and the gradient does not, autograd
    takes the gradient for a constant and adds nothing to second derivatives: a gradient penalty trains without the
    kernel's part. A backward under ``torch.autograd.function.once_differentiable`` raises instead.
    Catches: a backward that writes its gradients by a program into new memory, on detached tensors, or through numpy.
    Cannot catch: gradients that have a graph and lack a term of it; hvp_matches_the_oracle does.
    """
    try:
        if evidence.kernel.hvp is None:
            evidence.hvp()
        else:
            evidence.by_autograd(Derivative.HVP)
    except Severed:
        yield exactly("double backward", True, _SILENT)
    except NoDerivative:
        yield exactly("double backward", False, "")
    else:
        yield exactly("double backward", False, "")
