"""Definition: a family's function as gradoracle calls it, and the errors if it raises or cannot be traced."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.model.derivative import as_tuple
from gradoracle.model.errors import out_of_memory
from gradoracle.model.family import Family
from gradoracle.model.location import function_of
from gradoracle.model.recurrence import RecurrenceError, uncompiled
from gradoracle.oracle.exact.recording import ValueDependent

PURE = (
    "expected a pure torch function of its tensors: no numbers taken out of tensors (.item(), .tolist(), a branch on a "
    "value), no numpy, no in-place writes to its arguments"
)
_LACKING = "expected operators that PyTorch differentiates twice, in reverse and in forward mode"


class Undefined(Exception):
    """The definition raises, contradicts its annotations, or cannot be traced; the message is one sentence."""


class Raises(Undefined):
    """The definition raises on tensors of these sizes, traced or not."""


def called(family: Family, inputs: Mapping[str, Tensor], options: Mapping[str, Any]) -> Any:
    """What the definition returns for inputs by name; its exceptions pass through.

    It is given tensors without gaps: layouts are the kernel's matter.
    """
    inputs = {name: _without_gaps(tensor) for name, tensor in inputs.items()}
    keyword = {spec.name for spec in family.signature.inputs if spec.keyword}
    others = {name for group in family.signature.constraints.alternatives for name in group}  # None where absent
    positional = [s.name for s in family.signature.inputs if s.name not in keyword]
    with uncompiled():
        return family.definition(
            *(inputs.get(name) for name in positional if name in inputs or name in others),
            **{n: t for n, t in inputs.items() if n in keyword},
            **options,
        )


def evaluated(family: Family, inputs: Mapping[str, Tensor], options: Mapping[str, Any]) -> Any:
    """What the definition returns for plain tensors.

    Raises:
        Raises: it raises, unless for lack of memory; the message has the error, the shapes and the dims.
    """
    try:
        return called(family, inputs, options)
    except (Exception, SystemExit) as error:
        if out_of_memory(error):
            raise
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in inputs.items())
        sizes = ", ".join(f"{dim}={size}" for dim, size in _sizes(family, inputs).items())
        on = f"{shapes} ({sizes})" if sizes else shapes
        raise Raises(f"{_of(family)} raises {type(error).__name__} on {on}: {_first_line(error)}") from error


def transformed(family: Family, inputs: Mapping[str, Tensor], options: Mapping[str, Any]) -> tuple[Tensor, ...]:
    """The outputs for tensors that ``torch.func`` differentiates or the oracle traces.

    Raises:
        Undefined: it raises on them.
    """
    try:
        return as_tuple(called(family, inputs, options))
    except (Exception, SystemExit) as error:
        if out_of_memory(error):
            raise
        raise untraceable(_of(family), error, family) from error


def untraceable(of: str, error: BaseException, family: Family) -> Undefined:
    """The error for a program that raised while it was traced; ``of`` names the program."""
    if isinstance(error, RecurrenceError):
        return Undefined(f"{of} cannot be traced{_place(family, error)}: {_first_line(error)}")
    what = _first_line(error) if isinstance(error, ValueDependent) else f"{type(error).__name__}: {_first_line(error)}"
    expected = _LACKING if _lacks_a_derivative(error) else PURE
    return Undefined(f"{of} cannot be traced{_place(family, error)}: {what}; {expected}")


@contextmanager
def differentiating(family: Family) -> Iterator[None]:
    """Around a derivative of the definition: what PyTorch cannot differentiate is an error of the definition.

    Raises:
        Undefined: an operator has no such derivative, or a value of a traced tensor is needed.
    """
    try:
        yield
    except Undefined:
        raise
    except Exception as error:
        named = isinstance(error, (ValueDependent, RecurrenceError)) or _lacks_a_derivative(error)
        if named or any(mark in str(error) for mark in ("ata-dependent", "vmap")):
            raise untraceable(_of(family), error, family) from error
        raise


def require(family: Family, sample: Sample) -> None:
    """Check that the definition returns, on the values of a sample, what its annotations say.

    Raises:
        Raises: it raises.
        Undefined: it returns other tensors, or writes to its arguments.
    """
    inputs = _exact(sample)
    versions = {n: t._version for n, t in inputs.items()}
    given = evaluated(family, inputs, sample.options)
    written = [n for n, t in inputs.items() if t._version != versions[n]]
    if written:
        raise Undefined(f"{_of(family)} writes to its argument {written[0]} in place; {PURE}")
    expected = [tuple(sample.cotangents[spec.name].shape) for spec in family.signature.returned(sample.options)]
    found = given if isinstance(given, (tuple, list)) else (given,)
    shapes = [tuple(t.shape) if isinstance(t, Tensor) else type(t).__name__ for t in found]
    if shapes != expected:
        own = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in inputs.items())
        annotated = ", ".join(map(str, expected))
        raise Undefined(f"{_of(family)} gives {', '.join(map(str, shapes))} on {own}, its annotation says {annotated}")


def gradients(family: Family, sample: Sample) -> dict[str, Tensor | None]:
    """The definition's own gradients in the float inputs by name, by autograd in float64.

    None in an input that no output depends on at the sizes of the sample.

    Raises:
        Raises: the definition raises.
    """
    inputs = {n: t.requires_grad_() if t.is_floating_point() else t for n, t in _exact(sample).items()}
    primals = {n: t for n, t in inputs.items() if t.requires_grad}
    with torch.enable_grad():
        outputs = as_tuple(evaluated(family, inputs, sample.options))
    returned = zip(outputs, family.signature.returned(sample.options), strict=True)
    pairs = [(t, sample.cotangents[spec.name].detach().cpu().double()) for t, spec in returned if t.requires_grad]
    if not pairs or not primals:
        return dict.fromkeys(primals)
    depending, cotangents = zip(*pairs, strict=True)
    found = torch.autograd.grad(depending, list(primals.values()), cotangents, allow_unused=True)
    return dict(zip(primals, found, strict=True))


def _without_gaps(tensor: Tensor) -> Tensor:
    """The tensor itself where it is contiguous and begins its storage, else a copy that does."""
    begins = tensor.is_contiguous() and tensor.storage_offset() == 0
    return tensor if begins else tensor.clone(memory_format=torch.contiguous_format)


def _exact(sample: Sample) -> dict[str, Tensor]:
    """Copies of the inputs, without gaps; floats in float64."""
    found = {n: _without_gaps(t.detach().to("cpu", copy=True)) for n, t in sample.inputs.items()}
    return {n: t.double() if t.is_floating_point() else t for n, t in found.items()}


def _of(family: Family) -> str:
    return f"the definition of {family.name}"


def _sizes(family: Family, inputs: Mapping[str, Tensor]) -> dict[str, int]:
    """The size of each named dim, as far as tensors show it."""
    found = {}
    for spec in family.signature.inputs:
        if spec.name in inputs and inputs[spec.name].dim() == len(spec.dims):
            found.update({d: n for d, n in zip(spec.dims, inputs[spec.name].shape, strict=True) if d.isidentifier()})
    return {dim: found[dim] for dim in family.signature.dims if dim in found}


def _place(family: Family, error: BaseException) -> str:
    """The line of the definition's file at which it raised, as `` at mine.py, line 8``."""
    code = getattr(function_of(family.definition), "__code__", None)
    if code is None:
        return ""
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == code.co_filename]
    return f" at {Path(code.co_filename).name}, line {lines[-1]}" if lines else ""


def _lacks_a_derivative(error: BaseException) -> bool:
    """Whether PyTorch reports that an operator has no derivative in the requested mode."""
    return isinstance(error, NotImplementedError) or "not implemented" in str(error)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["no message"])[0].rstrip(".")
