"""New family: the text of a file that declares a kernel and a definition that is still to be filled in."""

from __future__ import annotations

import inspect
import pprint
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from gradoracle.model.errors import TargetError, first_line
from gradoracle.model.formats import DTYPES
from gradoracle.model.modules import input_names
from gradoracle.model.signature import TensorSpec
from gradoracle.project.example import (
    Corrections,
    Shapes,
    bound,
    called,
    dtype_of,
    parts_of,
    require_tensors,
    seeded,
    spec_of,
)
from gradoracle.project.target import looked_up

_LITERALS = (bool, int, float, str, type(None))

_FILE = '''\
"""The definition of {name}, against which gradoracle checks it: gradoracle check {file}"""

import torch
from jaxtyping import {kinds}
from torch import Tensor

import gradoracle
{imports}


@gradoracle.family(
{arguments}
)
def {name}_definition({parameters}) -> {returned}:{remark}
    """What {name} computes, in plain PyTorch: the mathematics, not an algorithm."""
    raise NotImplementedError("fill in {name}_definition in {file}, then run: gradoracle check {file}")


{declared}
'''


def new_family(text: str, example: str | None, file: str) -> str:
    """The text of a family file for a kernel.

    Args:
        text: the kernel, ``mine.py:kernel`` or ``package.module:kernel``.
        example: an example of its arguments, as for ``--like``; None: read from its parameters.
        file: the file that the text is for.

    Raises:
        TargetError: the kernel or the example cannot be found or used.
    """
    with seeded():
        kernel, module = looked_up(text)
        attribute = text.rpartition(":")[2]
        name = attribute.replace(".", "_")
        if example is None:
            specs, domains, options, results, remark = _from_parameters(kernel, text)
        else:
            given = called(looked_up(example, module)[0], example)
            specs, domains, options, results, remark = _from_example(kernel, given, text)
    tensors = [f"{s.name}: {_annotation(s)}" for s in specs]
    literals = [f"{n}: {type(v).__name__} = {v!r}" if v is not None else f"{n}=None" for n, v in options.items()]
    parameters = ", ".join([*tensors, *(["*", *literals] if literals else [])])
    kinds = sorted({_kind(s) for s in (*specs, *results)})
    returned = ", ".join(_annotation(s) for s in results)
    dims = list(dict.fromkeys(d for s in (*specs, *results) for d in s.dims if d.isidentifier()))
    sizes = ", ".join(f'"{dim}": gradoracle.sizes(1, 128)' for dim in dims)
    ranges = ", ".join(f'"{n}": {value.source}' for n, value in domains.items())
    named = [d for s in specs for d in s.dims if d.isidentifier()]
    arguments = [f"    dims={{{sizes}}},", *([f"    domains={{{ranges}}},"] if domains else [])]
    if example is not None and len({*named}) < len(named):  # sizes alone do not tell whether two are one dim
        chance = "equal sizes of the example are one dim; give those that are equal by chance names of their own"
        arguments = [f"    # {chance}", *arguments]
    where = text.rpartition(":")[0]
    place = Path(where).stem if where.endswith(".py") else where
    imported = attribute.partition(".")[0]
    names = [s.name for s in specs]
    if isinstance(kernel, nn.Module):
        declared = f'checked = gradoracle.kernel({name}_definition, name="{name}")({attribute})'
    else:
        own = ", ".join([*names, *(["*", *(f"{n}={v!r}" for n, v in options.items())] if options else [])])
        passed = ", ".join([*names, *(f"{n}={n}" for n in options)])
        declared = (
            f'@gradoracle.kernel({name}_definition, name="{name}")\n'
            f"def checked_{name}({own}):\n    return {attribute}({passed})"
        )
    return _FILE.format(
        name=name, file=file, kinds=", ".join(kinds), imports=f"from {place} import {imported}",
        arguments="\n".join(arguments), parameters=parameters, remark=remark, declared=declared,
        returned=returned if len(results) == 1 else f"tuple[{returned}]",
    )  # fmt: skip


_Read = tuple[list[TensorSpec], dict[str, Any], dict[str, Any], list[TensorSpec], str]


def _from_example(kernel: Any, given: Any, text: str) -> _Read:
    """Inputs, ranges, options and outputs of a kernel that is called with an example."""
    arguments = bound(kernel, given, text)
    weights = {n: t.detach() for n, (_, t) in input_names(kernel).items()}
    tensors = arguments.tensors | weights
    require_tensors(tensors, text)
    options = {}
    for name, value in (*arguments.positional, *arguments.keyword.items()):
        if isinstance(value, Tensor):
            continue
        if not isinstance(value, _LITERALS):
            shown = pprint.saferepr(value)[:40]
            raise TargetError(f"argument {name!r} of {text} is {shown}; expected tensors, numbers, strings or None")
        options[name] = value
    shapes = Shapes(Corrections())
    shapes.read({n: tuple(t.shape) for n, t in tensors.items()})
    floats = [dtype_of(t) for t in tensors.values() if t.is_floating_point()]
    case = min(floats, key=list(DTYPES).index, default="float32")
    domains = {n: domain for n, domain in shapes.domains(tensors).items() if tensors[n].dtype is not torch.bool}
    specs = [spec_of(n, shapes.dims[n], t, case) for n, t in tensors.items()]
    try:
        with torch.no_grad():
            positional, keyword = arguments.with_tensors({})
            returned = kernel(*positional, **keyword)
        parts = parts_of(returned)
        results = [spec_of(f"out{n}", shapes.result("", tuple(t.shape)), t, case) for n, t in enumerate(parts)]
    except Exception as error:
        first = next(s for s in specs if s.kind == "float")
        remark = f"  # correct the result: the kernel raised {first_line(error)[:60]}"
        return specs, domains, options, [TensorSpec("out", first.dims)], remark
    return specs, domains, options, results, ""


def _from_parameters(kernel: Any, text: str) -> _Read:
    """Inputs and options of a kernel by its parameters alone: those without a default are tensors."""
    try:
        parameters = inspect.signature(kernel.forward if isinstance(kernel, nn.Module) else kernel).parameters
    except (TypeError, ValueError):
        raise TargetError(f"the signature of {text} cannot be read; give an example of its arguments, --like") from None
    specs, options = [], dict[str, Any]()
    for parameter in parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise TargetError(f"{text} takes any arguments; give an example of them with --like")
        if parameter.default is parameter.empty:
            specs.append(TensorSpec(parameter.name, ("B", "N")))
        elif isinstance(parameter.default, _LITERALS):
            options[parameter.name] = parameter.default
    shapes = Shapes(Corrections())
    weights: Mapping[str, Tensor] = {n: t for n, (_, t) in input_names(kernel).items()}
    shapes.read({n: tuple(t.shape) for n, t in weights.items()})
    specs += [TensorSpec(n, shapes.dims[n]) for n in weights]
    if not specs:
        raise TargetError(f"{text} has no parameter without a default, so no tensor; give an example with --like")
    return specs, {}, options, [TensorSpec("out", ("B", "N"))], "  # correct the dims: no example was given"


def _kind(spec: TensorSpec) -> str:
    if spec.kind == "int":
        return {"int64": "Int", "bool": "Bool"}.get(spec.dtype, spec.dtype.title().replace("Uint", "UInt"))
    return "BFloat16" if spec.dtype == "bfloat16" else spec.dtype.capitalize().replace("_", "") or "Float"


def _annotation(spec: TensorSpec) -> str:
    return f'{_kind(spec)}[Tensor, "{" ".join(spec.dims)}"]'
