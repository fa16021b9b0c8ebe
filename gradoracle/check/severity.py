"""Severity: judges a violated property again on the widened kernel, and finds a preset that explains lost precision."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gradoracle.check.evidence import Evidence, NearestPreset
from gradoracle.check.overflow import overflows
from gradoracle.check.precision_loss import lost_at
from gradoracle.check.widened import judged_widened, widened
from gradoracle.check.wrong_constant import wrong_constant
from gradoracle.model.call_errors import Crashed, DeviceLost, Refused, Unavailable, Wrong
from gradoracle.model.derivative import Derivative
from gradoracle.model.errors import forgive, named
from gradoracle.model.finding import Finding, Outcome, Worst
from gradoracle.model.formats import FORMATS
from gradoracle.model.job import PropertyResult
from gradoracle.model.kernel import Kernel
from gradoracle.model.location import shown
from gradoracle.model.property import DIRECT, Property, PropertyKind
from gradoracle.model.reason import Reason
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Status, Verdict

MOST_CALLS, MOST_SECONDS = 100, 10.0  # of a search for a statement or a constant
NEEDS_INTERPRETER = "a kernel is widened in Triton's interpreter, on the CPU"
_OVERFLOWS = "a value on the way is too large for its dtype, and infinite"


def with_severity(prop: Property, evidence: Evidence, result: PropertyResult) -> PropertyResult:
    """A violation with its severity; unless it is wrong, with the preset under which it would hold, if there is one.

    An error that no preset of the dtype explains, nor the coarsest of a lower one, is wrong where the kernel declares
    no contract or cannot be widened: rounding explains no such factor. That of its own operations may (``left``), in
    which values cancel that those of the definition keep apart.
    """
    try:
        severity, why, again = _severity(prop, evidence, result)
    except DeviceLost:
        raise
    except Exception as error:
        forgive(error)
        severity, why, again = Severity.UNDECIDED, named(error), None
    if severity is Severity.PRECISION and again is not None:
        result = replace(result, findings=with_left(result.findings, again.findings))
    if severity is Severity.PRECISION and prop.kind in DIRECT:
        result, severity = _without_overflow(evidence, result)
    preset, unexplained = "", ""
    if severity in (Severity.PRECISION, Severity.UNDECIDED) and (nearest := _nearest_preset(prop, evidence, result)):
        if not nearest.beyond:
            preset = nearest.name
        elif _is_measured(result):
            unexplained = _beyond(nearest, evidence.case.dtype)
    at_once = evidence.kernel.declares(evidence.case.dtype) and not _claimed(prop, evidence.kernel, result.findings)
    if (
        severity is not Severity.UNDECIDED or evidence.subject.interprets or at_once
    ):  # what runs on a GPU is widened afterwards
        severity, why = ruled(
            prop, evidence.kernel, evidence.case.dtype, (severity, why), result.findings, unexplained=unexplained
        )
    return replace(result, severity=severity, undecided=why, preset=preset, unexplained=unexplained)


def ruled(
    prop: Property,
    kernel: Kernel,
    dtype: str,
    known: tuple[Severity, str],
    findings: Sequence[Finding],
    *,
    unexplained: str,
) -> tuple[Severity, str]:
    """The severity of a violation by what presets explain and the kernel claims, and why it is that or undecided.

    Args:
        prop: the violated property.
        kernel: the kernel that violates it.
        dtype: the dtype of the case.
        known: the severity by the widened kernel, and why it is undecided.
        findings: those of the kernel as it is written, with what is left of them when widened.
        unexplained: by how much they exceed what the nearest preset explains; "" if one explains them, or none was
            tried.
    """
    severity, why = known
    declares = kernel.declares(dtype)
    if severity is Severity.UNDECIDED and unexplained:
        severity = Severity.WRONG
        why = f"{unexplained}; not judged in float64: {why}"
    if severity is Severity.PRECISION and unexplained and not declares and not any(f.left for f in findings):
        severity, why = Severity.WRONG, unexplained
    if not _claimed(prop, kernel, findings) and (severity is not Severity.PRECISION or declares):
        severity, why = Severity.ROBUSTNESS, ""
    return severity, why


def with_left(findings: Iterable[Finding], widened: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings with what is left of each when its kernel is widened."""
    left = {each.tensor: each.left for each in widened}
    return tuple(replace(each, left=left.get(each.tensor, 0.0)) for each in findings)


def _beyond(nearest: NearestPreset, dtype: str) -> str:
    """How far the worst of the tensors that no preset explains is off, and by what factor beyond the nearest preset."""
    finding = max(nearest.beyond, key=lambda each: each.error)
    words = [f"{finding.tensor} is off"]
    if finding.worst is not None and finding.worst.true:
        off = abs(finding.worst.got - finding.worst.true) / abs(finding.worst.true)
        words.append(f"by {off:.2g} of the truth" if off < 1e-3 else f"by {100 * off:.3g} % of the truth")
    factor = f", {finding.error:.3g} times what {nearest.name} explains" if math.isfinite(finding.error) else ""
    return f"{' '.join(words)}{factor}; no preset of {dtype} explains it"


def _is_measured(result: PropertyResult) -> bool:
    """Whether every violation is measured in a budget; where that is 0, as for exact facts, it is so in any preset."""
    return all(each.rule != "exact" for each in result.findings if each.outcome is Outcome.VIOLATED)


def _without_overflow(evidence: Evidence, result: PropertyResult) -> tuple[PropertyResult, Severity]:
    """A violation that goes away when widened, and its severity: wrong where values on the way overflow."""
    derivative, names = _lowest(_plainly_wrong(result))
    if derivative is None or not overflows(evidence, derivative, names):
        return result, Severity.PRECISION
    findings = tuple(
        replace(each, lost=True, overflow=True, message=f"{each.message}: {_OVERFLOWS}")
        if each.outcome is Outcome.VIOLATED and each.tensor in names
        else each
        for each in result.findings
    )
    return replace(result, findings=findings), Severity.WRONG


def _plainly_wrong(result: PropertyResult) -> list[Finding]:
    return [finding for finding in result.findings if finding.outcome is Outcome.VIOLATED and finding.is_plain]


def _lowest(wrong: Sequence[Finding]) -> tuple[Derivative | None, list[str]]:
    """The lowest derivative that findings violate, and its tensors."""
    derivative = min((f.derivative for f in wrong if f.derivative), key=lambda each: each.order, default=None)
    return derivative, [finding.tensor for finding in wrong if finding.derivative is derivative]


def located(prop: Property, evidence: Evidence, result: PropertyResult) -> PropertyResult:
    """A violation with the statement at which precision is lost, or the constant that explains what is wrong."""
    wrong = _plainly_wrong(result)
    derivative, names = _lowest(wrong)
    if derivative is None or prop.kind not in DIRECT:
        return result
    try:
        if result.severity is Severity.PRECISION or any(finding.overflow for finding in wrong):
            loss = lost_at(evidence, derivative, names, calls=MOST_CALLS, seconds=MOST_SECONDS)
            return replace(result, loss=None if loss is None else loss.mapped(shown))
        if result.severity is Severity.WRONG and not any(f.lost or f.malformed for f in wrong):
            constant = wrong_constant(evidence, derivative, names, calls=MOST_CALLS, seconds=MOST_SECONDS)
            return replace(result, constant=None if constant is None else constant.mapped(shown))
    except DeviceLost:
        raise
    except Exception as error:
        forgive(error)
    return result


def _severity(
    prop: Property, evidence: Evidence, result: PropertyResult
) -> tuple[Severity, str, PropertyResult | None]:
    """The severity of a violation, why it is undecided, and the result on the widened kernel, where it was asked."""
    if prop.severity is not None:
        return prop.severity, "", None
    violated = {finding.tensor for finding in result.findings if finding.outcome is Outcome.VIOLATED}
    if any(finding.lost or finding.malformed for finding in result.findings if finding.tensor in violated):
        return Severity.WRONG, "", None
    if not evidence.subject.interprets:
        return Severity.UNDECIDED, NEEDS_INTERPRETER, None
    again = judged_widened(prop, widened(evidence))
    return *of_widened(again, result.findings, evidence.case.dtype), again


def _claimed(prop: Property, kernel: Kernel, findings: Iterable[Finding]) -> bool:
    """Whether some violated finding is about a derivative that the kernel claims, or about none."""
    about = [each.about or prop.derivative for each in findings if each.outcome is Outcome.VIOLATED]
    return any(each is None or kernel.is_claimed(each) for each in about or [prop.derivative])


def of_widened(again: PropertyResult, as_written: Iterable[Finding], dtype: str) -> tuple[Severity, str]:
    """The severity of a violation from the same property judged on the widened kernel, and why it is undecided.

    Within a budget that is too wide to check a truth near 0, the violation is gone.

    Args:
        again: the result on the widened kernel.
        as_written: the findings that violate the property, of the kernel as it is written.
        dtype: the dtype of the case.
    """
    wrong = {finding.tensor: finding for finding in as_written if finding.outcome is Outcome.VIOLATED}
    stays = [finding for finding in again.findings if finding.outcome is Outcome.VIOLATED]
    rounding = [f for f in stays if f.tensor in wrong and shrinks_like_rounding(f, wrong[f.tensor], dtype)]
    if again.status is Status.VIOLATED and (not stays or rounding != stays):
        return Severity.WRONG, ""
    undecided = {f.tensor: f.message for f in again.findings if not f.is_within_budget and f not in stays}
    decided = again.why in (None, Reason.BUDGET) or again.status is Status.VIOLATED
    if again.findings and decided and not undecided.keys() & wrong.keys():
        return Severity.PRECISION, ""
    return Severity.UNDECIDED, again.reason or next(iter(undecided.values()), "no tensor was compared")


def shrinks_like_rounding(wide: Finding, as_written: Finding, dtype: str) -> bool:
    """Whether an error that violates its budget in float64, too, is one of rounding all the same.

    Where the definition rounds nothing, as at a truth of exactly 0, its budget is 0, and an algorithm that rounds
    there breaks it in any dtype. Such an error is as many times smaller in float64 as its unit roundoff is; that of a
    wrong formula is as large as before. The boundary is the geometric mean of the two. In float64 nothing is widened.

    Args:
        wide: a violation by the widened kernel.
        as_written: the finding on the same tensor of the kernel as it is written.
        dtype: the dtype of the case.
    """
    found = (wide, as_written)
    if dtype == "float64" or as_written.outcome is not Outcome.VIOLATED or any(f.lost or f.malformed for f in found):
        return False
    if wide.worst is None or as_written.worst is None:
        return False
    shrinks = math.sqrt(FORMATS["float64"].unit_roundoff / FORMATS[dtype].unit_roundoff)
    return all(
        now <= shrinks * before for now, before in zip(_sizes(wide.worst), _sizes(as_written.worst), strict=True)
    )


def _sizes(worst: Worst) -> tuple[float, float]:
    """An error, absolute and relative; relative to a truth of 0 it is absolute."""
    error = abs(worst.got - worst.true)
    return error, error / (abs(worst.true) or 1.0)


def settle_pooled(verdicts: Iterable[Verdict]) -> None:
    """The severity of violations that no single case shows: that of the widened kernel on all its cases."""
    known = list(verdicts)
    for verdict in known:
        if verdict.counterexample is None or not verdict.counterexample.pooled:
            continue
        found = {v.status for v in known if v.kind is PropertyKind.DEFINITION and _same_kernel(v, verdict)}
        if Status.VIOLATED in found:
            verdict.severity = Severity.WRONG
        elif Status.HOLDS in found:
            verdict.severity = Severity.PRECISION
        else:
            verdict.severity, verdict.severity_note = Severity.UNDECIDED, "the kernel was not judged widened"


def leave_open(verdicts: Iterable[Verdict], fail_on: Severity | None) -> None:
    """Make *not checked* what is violated as written, but may be wrong or lost precision, where one does not count.

    Args:
        verdicts: verdicts with severities.
        fail_on: the argument of ``Verdict.counts``.
    """
    for verdict in verdicts:
        if verdict.severity is not Severity.UNDECIDED or verdict.status is not Status.VIOLATED:
            continue
        if verdict.counts(fail_on):  # against a declared contract both do
            continue
        verdict.status = Status.NOT_CHECKED
        why = f": {verdict.severity_note}" if verdict.severity_note else ""
        verdict.reasons[f"violated as written, by a wrong formula or by lost precision{why}"] = verdict.cases_violated


def _same_kernel(one: Verdict, other: Verdict) -> bool:
    return (one.kernel, one.dtype) == (other.kernel, other.dtype)


def _nearest_preset(prop: Property, evidence: Evidence, result: PropertyResult) -> NearestPreset | None:
    """The preset under which the violated tensors would hold, else that which they exceed least; None: none was tried.

    Presets are tried for a property that compares with the truth.
    """
    violated = [f for f in result.findings if f.outcome is Outcome.VIOLATED]
    for derivative in prop.needs:
        if {f.tensor for f in violated} <= set(evidence.names(derivative)):
            try:
                return evidence.nearest_preset(derivative, violated)
            except (Wrong, Refused, Unavailable, Crashed):  # no tensors to compare
                return None
    return None
