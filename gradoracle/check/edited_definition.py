"""Edited definition: the edits of the definition that give what the kernel gave on one case."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gradoracle.check.diagnosis.known_numbers import known_numbers
from gradoracle.check.diagnosis.reconstruction import Expected, reconstruct
from gradoracle.check.evidence import Evidence
from gradoracle.model.call_errors import Unavailable
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import EditedDefinition, Finding, Outcome
from gradoracle.model.property import Property
from gradoracle.model.signature import cotangent_name, tangent_name
from gradoracle.oracle.exact.definition import Undefined
from gradoracle.oracle.exact.graph import Graph
from gradoracle.oracle.truth import arguments


def edited_definitions(
    prop: Property, evidence: Evidence, findings: Sequence[Finding]
) -> tuple[EditedDefinition, ...] | None:
    """The edits of the definition that give a property's wrong tensors; None where the case cannot tell.

    Only tensors of the case itself count, small enough for the definition to be run some hundreds of times.
    """
    wrong = {f.tensor for f in findings if f.outcome is Outcome.VIOLATED and not f.malformed}
    for derivative in prop.needs:
        names = [name for name in evidence.names(derivative) if name in wrong]
        if names and wrong <= set(evidence.names(derivative)):
            try:
                return _of(derivative, names, evidence)
            except (Unavailable, Undefined):
                return None
    return None


def _of(derivative: Derivative, names: Sequence[str], evidence: Evidence) -> tuple[EditedDefinition, ...] | None:
    sample, oracle = evidence.sample, evidence.oracle
    got, truths, outputs = evidence.tensors(derivative), evidence.truths(derivative), oracle.outputs(sample, derivative)
    expected = [
        Expected(
            name,
            outputs.index(name),
            got[name].detach().to("cpu", torch.float64),
            truths[name].value,
            evidence.allowance(derivative, name).sigma.expand_as(truths[name].value),
        )
        for name in names
    ]
    primals = list(sample.tangents)
    named = primals + [tangent_name(n) for n in primals if derivative.takes_tangents]
    named += [cotangent_name(n) for n in sample.cotangents if derivative.takes_cotangents]
    graph = graph_of(evidence, derivative)
    args = [] if graph is None else arguments(oracle.family, sample, derivative)
    numbers = known_numbers(graph, evidence.case.dims, sample.options)
    return reconstruct(graph, args, named, expected, numbers, derivative is not Derivative.FORWARD)


def graph_of(evidence: Evidence, derivative: Derivative) -> Graph | None:
    """The graph of the definition's derivative; None where the family reads it without one.

    Raises:
        Undefined: the definition cannot be traced.
    """
    sample, oracle = evidence.sample, evidence.oracle
    return oracle.graph(sample, derivative) if oracle.scalable(sample) is None else None
