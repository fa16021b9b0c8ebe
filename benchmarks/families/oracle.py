"""Rows of ``gradoracle bench`` that time an oracle, for any family."""

from __future__ import annotations

from collections.abc import Mapping

from gradoracle.cases.sample import build
from gradoracle.execution.bench import Row
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.family import Family
from gradoracle.oracle.exact import certified
from gradoracle.oracle.exact.enclosure import Enclosure
from gradoracle.oracle.truth import Oracle, arguments


def certified_vjp(family: Family, dims: Mapping[str, int]) -> Row:
    """The time of one VJP in balls on float32 inputs of these dims, without tracing, and the radius that it proves."""
    sample = build(Case(family.name, dict(dims), "float32"), family.signature, domains=family.domains)
    graph = Oracle(family).graph(sample, Derivative.VJP)
    args = arguments(family, sample, Derivative.VJP)

    def radius(balls: list[Enclosure]) -> str:
        widest, bits = max(float(ball.radius.max()) for ball in balls), balls[0].bits
        return f"proven radius at most {widest:.0e} at {bits} bits"

    sizes = " ".join(f"{dim}{size}" for dim, size in dims.items())
    return Row(
        f"certified reading of one {family.name} VJP, {sizes}",
        {"gradoracle": lambda: lambda: certified.read(graph, args)},
        describe={"gradoracle": radius},
    )
