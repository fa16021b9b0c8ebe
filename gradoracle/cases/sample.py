"""Sample: the tensors of a case, the same bits on every machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradoracle.model import layouts, recipes
from gradoracle.model.case import Case, Draw, require_fit
from gradoracle.model.domains import Domain, Drawing, Neighbours, in_reading_order
from gradoracle.model.signature import Signature, TensorSpec, cotangent_name, tangent_name
from gradoracle.model.tensor_bits import Change

_V = TypeVar("_V")


@dataclass(frozen=True)
class Sample:
    """The tensors of a case, in the order of the definition's signature.

    Attributes:
        inputs: by name; float ones in the case's dtype or their own, integer ones int64 or their own; absent optional
            ones left out.
        tangents: one for each float input, by the input's name.
        cotangents: one for each float output that is returned, by the output's name.
        options: every option of the definition, defaults included.
        source: the file that some of the tensors were read from; "" where all are generated.
        changes: what calls of the kernel wrote to tensors, by ``q``, ``do``, ``tq``: (call, change), the first of each;
            shared with all samples derived from this one.
    """

    inputs: Mapping[str, Tensor]
    tangents: Mapping[str, Tensor]
    cotangents: Mapping[str, Tensor]
    options: Mapping[str, Any]
    source: str = ""
    changes: dict[str, tuple[str, Change]] = field(default_factory=dict, compare=False, repr=False)

    def with_inputs(self, **tensors: Tensor) -> Sample:
        """The sample with some inputs replaced; their order stays."""
        return replace(self, inputs=_replaced(self.inputs, tensors, "input"))

    def with_tangents(self, **tensors: Tensor) -> Sample:
        """The sample with the tangents of some inputs replaced."""
        return replace(self, tangents=_replaced(self.tangents, tensors, "tangent"))

    def without_tangents(self, inputs: Collection[str]) -> Sample:
        """The sample with tangents of 0 for some inputs."""
        still = {name: torch.zeros_like(self.tangents[name]) for name in inputs if name in self.tangents}
        return self.with_tangents(**still) if still else self

    def with_cotangents(self, **tensors: Tensor) -> Sample:
        """The sample with the cotangents of some outputs replaced."""
        return replace(self, cotangents=_replaced(self.cotangents, tensors, "cotangent"))

    def with_options(self, **options: Any) -> Sample:
        """The sample with some options replaced."""
        return replace(self, options=_replaced(self.options, options, "option"))

    def tensors(self) -> dict[str, Tensor]:
        """All tensors, by ``q``, ``do``, ``tq``."""
        cotangents = {cotangent_name(name): tensor for name, tensor in self.cotangents.items()}
        return {**self.inputs, **cotangents, **{tangent_name(name): t for name, t in self.tangents.items()}}

    def map(self, change: Callable[[Tensor], Tensor]) -> Sample:
        """The sample with every tensor changed by a function."""
        inputs, tangents, cotangents = (
            {name: change(tensor) for name, tensor in group.items()}
            for group in (self.inputs, self.tangents, self.cotangents)
        )
        return replace(self, inputs=inputs, tangents=tangents, cotangents=cotangents)

    def to(self, device: str | torch.device) -> Sample:
        """The sample on another device; strides, offsets and poisoned storage are kept."""
        return self.map(lambda tensor: layouts.moved(tensor, device))


def build(case: Case, signature: Signature, *, domains: Mapping[str, Domain] | None = None) -> Sample:
    """Build the tensors of a case: the same bits on every machine.

    Each tensor has a random stream of its own, named by role and name, and so does not change when another is added.

    Args:
        case: the dims, dtype and draws.
        signature: the signature of the family's definition.
        domains: the domains of the integer inputs, by name (``family.domains``).

    Raises:
        ValueError: the case does not fit the signature; it says what was given and what is expected.
    """
    require_fit(case, signature)
    present = [s for s in signature.inputs if not s.optional or s.name in case.draws]
    floats = [spec for spec in present if spec.kind == "float"]
    whole = _integers(case, [spec for spec in present if spec.kind == "int"], domains or {})
    inputs = {s.name: whole[s.name] if s.kind == "int" else _float(case, s) for s in present}
    tangents = {spec.name: _float(case, spec, tangent_name(spec.name), "tangent") for spec in floats}
    outputs = [spec for spec in signature.returned(case.options) if spec.kind == "float"]
    cotangents = {spec.name: _float(case, spec, cotangent_name(spec.name), "cotangent") for spec in outputs}
    options = {spec.name: spec.default for spec in signature.options} | dict(case.options)
    return Sample(inputs, tangents, cotangents, options)


def _replaced(group: Mapping[str, _V], changed: Mapping[str, _V], what: str) -> dict[str, _V]:
    unknown = sorted(set(changed) - set(group))
    if unknown:
        raise ValueError(f"the sample has no {what} {', '.join(unknown)}; it has {', '.join(group)}")
    return {**group, **changed}


def _float(case: Case, spec: TensorSpec, name: str = "", role: str = "primal") -> Tensor:
    draw = case.draw(name or spec.name)
    shape, stream = spec.shape(case.dims), f"{role} {spec.name}"
    drawn = recipes.values(draw.recipe, shape, spec.held(case.dtype), seed=case.seed, name=stream)
    if spec.range is not None and role == "primal":
        as_laid = layouts.apply(drawn, draw.layout)  # an expanded layout repeats values, and a row is then another
        within = spec.range.mapped(as_laid.double().contiguous()).numpy().reshape(-1)
        drawn = recipes.rounded_within(within, spec.held(case.dtype), *spec.range.ends).reshape(shape)
    return layouts.apply(drawn, draw.layout)


def _integers(case: Case, specs: Sequence[TensorSpec], domains: Mapping[str, Domain]) -> dict[str, Tensor]:
    """The integer inputs by name; one whose domain reads another input is made after it, of the values as they lie."""
    by_name, found = {spec.name: spec for spec in specs}, dict[str, Tensor]()
    for name in in_reading_order(domains, list(by_name)):
        if name not in domains:
            raise ValueError(f"integer input {name} of {case.family} has no domain; expected one in domains")
        found[name] = _integer(case, by_name[name], domains[name], Neighbours(domains, found))
    return found


def _integer(case: Case, spec: TensorSpec, domain: Domain, beside: Neighbours) -> Tensor:
    draw, shape = case.draws.get(spec.name, Draw("index")), spec.shape(case.dims)
    if draw.recipe not in domain.recipes:
        raise ValueError(
            f"the case gives {spec.name} the recipe {draw.recipe}; expected one of {', '.join(domain.recipes)}"
        )
    if not domain.allows(draw.layout, shape):
        raise ValueError(
            f"the case gives {spec.name} the layout {draw.layout}, in which values repeat; expected one that keeps "
            f"{domain.words}"
        )
    dtype = whole_dtype(spec)
    drawing = Drawing(draw.recipe, shape, case.dims, case.seed, f"primal {spec.name}", dtype, beside)
    return layouts.apply(domain.drawn(drawing).to(dtype), draw.layout)


def whole_dtype(spec: TensorSpec) -> torch.dtype:
    """The dtype of an integer or bool tensor."""
    dtype: torch.dtype = getattr(torch, spec.dtype or "int64")
    return dtype
