"""Sample: the tensors of a case, the same bits on every machine."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from gradoracle.model import layouts, recipes
from gradoracle.model.case import Case, Draw, require_fit
from gradoracle.model.family import IndexDomain
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


def build(case: Case, signature: Signature, *, domains: Mapping[str, IndexDomain] | None = None) -> Sample:
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
    inputs = {s.name: _integer(case, s, domains or {}) if s.kind == "int" else _float(case, s) for s in present}
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
    return layouts.apply(drawn, draw.layout)


def _integer(case: Case, spec: TensorSpec, domains: Mapping[str, IndexDomain]) -> Tensor:
    if spec.name not in domains:
        raise ValueError(f"integer input {spec.name} of {case.family} has no domain; expected one in domains")
    domain, draw = domains[spec.name], case.draws.get(spec.name, Draw("index"))
    shape, high = spec.shape(case.dims), domain.highest(case.dims)
    drawn = recipes.indices(draw.recipe, shape, domain.minimum, high, seed=case.seed, name=f"primal {spec.name}")
    if domain.kind == "cu_seqlens":
        drawn, _ = drawn.sort(-1)
        drawn[..., 0], drawn[..., -1] = 0, high
    if domain.ignore is not None:
        marks = recipes.indices("index", shape, 0, 3, seed=case.seed, name=f"ignored {spec.name}")
        drawn = drawn.masked_fill(marks == 0, domain.ignore)
    return layouts.apply(drawn.to(whole_dtype(spec)), draw.layout)


def whole_dtype(spec: TensorSpec) -> torch.dtype:
    """The dtype of an integer or bool tensor."""
    dtype: torch.dtype = getattr(torch, spec.dtype or "int64")
    return dtype
