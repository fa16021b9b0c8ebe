"""Reproduction: turns a case line into a script that reproduces it, with the truth computed here."""

from __future__ import annotations

from collections.abc import Mapping

from gradoracle.cases.sample import build
from gradoracle.check.evidence import Evidence
from gradoracle.check.script import reproduction, require_room
from gradoracle.check.setup import Setup, subjects
from gradoracle.check.usable_case import require_case
from gradoracle.execution import device as devices
from gradoracle.execution.call_errors import Unavailable
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.model.case import parse
from gradoracle.model.derivative import Derivative
from gradoracle.model.errors import UsageError
from gradoracle.model.property import matches
from gradoracle.oracle.exact.definition import Undefined
from gradoracle.oracle.exact.trace import UnsupportedOperator
from gradoracle.oracle.truth import Oracle
from gradoracle.project.target import family_for, place_of, resolve

_ORDER = (Derivative.HVP, Derivative.JVP, Derivative.VJP, Derivative.FORWARD)


def reproduce(
    line: str,
    *,
    property: str = "*",
    device: str | None = None,
    oracle: str = "auto",
    contracts: Mapping[str, str] | None = None,
    family: str | None = None,
) -> str:
    """The text of a script that runs the kernel on one case and prints its tensors against the truth.

    Args:
        line: a case line.
        property: a glob; the property it names decides which derivative is shown (default: forward and VJP).
        device: cpu or cuda; by default that of the case.
        oracle: the reading that gives the truth.
        contracts: dtype -> preset, in place of the kernel's own.
        family: as --family has it; None: the family of the line.

    Raises:
        UsageError: the line, its target or the property cannot be resolved; the tensors are too large; the kernel has
            no name.
    """
    try:
        text, where, case = parse(line)
    except ValueError as error:
        raise UsageError(str(error)) from None
    chosen = devices.choose(device or where.partition(":")[0])
    devices.prepare(chosen)
    judge = family or family_for(line, text, case.family)
    defined, kernels, properties = subjects(Setup(text, judge, chosen, oracle, dict(contracts or {}), {}))
    if len(kernels) > 1:
        raise UsageError(f"{text} has the kernels {', '.join(kernels)}; name one in the case line, as {text}:KERNEL")
    (kernel,) = kernels.values()
    require_case(case, defined, kernel)
    defined = defined.at(case.dims)
    title, derivative = f"{kernel.name} against the definition of {defined.name}.", Derivative.VJP
    if property != "*":
        found = [prop for name, prop in properties.items() if matches(name, property)]
        if not found:
            raise UsageError(f"no property of {defined.name} matches {property!r}; see gradoracle list")
        title = found[0].statement
        derivative = next((need for need in _ORDER if need in found[0].needs), Derivative.FORWARD)
    target = resolve(text, judge)
    place = place_of(target, kernel)
    evidence = Evidence(
        case,
        build(case, defined.signature, domains=defined.domains, device=chosen),
        KernelRunner(defined, kernel),
        Oracle(defined, oracle),
    )
    names = evidence.names(derivative)
    outputs = evidence.names(Derivative.FORWARD)
    shown = [(derivative, name) for name in names]
    if derivative is Derivative.VJP:
        shown = [(Derivative.FORWARD, name) for name in outputs] + shown
    sample = evidence.sample
    try:
        require_room(sample.inputs.values(), sample.cotangents.values(), sample.tangents.values())
        truths = {name: evidence.truths(each)[name].value for each, name in shown}
        sigmas = {name: evidence.allowance(each, name).sigma for each, name in shown}
    except (Unavailable, Undefined, UnsupportedOperator) as reason:
        raise UsageError(f"the true values of this case cannot be computed: {reason}") from None
    except ValueError as error:
        raise UsageError(str(error)) from None
    dropped = {name for name, values in kernel.options.items() if values == ()}
    try:
        return reproduction(
            title=title,
            case=line,
            place=place,
            inputs=sample.inputs,
            cotangents=sample.cotangents,
            tangents=sample.tangents,
            options={name: value for name, value in sample.options.items() if name not in dropped},
            outputs=outputs,
            derivative=derivative.value,
            names=() if derivative is Derivative.FORWARD else names,
            truths=truths,
            sigmas=sigmas,
            keyword={spec.name for spec in defined.signature.inputs if spec.keyword},
            device=chosen,
            interpret=chosen == "cpu",
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
