"""Example: a family made of a reference and one example of a kernel's arguments, where nothing is annotated.

Sizes that are equal in the example are one dim; dtypes and the ranges of integers are those of the example. The
parameter names of the kernel name the tensors.
"""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradoracle.model.errors import UsageError, first_line
from gradoracle.model.family import Family, integers_apart, of_floats
from gradoracle.model.formats import DTYPES
from gradoracle.model.kernel import Kernel
from gradoracle.model.modules import call_with, input_names
from gradoracle.model.signature import Signature, TensorSpec, cotangent_name, tangent_name
from gradoracle.project.example_dims import Corrections, Shapes

_ALONE = "expected tensors as arguments of their own, passed on by a function that takes them one by one"


@dataclass(frozen=True)
class Example:
    """The arguments of one call, by name: those that are tensors become inputs, all others are passed through.

    Attributes:
        positional: names and values in the order of the call.
        keyword: names and values.
    """

    positional: tuple[tuple[str, Any], ...]
    keyword: Mapping[str, Any]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, in the order of the call."""
        return {n: t for n, t in (*self.positional, *self.keyword.items()) if isinstance(t, Tensor)}

    def with_tensors(self, given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments with some tensors replaced."""
        positional = [given.get(name, value) for name, value in self.positional]
        return positional, {name: given.get(name, value) for name, value in self.keyword.items()}


@dataclass(frozen=True)
class Derived:
    """The family and the kernel of an example, and the tensors of the example by the names of the family."""

    family: Family
    kernel: Kernel
    tensors: Mapping[str, Tensor]


@contextmanager
def seeded() -> Iterator[None]:
    """Fix the seeds of torch, numpy and random, so that an example with random values is the same in every process."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def derive(
    kernel: Callable[..., Any],
    reference: Callable[..., Any],
    example: Any,
    *,
    names: tuple[str, str],
    corrections: Corrections | None = None,
    marked: bool = False,
) -> Derived:
    """Make the family of a reference, and the kernel that is checked against it, from one example of the arguments.

    Args:
        kernel: a function, or an nn.Module instance, whose parameters become inputs.
        reference: takes the same arguments; parameters of a module by keyword where it is a function.
        example: a tensor, a tuple or list of positional arguments, or a dict of arguments by name.
        names: of the kernel and the reference, for reports.
        corrections: dims and ranges that the example alone gets wrong.
        marked: whether float tensors that do not require grad are passed through, and at least one must; else all are
            inputs, and those that are not marked, where others are, may have no gradient.

    Raises:
        UsageError: one sentence: the example is no arguments of the kernel or holds no tensor to differentiate, the
            reference raises or returns no tensor that depends on them, sizes conflict.
    """
    label, own = names
    _require_callee(kernel, label)
    _require_callee(reference, own)
    given_as = bound(kernel, example, label)
    weights = input_names(kernel)
    tensors = given_as.tensors | {name: tensor for name, (_, tensor) in weights.items()}
    require_tensors(tensors, label)
    grads = [name for name, t in tensors.items() if t.requires_grad]
    floats = [name for name, t in tensors.items() if t.is_floating_point()]
    if not floats:
        raise UsageError(f"the inputs of {label} hold no float tensor; expected at least one to differentiate")
    if marked and not grads:
        raise UsageError(
            f"none of the inputs of {label} requires grad; expected requires_grad=True on those to differentiate"
        )
    inputs = {n: t for n, t in tensors.items() if not t.is_floating_point() or n in grads or not marked}
    through = {n: t for n, t in given_as.tensors.items() if n not in inputs}
    takes = _reference_weights(reference, weights, own, label)
    wanted = [n for n in floats if n in inputs and (n in grads or not grads)]

    def refer(given: Mapping[str, Tensor], wide: bool) -> Any:
        """The reference on tensors by name; those that are passed through are float64 where ``wide``."""
        other = {n: t.detach().double() if wide else t.detach() for n, t in through.items()}
        positional, keyword = given_as.with_tensors(other | dict(given))
        return call_with(reference, {n: given[n] for n in takes if n in given}, positional, keyword, wide=wide)

    outputs, notes = _outputs(refer, inputs, wanted, own)
    case_dtype = min((_dtype(inputs[n]) for n in floats if n in inputs), key=list(DTYPES).index)
    shapes = Shapes(corrections or Corrections())
    shapes.read({n: tuple(t.shape) for n, t in inputs.items()})
    sizes = {size for tensor in outputs.values() for size in tensor.shape}
    domains = {n: shapes.domain(n, t, sizes) for n, t in inputs.items() if not t.is_floating_point()}
    specs = []
    for name, tensor in inputs.items():
        kind, held = ("float" if tensor.is_floating_point() else "int"), _dtype(tensor)
        specs.append(TensorSpec(name, shapes.dims[name], kind, dtype="" if held == case_dtype else held))
    called = _names_of_outputs(outputs, specs)
    results = []
    for name, tensor in zip(called, outputs.values(), strict=True):
        kind, held = ("float" if tensor.is_floating_point() else "int"), _dtype(tensor)
        dims = shapes.result(name, tuple(tensor.shape))
        results.append(TensorSpec(name, dims, kind, dtype="" if held == case_dtype else held))
    shapes.require_used((*inputs, *called))
    order, kept = list(inputs), {n: tensor.requires_grad for n, tensor in outputs.items()}
    constant = [s.name for s, tensor in zip(results, outputs.values(), strict=True)
                if s.kind == "float" and not tensor.requires_grad]  # fmt: skip
    if constant:
        notes.append(f"compared by value alone, as the reference gives no gradient: {', '.join(constant)}")

    @functools.wraps(_function(reference))
    def definition(*given: Tensor) -> Any:
        return _chosen(refer(dict(zip(order, given, strict=True)), True), kept)

    @functools.wraps(_function(kernel))
    def call(*given: Tensor) -> Any:
        named = dict(zip(order, given, strict=True))
        positional, keyword = given_as.with_tensors({n: t.detach() for n, t in through.items()} | named)
        returned = call_with(kernel, {n: named[n] for n in weights if n in named}, positional, keyword)
        return _chosen(returned, kept)

    signature = integers_apart(_name(own), Signature(tuple(specs), tuple(results), ()))
    family = Family(
        _name(own), of_floats(definition, signature), signature, shapes.sizes(signature), (case_dtype,), domains,
        everything=definition,
    )  # fmt: skip
    unmarked = tuple(n for n in floats if n in inputs and n not in wanted)
    said = (f"from the example: {_written(specs, results)}", *shapes.notes, *notes)
    subject = Kernel(
        label.rpartition(":")[2], family.name, call, no_gradient=unmarked, outside=True, notes=() if marked else said
    )
    return Derived(family, subject, {n: t.detach() for n, t in inputs.items()})


def _require_callee(given: Any, label: str) -> None:
    if isinstance(given, type):
        raise UsageError(f"{label} is a class; expected a function of tensors, or an instance of it")
    if not callable(given):
        raise UsageError(f"{label} is of type {type(given).__name__} and not callable; expected a function of tensors")


def bound(kernel: Callable[..., Any], example: Any, label: str) -> Example:
    """The example bound to the parameters of the kernel.

    Raises:
        UsageError: it is no arguments of the kernel.
    """
    if isinstance(example, Tensor):
        example = (example,)
    by_name = isinstance(example, Mapping)
    if not by_name and not isinstance(example, (tuple, list)):
        raise UsageError(
            f"the inputs of {label} are of type {type(example).__name__}; expected a tensor, a tuple of arguments, "
            "or a dict of arguments by name"
        )
    positional, keyword = ((), dict(example)) if by_name else (tuple(example), {})
    try:
        signature = inspect.signature(kernel.forward if isinstance(kernel, nn.Module) else kernel)
    except (TypeError, ValueError):
        found = Example(tuple((f"input{n}", value) for n, value in enumerate(positional)), keyword)
    else:
        try:
            arguments = signature.bind(*positional, **keyword).arguments
        except TypeError as error:
            raise UsageError(f"{label}{signature} cannot be called with these inputs: {error}") from None
        found = _named(signature, arguments)
    for name, value in (*found.positional, *found.keyword.items()):
        if isinstance(value, (tuple, list, Mapping)) and _holds_tensors(value):
            raise UsageError(f"argument {name!r} of {label} is a {type(value).__name__} of tensors; {_ALONE}")
    return found


def _named(signature: inspect.Signature, arguments: Mapping[str, Any]) -> Example:
    positional: list[tuple[str, Any]] = []
    keyword: dict[str, Any] = {}
    for name, value in arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            positional += [(f"{name}{n}", each) for n, each in enumerate(value)]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            keyword |= value
        elif kind is inspect.Parameter.KEYWORD_ONLY or len(positional) < list(signature.parameters).index(name):
            keyword[name] = value
        else:
            positional.append((name, value))
    return Example(tuple(positional), keyword)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_tensors, value.values()))
    return isinstance(value, Tensor) or (isinstance(value, (tuple, list)) and any(map(_holds_tensors, value)))


def require_tensors(tensors: Mapping[str, Tensor], label: str) -> None:
    """Check that there are tensors, of shapes, dtypes and names that a family can have; raises UsageError."""
    if not tensors:
        raise UsageError(f"the inputs of {label} hold no tensor; expected at least one float tensor to differentiate")
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided:
            raise UsageError(f"input {name!r} of {label} has layout {tensor.layout}; expected a dense tensor")
        fits = not tensor.is_floating_point() and not tensor.is_complex()
        if not fits and _dtype(tensor) not in DTYPES:
            raise UsageError(
                f"input {name!r} of {label} has dtype {_dtype(tensor)}; expected one of {', '.join(DTYPES)}, integers "
                "or bool"
            )
        if 0 in tensor.shape:
            raise UsageError(
                f"input {name!r} of {label} has shape {tuple(tensor.shape)}; expected at least one element"
            )
        if f"t{name}" in tensors or f"dout{name}" in tensors:
            clash = f"t{name}" if f"t{name}" in tensors else f"dout{name}"
            raise UsageError(f"{label} has inputs {name!r} and {clash!r}, which is the name of a tangent; rename one")


def _reference_weights(
    reference: Callable[..., Any], weights: Mapping[str, tuple[str, Tensor]], own: str, label: str
) -> tuple[str, ...]:
    """The parameters of the kernel's module that the reference takes."""
    if isinstance(reference, nn.Module):
        theirs = set(input_names(reference))
        if theirs != set(weights):
            raise UsageError(
                f"the reference {own} has the parameters {_listed(theirs)}, the kernel {label} has {_listed(weights)}; "
                "expected the same names"
            )
        return tuple(weights)
    try:
        parameters = inspect.signature(reference).parameters
    except (TypeError, ValueError):
        return tuple(weights)
    missing = [n for n in weights if n not in parameters]
    if missing and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise UsageError(
            f"the reference {own} does not take {_listed(missing)}, parameters of the module {label}; expected it to "
            "take them by keyword"
        )
    return tuple(weights)


def _outputs(
    refer: Callable[[Mapping[str, Tensor], bool], Any], inputs: Mapping[str, Tensor], wanted: Sequence[str], own: str
) -> tuple[dict[int, Tensor], list[str]]:
    """The outputs of the reference, by their place, and a sentence about those that cannot be compared.

    Those that require grad depend on a differentiated input.
    """
    leaves = {n: t.detach().requires_grad_(n in wanted) for n, t in inputs.items()}
    shown = ", ".join(f"{name} {list(t.shape)}" for name, t in inputs.items())
    try:
        with torch.enable_grad():
            returned = refer(leaves, False)
    except Exception as error:
        raise UsageError(f"the reference {own} raises {type(error).__name__} on {shown}: {first_line(error)}") from None
    parts = parts_of(returned)
    wrong = [type(part).__name__ for part in parts if not (isinstance(part, Tensor) or part is None)]
    if wrong:
        raise UsageError(f"the reference {own} returns {', '.join(wrong)}; expected a tensor or a tuple of tensors")
    found = {n: part for n, part in enumerate(parts) if isinstance(part, Tensor) and _is_compared(part)}
    if not any(part.requires_grad for part in found.values()):
        raise UsageError(
            f"the reference {own} returns no tensor that depends on {_listed(wanted)}; expected one that has a gradient"
        )
    others = [
        f"{n + 1} of {len(parts)} ({_dtype(part)} {list(part.shape)})"
        for n, part in enumerate(parts)
        if isinstance(part, Tensor) and n not in found
    ]
    return found, [f"outputs not compared: number {', number '.join(others)}"] if others else []


def _is_compared(output: Tensor) -> bool:
    """Whether an output has elements, of a dtype that a case may have, integers or bool."""
    known = _dtype(output) in DTYPES if output.is_floating_point() else not output.is_complex()
    return output.numel() > 0 and (known or output.requires_grad)


def parts_of(returned: Any) -> Sequence[Any]:
    """What a function returned, one value or several, as a sequence."""
    return returned if isinstance(returned, (tuple, list)) else (returned,)


def _chosen(returned: Any, kept: Mapping[int, bool]) -> Any:
    """The outputs at some places, with or without their gradient; all that was returned where it lacks these places."""
    parts = parts_of(returned)
    if max(kept) >= len(parts):
        return returned
    chosen = ((parts[n], with_gradient) for n, with_gradient in kept.items())
    return tuple(p if keeps or not isinstance(p, Tensor) else p.detach() for p, keeps in chosen)


def _names_of_outputs(outputs: Mapping[int, Tensor], specs: Sequence[TensorSpec]) -> list[str]:
    taken = {s.name for s in specs} | {tangent_name(s.name) for s in specs}
    stem = next(stem for stem in ("out", "output", "result", "returned") if not {stem, cotangent_name(stem)} & taken)
    return [stem] if len(outputs) == 1 else [f"{stem}{n}" for n in outputs]


def _function(callee: Callable[..., Any]) -> Callable[..., Any]:
    return type(callee).forward if isinstance(callee, nn.Module) else callee


def _name(own: str) -> str:
    name = own.rpartition(":")[2].rpartition(".")[2]
    return name if name.isidentifier() else "reference"


def _dtype(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _written(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    first, second = (
        ", ".join(f"{s.name}[{' '.join(s.dims)}]{f' {s.dtype}' if s.kind == 'int' else ''}" for s in group)
        for group in (inputs, outputs)
    )
    return f"{first} -> {second}; correct a dim with --dim NAME=DIM,DIM"


def _listed(names: Any) -> str:
    return ", ".join(sorted(map(repr, names))) or "none"
