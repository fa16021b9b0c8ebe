"""Truth: the true tensors of a derivative on a sample, from whichever reading is accurate enough, with their accuracy.

Graphs are traced once per shape, options and derivative, and kept.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.model.contract import Contract
from gradoracle.model.derivative import Derivative, as_tuple, program
from gradoracle.model.dims import solved
from gradoracle.model.errors import out_of_memory
from gradoracle.model.family import Family
from gradoracle.model.formats import FORMATS
from gradoracle.model.signature import TensorSpec, cotangent_name, hvp_name, jvp_name
from gradoracle.oracle.exact import float64
from gradoracle.oracle.exact.definition import Undefined, differentiating, require, transformed, untraceable
from gradoracle.oracle.exact.enclosure import Enclosure, Expansion
from gradoracle.oracle.exact.graph import Graph, UnsupportedOperator
from gradoracle.oracle.exact.interpretation import TooLarge
from gradoracle.oracle.exact.recurrence import detaches
from gradoracle.oracle.exact.trace import differentiated, recurrent, trace
from gradoracle.oracle.rounding import reading
from gradoracle.oracle.rounding.quantity import FAR
from gradoracle.oracle.rounding.reading import Budget
from gradoracle.oracle.rounding.rounding_model import half_spacing
from gradoracle.oracle.scalable import Scalable

GRAPHS_KEPT = 64
OPERATIONS = 40_000_000  # on single numbers, that an exact reading may take
DEFINITION = "definition"  # of an algorithm: a program in the place of the definition, whose derivatives are taken
TRUTH_SHARE = 1 / 16  # the truth's own error against the kernel's sigma
_NOTHING = 1e-300  # an error that no dtype shows


class Unread(Exception):
    """No reading gives this truth here; the message says why in one sentence."""


@dataclass(frozen=True)
class Truth:
    """One true tensor: ``value`` (float64, on the CPU), accurate to ``radius``; ``undecided`` elements are unknown.

    ``exact`` holds more digits than ``value`` if the reading has them.
    """

    value: Tensor
    radius: Tensor
    reading: str
    exact: Expansion | None = None
    undecided: Tensor | None = None

    def error(self, got: Tensor) -> Tensor:
        """``got - truth`` in float64, from all known digits."""
        if self.exact is not None:
            return self.exact.error(got)
        return got.detach().to("cpu", torch.float64) - self.value


def names(family: Family, derivative: Derivative, sample: Sample) -> tuple[str, ...]:
    """The names of the tensors of a derivative: ``o``; ``dq``; ``jvp.o``; ``hvp.q``."""
    primals = [spec.name for spec in family.signature.primals if spec.name in sample.inputs]
    outputs = [spec.name for spec in family.signature.returned(sample.options)]
    return {
        Derivative.FORWARD: tuple(outputs),
        Derivative.VJP: tuple(map(cotangent_name, primals)),
        Derivative.JVP: tuple(map(jvp_name, outputs)),
        Derivative.HVP: tuple(map(hvp_name, primals)),
    }[derivative]


def tensor_of(family: Family, name: str) -> TensorSpec:
    """The output or input whose dims and dtype a tensor of a derivative has; a spec without dims for other names."""
    own = name.split(".")[-1]
    for spec in (*family.signature.outputs, *family.signature.inputs):
        if spec.name == own or cotangent_name(spec.name) == own:
            return spec
    return TensorSpec(name, ())


class Oracle:
    """The readings of one family's definition; the latest ``graphs`` graphs are kept."""

    def __init__(self, family: Family, reading: str = "auto", graphs: int = GRAPHS_KEPT) -> None:
        self.family, self.reading, self.graphs = family, reading, graphs
        self._graphs: OrderedDict[Any, Graph] = OrderedDict()

    def at(self, present: Container[str]) -> Oracle:
        """The oracle of those cases that have these dims (``Family.at``); graphs are shared."""
        family = self.family.at(present)
        if family is self.family:
            return self
        found = copy.copy(self)
        found.family = family
        return found

    def has(self, algorithm: str, derivative: Derivative) -> bool:
        """Whether a named algorithm has budgets of its own for a derivative; else the definition's are used."""
        programs, own = self.family.algorithms.get(algorithm, {}), self.family.scalable
        if own is not None and algorithm in own.algorithms:
            return True
        own_forward = derivative is Derivative.FORWARD and Derivative.VJP.value in programs
        return DEFINITION in programs or derivative.value in programs or own_forward

    def scalable(self, sample: Sample) -> Scalable | None:
        """The oracle that reads this sample without a graph; None if the definition is traced."""
        own: Scalable | None = self.family.scalable
        return own if own is not None and own.serves(sample) else None

    def graph(self, sample: Sample, derivative: Derivative, algorithm: str = "definition") -> Graph:
        """The traced program of a derivative (or of an algorithm's) at the sample's shapes.

        Raises:
            Undefined: the definition raises, contradicts its annotations, or cannot be traced.
        """
        args = arguments(self.family, sample, derivative)
        fixed = {n: t for n, t in sample.inputs.items() if not t.is_floating_point()}
        key = (
            derivative,
            algorithm,
            tuple(sample.inputs),  # two optional inputs may have one shape
            tuple(tuple(a.shape) for a in args),
            tuple(sorted((n, t.cpu().numpy().tobytes()) for n, t in fixed.items())),
            repr(sorted(sample.options.items(), key=lambda item: item[0])),
        )
        if key not in self._graphs:
            self._graphs[key] = self._traced(sample, derivative, algorithm, args)
            while len(self._graphs) > self.graphs:
                self._graphs.popitem(last=False)
        self._graphs.move_to_end(key)
        return self._graphs[key]

    def _traced(
        self, sample: Sample, derivative: Derivative, algorithm: str, args: Sequence[Tensor], truth: bool = True
    ) -> Graph:
        other = self.family.algorithms.get(algorithm, {}).get(DEFINITION)
        if other is not None:
            instead = Oracle(replace(self.family, definition=other, algorithms={}, scalable=None))
            return instead._traced(sample, derivative, DEFINITION, args, truth=False)
        try:
            with differentiating(self.family):
                if self.has(algorithm, derivative):
                    return trace(self._program(sample, derivative, algorithm), *args)
                if derivative is not Derivative.FORWARD:
                    source = self.graph(sample, Derivative.FORWARD).source
                    if truth and derivative is Derivative.HVP and source is not None and detaches(source):
                        raise Undefined(
                            f"the definition of {self.family.name} has a detach in the step of a scan or loop, of "
                            "which no second derivative is read; leave it out (a stabiliser cancels without it), or "
                            "claim forward and vjp alone"
                        )
                    if source is not None:
                        return differentiated(program(source, derivative, len(source.inputs)), *args)
                own = self._program(sample, derivative, algorithm)
                found = recurrent(own, *args) if derivative is Derivative.FORWARD else None
                return trace(own, *args) if found is None else found
        except Exception as error:
            if out_of_memory(error):
                raise
            if self.has(algorithm, derivative):
                raise untraceable(f"the algorithm {algorithm!r} of {self.family.name}", error, self.family) from error
            require(self.family, sample)  # an error on plain tensors is clearer
            raise

    def budgets(
        self,
        sample: Sample,
        derivative: Derivative,
        contract: Contract,
        *,
        algorithm: str = "definition",
        worst: bool = False,
        probes: int = 16,
    ) -> dict[str, Budget]:
        """The budget of each tensor of a derivative; for the VJP those of the outputs, too."""
        stored = self._formats(sample, derivative, contract)
        own = self.family.scalable
        served = own is not None and (own.serves(sample) or own.budgeted(contract))
        if own is not None and (algorithm in own.algorithms or (served and not self.has(algorithm, derivative))):
            return own.budgets(
                sample, derivative, contract, stored=stored, probes=probes, worst=worst, algorithm=algorithm
            )
        groups = _groups(self.family, sample, derivative)
        found = reading.budgets(
            self.graph(sample, derivative, algorithm),
            arguments(self.family, sample, derivative),
            contract,
            probes=probes,
            worst=worst,
            output_dtypes=list(stored.values()),
            input_dtypes=[spec.held(contract.dtype) for specs, _ in groups for spec in specs],
        )
        return dict(zip(stored, found, strict=True))

    def truth(
        self, sample: Sample, derivative: Derivative, budgets: Mapping[str, Budget], contract: Contract
    ) -> dict[str, Truth]:
        """The truth of each tensor of a derivative, accurate to a sixteenth of the kernel's sigma or marked undecided.

        Raises:
            Unread: the chosen reading is not available (python-flint missing, too many operations).
        """
        if (own := self.scalable(sample)) is not None:
            found = self._scaled(own, sample, derivative, budgets, contract)
            if found is not None:
                return found
        args, graph = arguments(self.family, sample, derivative), self.graph(sample, derivative)
        stored = self._formats(sample, derivative, contract)
        truths = self.read(graph, args, [budgets[name] for name in stored], contract, list(stored.values()))
        return dict(zip(stored, truths, strict=True))

    def confirmed(
        self, sample: Sample, derivative: Derivative, algorithm: str, budgets: Mapping[str, Budget], contract: Contract
    ) -> dict[str, Truth] | None:
        """The float64 reading of the definition, with a radius that follows from an algorithm for the same values.

        ``budgets`` are the algorithm's. Its float64 value errs by at most its own sigma in units of float64, and the
        definition's by no more than that plus the distance of the two. None if another reading is chosen, or if this
        radius is not far within the kernel's sigma: then the definition itself needs a budget.
        """
        if not self.has(algorithm, derivative) or self.scalable(sample) or self._reading(contract) != "float64":
            return None
        found = {}
        stored = self._formats(sample, derivative, contract)
        within = float64.Range()
        graph, args = self.graph(sample, derivative), arguments(self.family, sample, derivative)
        values = float64.read(graph, args, within=within)
        if within.left:
            return None
        for name, value in zip(stored, values, strict=True):
            budget = budgets[name]
            apart = torch.where(value == budget.value, 0.0, (value - budget.value).abs())  # infinities are equal
            apart = torch.where(value.isnan() & budget.value.isnan(), 0.0, apart)
            radius = apart + _float64_radius(budget, contract, stored[name])
            if not bool((radius <= TRUTH_SHARE * budget.sigma).all()):
                return None
            found[name] = Truth(value, radius, "float64")
        return found

    def read(
        self,
        graph: Graph,
        args: Sequence[Tensor],
        budgets: Sequence[Budget],
        contract: Contract,
        stored: Sequence[str] | None = None,
    ) -> list[Truth]:
        """The truth of each output of any graph, by the chosen reading.

        ``stored``: the format that a kernel stores each output in; default the contract's ``output``.

        Raises:
            Unread: that reading is not available (python-flint missing, too many operations).
        """
        reading = self._reading(contract)
        if reading == "float64":
            formats = [contract.output] * len(budgets) if stored is None else stored
            within = float64.Range()
            values = float64.read(graph, args, within=within)
            if within.left:
                return self._beyond_float64(graph, args, budgets, within)
            return [
                Truth(value, _float64_radius(budget, contract, held), "float64")
                for value, budget, held in zip(values, budgets, formats, strict=True)
            ]
        from gradoracle.oracle.exact import certified, multiprecision

        widest = [budget.sigma * TRUTH_SHARE for budget in budgets]
        try:
            if reading == "certified":
                if missing := certified.unavailable():
                    raise Unread(missing)
                balls = certified.certify(graph, args, widest, operations=OPERATIONS)
                return [Truth(ball.high, ball.radius, reading, ball, ball.undecided) for ball in balls]
            settled = multiprecision.settle(graph, args, widest, operations=OPERATIONS)
            return [Truth(number.high, number.spread, reading, number, number.unsettled) for number in settled]
        except TooLarge as error:
            raise Unread(str(error)) from None

    def raised(self, sample: Sample, derivative: Derivative, budgets: Mapping[str, Budget]) -> dict[str, Truth] | None:
        """The truth of a derivative where the definition leaves float64; None where it does not.

        Raises:
            Unread: it cannot be certified, or float64 was asked for.
        """
        if self.scalable(sample) is not None:
            return None
        graph, args = self.graph(sample, derivative), arguments(self.family, sample, derivative)
        within = float64.Range()
        float64.read(graph, args, within=within)
        if not within.left:
            return None
        known = self.outputs(sample, derivative)
        truths = self._beyond_float64(graph, args, [budgets[name] for name in known], within)
        return dict(zip(known, truths, strict=True))

    def _beyond_float64(
        self, graph: Graph, args: Sequence[Tensor], budgets: Sequence[Budget], within: float64.Range
    ) -> list[Truth]:
        """The certified truth of a graph whose values leave float64, undecided where there is no budget.

        A budget is computed in float64: it is lost where it depends on a number beyond, or its own value is not the
        truth.

        Args:
            graph, args: of the reading.
            budgets: of the outputs.
            within: where they leave float64.

        Raises:
            Unread: it cannot be certified, float64 was asked for, or no budget is left.
        """
        from gradoracle.oracle.exact import certified

        leaves = f"the definition leaves the range of float64 ({within.left})"
        if self.reading == "float64":
            raise Unread(f"{leaves}; --oracle auto reads it in balls")
        if missing := certified.unavailable():
            raise Unread(f"{leaves}; {missing}")

        inf = torch.tensor(math.inf, dtype=torch.float64)

        def widest(balls: Sequence[Enclosure]) -> list[Tensor]:
            known = zip(balls, budgets, strict=True)
            return [torch.where(_is_of(b, ball), (b.sigma * TRUTH_SHARE).clamp_min(_NOTHING), inf) for ball, b in known]

        try:
            balls = certified.certify(graph, args, widest, operations=OPERATIONS)
        except (TooLarge, UnsupportedOperator) as error:
            raise Unread(f"{leaves}, and {error}") from None
        lost = reading.tainted(graph, args, {node: [(None, made)] for node, made in within.made.items()})
        unknown = [
            ball.undecided | ~_is_of(budget, ball) | (False if mask is None else mask)
            for ball, budget, mask in zip(balls, budgets, lost, strict=True)
        ]
        if all(bool(each.all()) for each in unknown):
            raise Unread(f"{leaves}, and so does every budget")
        return [
            Truth(ball.high, ball.radius, "certified", ball, each) for ball, each in zip(balls, unknown, strict=True)
        ]

    def _reading(self, contract: Contract) -> str:
        if self.reading != "auto":
            return self.reading
        return "certified" if contract.dtype == "float64" else "float64"

    def _scaled(
        self, own: Scalable, sample: Sample, derivative: Derivative, budgets: Mapping[str, Budget], contract: Contract
    ) -> dict[str, Truth] | None:
        """The truth without a graph; None if the chosen reading needs a graph and the sample can be traced.

        Raises:
            Unread: the sample cannot be traced and the family has no such reading.
        """
        reading, found = self._reading(contract), None
        if reading == "float64":
            values, stored = own.values(sample, derivative), self._formats(sample, derivative, contract)
            return {n: Truth(x, _float64_radius(budgets[n], contract, stored[n]), reading) for n, x in values.items()}
        if reading == "certified":
            found = own.certified(sample, derivative)
        if found is not None:
            wide = {n: ball.radius > budgets[n].sigma * TRUTH_SHARE for n, ball in found.items()}
            return {n: Truth(ball.high, ball.radius, reading, ball, wide[n]) for n, ball in found.items()}
        if own.outgrown(dims_of(self.family, sample)):
            raise Unread(f"{self.family.name} has no {reading} reading of the {derivative.value} at these sizes")
        return None

    def outputs(self, sample: Sample, derivative: Derivative) -> tuple[str, ...]:
        """The names of the outputs of a derivative's graph: for the VJP the outputs come before the gradients."""
        own = names(self.family, derivative, sample)
        return (*names(self.family, Derivative.FORWARD, sample), *own) if derivative is Derivative.VJP else own

    def _formats(self, sample: Sample, derivative: Derivative, contract: Contract) -> dict[str, str]:
        """By name: the format in which a kernel stores each output of a derivative's graph."""
        specs = {name: tensor_of(self.family, name) for name in self.outputs(sample, derivative)}
        return {name: spec.held(contract.dtype) if spec.dtype else contract.output for name, spec in specs.items()}

    def _program(self, sample: Sample, derivative: Derivative, algorithm: str) -> Callable[..., tuple[Tensor, ...]]:
        if self.has(algorithm, derivative):
            own = self.family.algorithms[algorithm].get(derivative.value)
            if own is not None:
                return lambda *args: as_tuple(own(*args, **sample.options))
            vjp = self.family.algorithms[algorithm][Derivative.VJP.value]  # which gives the outputs first
            zeros = [torch.zeros(t.shape, dtype=torch.float64) for t in sample.cotangents.values()]
            return lambda *args: as_tuple(vjp(*args, *zeros, **sample.options))[: len(zeros)]
        order = [spec for spec in self.family.signature.inputs if spec.name in sample.inputs]
        fixed = {position: sample.inputs[spec.name].cpu() for position, spec in enumerate(order) if spec.kind == "int"}

        def definition(*inputs: Tensor) -> tuple[Tensor, ...]:
            given = {spec.name: t for t, spec in zip(inputs, order, strict=True)}
            return transformed(self.family, given, sample.options)

        primals = sum(spec.kind == "float" for spec in order)
        return program(definition, derivative, primals, constants=fixed)


def dims_of(family: Family, sample: Sample) -> dict[str, int]:
    """The sizes of the named dims, as far as tensors show them."""
    found: dict[str, int] = {}
    for spec in family.signature.inputs:
        shape = sample.inputs[spec.name].shape if spec.name in sample.inputs else [0] * len(spec.dims)
        for dim, size in zip(spec.dims, shape, strict=True):
            if size and (known := solved(dim, int(size))) is not None:  # T+1 says what T is
                found.setdefault(*known)
    return found


def arguments(family: Family, sample: Sample, derivative: Derivative) -> list[Tensor]:
    """The sample's tensors as float64 on the CPU, in the order of ``derivative.program``."""
    groups = _groups(family, sample, derivative)
    tensors = [group[spec.name] for specs, group in groups for spec in specs]
    return [t.detach().to("cpu", torch.float64).contiguous() for t in tensors]


def _groups(
    family: Family, sample: Sample, derivative: Derivative
) -> list[tuple[Sequence[TensorSpec], Mapping[str, Tensor]]]:
    """Primals, tangents and cotangents as far as a derivative takes them: specs in order, and tensors by name."""
    primals = [spec for spec in family.signature.primals if spec.name in sample.inputs]
    found: list[tuple[Sequence[TensorSpec], Mapping[str, Tensor]]] = [(primals, sample.inputs)]
    found += [(primals, sample.tangents)] if derivative.takes_tangents else []
    outputs = family.signature.returned(sample.options)
    return found + ([(outputs, sample.cotangents)] if derivative.takes_cotangents else [])


def _float64_radius(budget: Budget, contract: Contract, stored: str) -> Tensor:
    """The error of the float64 reading itself, at one sigma.

    Rounding errors are first order in the unit roundoff. Every rounding of the float64 reading is one that the
    contract has too, with a unit at least as large as that of its finest type; so float64 errs by at most the
    contract's sigma times the ratio of the units (docs/background/budgets.md; calibrated against certified balls).
    If a kernel computes in float64 and stores a narrower format, its sigma is nearly all storage, which the reading
    does not have.
    """
    finest = FORMATS["float64"].unit_roundoff
    ratio = finest / min(FORMATS[t].unit_roundoff for t in (contract.accumulate, contract.elementwise))
    if ratio < TRUTH_SHARE or FORMATS[stored].unit_roundoff == finest:
        return budget.sigma * ratio
    step = torch.where(budget.value.isfinite(), half_spacing(budget.value.abs(), FORMATS[stored].unit_roundoff), 0.0)
    return (budget.sigma.square() - step.square() / 3).clamp_min(0.0).sqrt() * ratio


def _is_of(budget: Budget, ball: Enclosure) -> Tensor:
    """Where a budget is that of the truth: its own value, in float64, is no further from it than rounding explains."""
    same = (budget.value == ball.high) | (budget.value.isnan() & ball.high.isnan() & (ball.radius == 0))
    return same | ((budget.value - ball.high).abs() <= FAR * budget.sigma + _NOTHING)
