"""Properties of arguments: a kernel accepts what it declares, and refuses the rest with a clear error."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gradoracle.check.acceptance import exactly
from gradoracle.check.evidence import Evidence
from gradoracle.model.call import RaisedError
from gradoracle.model.call_errors import REFUSALS, Refused, Unavailable
from gradoracle.model.case import Case
from gradoracle.model.finding import Finding
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import PropertyKind, property
from gradoracle.model.severity import Severity

_INTERPRETED = ("InterpreterError", "CannotInterpret")  # what the interpreter makes of any error in a program
_REFUSALS = frozenset(each.__name__ for each in (*REFUSALS, TypeError, IndexError))
_NAMES_A_WANT = re.compile(r"\b(wants?|expected|expect(s|ed)?|must|requires?|required|should)\b", re.I)


@dataclass(frozen=True)
class BadArgument:
    """One argument that no kernel of the family can take.

    Attributes:
        what: in words, the name in a report.
        changed: inputs by name.
        names: arguments that an error may name, any of them.
        values: texts of what was given, any of which shows the value.
    """

    what: str
    changed: dict[str, Tensor]
    names: tuple[str, ...]
    values: tuple[str, ...]


@property(scope="kernel", kind=PropertyKind.ARGUMENTS, severity=Severity.ROBUSTNESS)
def bad_arguments_raise_value_error(evidence: Evidence) -> Iterator[Finding]:
    """A wrong dtype, rank, shape or device raises ValueError naming the argument, its value and what is expected.

    Holds because: a kernel reads raw addresses, so whatever it does not check, it misreads. A shipped kernel raises
    ValueError with the three parts. A kernel from outside may raise any refusal, TypeError or IndexError, as PyTorch
    does for a missing dim; where it accepts arguments that the definition refuses, the property names them and is not
    checked. Nor is it where Triton's interpreter raises in a program: a compiled kernel may refuse there or not.
    Catches: a missing guardrail, a mismatch that is broadcast or cut off in silence, a silent reference path on
    another device, an error that names neither the value given nor what is expected.
    Cannot catch: arguments that are refused but should be accepted; declared_support_is_accepted does.
    """
    shipped, taken, interpreted = not evidence.kernel.outside, list[str](), list[str]()
    for bad in bad_arguments(evidence):
        inputs = {**evidence.sample.inputs, **bad.changed}
        raised = evidence.subject.raised(f"bad argument, {bad.what}", evidence.sample, inputs, evidence.blocks)
        if shipped:
            yield exactly(bad.what, bool(_fault(raised, bad)), _fault(raised, bad))
        elif raised is None and _definition_refuses(evidence, inputs):
            taken.append(bad.what)
        elif raised is not None and raised.names[0] in _INTERPRETED:
            interpreted.append(bad.what)
        else:
            wrong = raised is not None and _REFUSALS.isdisjoint(raised.names)
            yield exactly(bad.what, wrong, f"raised {raised.shown if raised else ''}, expected ValueError")
    if taken:
        raise Unavailable(f"the kernel accepts arguments that the definition refuses: {', '.join(taken)}")
    if interpreted:
        raise Unavailable(f"Triton's interpreter cannot run a program on: {', '.join(interpreted)}")


def _declares_support(case: Case, kernel: Kernel) -> str | None:
    """Whether the kernel has declared that it takes the case: a shipped one, or one that declares dims or dtypes."""
    if not kernel.outside:
        return None
    if not kernel.dims and kernel.dtypes is None:
        return "the kernel declares neither dims nor dtypes"
    strided = any(draw.layout != "contiguous" for draw in case.draws.values())
    return "the kernel declares no layouts, and the case has a layout that is not contiguous" if strided else None


@property(applies=_declares_support, kind=PropertyKind.SUPPORT, severity=Severity.WRONG)
def declared_support_is_accepted(evidence: Evidence) -> Iterator[Finding]:
    """Forward and backward accept everything that the kernel declares to support.

    Holds because: cases are generated inside the dims, dtypes and options that the kernel declares. A shipped kernel
    declares every layout too; a kernel from outside, which declares dims or dtypes, contiguous tensors.
    Catches: a guardrail that is too narrow, an error raised for a size at an edge, a backward that refuses what its
    forward accepted. Without this property such cases would only be counted as refused.
    Cannot catch: wrong results; the matching properties do.
    """
    for name, call in (("forward", evidence.forward), ("backward", evidence.vjp)):
        try:
            call()
        except Refused as refusal:
            yield exactly(name, True, f"refused a case that it declares to support: {refusal}")
        else:
            yield exactly(name, False, "")


def bad_arguments(evidence: Evidence) -> list[BadArgument]:
    """What is tried: dtype, rank and device of the first float input, the dtype of the last one, each shared dim."""
    family, inputs = evidence.oracle.family, evidence.sample.inputs
    floats = [spec for spec in family.signature.primals if spec.name in inputs]
    first, last = floats[0].name, floats[-1].name
    tensor = inputs[first]
    longer = tensor.unsqueeze(0)
    found = [
        BadArgument(f"{first} of dtype int32", {first: tensor.to(torch.int32)}, (first,), ("int32",)),
        BadArgument(f"{first} with a rank too large", {first: longer}, (first,), _shapes(longer)),
        BadArgument(f"{first} on device meta", {first: tensor.to("meta")}, (first,), ("meta",)),
    ]
    if tensor.dim() > 1:
        shorter = tensor.select(0, 0)
        found.append(BadArgument(f"{first} with a rank too small", {first: shorter}, (first,), _shapes(shorter)))
    if last != first:
        other = torch.float64 if inputs[last].dtype != torch.float64 else torch.float32
        mixed = inputs[last].to(other)
        found.append(BadArgument(f"{last} of another dtype", {last: mixed}, (first, last), (str(other)[6:],)))
    for dim in family.signature.dims:
        owners = [spec for spec in floats if spec.dims.count(dim) == 1]
        if len(owners) > 1:
            victim = owners[-1]
            axis = victim.dims.index(dim)
            own = inputs[victim.name]
            larger = torch.cat([own, own.narrow(axis, 0, 1)], axis)
            what, names = f"{victim.name} with {dim} larger by one", tuple(spec.name for spec in owners)
            groups = [group for group in family.signature.constraints.alternatives if set(group) & set(names)]
            named = tuple(dict.fromkeys((*names, *(name for group in groups for name in group))))
            values = [
                *_shapes(larger),
                *(shape for spec in owners[:-1] if groups for shape in _shapes(inputs[spec.name])),
            ]
            found.append(BadArgument(what, {victim.name: larger}, named, tuple(values)))
    return found


def _shapes(tensor: Tensor) -> tuple[str, ...]:
    """How an error may show a shape: the tuple, the list, the sizes with x, or its rank in words."""
    shape, rank = tuple(tensor.shape), tensor.dim()
    sizes = ", ".join(map(str, shape))
    ranks = tuple(text.format(rank) for text in ("{} dims", "{} dimensions", "{}-d", "{}d", "{}D", "rank {}"))
    return (str(shape), f"[{sizes}]", "x".join(map(str, shape)), *ranks)


def _definition_refuses(evidence: Evidence, inputs: dict[str, Tensor]) -> bool:
    options = {**_keywords(evidence, inputs), **evidence.sample.options}
    try:
        evidence.oracle.family.definition(*_positional(evidence, inputs), **options)
    except Exception:
        return True
    return False


def _positional(evidence: Evidence, inputs: dict[str, Tensor]) -> list[Tensor]:
    return [t for n, t in inputs.items() if not evidence.oracle.family.signature.input(n).keyword]


def _keywords(evidence: Evidence, inputs: dict[str, Tensor]) -> dict[str, Any]:
    barred = {name for name, values in evidence.kernel.options.items() if not values}
    tensors = {n: t for n, t in inputs.items() if evidence.oracle.family.signature.input(n).keyword}
    return {**tensors, **{n: v for n, v in evidence.sample.options.items() if n not in barred}}


def _fault(raised: RaisedError | None, bad: BadArgument) -> str:
    """What is wrong with the answer of a shipped kernel; empty where nothing is."""
    if raised is None:
        return "was accepted, expected ValueError"
    text = raised.text
    if raised.names[0] != ValueError.__name__:
        return f"raised {raised.shown}, expected ValueError"
    missing = []
    if not any(re.search(rf"\b{re.escape(name)}\b", text) for name in bad.names):
        missing.append(f"the argument ({' or '.join(bad.names)})")
    if not any(value in text for value in bad.values):
        missing.append(f"the value given ({bad.values[0]})")
    if not _NAMES_A_WANT.search(text):
        missing.append("what is expected")
    return f"raised ValueError {text!r}, which does not name {' and '.join(missing)}" if missing else ""
