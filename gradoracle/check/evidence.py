"""Evidence: what one kernel did on one sample and its variants, each computed once and shared by all properties."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.acceptance import Allowance, judge, not_checked
from gradoracle.check.error_relation import PROBES, Part, related
from gradoracle.check.spread import typical
from gradoracle.execution.kernel_runner import KernelRunner, Shapes, Tensors
from gradoracle.model.call import Facts, Held
from gradoracle.model.call_errors import Detached, NoDerivative, Refused, Unavailable, wrong
from gradoracle.model.case import Case
from gradoracle.model.contract import Contract, tried_on
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding, Outcome
from gradoracle.model.formats import FORMATS
from gradoracle.model.kernel import Kernel
from gradoracle.model.reason import Reason
from gradoracle.model.revealed import entry_of
from gradoracle.oracle.exact.trace import trace
from gradoracle.oracle.rounding import reading
from gradoracle.oracle.rounding.reading import Budget
from gradoracle.oracle.truth import Oracle, Truth, Unread, dims_of, names, tensor_of

T = TypeVar("T")


@dataclass(frozen=True)
class NearestPreset:
    """The preset that violated tensors exceed least.

    Attributes:
        name: of the preset.
        beyond: the findings under it of the tensors that it does not explain; empty where it explains all.
    """

    name: str
    beyond: tuple[Finding, ...]

    @property
    def error(self) -> float:
        """The largest error / budget."""
        return max((finding.error for finding in self.beyond), default=0.0)


class Evidence:
    """One kernel on one sample; everything is computed at first use and kept, errors included.

    Attributes:
        case: the case that the sample was built from.
        sample: the tensors; those of a variant differ from the case.
        subject: the kernel with the guard around its calls.
        oracle: the readings of the family's definition.
        blocks: the block configuration that is forced, "" for the kernel's own choice.
        is_variant: whether the sample is a variant of the case's.
        needs: the derivatives that the property being judged declares (``Property.needs``); see ``under``.
    """

    def __init__(
        self,
        case: Case,
        sample: Sample,
        subject: KernelRunner,
        oracle: Oracle,
        blocks: str | None = None,
        is_variant: bool = False,
    ) -> None:
        self.case, self.subject, self.oracle = case, subject, oracle
        self._sample = sample.without_tangents(subject.kernel.no_gradient)
        self.is_variant = is_variant
        self.needs: tuple[Derivative, ...] = ()
        self.blocks = case.blocks if blocks is None else blocks
        self.continuous = case.continuous and not sample.source  # the distribution of saved values is not known
        self._kept: dict[str, object] = {}
        self._asked: dict[str, Facts] = {}

    def under(self, needs: tuple[Derivative, ...]) -> Evidence:
        """The same evidence, and what is kept of it, for a property that declares these ``needs``."""
        if needs == self.needs:
            return self
        view = copy.copy(self)
        view.needs = needs
        return view

    def made(self, **how: Any) -> Evidence:
        """Evidence on the same sample, of which nothing is known yet, by calls that are made otherwise."""
        own = self.subject.made(**how)
        return type(self)(self.case, self.sample, own, self.oracle, self.blocks, self.is_variant)

    @property
    def kernel(self) -> Kernel:
        """The kernel under test."""
        return self.subject.kernel

    @property
    def sample(self) -> Sample:
        """The tensors, with the inputs that the kernel reveals as it reveals them.

        Raises:
            Refused, Unavailable, Crashed, Wrong: the kernel does not reveal them, or what their domain excludes.
        """
        return self._once("revealed", self._revealed) if self.kernel.revealed else self._sample

    @sample.setter
    def sample(self, sample: Sample) -> None:
        self._sample = sample

    @property
    def contract(self) -> Contract:
        """The precision contract that this sample is judged under."""
        return self.kernel.contract(self.case.dtype)

    @property
    def algorithm(self) -> str:
        """The algorithm that the kernel declares for this sample: its order of roundings."""
        shapes = {name: tuple(tensor.shape) for name, tensor in self._sample.inputs.items()}
        return self.keep("algorithm", lambda: self.kernel.algorithm_of(self.case.dtype, shapes, self.blocks))

    def _revealed(self) -> Sample:
        """The sample with the inputs that the kernel reveals."""
        given, domains = self._sample.inputs, self.oracle.family.domains
        found: Tensors = {}
        for name in self.kernel.revealed:
            entry = entry_of(name)
            shapes = {name: tuple(given[name].shape)}
            tensors, self._asked[entry] = self.subject.entry(entry, self._sample, self.blocks, shapes, (), entry)
            value = tensors[name].detach().cpu()
            if not bool((value == value.round()).all()):
                raise wrong(name, f"{name}, as the kernel reveals it, holds fractions, expected integers")
            sizes = {**self.case.dims, **dims_of(self.oracle.family, self._sample)}
            if fault := domains[name].fault(value.to(torch.int64), sizes):
                raise wrong(name, f"{name}, as the kernel reveals it, {fault}")
            found[name] = value.to(given[name].dtype)
        return self._sample.with_inputs(**found)

    def forward(self) -> Tensors:
        """Outputs by name, run without gradients."""
        return self._once("forward", lambda: self.subject.forward(self.sample, self.blocks))[0]

    def vjp(self) -> Tensors:
        """Outputs and gradients by name, from one forward and backward."""
        self._require_claim(Derivative.VJP)
        return self._once("vjp", lambda: self.subject.vjp(self.sample, self.blocks))[0]

    def results(self) -> Tensors:
        """Outputs and gradients by name; the outputs alone where the kernel has or claims no gradients."""
        if not self.kernel.is_judged(Derivative.VJP):
            return self.forward()
        try:
            return self.vjp()
        except Detached:
            return self.forward()

    def jvp(self) -> Tensors:
        """Tangents of the outputs by name (``jvp.o``)."""
        self._require_claim(Derivative.JVP)
        return self._once("jvp", lambda: self.subject.jvp(self.sample, self.blocks))[0]

    def hvp(self) -> Tensors:
        """Hessian-vector products by name (``hvp.q``)."""
        self._require_claim(Derivative.HVP)
        return self._once("hvp", lambda: self.subject.hvp(self.sample, self.blocks))[0]

    def _require_claim(self, derivative: Derivative) -> None:
        """Raises NoDerivative where the kernel does not claim a derivative, though it may well have it."""
        if not self.kernel.is_judged(derivative):
            raise NoDerivative(f"the kernel does not claim {derivative.named}")

    def tensors(self, derivative: Derivative) -> Tensors:
        """The kernel's tensors of a derivative by name; for the VJP the gradients alone."""
        found: Tensors = getattr(self, derivative.value)()
        return {name: found[name] for name in self.names(derivative) if name in found}

    def by_autograd(self, derivative: Derivative) -> Tensors:
        """The tensors of a derivative by autograd, where the kernel has an explicit one, too; else none."""
        self._require_claim(derivative)
        is_beside_a_vjp = derivative is not Derivative.VJP and self.kernel.vjp is not None
        if getattr(self.kernel, derivative.value) is None or is_beside_a_vjp:
            return {}
        run = getattr(self.subject.by_autograd(), derivative.value)
        return self._once(f"{derivative.value} by autograd", lambda: run(self.sample, self.blocks))[0]

    def available(self, expected: Iterable[tuple[Derivative, str]]) -> Iterator[tuple[str, Tensor]]:
        """The kernel's tensors by name; derivatives that it lacks are skipped, since other properties report them.

        Raises:
            Refused, Unavailable: why the first is lacking, if all are.
        """
        lacking: Refused | Unavailable | None = None
        found = False
        for derivative, name in expected:
            try:
                tensor = self.tensors(derivative)[name]
            except (Refused, Unavailable) as reason:
                lacking = lacking or reason
                continue
            found = True
            yield name, tensor
        if lacking is not None and not found:
            raise lacking

    def calls(self) -> dict[str, Facts]:
        """What the calls on this sample allocated and accessed: derivatives that have run, further entry points."""
        own = [each.value for each in Derivative if self.has_run(each)]
        return {name: cast("tuple[Tensors, Facts]", self._kept[name])[1] for name in own} | self._asked

    def has_run(self, derivative: Derivative) -> bool:
        """Whether the kernel has computed that derivative of this sample already."""
        return derivative.value in self._kept and not isinstance(self._kept[derivative.value], _Raised)

    def names(self, derivative: Derivative) -> tuple[str, ...]:
        """The names of the tensors of a derivative."""
        return names(self.oracle.family, derivative, self._sample)

    @property
    def derivatives(self) -> dict[str, Derivative]:
        """The derivative that each tensor of the family belongs to, by the tensor's name."""
        return self.keep("derivatives", lambda: {name: each for each in Derivative for name in self.names(each)})

    def shapes(self, *derivatives: Derivative) -> Shapes:
        """The shapes of the tensors of some derivatives, by name."""
        return {n: shape for each in derivatives for n, shape in self.subject.shapes(each, self.sample).items()}

    def axes(self, name: str) -> tuple[str, ...]:
        """The named dims of one of those tensors."""
        return tensor_of(self.oracle.family, name).dims

    def dtype(self, name: str) -> str:
        """The dtype of one of those tensors."""
        return tensor_of(self.oracle.family, name).held(self.case.dtype)

    def entry(self, name: str, shapes: Shapes, *arguments: object, key: str = "") -> Tensors:
        """The tensors that a further entry point of the kernel gives on the sample, kept under its name and ``key``.

        Args:
            name: of the entry point, among ``Kernel.extras``.
            shapes: those of its tensors by name, in the order in which it gives them.
            arguments: what it takes between inputs and options: tensors, plain values, and tuples of these.
            key: what tells calls with different arguments apart.
        """
        own = f"{name}{key}"

        def made() -> Tensors:
            found, facts = self.subject.entry(name, self.sample, self.blocks, shapes, arguments, own)
            self._asked[own] = facts
            return found

        return self._once(f"entry {own}", made)

    def held(self, tensor: Tensor, dtype: str) -> Tensor | Held:
        """An argument of a further entry point that the kernel holds in a dtype of its own."""
        return Held(tensor, dtype) if self.subject.wide and tensor.dtype == torch.float64 else tensor

    def keep(self, key: str, compute: Callable[[], T]) -> T:
        """Anything else that properties compute from the sample, kept under ``key``."""
        return self._once(f"keep {key}", compute)

    def variant(self, key: str, change: Callable[[Sample], Sample], blocks: str | None = None) -> Evidence:
        """Evidence of the same kernel on a changed sample, kept under ``key``."""
        chosen = self.blocks if blocks is None else blocks

        def make() -> Evidence:
            own = self.subject.labelled(key)
            return type(self)(self.case, change(self.sample), own, self.oracle, chosen, is_variant=True)

        return self._once(f"variant {key}", make).under(self.needs)

    def budgets(self, derivative: Derivative, algorithm: str | None = None) -> Mapping[str, Budget]:
        """The rounding budgets under the contract, by tensor name.

        Raises:
            Unavailable: the definition gives the mean over seeds.
        """
        self._require_truth()
        shared = self._read_with(derivative)
        chosen = algorithm or self.algorithm
        chosen = chosen if self.oracle.has(chosen, shared) else "definition"
        return self._once(
            f"budgets {shared.value} {chosen}",
            lambda: self.oracle.budgets(
                self.sample, shared, self.contract, algorithm=chosen, worst=not self.continuous, probes=PROBES
            ),
        )

    def truths(self, derivative: Derivative) -> Mapping[str, Truth]:
        """The truth by tensor name.

        Raises:
            Unavailable: the reading asked for is not available, or the definition gives the mean over seeds.
        """
        self._require_truth()
        shared = self._read_with(derivative)

        def read() -> Mapping[str, Truth]:
            try:
                if self.oracle.has(self.algorithm, shared):
                    own = self.budgets(shared, self.algorithm)
                    near = self.oracle.confirmed(self.sample, shared, self.algorithm, own, self.contract)
                    if near is not None:
                        return near
                return self.oracle.truth(self.sample, shared, self.budgets(shared, "definition"), self.contract)
            except Unread as error:
                raise Unavailable(str(error), Reason.UNREAD) from None

        return self._once(f"truths {shared.value}", read)

    def _without_truth(self, name: str) -> str:
        """Why a tensor of this call has no truth, as declared; "" where it has."""
        random = self.oracle.family.random
        return "" if random is None else random.without_truth(name)

    def _require_truth(self, name: str = "") -> None:
        """Raises Unavailable where a tensor, or without a name every tensor, has no truth."""
        if reason := self._without_truth(name):
            raise Unavailable(reason, Reason.RANDOM)

    def _read_with(self, derivative: Derivative) -> Derivative:
        """The derivative whose graph is read: outputs come with the VJP, which the case needs anyway.

        Of a variant some properties need the outputs alone.
        """
        together = not self.is_variant or Derivative.VJP in self.needs or "truths vjp" in self._kept
        return Derivative.VJP if derivative is Derivative.FORWARD and together else derivative

    def algorithms(self, derivative: Derivative) -> tuple[str, ...]:
        """The algorithms whose budgets apply: the kernel's own; for an outside kernel all that the family ships."""
        if not self.kernel.outside or self.algorithm != "definition":
            return (self.algorithm,)
        return ("definition", *(name for name in self.oracle.family.algorithms if self.oracle.has(name, derivative)))

    def allowance(self, derivative: Derivative, name: str, algorithm: str | None = None) -> Allowance:
        """What rounding explains of one tensor, and the radius of its truth.

        Raises:
            Unavailable: the tensor has no truth, as declared.
        """
        self._require_truth(name)
        if algorithm is None and len(shipped := self.algorithms(derivative)) > 1:
            return self._widest([self.allowance(derivative, name, each) for each in shipped])
        return _allowance(self.budgets(derivative, algorithm)[name], self.truths(derivative)[name])

    def compare(self, derivative: Derivative, got: Tensors | None = None) -> Iterator[Finding]:
        """Compare each tensor of a derivative with its truth; one Finding each.

        Raises:
            NoDerivative: there is none, since no input has a gradient.
        """
        tensors = self.tensors(derivative) if got is None else got
        names = [name for name in self.names(derivative) if name in tensors]
        if not names and got is None:
            raise NoDerivative("no input has a gradient, as the kernel declares")
        for name in names:
            if reason := self._without_truth(name):
                yield replace(not_checked(name, reason), why=Reason.RANDOM)
        names = [name for name in names if not self._without_truth(name)]
        truths, shipped = self.truths(derivative) if names else {}, self.algorithms(derivative)
        for name in names:
            truth, found = truths[name], []
            for algorithm in shipped:
                finding = judge(
                    name,
                    tensors[name],
                    truth.value,
                    self.allowance(derivative, name, algorithm),
                    continuous=self.continuous,
                    error=truth.error(tensors[name]),
                    largest=FORMATS[self.dtype(name)].largest,
                    axes=self.axes(name),
                )
                found.append(finding)
                if finding.outcome is not Outcome.VIOLATED and typical(finding):
                    break  # another algorithm's budget is needed only where this one explains too little
            best = min(found, key=lambda f: (f.outcome is Outcome.VIOLATED, f.error))
            if found[0].outcome is Outcome.VIOLATED and best.outcome is Outcome.HOLDS:
                algorithm = shipped[found.index(best)]
                note = f"loses accuracy: {found[0].error:.3g} times the budget of 'definition'; judged by '{algorithm}'"
                best = replace(best, message=note, gives_away=found[0].error)
            yield best

    def nearest_preset(self, derivative: Derivative, violated: Sequence[Finding]) -> NearestPreset:
        """The strongest other preset whose budgets all violated tensors keep, or that which they exceed least.

        Tried are those of this dtype, and the coarsest of the next lower one: a kernel may compute in that. Those of
        8-bit products are tried if an input has 8 bits.
        """
        nearest = NearestPreset(self.contract.name, tuple(violated))
        names = [finding.tensor for finding in violated]
        given = self.sample.inputs.values()
        eight_bits = any(x.element_size() == 1 and x.dtype is not torch.bool for x in given)
        for preset in tried_on(self.case.dtype, eight_bits=eight_bits):
            if preset.name == self.contract.name:
                continue
            kernel = replace(self.kernel, contracts={**self.kernel.contracts, self.case.dtype: preset})
            subject = self.subject.declared(kernel)
            made = functools.partial(Evidence, self.case, self.sample, subject, self.oracle, self.blocks)
            other = self.keep(f"under {preset.name}", made)
            findings = [f for f in other.compare(derivative, self.tensors(derivative)) if f.tensor in names]
            tried = NearestPreset(preset.name, tuple(f for f in findings if not f.is_within_budget))
            if not tried.beyond:
                return tried
            nearest = min(nearest, tried, key=lambda each: each.error)
        return nearest

    def part(self, derivative: Derivative, name: str, algorithm: str | None = None) -> Part:
        """One tensor of the kernel with its truth and budget, for ``relate``."""
        got, true = self.tensors(derivative)[name], self.truths(derivative)[name].value
        return Part(name, got, true, self.allowance(derivative, name, algorithm))

    def define(
        self,
        key: str,
        program: Callable[..., Sequence[Tensor]],
        args: Sequence[Tensor],
        output_dtypes: Sequence[str] | None = None,
    ) -> list[tuple[Truth, Allowance]]:
        """Truth and allowance of another program: for tensors that are no derivative of the family's definition.

        Args:
            key: the result is kept under it.
            program: the mathematics on float64 tensors; must be traceable.
            args: the arguments of the kernel, exactly.
            output_dtypes: the format in which the kernel stores each result; default the contract's ``output``.

        Raises:
            Unavailable: the reading asked for is not available.
        """

        def read() -> list[tuple[Truth, Allowance]]:
            exact = [a.detach().to("cpu", torch.float64).contiguous() for a in args]
            graph = trace(program, *exact)
            budgets = reading.budgets(
                graph, exact, self.contract, probes=PROBES, worst=not self.continuous, output_dtypes=output_dtypes
            )
            try:
                truths = self.oracle.read(graph, exact, budgets, self.contract)
            except Unread as error:
                raise Unavailable(str(error), Reason.UNREAD) from None
            return [(t, _allowance(b, t)) for t, b in zip(truths, budgets, strict=True)]

        return self._once(f"define {key}", read)

    def relate(
        self,
        name: str,
        expression: Callable[..., Tensor],
        parts: Sequence[Part | tuple[Evidence, Derivative, str]],
        *,
        scale: Callable[..., Tensor],
        constants: Sequence[Tensor] = (),
    ) -> Finding:
        """Judge a relation among the kernel's tensors: ``expression(*tensors, *constants)`` is 0 in exact arithmetic.

        Args:
            name: the relation in symbols.
            expression: on float64 tensors; must be traceable.
            parts: the tensors and the evidence they come from, in the order of the expression's arguments.
            scale: the size of either side, for the sensitivity; same arguments.
            constants: exact float64 tensors that the expression takes after the parts.
        """

        def found(algorithm: str | None) -> Finding:
            known = [part if isinstance(part, Part) else part[0].part(part[1], part[2], algorithm) for part in parts]
            return related(name, expression, known, scale=scale, constants=constants, continuous=self.continuous)

        return self.explained(found)

    def explained(self, found: Callable[[str | None], Finding]) -> Finding:
        """A finding under the budgets of the first algorithm or, where it is violated there, under the widest of all.

        What holds under the first also holds under the widest, which then need not be computed; such a finding is not
        pooled over cases. Only outside kernels have several algorithms.
        """
        first, *others = self.algorithms(Derivative.VJP)
        narrow = found(first if others else None)  # None: each part under the algorithm that its kernel declares
        if not others:
            return narrow
        return replace(narrow, pool=None) if narrow.outcome is not Outcome.VIOLATED else found(None)

    def _widest(self, allowances: Sequence[Allowance]) -> Allowance:
        """The element-wise widest of several allowances; its probes are those with the largest median sigma."""
        lead = max(allowances, key=lambda a: float(a.sigma.median()) if a.sigma.numel() else 0.0)
        sigma, worst, before = lead.sigma, lead.worst, lead.before
        for other in allowances:
            sigma = torch.maximum(sigma, other.sigma)
            if worst is not None and other.worst is not None:
                worst = torch.maximum(worst, other.worst)
            before = None if before is None or other.before is None else torch.maximum(before, other.before)
        return replace(lead, sigma=sigma, worst=worst, before=before)

    def _once(self, key: str, compute: Callable[[], T]) -> T:
        """The value kept under ``key``; an error of its first computation is raised again."""
        if key not in self._kept:
            try:
                self._kept[key] = compute()
            except Exception as error:
                self._kept[key] = _Raised(error)
        value = self._kept[key]
        if isinstance(value, _Raised):
            raise value.error
        return cast("T", value)


class _Raised:
    """An error raised by a computation, kept so that it is not run again."""

    def __init__(self, error: Exception) -> None:
        self.error = error


def _allowance(budget: Budget, truth: Truth) -> Allowance:
    """What rounding explains of one tensor, and the radius of its truth."""
    return Allowance(
        budget.sigma, budget.errors, budget.worst, budget.floor, budget.overflow, truth.radius, truth.undecided,
        budget.before,
    )  # fmt: skip
