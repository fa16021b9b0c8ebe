"""Members: the slices of a problem along a named dim, and along which dims a definition treats them apart.

The definition itself says which dims these are, in float64 on random inputs. A signature does not: the batch of a
softmax looks like the dim that it sums over, and the queries of attention like those of causal attention.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.check.evidence import Evidence
from gradoracle.model import hashing
from gradoracle.model.derivative import as_tuple
from gradoracle.model.dims import dim_names
from gradoracle.model.domains import Domain, Longer, Neighbours, in_reading_order
from gradoracle.model.family import Family
from gradoracle.model.signature import TensorSpec, cotangent_name
from gradoracle.oracle.exact.definition import Undefined, evaluated, gradients

_SCALES = (1.0, 16.0, -16.0)  # of new members that a definition is tried on
Change = Callable[[Tensor, Sequence[str], str], Tensor]  # tensor, its named dims, its name


@dataclass(frozen=True)
class Appended:
    """One more member at one end of each of some dims.

    Attributes:
        dims: the dims that have one more member.
        silent: the dims along which the cotangents of new members are 0. Gradients of former members and of shared
            inputs then stay.
        seed: the seed of the new values.
        first: whether the new members come first; else they come last.
        scale: the scale of the new values.
        domains: the domains of the integer inputs, by name.
        before: the sizes of all dims without the new members.
    """

    dims: frozenset[str]
    silent: frozenset[str] = frozenset()
    seed: int = 0
    first: bool = False
    scale: float = 1.0
    domains: Mapping[str, Domain] = field(default_factory=dict)
    before: Mapping[str, int] = field(default_factory=dict)

    @property
    def after(self) -> dict[str, int]:
        """The sizes of all dims with the new members."""
        return {dim: size + (dim in self.dims) for dim, size in self.before.items()}

    def inputs(self, family: Family, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs with new members, those of integers as their domains have them."""
        found = {n: self.larger(t, family.signature.input(n).dims, n) for n, t in inputs.items()}
        for name in in_reading_order(self.domains, [name for name in inputs if name in self.domains]):
            axes = tuple(axis for axis, dim in enumerate(family.signature.input(name).dims) if dim in self.dims)
            longer = Longer(axes, self.before, self.after, self.first)
            found[name] = self.domains[name].extended(inputs[name], longer, Neighbours(self.domains, found))
        return found

    def larger(self, tensor: Tensor, dims: Sequence[str], name: str, cotangent: bool = False) -> Tensor:
        """The tensor with new members: scaled normal values, 0 in cotangents along silent dims, index 0 of integers."""
        out = tensor.contiguous()
        for axis, dim in enumerate(dims):
            if dim not in self.dims:
                continue
            slab = out.narrow(axis, 0, 1)
            if tensor.is_floating_point():
                values = self.scale * hashing.normal(self.seed, f"appended {dim} {name}", slab.numel())
                slab = torch.from_numpy(values).reshape(slab.shape).to(out.device, out.dtype)
                slab = (slab.double() * 0).to(slab.dtype) if cotangent and dim in self.silent else slab
            out = torch.cat([slab, out] if self.first else [out, slab], axis)
        return out

    def former(self, tensor: Tensor, dims: Sequence[str]) -> Tensor:
        """The part of a larger tensor that was there before."""
        for axis, dim in enumerate(dims):
            if dim in self.dims:
                tensor = tensor.narrow(axis, int(self.first), tensor.shape[axis] - 1)
        return tensor


def appended(
    evidence: Evidence, dims: frozenset[str], silent: frozenset[str] = frozenset(), *, seed: int = 0, **how: Any
) -> Appended:
    """One more member along each of some dims of a case; ``how``: ``first`` and ``scale``."""
    return Appended(dims, silent, seed, domains=evidence.oracle.family.domains, before=evidence.case.dims, **how)


def within_domains(evidence: Evidence, inputs: Mapping[str, Tensor], dims: Mapping[str, int] | None = None) -> bool:
    """Whether the integers among inputs lie in their domains, at the case's sizes of the dims or at others."""
    family = evidence.oracle.family
    return not outside_domains(family, inputs, dims or evidence.case.dims)


def outside_domains(family: Family, inputs: Mapping[str, Tensor], dims: Mapping[str, int]) -> list[str]:
    """The names of the inputs of integers that do not lie in their domains."""
    beside = Neighbours(family.domains, inputs)
    own = ((name, tensor) for name, tensor in inputs.items() if name in family.domains)
    return [name for name, tensor in own if family.domains[name].fault(tensor, dims, beside)]


def kept_in_domains(
    family: Family, inputs: Mapping[str, Tensor], legal: Mapping[str, Tensor], dims: Mapping[str, int]
) -> dict[str, Tensor]:
    """The inputs, with ``legal`` ones in place of those of integers that have left their domains.

    An input that another one reads is replaced with it, since one of both may be legal beside a former one alone.
    """
    found = dict(inputs)
    while left := _left(family, found, legal, dims):
        found |= {name: legal[name] for name in left}
    return found


def _left(
    family: Family, inputs: Mapping[str, Tensor], legal: Mapping[str, Tensor], dims: Mapping[str, int]
) -> list[str]:
    """The inputs to replace next: those outside of their domains, then those that such a one reads."""
    outside = outside_domains(family, inputs, dims)
    read = [name for each in outside for name in family.domains[each].reads]
    own, theirs = ([name for name in names if inputs[name] is not legal[name]] for names in (outside, read))
    return own or theirs


def rolled(tensor: Tensor, dims: Sequence[str], along: Mapping[str, int], times: int = 1) -> Tensor:
    """The tensor with its members moved on along each dim of ``along``, so many; the last ones come first."""
    axes = [axis for axis, dim in enumerate(dims) if dim in along]
    return torch.roll(tensor, [along[dims[axis]] * times for axis in axes], axes) if axes else tensor


def changed(
    family: Family, sample: Sample, primal: Change, cotangent: Change | None = None, tangents: bool = False
) -> Sample:
    """The sample with inputs (and tangents) changed by one function and cotangents by another, dims at hand."""
    inputs = {n: primal(t, family.signature.input(n).dims, n) for n, t in sample.inputs.items()}
    outputs = {spec.name: spec.dims for spec in family.signature.returned(sample.options)}
    cotangents = {n: (cotangent or primal)(t, outputs[n], n) for n, t in sample.cotangents.items()}
    moved = sample.tangents
    if tangents:
        moved = {n: primal(t, family.signature.input(n).dims, n) for n, t in sample.tangents.items()}
    return replace(sample, inputs=inputs, cotangents=cotangents, tangents=moved)


def permutable(evidence: Evidence) -> dict[str, int]:
    """Dims along which rolling the inputs rolls the outputs, by the definition, and by how many members.

    A dim is rolled by one member; where that is no symmetry, together with the dims that divide it or that it divides,
    each by the same part of its size (key heads by one, query heads by as many as share a key head).
    """
    family, inputs = evidence.oracle.family, _random(evidence)
    if inputs is None:
        return {}
    before, found = _outputs(evidence, inputs), dict[str, int]()
    known = candidates(evidence)
    for along in (*({dim: 1} for dim in known if evidence.case.dims[dim] > 1), *_linked(evidence, known)):
        if any(dim in found for dim in along):
            continue
        moved = {n: rolled(t, family.signature.input(n).dims, along) for n, t in inputs.items()}
        expected = [rolled(t, s.dims, along) for t, s in zip(before, _returned(evidence), strict=True)]
        if within_domains(evidence, moved) and _same(_outputs(evidence, moved), expected):
            found |= along
    return found


def _linked(evidence: Evidence, known: Sequence[str]) -> list[dict[str, int]]:
    """Sets of dims that divide one another, some of them ``known``, each with its part of the smallest roll."""
    groups: list[set[str]] = []
    for pair in evidence.oracle.family.signature.constraints.divides.items():
        touched = [group for group in groups if group & set(pair)]
        groups = [group for group in groups if group not in touched] + [set(pair).union(*touched)]
    tensors = [*_present(evidence), *_returned(evidence)]
    found = []
    for group in groups:
        sizes = {dim: evidence.case.dims[dim] for dim in evidence.oracle.family.signature.dims if dim in group}
        parts = math.gcd(*sizes.values())
        once = all(spec.dims.count(dim) <= 1 for spec in tensors for dim in group)
        if parts > 1 and once and group & set(known):
            found.append({dim: size // parts for dim, size in sizes.items()})
    return found


def apart(evidence: Evidence) -> frozenset[str]:
    """Dims whose members have nothing to do with one another, by the definition: neither former nor later ones.

    Offsets (cu_seqlens) and their like make groups of the members that they count: one more before the first group, if
    that is empty, is alone in it, and one more after the last is not.
    """
    family = evidence.oracle.family
    own = ((domain, family.signature.input(name).dims) for name, domain in family.domains.items())
    grouped = frozenset(dim for domain, dims in own for dim in domain.grouped(dims))
    return (extensible(evidence) & extensible(evidence, first=True)) - grouped


def extensible(evidence: Evidence, first: bool = False) -> frozenset[str]:
    """Dims along which a further member at the end (or at the start) leaves the outputs of the others as they are.

    Whatever its values are: a small one of sparsemax has no weight and leaves the others as they are, a large one not.
    """
    inputs = _random(evidence)
    if inputs is None:
        return frozenset()
    before = _outputs(evidence, inputs)
    return frozenset(
        dim
        for dim in candidates(evidence)
        if all(
            _is_kept(evidence, inputs, before, appended(evidence, frozenset((dim,)), seed=1, first=first, scale=by))
            for by in _SCALES
        )
    )


def together_extensible(evidence: Evidence, dims: frozenset[str]) -> frozenset[str]:
    """Those of some dims along each of which a member may come last which may all have one, by the domains."""
    inputs = evidence.sample.inputs
    found = sorted(dims)
    while found:
        more = appended(evidence, frozenset(found))
        if within_domains(evidence, more.inputs(evidence.oracle.family, inputs), more.after):
            break
        found.pop()
    return frozenset(found)


def _is_kept(evidence: Evidence, inputs: Mapping[str, Tensor], before: Sequence[Tensor], more: Appended) -> bool:
    """Whether the outputs of the former members stay as they are."""
    larger = more.inputs(evidence.oracle.family, inputs)
    if not within_domains(evidence, larger, more.after):
        return False
    try:
        after = _outputs(evidence, larger)
    except Undefined:
        return False  # the definition knows this size from somewhere else, or does not take it
    return _same([more.former(t, s.dims) for t, s in zip(after, _returned(evidence), strict=True)], before)


def separable(evidence: Evidence) -> frozenset[str]:
    """Dims of several members that are apart, whatever one of them is, NaN included.

    Also those that some input lacks, which all members then share.
    """
    inputs, dims = _random(evidence), [dim for dim in apart(evidence) if evidence.case.dims[dim] > 1]
    if inputs is None or not dims:
        return frozenset()
    before = _outputs(evidence, inputs)
    return frozenset(
        dim
        for dim in dims
        if all(
            _is_kept(evidence, inputs, before, appended(evidence, frozenset((dim,)), first=first, scale=math.nan))
            for first in (False, True)
        )
    )


def isolates_gradients(evidence: Evidence, spoilt: Sample, dim: str) -> bool:
    """Whether the definition's own gradients keep a NaN of the last member of a dim out of those of the others.

    They do not where a member enters with a factor of 0, such as the probability of a masked key: 0 times NaN is NaN.
    """
    before, after = (gradients(evidence.oracle.family, sample) for sample in (evidence.sample, spoilt))
    for name, gradient in after.items():
        own, former = evidence.axes(cotangent_name(name)), before[name]
        if dim in own and gradient is not None and former is not None:
            others = gradient.shape[own.index(dim)] - 1
            new, old = (t.narrow(own.index(dim), 0, others).isnan() for t in (gradient, former))
            if (new & ~old).any():
                return False
    return True


def everywhere(evidence: Evidence, dims: frozenset[str]) -> frozenset[str]:
    """Those of the dims that every float input has: nothing is shared between members along them."""
    floats = [s.dims for s in _present(evidence) if s.kind == "float"]
    return frozenset(dim for dim in dims if all(dim in own for own in floats))


def candidates(evidence: Evidence) -> list[str]:
    """Dims that each output has once, some float input has, no tensor has twice, and no expression (``T+1``) names."""
    signature, outputs = evidence.oracle.family.signature, _returned(evidence)
    tensors = [*_present(evidence), *outputs]
    composed = {name for spec in tensors for dim in spec.dims if not dim.isidentifier() for name in dim_names(dim)}
    return [
        dim
        for dim in signature.dims
        if dim not in composed
        and all(spec.dims.count(dim) == 1 for spec in outputs)
        and all(spec.dims.count(dim) <= 1 for spec in tensors)
        and any(dim in spec.dims for spec in tensors if spec.kind == "float" and spec not in outputs)
    ]


def _present(evidence: Evidence) -> list[TensorSpec]:
    return [spec for spec in evidence.oracle.family.signature.inputs if spec.name in evidence.sample.inputs]


def _returned(evidence: Evidence) -> tuple[TensorSpec, ...]:
    return evidence.oracle.family.signature.returned(evidence.sample.options)


def _random(evidence: Evidence) -> dict[str, Tensor] | None:
    """Normal float64 inputs of the sample's shapes (their absolute values where the definition needs these).

    Outputs may be infinite where that has nothing to do with the values, as in rows that a mask leaves empty.
    """
    inputs = {}
    for name, tensor in evidence.sample.inputs.items():
        inputs[name] = tensor.detach().cpu()
        if tensor.is_floating_point():
            values = hashing.normal(5, f"member {name}", tensor.numel())
            inputs[name] = torch.from_numpy(values).reshape(tensor.shape)
    for candidate in (inputs, {n: t.abs() if t.is_floating_point() else t for n, t in inputs.items()}):
        found = _outputs(evidence, candidate)
        if all(t.isfinite().all() for t in found):
            return candidate
        halved = _outputs(evidence, {n: t / 2 if t.is_floating_point() else t for n, t in candidate.items()})
        pairs = list(zip(found, halved, strict=True))
        if not any(a.isnan().any() for a in found) and all(
            torch.equal(_infinities(a), _infinities(b)) for a, b in pairs
        ):
            return candidate
    return None


def _infinities(tensor: Tensor) -> Tensor:
    """+-inf where the tensor is infinite, 0 elsewhere."""
    return torch.where(tensor.isinf(), tensor, 0.0)


def _outputs(evidence: Evidence, inputs: Mapping[str, Tensor]) -> tuple[Tensor, ...]:
    """The definition in plain float64."""
    family = evidence.oracle.family
    given = {s.name: inputs[s.name] for s in _present(evidence)}
    with torch.no_grad():
        return as_tuple(evaluated(family, given, evidence.sample.options))


def _same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    """Whether tensors are the same but for rounding; infinities must stand where the other's do."""
    for a, b in zip(one, other, strict=True):
        largest = float(torch.where(b.isfinite(), b, 0.0).abs().max()) if b.numel() else 0.0
        if a.shape != b.shape or not torch.allclose(a, b, rtol=1e-9, atol=1e-12 * largest):
            return False
    return True
