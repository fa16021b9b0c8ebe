"""Saved tensors: one case from a file of a user's tensors, instead of the stream (``--inputs saved.pt``).

The file is what ``torch.save({"q": q, "k": k, "do": grad_o}, "saved.pt")`` writes: tensors by the names of inputs, a
cotangent as ``d`` and the output's name, a tangent as ``t`` and the input's. Those that are missing are generated.
"""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradoracle.cases.sample import Sample, build, whole_dtype
from gradoracle.model.case import Case, Draw
from gradoracle.model.dims import MOST_SPREAD, Sizes, dim_names, is_spread, solved
from gradoracle.model.dims import size as size_of
from gradoracle.model.domains import Neighbours, in_reading_order
from gradoracle.model.errors import UsageError
from gradoracle.model.family import Family
from gradoracle.model.formats import DTYPES
from gradoracle.model.signature import TensorSpec, cotangent_name, tangent_name
from gradoracle.project.values import saved


class Given(str):
    """Tensors of this process instead of a file; as text, what reports call them."""

    tensors: Mapping[str, Tensor]

    def __new__(cls, text: str, tensors: Mapping[str, Tensor]) -> Given:
        """``text`` follows "the tensors x, w of"."""
        found = super().__new__(cls, text)
        found.tensors = tensors
        return found


def sample_of(case: Case, family: Family, inputs: str | None = None) -> Sample:
    """The tensors of a case; those that the file ``inputs`` holds are taken from it with their strides.

    Raises:
        UsageError: the file cannot be read or does not fit the family.
        ValueError: the case does not fit the signature.
    """
    sample = build(case, family.signature, domains=family.domains)
    if inputs is not None:
        tensors = load(inputs)
        groups = ((sample.inputs, str), (sample.tangents, tangent_name), (sample.cotangents, cotangent_name))
        own = [{n: tensors.get(name(n), drawn) for n, drawn in group.items()} for group, name in groups]
        specs = _specs(family)
        wide = {n: t if t.is_floating_point() else t.to(whole_dtype(specs[n])) for n, t in own[0].items()}
        sample = replace(sample, inputs=wide, tangents=own[1], cotangents=own[2], source=inputs)
    return sample


def saved_case(
    family: Family,
    inputs: str,
    *,
    options: Mapping[str, Any],
    seed: int,
    supported: Mapping[str, Collection[Any]] | None = None,
) -> Case:
    """The case of a file of tensors, with dims and dtype read from them.

    Args:
        family: the family, with the names of the tensors.
        inputs: the file.
        options: the options that differ from the definition's defaults; the cotangent of an optional output adds its
            option.
        seed: the seed of the tensors that are generated.
        supported: the values of options that the kernel takes, where not all (``Kernel.options``).

    Raises:
        UsageError: no such file, not a dict of tensors, a missing or unknown name, shapes that contradict one another,
            dtypes that are mixed or not supported, an index out of its domain, the cotangent of an output that the
            kernel is not asked for.
    """
    tensors = load(inputs)
    specs = _specs(family)
    unknown = [name for name in tensors if name not in specs]
    if unknown:
        given = f"{_origin(inputs)} holds {_listed(unknown)}"
        raise UsageError(f"{given}, which {family.name} does not have; {_wanted(family)}")
    missing = [spec.name for spec in family.signature.inputs if not spec.optional and spec.name not in tensors]
    if missing:
        raise UsageError(f"{_origin(inputs)} lacks {_listed(missing)}; {_wanted(family)}")
    options = _asked_for(family, tensors, options, supported or {}, inputs)
    dtype = _dtype(tensors, specs, inputs)
    dims = _dims(family, tensors, specs, inputs)
    draws = {s.name: Draw() for s in family.signature.inputs if s.optional and s.kind == "float" and s.name in tensors}
    draws |= {s.name: Draw("index") for s in family.signature.inputs if s.kind == "int" and s.name in tensors}
    _require_indices(family, tensors, dims, inputs)
    return Case(family.name, dims, dtype, options, draws, "", seed)


def saved_line(case: Case, family: Family, inputs: str) -> str:
    """The case of a file in words: the file, dtype, dims and options, which tensors it holds and which are generated.

    It is not a case line, from which its tensors could not be built.
    """
    held = load(inputs)
    absent = {spec.name for spec in family.signature.inputs if spec.optional and spec.name not in held}
    generated = [name for name, spec in _specs(family).items() if name not in held and spec.name not in absent]
    generated = list(family.signature.without_absent(dict.fromkeys(generated), case.options))
    words = [case.dtype, *(f"{dim}={size}" for dim, size in case.dims.items())]
    words += [f"--{name}={value}" for name, value in case.options.items()]
    rest = f"; generated with seed {case.seed}: {', '.join(generated)}" if generated else ""
    return f"the tensors {', '.join(held)} of {inputs}: {' '.join(words)}{rest}"


def load(inputs: str) -> dict[str, Tensor]:
    """The tensors of a file by name, on the CPU, detached.

    Raises:
        UsageError: no such file, or not a dict of dense tensors.
    """
    if isinstance(inputs, Given):
        return {name: tensor.detach().cpu() for name, tensor in inputs.tensors.items()}
    saved(inputs)
    expected = "expected a dict {name: tensor} saved with torch.save"
    try:
        held = torch.load(inputs, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError, AttributeError):
        raise UsageError(f"{_origin(inputs)} cannot be read as tensors and nothing but tensors; {expected}") from None
    if not isinstance(held, Mapping) or not held:
        what = "nothing" if isinstance(held, Mapping) else f"a {type(held).__name__}"
        raise UsageError(f"{_origin(inputs)} holds {what}; {expected}")
    for name, tensor in held.items():
        if not isinstance(name, str) or not isinstance(tensor, Tensor) or tensor.layout is not torch.strided:
            what = str(tensor.layout) if isinstance(tensor, Tensor) else type(tensor).__name__
            raise UsageError(f"{_origin(inputs)} holds an object of type {what} as {name!r}; {expected}, each dense")
    return {name: tensor.detach() for name, tensor in held.items()}


def _origin(inputs: str) -> str:
    return str(inputs) if isinstance(inputs, Given) else f"--inputs {inputs}"


def _specs(family: Family) -> dict[str, TensorSpec]:
    """Every name that a file may hold: inputs, cotangents and tangents."""
    signature = family.signature
    specs = {spec.name: spec for spec in signature.inputs}
    specs |= {cotangent_name(spec.name): spec for spec in signature.outputs if spec.kind == "float"}
    return specs | {tangent_name(spec.name): spec for spec in signature.primals}


def _wanted(family: Family) -> str:
    inputs = [f"{s.name}{' (optional)' if s.optional else ''}" for s in family.signature.inputs]
    others = [name for name in _specs(family) if name not in {s.name for s in family.signature.inputs}]
    return f"expected {', '.join(inputs)} and, where they are not to be generated, {', '.join(others)}"


def _dtype(tensors: Mapping[str, Tensor], specs: Mapping[str, TensorSpec], inputs: str) -> str:
    """The dtype that all float tensors share, except those whose dtype the definition fixes."""
    found: dict[str, str] = {}
    fixed: dict[str, str] = {}
    for name, tensor in tensors.items():
        dtype = str(tensor.dtype).removeprefix("torch.")
        if specs[name].kind == "int":
            if tensor.is_floating_point() or tensor.is_complex():
                raise UsageError(f"{_origin(inputs)}: {name} has dtype {dtype}, expected an integer dtype")
            continue
        if dtype not in DTYPES:
            raise UsageError(f"{_origin(inputs)}: {name} has dtype {dtype}, expected one of {', '.join(DTYPES)}")
        if bool(tensor.isnan().any()):
            raise UsageError(f"{_origin(inputs)}: {name} holds NaN, of which no truth is known; expected numbers")
        if specs[name].dtype:
            fixed[name] = dtype
        else:
            found.setdefault(dtype, name)
    if len(found) != 1:
        mixed = " and ".join(f"{name} in {dtype}" for dtype, name in found.items())
        raise UsageError(
            f"{_origin(inputs)} holds {mixed or 'no float tensor'}; expected one dtype for all float tensors"
        )
    (own,) = found
    for name, dtype in fixed.items():
        if dtype != specs[name].held(own):
            raise UsageError(f"{_origin(inputs)}: {name} has dtype {dtype}, expected {specs[name].held(own)}")
    return own


def _asked_for(
    family: Family,
    tensors: Mapping[str, Tensor],
    options: Mapping[str, Any],
    supported: Mapping[str, Collection[Any]],
    inputs: str,
) -> dict[str, Any]:
    """The options, with those that make the definition return the outputs whose cotangents the file holds."""
    there = [spec.name for spec in family.signature.returned(options)]
    found = dict(options)
    for spec in family.signature.outputs:
        name = cotangent_name(spec.name)
        if name not in tensors or spec.name in there:
            continue
        if True not in supported.get(spec.asked_by, (True,)):
            raise UsageError(
                f"{_origin(inputs)} holds {name!r}, but {spec.name} is returned only with {spec.asked_by}=true, which "
                "is not among what is checked; expected a file without it"
            )
        found[spec.asked_by] = True
    return found


def _dims(
    family: Family, tensors: Mapping[str, Tensor], specs: Mapping[str, TensorSpec], inputs: str
) -> dict[str, int]:
    """The size of every dim; one that only absent tensors have is as small as the family allows."""
    present = _present(family, tensors, specs, inputs)
    specs = {name: spec.at(present) for name, spec in specs.items()}
    sizes: dict[str, tuple[int, str]] = {}
    for name, tensor in tensors.items():
        spec, shape = specs[name], tuple(tensor.shape)
        if len(shape) != len(spec.dims):
            form = f"{len(spec.dims)} dims [{' '.join(spec.dims)}]"
            raise UsageError(f"{_origin(inputs)}: {name} has shape {shape}, expected {form}")
        if 0 in shape:
            raise UsageError(f"{_origin(inputs)}: {name} has shape {shape}, expected at least one element")
        for dim, size in zip(spec.dims, shape, strict=True):
            terms = dim_names(dim)
            if len(terms) != 1 or "//" in dim or "-" in dim:  # several sizes of T give one of T//2
                continue
            if (own := solved(dim, size)) is None:
                least = size_of(dim, {terms[0]: 1})
                expected = f"{terms[0]} at least 1" if size < least else "another size"
                raise UsageError(
                    f"{_origin(inputs)}: {name} has shape {shape}, where {dim} is {size}, expected {expected}"
                )
            term, whole = own
            known, by = sizes.setdefault(term, (whole, name))
            if known != whole:
                raise UsageError(
                    f"{_origin(inputs)}: {name} has shape {shape}, where {dim} is {size}, "
                    f"but {by} has {term} = {known}; expected one size of {term}"
                )
    for name, tensor in tensors.items():  # what only T//2 says
        for dim, size in zip(specs[name].dims, tensor.shape, strict=True):
            if (one := solved(dim, size)) is not None:
                sizes.setdefault(one[0], (one[1], name))
    found = {dim: sizes[dim][0] if dim in sizes else family.dims.get(dim, Sizes()).smallest for dim in present}
    for name, tensor in tensors.items():
        fitting = specs[name].shape(found)
        if tuple(tensor.shape) != fitting:
            raise UsageError(f"{_origin(inputs)}: {name} has shape {tuple(tensor.shape)}, expected {fitting}")
    return found


def _present(
    family: Family, tensors: Mapping[str, Tensor], specs: Mapping[str, TensorSpec], inputs: str
) -> tuple[str, ...]:
    """The dims of a family that these tensors have: of ``*NAME`` as many as their shapes leave for it."""
    counts: dict[str, tuple[int, str]] = {}
    for name, tensor in tensors.items():
        for starred in filter(is_spread, specs[name].dims):
            own = tensor.dim() - len(specs[name].dims) + 1
            known, by = counts.setdefault(starred, (own, name))
            if own != known or not 0 <= own <= MOST_SPREAD:
                wanted = f"as in {by} {known}" if own != known else f"0 to {MOST_SPREAD}"
                form = f"{starred} of [{' '.join(specs[name].dims)}]"
                raise UsageError(
                    f"{_origin(inputs)}: {name} has shape {tuple(tensor.shape)}, which leaves {own} dims for {form}; "
                    f"expected {wanted}"
                )
    return family.signature.dims_of({starred: count for starred, (count, _) in counts.items()})


def _require_indices(family: Family, tensors: Mapping[str, Tensor], dims: Mapping[str, int], inputs: str) -> None:
    """Refuse integers outside their domain, with which a kernel would read outside its tensors."""
    names = [spec.name for spec in family.signature.inputs if spec.kind == "int" and spec.name in tensors]
    for name in in_reading_order(family.domains, names):
        if fault := family.domains[name].fault(tensors[name], dims, Neighbours(family.domains, tensors)):
            raise UsageError(f"{_origin(inputs)}: {name} {fault}")


def _listed(names: list[str]) -> str:
    return ", ".join(map(repr, names))
