"""Correct kernels: their results on a case, the truth, and the verdict of each rule."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from gradoracle.cases.sample import Sample, build
from gradoracle.check.evidence import Evidence
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.host.guard_memory import Memory, fenced, poisoned
from gradoracle.model.call_errors import Crashed, Refused, Unavailable, Wrong
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative, as_tuple
from gradoracle.model.family import Family
from gradoracle.model.finding import Outcome
from gradoracle.model.formats import DTYPES as TORCH
from gradoracle.model.kernel import Kernel
from gradoracle.model.signature import cotangent_name
from gradoracle.mutation.sources import Lines, executed
from gradoracle.oracle.exact.definition import Undefined, called
from gradoracle.oracle.exact.graph import UnsupportedOperator
from gradoracle.oracle.truth import Oracle

from .peers import FUNCTION_RULES, RULES, Compared, Rule, Run
from .styles import DTYPES, ENTRIES, PEERS, alone

BUDGET = "gradoracle's budget"
GRADCHECK, CHECK_GRADS = (rule.name for rule in FUNCTION_RULES)
NAMES = (*(rule.name for rule in RULES), CHECK_GRADS, GRADCHECK, BUDGET)
FAILURES = (Wrong, Refused, Unavailable, Crashed)

T = TypeVar("T")


@dataclass
class CorrectRun:
    """A case that a correct kernel has run.

    Attributes:
        style: the style of input.
        case: the case.
        evidence: of the kernel, with truths and budgets computed.
        eager: the definition and its autograd in the case's dtype, by tensor name; empty if not needed.
        judged: the rules that judge this case.
        accepts: those of them that accept the correct kernel on it.
        seconds: time of each reference ("definition" in float64, "eager", "oracle") and of the kernel ("kernel").
        lines: the lines of the sources that the correct kernel executed.
        excuse: why gradcheck cannot run on it.
    """

    style: str
    case: Case
    evidence: Evidence
    eager: Mapping[str, Tensor] = field(default_factory=dict)
    judged: frozenset[str] = frozenset()
    accepts: frozenset[str] = frozenset()
    seconds: dict[str, float] = field(default_factory=dict)
    lines: Lines = field(default_factory=dict)
    excuse: str = ""

    def reference(self, rule: str) -> float:
        """Seconds that a rule spends on its reference."""
        if rule == BUDGET:
            return self.seconds["oracle"]
        if rule in (CHECK_GRADS, GRADCHECK):
            return 0.0
        return self.seconds["definition"] + (self.seconds["eager"] if _takes_eager(rule) else 0.0)


@dataclass(frozen=True)
class Judgement:
    """The verdicts on a kernel on one case: which rules reject it, and the seconds of the kernel and of each rule."""

    rejects: frozenset[str]
    kernel: float
    rules: Mapping[str, float]
    failure: str = ""  # how the kernel failed to return tensors: every rule rejects that


def prepare(
    family: Family,
    kernel: Kernel,
    oracle: Oracle,
    cases: Sequence[tuple[str, Case]],
    files: Sequence[str] = (),
    rules: Sequence[Rule[Compared]] = RULES,
    tell: Callable[[int], None] = lambda done: None,
) -> Iterator[CorrectRun]:
    """Run a correct kernel on cases; a case whose truth cannot be computed, or that is refused, is left out.

    Args:
        family: whose definition gives the truth.
        kernel: the correct kernel.
        oracle: of the family.
        cases: (style, case).
        files: whose executed lines are recorded.
        rules: on tensors.
        tell: called with the number of cases done.
    """
    for done, (style, case) in enumerate(cases):
        tell(done)
        sample = build(case, family.signature, domains=family.domains)
        correct = CorrectRun(style, case, Evidence(case, sample, KernelRunner(family, kernel, records=False), oracle))
        try:
            _read(correct, family)
            with executed(files) as lines:
                correct.evidence.vjp()
        except (*FAILURES, Undefined, UnsupportedOperator, NotImplementedError):
            continue
        correct.lines = {file: frozenset(found) for file, found in lines.items()}
        correct.judged = _judged(style, case, rules)
        judgement = judge(correct, correct.evidence.kernel, correct.judged, rules)
        correct.accepts = correct.judged - judgement.rejects
        correct.seconds["kernel"] = judgement.kernel
        yield correct


def prepare_gradcheck(
    family: Family, kernel: Kernel, oracle: Oracle, cases: Sequence[tuple[str, Case]], files: Sequence[str] = ()
) -> list[CorrectRun]:
    """The same for gradcheck, on cases in float64; ``excuse`` says why if the kernel does not accept that dtype."""
    found = []
    for style, case in cases:
        sample = build(case, family.signature, domains=family.domains)
        correct = CorrectRun(style, case, Evidence(case, sample, KernelRunner(family, kernel, records=False), oracle))
        if sum(sample.inputs[name].numel() for name in sample.tangents) > ENTRIES:
            continue
        correct.judged = frozenset({GRADCHECK})
        try:
            with executed(files) as lines:
                correct.evidence.vjp()
        except FAILURES as reason:
            correct.excuse = str(reason)
        else:
            correct.lines = {file: frozenset(each) for file, each in lines.items()}
            judgement = judge(correct, kernel, correct.judged, ())
            correct.accepts = correct.judged - judgement.rejects
        found.append(correct)
    return found


def judge(
    correct: CorrectRun, kernel: Kernel, names: Collection[str], rules: Sequence[Rule[Compared]] = RULES
) -> Judgement:
    """Judge a kernel by some rules on one case; one forward and VJP serves all rules on tensors."""
    evidence, spent = correct.evidence, dict.fromkeys(names, 0.0)
    rejects: set[str] = set()
    subject = KernelRunner(evidence.subject.family, kernel, records=False)
    took, failure, got = 0.0, "", {}
    if set(names) - {CHECK_GRADS, GRADCHECK}:
        begun = time.perf_counter()
        try:
            got = subject.vjp(evidence.sample, correct.case.blocks)[0]
        except FAILURES as reason:
            failure = str(reason) or type(reason).__name__
        took = time.perf_counter() - begun
        if failure:
            return Judgement(frozenset(names), took, spent, failure)
    for rule in rules:
        if rule.name in names:
            accepted, spent[rule.name] = _timed(lambda rule=rule: _all_accepted(rule, correct, got))  # type: ignore[misc]
            rejects |= set() if accepted else {rule.name}
    if BUDGET in names:
        accepted, spent[BUDGET] = _timed(partial(_within_budget, correct, got))
        rejects |= set() if accepted else {BUDGET}
    for function_rule in FUNCTION_RULES:
        if function_rule.name in names:
            accepted, spent[function_rule.name] = _timed(partial(_as_a_function, function_rule, correct, subject))
            rejects |= set() if accepted else {function_rule.name}
    return Judgement(frozenset(rejects), took, spent)


def eager(family: Family, sample: Sample, dtype: torch.dtype) -> dict[str, Tensor]:
    """Outputs and gradients by name: the definition and its autograd in a dtype.

    If PyTorch lacks an operator in 16 bits, everything is computed in float32.
    """
    try:
        return _autograd(family, sample, dtype)
    except (RuntimeError, NotImplementedError):
        if dtype in (torch.float32, torch.float64):
            raise
        found = _autograd(family, sample, torch.float32)
        return {name: tensor.to(dtype) for name, tensor in found.items()}


def _autograd(family: Family, sample: Sample, dtype: torch.dtype) -> dict[str, Tensor]:
    inputs = {
        name: tensor.detach().to(dtype).requires_grad_() if tensor.is_floating_point() else tensor
        for name, tensor in sample.inputs.items()
    }
    outputs = as_tuple(called(family, inputs, sample.options))
    names = [spec.name for spec in family.signature.returned(sample.options)]
    leaves = {name: tensor for name, tensor in inputs.items() if tensor.requires_grad}
    live = [(o, sample.cotangents[n].to(o.dtype)) for n, o in zip(names, outputs, strict=True) if o.requires_grad]
    gradients = torch.autograd.grad(
        [o for o, _ in live], list(leaves.values()), [g for _, g in live], allow_unused=True
    )
    found = {name: output.detach() for name, output in zip(names, outputs, strict=True)}
    for (name, leaf), gradient in zip(leaves.items(), gradients, strict=True):
        found[cotangent_name(name)] = torch.zeros_like(leaf) if gradient is None else gradient.detach()
    return found


def _judged(style: str, case: Case, rules: Sequence[Rule[Compared]]) -> frozenset[str]:
    """The rules that judge a case: all on our cases; on peers' own inputs, those whose tests resemble the case."""
    every = frozenset({rule.name for rule in rules} | {CHECK_GRADS, BUDGET})
    if style != PEERS:
        return every
    if only := alone(style, case):
        return frozenset({only, BUDGET})
    return frozenset(name for name in every - {CHECK_GRADS} if case.dtype in DTYPES.get(name, (case.dtype,)))


def _read(correct: CorrectRun, family: Family) -> None:
    """Compute the truth, the budgets and both references by autograd, each timed."""
    sample = correct.evidence.sample
    begun = time.perf_counter()
    for derivative in (Derivative.FORWARD, Derivative.VJP):
        correct.evidence.truths(derivative)
        correct.evidence.budgets(derivative, correct.evidence.algorithms(derivative)[0])
    correct.seconds["oracle"] = time.perf_counter() - begun
    _, correct.seconds["definition"] = _timed(lambda: eager(family, sample, torch.float64))
    correct.eager, correct.seconds["eager"] = _timed(lambda: eager(family, sample, TORCH[correct.case.dtype]))


def _all_accepted(rule: Rule[Compared], correct: CorrectRun, got: Mapping[str, Tensor]) -> bool:
    """Whether a rule accepts every output and gradient, each in the dtype in which the kernel stores it."""
    evidence = correct.evidence
    for derivative in (Derivative.FORWARD, Derivative.VJP):
        truths = evidence.truths(derivative)
        for name in evidence.names(derivative):
            if name in got:
                dtype, gradient = TORCH[evidence.dtype(name)], derivative is Derivative.VJP
                if not rule.accepts(Compared(got[name], truths[name].value, correct.eager[name], dtype, gradient)):
                    return False
    return True


def _within_budget(correct: CorrectRun, got: dict[str, Tensor]) -> bool:
    """Whether every tensor is within its budget, by gradoracle's rule for a tensor and no other property."""
    return not any(
        finding.outcome is Outcome.VIOLATED
        for derivative in (Derivative.FORWARD, Derivative.VJP)
        for finding in correct.evidence.compare(derivative, got)
    )


def _as_a_function(rule: Rule[Run], correct: CorrectRun, subject: KernelRunner) -> bool:
    """Whether a rule on functions accepts the kernel; an exception is a rejection."""
    sample, kernel = correct.evidence.sample, subject.kernel
    primals, keyword = subject.primals(sample), {spec.name for spec in subject.family.signature.inputs if spec.keyword}
    blocks = {"blocks": kernel.blocks[correct.case.blocks]} if correct.case.blocks else {}

    def call(*values: Tensor) -> tuple[Tensor, ...]:
        named = {**sample.inputs, **dict(zip(primals, values, strict=True))}
        positional = [tensor for name, tensor in named.items() if name not in keyword]
        by_keyword = {name: tensor for name, tensor in named.items() if name in keyword}
        return as_tuple(kernel.call(*positional, **by_keyword, **subject.options(sample), **blocks))  # type: ignore[arg-type]

    copies = tuple(sample.inputs[name].clone() for name in primals)
    try:
        with poisoned(), fenced(Memory()):
            return rule.accepts(Run(call, copies))
    except Exception:
        return False


def _takes_eager(rule: str) -> bool:
    return rule in ("flash-attention 2", "flash-attention 4", "ml-cross-entropy")


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    begun = time.perf_counter()
    value = call()
    return value, time.perf_counter() - begun
