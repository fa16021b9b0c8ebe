"""Properties of lightning as a multilinear map: powers of two, separate tangents, exact differences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import torch
from gradoracle.properties.agreement import balanced, derivative_of, differ
from gradoracle.properties.applicability import all_of, exact_operands, small_enough
from gradoracle.properties.exactness import has_subnormals, times
from gradoracle.properties.lightning.samples import instead
from gradoracle.properties.linear_attention import FORWARD, HVP, INITIAL, JVP, VJP, made, plain, same, tokens, zeros
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import exactly, not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model import hashing
from gradoracle.model.finding import Finding
from gradoracle.model.formats import FORMATS
from gradoracle.model.property import property
from gradoracle.model.signature import cotangent_name, hvp_name

# what is doubled with an input for the whole to be linear, and what is then doubled of what the kernel gives
DOUBLED: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "q": (("q", "g_state"), ("o", "dk", "dv", "dinitial_state")),
    "k": (("k", INITIAL), ("o", "state", "dq", "dv")),
    "v": (("v", INITIAL), ("o", "state", "dq", "dk")),
}
ABOVE_UNDERFLOW = 0.25  # of q, k and v: a kernel may meet underflow at values that much above where the definition does

# by dtype: bits of the grid that inputs and tangents are rounded to, and the logarithm of the longest step
GRIDS = {"bfloat16": (3, 2), "float16": (5, 3), "float32": (10, 8), "float64": (20, 20)}
CONTINUOUS_BITS = 10  # grids that are coarser repeat values


@property(needs=(FORWARD, VJP), applies=all_of(small_enough, exact_operands), one_in=3, rank=3)
def doubling_one_input_doubles_what_is_linear_in_it(evidence: Evidence) -> Iterator[Finding]:
    """With 2 q (or 2 k, or 2 v, with 2 S0), o and the gradients of the other inputs double, and its own is unchanged.

    Holds because: each output is linear in each input, and a power of two changes no rounding short of underflow: bit
    for bit where the kernel claims determinism, nothing underflows and no 16-bit operand is subnormal.
    Catches: a clamp, a threshold, a scale or a normaliser that depends on an input; an initial state that is scaled
    with the wrong input.
    Cannot catch: any wrong map that is linear in each input; forward_matches_the_oracle does.
    """
    which = tuple(DOUBLED)[int(hashing.integers(evidence.case.seed, "doubled", 1, 0, 3)[0])]
    inputs, outputs = DOUBLED[which]
    once = evidence.variant("contiguous", plain)
    sample = once.sample
    changed = {name: times(sample.inputs[name], 2.0) for name in inputs if name in sample.inputs}
    cotangents = {"state": times(sample.cotangents["state"], 2.0)} if which == "q" and "state" in _given(sample) else {}
    exact = {**changed, **cotangents}
    if any(t is None or not bool(t.isfinite().all()) for t in exact.values()):
        yield not_checked("o", f"2 {which} overflows")
        return
    twice = evidence.variant(
        f"2 {which}",
        lambda s: sample.with_inputs(**changed).with_cotangents(**cotangents),  # type: ignore[arg-type]
    )
    for name in (*_given(sample), *(cotangent_name(n) for n in sample.inputs)):
        yield _multiple(once, twice, name, 2.0 if name in outputs else 1.0)


def _given(sample: Sample) -> tuple[str, ...]:
    return tuple(sample.cotangents)


def _multiple(once: Evidence, twice: Evidence, name: str, factor: float) -> Finding:
    """One tensor is a power of two times another, in bits, or within rounding where they may underflow."""
    derivative, label = derivative_of(once, name), f"{name} times {factor:g}"
    expected = factor * once.tensors(derivative)[name].double().cpu()
    wrong = differ(twice.tensors(derivative)[name].double().cpu(), expected)
    if not bool(wrong.any()):
        return exactly(label, False, "", elements=wrong.numel(), of=name)
    fine = expected.abs() <= FORMATS[once.dtype(name)].largest / 2
    for each in (once, twice):
        overflow = each.allowance(derivative, name).overflow
        fine = fine if overflow is None else fine & ~overflow
    exact = once.kernel.deterministic and not has_subnormals(once.sample)
    if exact and bool((wrong & fine & ~_underflows(once, name)).any()):
        message = f"{int((wrong & fine).sum())} of {wrong.numel()} elements are not scaled by exactly the power of two"
        return exactly(label, wrong & fine, message, of=name)
    parts = [(once, derivative, name), (twice, derivative, name)]
    return balanced(label, parts, lambda a, b: (b, factor * a))


def _underflows(evidence: Evidence, name: str) -> Tensor:
    """Where the budget of a tensor has an underflow part, at the inputs as they are or at smaller ones."""

    def smaller(sample: Sample) -> Sample:
        return sample.with_inputs(**{n: t.double() * ABOVE_UNDERFLOW for n, t in sample.inputs.items()})

    small = evidence.variant("smaller inputs, for their budgets alone", smaller)
    derivative = derivative_of(evidence, name)
    return (small.budgets(derivative)[name].floor > 0) | (evidence.budgets(derivative)[name].floor > 0)


@property(needs=(VJP,), applies=small_enough, one_in=3, rank=5)
def no_gradient_depends_on_its_own_input(evidence: Evidence) -> Iterator[Finding]:
    """Changing q changes no bit of dq; the same holds for k and dk, v and dv, S0 and dS0.

    Holds because: o and the state are linear in each of them, and a derivative of a linear map is the same everywhere.
    Catches: a backward that reads the output or an input that it should not, a normaliser, the gradients of q and k
    exchanged.
    Cannot catch: a wrong gradient computed from the correct inputs; vjp_matches_the_oracle does.
    """
    once = evidence.variant("contiguous", plain)
    for name in once.sample.inputs:
        other = once.sample.with_inputs(**{name: once.sample.tangents[name]})
        changed = evidence.variant(f"another {name}", instead(other))
        yield from same(once, changed, (cotangent_name(name),), f"another {name}")


@property(needs=(JVP,), applies=small_enough, one_in=3, rank=4)
def the_jvp_is_the_sum_over_inputs(evidence: Evidence) -> Iterator[Finding]:
    """The tangent of o is f(q', k, v; S0) + f(q, k', v; S0') + f(q, k, v'; 0), and that of the state likewise.

    Holds because: f is linear in q, in k and S0 together with v fixed, and in v: the derivative of a product.
    Catches: a term of the product that is left out or taken twice, a tangent of S0 that is dropped or transposed, an S0
    that enters twice.
    Cannot catch: errors that forward and JVP share; forward_matches_the_oracle does.
    """
    own = plain(evidence.sample)
    g, g_state = own.cotangents["o"], own.cotangents.get("state")
    terms = {"q": own.inputs.get(INITIAL), "k": own.tangents.get(INITIAL), "v": None}
    calls = {
        f"{name}'": evidence.variant(
            f"{name}' as an input", instead(made(own, tokens(own) | {name: own.tangents[name]}, start, g, g_state))
        )
        for name, start in terms.items()
    }
    for name, needed in (("o", ("q'", "k'", "v'")), ("state", ("k'", "v'"))):
        if name not in own.cotangents:
            continue
        yield evidence.relate(
            f"jvp.{name} - sum over inputs",
            lambda tangent, *terms: tangent - _sum(terms),
            [(evidence, JVP, f"jvp.{name}"), *((calls[each], FORWARD, name) for each in needed)],
            scale=lambda tangent, *terms: torch.maximum(tangent.abs(), torch.stack(terms).abs().amax(0)),
        )


def _sum(terms: tuple[Tensor, ...]) -> Tensor:
    return sum(terms[1:], terms[0])


@property(needs=(HVP,), applies=small_enough, one_in=4, rank=5)
def the_hessian_has_no_diagonal(evidence: Evidence) -> Iterator[Finding]:
    """Along a tangent of one input alone, the Hessian product of that input is exactly 0.

    Holds because: <g, o> + <state, g_state> is linear in each of q, k, v and S0: no second derivative within one.
    Catches: tangents crossed between inputs, a Hessian product that adds the VJP, memory that is not cleared.
    Cannot catch: errors off the diagonal; hvp_matches_the_oracle does.
    """
    for name in evidence.sample.inputs:
        along = {n: torch.zeros_like(t) for n, t in evidence.sample.tangents.items() if n != name}
        alone = evidence.variant(f"tangent of {name} alone", instead(evidence.sample.with_tangents(**along)))
        own = hvp_name(name)
        yield zeros(alone, own, f"{own} along {name}")


@property(needs=(VJP, HVP), applies=small_enough, one_in=4, rank=3)
def central_differences_of_the_vjp_are_exact(evidence: Evidence) -> Iterator[Finding]:
    """(VJP(x + h t) - VJP(x - h t)) / 2h is the HVP along t to rounding, for a step h of any size.

    Holds because: the VJP is quadratic in all inputs together, and a central difference of a quadratic function is its
    derivative: there is no truncation. Inputs and tangents are rounded to a grid so coarse that x + h t and x - h t are
    representable exactly; h is a power of two from far below 1 to far above, by the seed of the case.
    Catches: any nonlinearity: a clamp, a normaliser, a kernel map on q or k, statistics kept from another point; an HVP
    that lacks a term.
    Cannot catch: a wrong map that is multilinear too; vjp_matches_the_oracle does.
    """
    bits, longest = GRIDS[evidence.case.dtype]
    step = 2.0 ** int(hashing.integers(evidence.case.seed, "step", 1, -longest, longest + 1)[0])
    middle = evidence.variant("on a grid", lambda s: _on_a_grid(s, bits))
    ends = [evidence.variant(f"on a grid, a step of {h:g}", instead(_moved(middle.sample, h))) for h in (step, -step)]
    for sign, end in zip((1, -1), ends, strict=True):
        for name, tensor in end.sample.inputs.items():
            x, t = (getattr(middle.sample, group)[name].double() for group in ("inputs", "tangents"))
            if not bool((tensor.double() == x + sign * step * t).all()):
                yield not_checked(cotangent_name(name), f"{name} + h t is not exactly representable")
                return
    if bits < CONTINUOUS_BITS:
        for each in (middle, *ends):
            each.continuous = False
    for name in middle.sample.inputs:
        gradient = cotangent_name(name)
        yield balanced(
            f"difference of {gradient} by a step of {step:g}",
            [(ends[0], VJP, gradient), (ends[1], VJP, gradient), (middle, HVP, f"hvp.{name}")],
            lambda up, down, product: ((up - down) / (2 * step), product),
        )


def _on_a_grid(sample: Sample, bits: int) -> Sample:
    """Inputs with so many bits below the largest element, and tangents with as many below the same power of two."""
    own = plain(sample)
    inputs = {name: _rounded(t, bits, 0) for name, t in own.inputs.items()}
    tangents = {name: _rounded(t, bits, _exponent(inputs[name]) - _exponent(t)) for name, t in own.tangents.items()}
    return own.with_inputs(**inputs).with_tangents(**tangents)


def _exponent(tensor: Tensor) -> int:
    return math.frexp(float(tensor.double().abs().max()))[1]


def _rounded(tensor: Tensor, bits: int, up: int) -> Tensor:
    """A multiple of a power of two, ``bits`` below that above the largest element, times 2^up."""
    exponent = _exponent(tensor)
    units = torch.round(tensor.double() * 2.0 ** (bits - exponent))
    return (units * 2.0 ** (exponent - bits + up)).to(tensor.dtype)


def _moved(sample: Sample, step: float) -> Sample:
    """The sample a step further along its tangents, rounded to the dtype."""
    return sample.with_inputs(
        **{n: (t.double() + step * sample.tangents[n].double()).to(t.dtype) for n, t in sample.inputs.items()}
    )


MULTILINEARITY = (
    doubling_one_input_doubles_what_is_linear_in_it,
    no_gradient_depends_on_its_own_input,
    the_jvp_is_the_sum_over_inputs,
    the_hessian_has_no_diagonal,
    central_differences_of_the_vjp_are_exact,
)
