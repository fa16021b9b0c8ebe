"""The definition of the gated delta rule: right in each derivative, by a loop and by mpmath, alike in every reading."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from gradoracle.properties.gated_delta import FAMILY
from gradoracle.properties.gated_delta.definition import gated_delta
from mpmath import mp, mpf
from sweeps import covering
from torch import Tensor

from gradoracle.cases.sample import Sample, build
from gradoracle.model.case import parse
from gradoracle.model.contract import PRESETS
from gradoracle.model.derivative import Derivative, program
from gradoracle.oracle.truth import Oracle, arguments
from tests.kernels.gated_delta.recurrence import loop
from tests.properties.gated_delta.delta_rule import ORACLE
from tests.properties.gated_delta.hyperdual import Hyperdual

FORGET = "rows that forget all"  # g of -inf, which no recipe gives
CASES = {
    "plain": "",
    "initial state": "initial_state~normal",
    "state asked for": "--return_state=true",
    "both states": "--return_state=true initial_state~normal",
    "own scale": "--return_state=true initial_state~normal --scale=0.3",
    "no decay": "g~constant:0 --return_state=true initial_state~normal",
    "beta 0": "beta~constant:-1e30 --return_state=true initial_state~normal",
    FORGET: "--return_state=true initial_state~normal",
}
SIZES, SMALL = "B=2 H=2 T=9 D=3 Dv=2", "B=1 H=1 T=4 D=2 Dv=2"
CLOSE = 1e-12  # of the largest element: thousands of roundings of float64
Definition = Callable[..., Any]


def sample(case: str, sizes: str = SIZES) -> Sample:
    """Inputs, tangents and cotangents of a case in float64."""
    words = f"case:1 gated_delta cpu float32 {sizes} {CASES[case]} seed=1"
    own = build(parse(words)[2], FAMILY.signature, domains=FAMILY.domains)
    own = own.map(Tensor.double)
    if case == "beta 0":
        assert not own.inputs["beta"].any()
    if case != FORGET:
        return own
    g = own.inputs["g"].clone()
    g[:, :, [1, 2]] = -torch.inf
    return own.with_inputs(g=g)


def results(definition: Definition, own: Sample, derivative: Derivative) -> Sequence[Tensor]:
    """A derivative of a definition, by ``torch.func``: outputs come before the gradients of the VJP."""
    given = tuple(own.inputs)

    def call(*tensors: Tensor) -> Any:
        return definition(**dict(zip(given, tensors, strict=True)), **own.options)

    return program(call, derivative, len(given))(*arguments(FAMILY, own, derivative))


def of_loop(**given: Any) -> Any:
    """The loop of the kernel's tests, with the definition's arguments."""
    wanted, scale = given.pop("return_state"), given.pop("scale", None)
    q, v = given["q"], given["v"]
    initial = given.pop("initial_state", None)
    start = q.new_zeros(*q.shape[:2], q.shape[3], v.shape[3]) if initial is None else initial
    o, state = loop(*given.values(), start, q.shape[3] ** -0.5 if scale is None else scale)
    return (o, state) if wanted else o


def differing(found: Sequence[Tensor], expected: Sequence[Tensor]) -> list[int]:
    """The numbers of the tensors that are no numbers, or not those expected."""
    assert [x.shape for x in found] == [x.shape for x in expected]
    pairs = zip(found, expected, strict=True)
    within = [bool(((a - b).abs() <= CLOSE * max(1.0, float(b.abs().max()))).all()) for a, b in pairs]
    return [number for number, same in enumerate(within) if not same]


EVERY = covering(itertools.product(CASES, Derivative))


@pytest.mark.parametrize(("case", "derivative"), EVERY)
def test_each_derivative_is_that_of_a_loop(case: str, derivative: Derivative) -> None:
    own = sample(case)
    expected = results(of_loop, own, derivative)
    assert all(x.isfinite().all() for x in expected)
    traced = ORACLE.graph(own, derivative)(*arguments(FAMILY, own, derivative))
    for found in (results(gated_delta, own, derivative), traced):
        assert differing(found, expected) == []


class Rule:
    """The rule term by term in mpmath, one sequence, on numbers that know their derivatives."""

    def __init__(self, own: Sample) -> None:
        self.own, self.names = own, tuple(own.inputs)
        self.features, self.values = own.inputs["k"].shape[3], own.inputs["v"].shape[3]
        given = own.options.get("scale")
        self.scale = 1 / mp.sqrt(self.features) if given is None else mpf(given)

    def __call__(self, inputs: Mapping[str, list[Hyperdual]]) -> list[Hyperdual]:
        """All elements of o and, where it is asked for, of the state."""
        width, columns = self.features, self.values
        none = [Hyperdual(mpf(0))] * (width * columns)
        initial = inputs.get("initial_state", none)
        state = [initial[d * columns : (d + 1) * columns] for d in range(width)]
        found = []
        for t, (g, beta) in enumerate(zip(inputs["g"], inputs["beta"], strict=True)):
            q, k = (inputs[name][t * width : (t + 1) * width] for name in ("q", "k"))
            v = inputs["v"][t * columns : (t + 1) * columns]
            for e in range(columns):
                old = [g.exp() * state[d][e] for d in range(width)]
                update = beta * (v[e] - total(a * b for a, b in zip(k, old, strict=True)))
                for d in range(width):
                    state[d][e] = old[d] + k[d] * update
                read = total(q[d] * state[d][e] for d in range(width))
                found.append(Hyperdual(self.scale) * read)
        return found + ([x for line in state for x in line] if self.own.options["return_state"] else [])

    def at(self, moved: Mapping[str, Tensor], along: tuple[str, int] | None = None) -> list[Hyperdual]:
        """Its elements at the inputs, moved along tangents first and along one input's element second."""
        given = {}
        for name, tensor in self.own.inputs.items():
            first = moved[name].flatten().tolist() if moved else [0.0] * tensor.numel()
            given[name] = [
                Hyperdual(mpf(x), mpf(step), mpf((name, i) == along))
                for i, (x, step) in enumerate(zip(tensor.flatten().tolist(), first, strict=True))
            ]
        return self(given)

    def results(self, derivative: Derivative) -> list[Tensor]:
        """A derivative, as the definition's program gives it."""
        moved = self.own.tangents if derivative.takes_tangents else {}
        if not derivative.takes_cotangents:
            found = self.at(moved)
            return self.outputs([x.value if derivative is Derivative.FORWARD else x.first for x in found])
        weights = [mpf(g) for each in self.own.cotangents.values() for g in each.flatten().tolist()]
        gradients = []
        for name, tensor in self.own.inputs.items():
            own = []
            for i in range(tensor.numel()):
                reached = self.at(moved, (name, i))
                slopes = [x.second if derivative is Derivative.VJP else x.both for x in reached]
                own.append(float(sum(g * slope for g, slope in zip(weights, slopes, strict=True))))
            gradients.append(torch.tensor(own, dtype=torch.float64).reshape(tensor.shape))
        return gradients if derivative is Derivative.HVP else self.results(Derivative.FORWARD) + gradients

    def outputs(self, elements: Sequence[mpf]) -> list[Tensor]:
        """The outputs that these are the elements of."""
        shapes = [each.shape for each in self.own.cotangents.values()]
        found, left = [], torch.tensor([float(x) for x in elements], dtype=torch.float64)
        for shape in shapes:
            found.append(left[: shape.numel()].reshape(shape))
            left = left[shape.numel() :]
        return found


def total(terms: Any) -> Hyperdual:
    """The sum of numbers."""
    return sum(terms, Hyperdual(mpf(0)))


@pytest.mark.parametrize(("case", "derivative"), EVERY)
def test_each_derivative_is_that_of_its_terms_in_mpmath(case: str, derivative: Derivative) -> None:
    own = sample(case, SMALL)
    with mp.workdps(40):
        expected = Rule(own).results(derivative)
    assert differing(results(gated_delta, own, derivative), expected) == []
    assert all(float(each.abs().max()) > 1e-3 for each in expected if case == "both states"), "something is compared"


def _of_the_rows_before(**given: Any) -> Any:
    """o of all rows, with the state before the last."""
    o, _ = gated_delta(**given)
    rows = {name: given[name][:, :, :-1] for name in ("q", "k", "v", "g", "beta")}
    return o, gated_delta(**{**given, **rows})[1]


def _from_sums(**given: Any) -> Any:
    """Decays as differences of their sums, which are no numbers after a row that forgets all."""
    sums = given["g"].cumsum(2)
    return gated_delta(**{**given, "g": torch.cat([sums[:, :, :1], sums[:, :, 1:] - sums[:, :, :-1]], 2)})


def _with(**changed: Callable[[Tensor], Any]) -> Definition:
    """The definition of changed arguments."""
    return lambda **given: gated_delta(**{**given, **{name: change(given[name]) for name, change in changed.items()}})


# what is wrong: the definition, a case that shows it, the derivatives that do
WRONG: dict[str, tuple[Definition, str, Sequence[Derivative]]] = {
    "decays in base 2": (_with(g=lambda g: 0.6931471805599453 * g), "plain", tuple(Derivative)),
    "beta twice": (_with(beta=lambda beta: beta * beta), "plain", tuple(Derivative)),
    "no scale": (_with(q=lambda q: q * 3**0.5), "plain", tuple(Derivative)),
    "no initial state": (_with(initial_state=lambda _: None), "initial state", (Derivative.FORWARD,)),
    "a state of the rows before": (_of_the_rows_before, "both states", tuple(Derivative)),
    "beta is no input": (_with(beta=lambda b: b.detach()), "plain", (Derivative.VJP, Derivative.JVP, Derivative.HVP)),
    "the initial state is no input": (
        _with(initial_state=lambda s: s.detach()), "both states", (Derivative.VJP, Derivative.JVP, Derivative.HVP),
    ),
    "at least half is left": (_with(g=lambda g: g.clamp_min(-0.7)), FORGET, tuple(Derivative)),
    "decays from sums": (_from_sums, FORGET, tuple(Derivative)),
    "a little is written at beta 0": (_with(beta=lambda b: b.clamp_min(1e-9)), "beta 0", (Derivative.FORWARD,)),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_definition_differs_where_the_right_one_does_not(what: str) -> None:
    wrong, case, derivatives = WRONG[what]
    own, small = sample(case), sample(case, SMALL)
    for derivative in derivatives:
        by_loop = results(of_loop, own, derivative)
        with mp.workdps(40):
            by_terms = Rule(small).results(derivative)
        for each, expected in ((own, by_loop), (small, by_terms)):
            assert differing(results(gated_delta, each, derivative), expected) == []
            assert differing(results(wrong, each, derivative), expected) != [], derivative


def test_what_forgets_all_has_no_gradient() -> None:
    own = sample(FORGET)
    for derivative in (Derivative.VJP, Derivative.HVP):
        dg = results(gated_delta, own, derivative)[-3]
        assert dg.shape == own.inputs["g"].shape
        assert not dg[:, :, [1, 2]].any() and dg[:, :, 3:].any()


@pytest.mark.parametrize("reading", ["certified", "mpmath"])
@pytest.mark.parametrize("derivative", list(Derivative))
@pytest.mark.parametrize("case", ["plain", "both states", "beta 0", FORGET])
def test_the_readings_agree(case: str, derivative: Derivative, reading: str) -> None:
    own, contract = sample(case, "B=1 H=2 T=7 D=3 Dv=2"), PRESETS["ieee32"]
    budgets = ORACLE.budgets(own, derivative, contract, algorithm="definition", worst=False, probes=4)
    one, other = (o.truth(own, derivative, budgets, contract) for o in (ORACLE, Oracle(FAMILY, reading)))
    assert {truth.reading for truth in other.values()} == {reading}
    for name, truth in one.items():
        undecided = other[name].undecided
        assert truth.value.isfinite().all() and (undecided is None or not undecided.any())
        assert torch.allclose(truth.value, other[name].value, rtol=1e-13, atol=1e-13), name


def test_an_oracle_of_a_wrong_definition_is_told_from_the_right_one() -> None:
    own, contract = sample("plain"), PRESETS["ieee32"]

    def squared(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: Any) -> Any:
        return gated_delta(q, k, v, g, beta * beta, **options)

    wrong = Oracle(replace(FAMILY, definition=squared, algorithms={}))
    for derivative in Derivative:
        budgets = ORACLE.budgets(own, derivative, contract, algorithm="definition", worst=False, probes=4)
        right, other = (each.truth(own, derivative, budgets, contract) for each in (ORACLE, wrong))
        assert any(bool(((right[n].value - other[n].value).abs() > right[n].radius).any()) for n in right)
