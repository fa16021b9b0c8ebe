"""Formula: the change of the definition that reproduces what the kernel gave."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradoracle.check.diagnosis.reconstruction import Expected, reconstruct
from gradoracle.check.evidence import Evidence
from gradoracle.execution.call_errors import Unavailable
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import NO_LIKENESS, Finding, Likeness, Outcome
from gradoracle.model.property import Property
from gradoracle.model.signature import cotangent_name, tangent_name
from gradoracle.oracle.exact.definition import Undefined
from gradoracle.oracle.truth import arguments


def formula(law: Property, evidence: Evidence, findings: Sequence[Finding]) -> Likeness:
    """The change of the definition that explains a property's findings; none where it compares something else.

    Only tensors of the case itself count, small enough for the definition to be run some hundreds of times.
    """
    wrong = {f.tensor for f in findings if f.outcome is Outcome.VIOLATED and not f.malformed}
    for derivative in law.needs:
        names = [name for name in evidence.names(derivative) if name in wrong]
        if not names or not wrong <= set(evidence.names(derivative)):
            continue
        sample, oracle = evidence.sample, evidence.oracle
        if oracle.scalable(sample) is not None:
            return NO_LIKENESS
        try:
            return _of(derivative, names, evidence)
        except (Unavailable, Undefined):
            return NO_LIKENESS
    return NO_LIKENESS


def _of(derivative: Derivative, names: Sequence[str], evidence: Evidence) -> Likeness:
    sample, oracle = evidence.sample, evidence.oracle
    got, outputs = evidence.tensors(derivative), list(oracle.outputs(sample, derivative))
    expected = [
        Expected(
            outputs.index(name),
            got[name].detach().to("cpu", torch.float64),
            evidence.allowance(derivative, name).sigma,
        )
        for name in names
        if name in got
    ]
    primals = list(evidence.sample.tangents)
    named = primals + [tangent_name(n) for n in primals if derivative.takes_tangents]
    named += [cotangent_name(n) for n in sample.cotangents if derivative.takes_cotangents]
    args = arguments(oracle.family, sample, derivative)
    return reconstruct(oracle.graph(sample, derivative), args, named, expected, derivative is not Derivative.FORWARD)
