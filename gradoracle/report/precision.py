"""Precision: what a kernel gives away, and the contract that it keeps, in words."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gradoracle.model.contract import weakest
from gradoracle.model.explanation import PrecisionLoss, WrongConstant
from gradoracle.model.finding import Finding, Outcome
from gradoracle.model.property import PropertyKind
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Report, Status, Verdict

_MOST_TENSORS = 4


@dataclass(frozen=True)
class Kept:
    """What a kernel with no declared contract keeps in a dtype.

    Attributes:
        kernel, dtype: of the verdicts.
        preset: the strongest that explains every violation; "" if none does.
        lost: the bits lost, and at which statements, in words.
    """

    kernel: str
    dtype: str
    preset: str
    lost: str

    def __str__(self) -> str:
        keeps = f"keeps {self.preset}" if self.preset else "keeps no preset"
        return f"{keeps}; {self.lost}" if self.lost else keeps


def kept(report: Report) -> list[Kept]:
    """The inferred contract of each kernel and dtype without a declared one in which precision is lost.

    What is wrong, or could not be judged with every float in float64, keeps no contract and has no line.
    """
    groups: dict[tuple[str, str], list[Verdict]] = {}
    for verdict in report.verdicts:
        if not verdict.declared and verdict.status in (Status.VIOLATED, Status.CRASHED):
            groups.setdefault((verdict.kernel, verdict.dtype), []).append(verdict)
    found = []
    for (kernel, dtype), verdicts in groups.items():
        own = [v for v in verdicts if v.severity is Severity.PRECISION]
        grave = any(v.severity in (None, Severity.WRONG, Severity.UNDECIDED) for v in verdicts)
        if own and not grave:
            oracle = [v for v in own if v.kind is PropertyKind.ORACLE] or own
            lost = ", ".join(part for part in (bits_lost(oracle), _places(oracle)) if part)
            found.append(Kept(kernel, dtype, weakest(v.keeps for v in oracle), lost))
    return found


def _places(verdicts: Iterable[Verdict]) -> str:
    """The statements at which precision is lost: ``lost at kernel.py:88``."""
    losses = [v.counterexample.loss for v in verdicts if v.counterexample is not None]
    places = dict.fromkeys(f"{each.statement.file}:{each.statement.line}" for each in losses if each is not None)
    return f"lost at {', '.join(list(places)[:_MOST_TENSORS])}" if places else ""


def bits_lost(verdicts: Iterable[Verdict]) -> str:
    """By how many bits errors exceed what the contract allows, tensor by tensor: ``3.1 bits of dq below bf16``."""
    errors: dict[str, float] = {}
    contract = ""
    for verdict in verdicts:
        contract = verdict.contract
        for finding in _violations(verdict):
            if finding.is_plain and math.isfinite(finding.error) and finding.error > 1:
                errors[finding.tensor] = max(errors.get(finding.tensor, 0.0), finding.error)
    if not errors:
        return ""
    worst = sorted(errors, key=lambda tensor: -errors[tensor])
    parts = [f"{math.log2(errors[tensor]):.1f} bits of {tensor}" for tensor in worst[:_MOST_TENSORS]]
    more = f" and less of {len(worst) - _MOST_TENSORS} more" if len(worst) > _MOST_TENSORS else ""
    return f"{', '.join(parts)}{more} below {contract}"


def told_loss(loss: PrecisionLoss) -> str:
    """Where precision is lost: file, line and text of the statement, and how many others there are."""
    lead = loss.statement
    text = f"{lead.file}:{lead.line}  {loss.source}"
    if not loss.others:
        return text
    lines = ", ".join(str(each.line) for each in loss.others[:_MOST_TENSORS])
    how = "together with" if loss.together else "and, each alone, at"
    return f"{text}  ({how} line{'s' if len(loss.others) > 1 else ''} {lines})"


def told_constant(constant: WrongConstant) -> str:
    """A wrong constant: its place, what it is, and with which value nothing is wrong."""
    name = f" ({constant.name})" if constant.name else ""
    what = f"{constant.argument} = " if constant.argument else ""
    return f"{constant.file}:{constant.line}  {what}{constant.value:.9g} should be {constant.fitted:.9g}{name}"


def _violations(verdict: Verdict) -> list[Finding]:
    found = verdict.counterexample
    if found is None:
        return []
    every = (*found.findings, *found.first_findings, *found.further)
    return [finding for finding in every if finding.outcome is Outcome.VIOLATED]
