"""Family: an annotated definition and the domain of its cases; what a user writes to have kernels of it checked."""

from __future__ import annotations

import functools
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gradoracle.model.derivative import Definition
from gradoracle.model.dims import MOST_SPREAD, Sizes, dim_names, divisor, require_positive
from gradoracle.model.domains import Between, Domain, Range, at_most_of, declared_domains
from gradoracle.model.formats import DTYPES, FORMATS
from gradoracle.model.property import Property
from gradoracle.model.randomness import Randomness
from gradoracle.model.signature import OptionValue, Signature, constrained, cotangent_name, read_signature
from gradoracle.model.wording import counted


@dataclass(frozen=True)
class Family:
    """A definition, the domain of its cases, and the properties of this family alone.

    Attributes:
        name: the name, as in ``gradoracle check NAME``.
        definition: plain PyTorch, the mathematics and not an algorithm; called as ``definition(*inputs, **options)``.
        signature: read from the definition's annotations.
        dims: the sizes of each named dim.
        dtypes: the dtypes of the cases, by default.
        domains: the domains of integer inputs, by name.
        joint: named recipes of several tensors at once, such as ``{"extreme logits": {"q": "normal:100", ...}}``.
        algorithms: torch programs with a kernel's own order of roundings, ``{name: {derivative: program}}``, for
            budgets only and never truth; a program takes primals and cotangents and returns what ``derivative.program``
            of that derivative returns. One named ``definition`` is called as the definition is, and differentiated.
        properties: beyond the universal ones.
        scalable: an oracle for samples whose definition is too large to be traced (``oracle.scalable.Scalable``).
        beside_large: the least size of a dim, or the recipe of a tensor, by name, in cases with a large dim.
        everything: the definition with its integer outputs.
        ranks: how many dims each ``*NAME`` of the annotations stands for, by ``*NAME``.
        random: what is random in its kernels; None: nothing.
    """

    name: str
    definition: Definition
    signature: Signature
    dims: Mapping[str, Sizes]
    dtypes: tuple[str, ...] = ("float32", "bfloat16", "float16")
    domains: Mapping[str, Domain] = field(default_factory=dict)
    joint: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    algorithms: Mapping[str, Mapping[str, Definition]] = field(default_factory=dict)
    properties: tuple[Property, ...] = ()
    scalable: Any = None
    beside_large: Mapping[str, int | str] = field(default_factory=dict)
    everything: Definition | None = None
    ranks: Mapping[str, Sizes] = field(default_factory=dict)
    random: Randomness | None = None

    def on(self, device: str) -> Family:
        """The family with the sizes of cases on a device, "cpu" or another."""
        return replace(self, dims={dim: sizes.on(device) for dim, sizes in self.dims.items()})

    def at(self, present: Container[str]) -> Family:
        """The family of those cases that have these dims: the same but where the number of dims differs, ``*NAME``."""
        signature = self.signature.at(present)
        return self if signature is self.signature else replace(self, signature=signature, ranks={})

    def __call__(self, *inputs: object, **options: object) -> Any:
        """Evaluate the definition itself, integer outputs included."""
        return (self.everything or self.definition)(*inputs, **options)

    def __repr__(self) -> str:
        return f"<family {self.name}>"


def family(
    definition: Definition | None = None,
    *,
    name: str | None = None,
    outputs: Sequence[str] | None = None,
    dims: Mapping[str, Sizes] | None = None,
    options: Mapping[str, Sequence[OptionValue]] | None = None,
    dtypes: Sequence[str] = ("float32", "bfloat16", "float16"),
    domains: Mapping[str, Domain | Range] | None = None,
    joint: Mapping[str, Mapping[str, str]] | None = None,
    algorithms: Mapping[str, Mapping[str, Definition]] | None = None,
    properties: Sequence[Property] = (),
    divides: Mapping[str, str] | None = None,
    together: Sequence[Sequence[str]] = (),
    alternatives: Sequence[Sequence[str]] = (),
    optional_outputs: Mapping[str, str] | None = None,
    scalable: Any = None,
    beside_large: Mapping[str, int | str] | None = None,
    random: Randomness | None = None,
) -> Any:
    """Make a Family of an annotated definition: ``@family``, or ``@family(dims=...)``.

    Args:
        definition: annotated as ``model.signature`` says.
        dims: the sizes of each named dim; ``{"*batch": choices(0, 2)}``: how many dims ``*batch`` stands for, by
            default 0 to 3, each like a named dim ``batch0``, ``batch1``, ``batch2``.
        domains: what integer inputs may hold, by name, and where the values of float inputs lie.
        divides: ``{"G": "H"}``: G divides H in every case.
        together: ``[("q_segments", "kv_segments")]``: optional inputs that are given together or not at all.
        alternatives: ``[("table", "tables")]``: neighbouring optional inputs that are one argument in several shapes.
            A case gives one; the definition is called with None for the others, a kernel without them.
        optional_outputs: ``{"state": "return_state"}``: the output ``state`` is returned only where the bool option
            ``return_state`` is true; the annotation lists every output.
        options: the values of each option in cases.
        outputs: names of the outputs; default ``out``, or ``out0, out1, ...``.
        name, dtypes, joint, algorithms, properties, scalable, beside_large, random: fields of ``Family``.

    Raises:
        TypeError: an annotation is missing or not understood.
        ValueError: a dim, dtype, joint recipe, constraint, optional output or ``random`` names something that the
            definition does not have; an integer input has no domain; no output is of floats.
    """

    def build(function: Definition) -> Family:
        signature = read_signature(function, outputs=outputs, options=options, optional_outputs=optional_outputs)
        own = name or function.__name__
        unknown = sorted(set(dims or {}) - {*signature.dims, *signature.spreads})
        if unknown:
            raise ValueError(
                f"family {own}: dims {unknown} do not occur in the annotations, which name {signature.dims}"
            )
        within = {name: each for name, each in (domains or {}).items() if isinstance(each, Range)}
        _require_dtypes(f"family {own}", signature)
        signature = _ranged(f"family {own}", signature, within)
        whole = {n: x for n, x in (domains or {}).items() if not isinstance(x, Range)}
        ranges = declared_domains(f"family {own}", signature, whole, together)
        ranks = {starred: (dims or {}).get(starred) or Sizes(0, MOST_SPREAD) for starred in signature.spreads}
        _require_ranks(own, signature, dims or {}, ranks, whole, divides or {})
        wrong = [dtype for dtype in dtypes if dtype not in DTYPES]
        if wrong:
            raise ValueError(f"family {own}: dtypes {wrong} are unknown; expected some of {', '.join(DTYPES)}")
        names = {spec.name for spec in signature.inputs} | {cotangent_name(spec.name) for spec in signature.outputs}
        for recipe, tensors in (joint or {}).items():
            if not set(tensors) <= names:
                raise ValueError(
                    f"family {own}: joint recipe {recipe!r} names {sorted(set(tensors) - names)}, "
                    "which are not tensors of it"
                )
            for tensor in sorted(tensors.keys() & ranges.keys()):
                if tensors[tensor] not in ranges[tensor].recipes:
                    raise ValueError(
                        f"family {own}: joint recipe {recipe!r} gives {tensor} {tensors[tensor]!r}; expected one of "
                        f"{', '.join(ranges[tensor].recipes)}"
                    )
        strange = sorted(set(beside_large or {}) - names - set(signature.dims))
        if strange:
            raise ValueError(f"family {own}: beside_large names {strange}, which are neither dims nor tensors of it")
        everything, signature = function, integers_apart(own, signature)
        if random is not None:
            random.require(own, signature)
        optional = [spec.name for spec in signature.inputs if spec.optional]
        at_most = at_most_of(signature, ranges)
        constraints = constrained(own, signature.dims, optional, divides or {}, together, alternatives, at_most)
        signature = replace(signature, constraints=constraints)
        all_dims = {dim: (dims or {}).get(dim) or ordinary_sizes(dim, signature) for dim in signature.dims}
        _require_elements(own, signature, all_dims)
        return Family(
            own, of_floats(everything, signature), signature, all_dims, tuple(dtypes), ranges, dict(joint or {}),
            dict(algorithms or {}), tuple(properties), scalable,
            dict(beside_large or {}), everything, ranks, random,
        )  # fmt: skip

    return build(definition) if definition is not None else build


def integers_apart(own: str, signature: Signature) -> Signature:
    """The signature whose outputs are of floats, and those of integers apart.

    Raises:
        ValueError: none is of floats.
    """
    floats = tuple(spec for spec in signature.outputs if spec.kind == "float")
    if floats == signature.outputs:
        return signature
    if not floats:
        raise ValueError(
            f"family {own}: its outputs {[spec.name for spec in signature.outputs]} are integers, which have no "
            "derivative; expected at least one of floats"
        )
    return replace(signature, outputs=floats, all_outputs=signature.outputs)


def of_floats(definition: Definition, signature: Signature) -> Definition:
    """A definition without its integer outputs."""
    if not signature.whole:
        return definition
    whole = {spec.name for spec in signature.whole}

    @functools.wraps(definition)
    def floats(*inputs: object, **options: object) -> tuple[Any, ...]:
        given = definition(*inputs, **options)
        returned = given if isinstance(given, (tuple, list)) else (given,)
        names = signature.all_returned(options)
        if len(names) != len(returned):
            raise ValueError(f"it returns {counted(len(returned), 'tensor')}, its annotation says {len(names)}")
        return tuple(each for name, each in zip(names, returned, strict=True) if name not in whole)

    return floats


def ordinary_sizes(dim: str, signature: Signature, least: int = 1) -> Sizes:
    """The sizes of a dim that no one declares: 1 to 128, and where ``T//2`` occurs even ones."""
    specs = (*signature.inputs, *signature.outputs)
    return Sizes(least, max(128, 2 * least), divisor(dim, (each for spec in specs for each in spec.at().dims)))


def _ranged(owner: str, signature: Signature, ranges: Mapping[str, Range]) -> Signature:
    """The signature in which float inputs have their ranges.

    Raises:
        ValueError: one names no float input, or is beyond what a fixed dtype holds.
    """
    integers = {spec.name: spec.dtype for spec in signature.inputs if spec.kind == "int"}
    for name in ranges.keys() & integers.keys():
        codes = ", the codes of 2^-10 to 2^9 in e8m0" if integers[name] == "uint8" else ""
        raise ValueError(
            f"{owner}: domains gives {name} {ranges[name]!r}, which is of floats, and {name} holds integers; expected "
            f"a domain such as gradoracle.IndexDomain(137, minimum=117){codes}"
        )
    floats = [spec.name for spec in signature.inputs if spec.kind == "float"]
    if strange := [name for name in ranges if name not in floats]:
        raise ValueError(
            f"{owner}: domains gives {strange[0]} {ranges[strange[0]]!r}, which is of floats; expected some of "
            f"{', '.join(floats)}"
        )
    for spec in signature.inputs:
        own = ranges.get(spec.name)
        if isinstance(own, Between) and spec.dtype in FORMATS:
            largest = FORMATS[spec.dtype].largest
            if max(abs(own.low), abs(own.high)) > largest:
                raise ValueError(
                    f"{owner}: domains gives {spec.name} {own!r}, but {spec.dtype} ends at {largest:g}; "
                    "expected a range within it"
                )
    inputs = tuple(replace(spec, range=ranges.get(spec.name)) for spec in signature.inputs)
    return replace(signature, inputs=inputs) if ranges else signature


def _require_dtypes(owner: str, signature: Signature) -> None:
    """Raise ValueError if a float tensor is declared in a dtype that no case has."""
    for spec in (*signature.inputs, *signature.outputs):
        if spec.kind == "float" and spec.dtype and spec.dtype not in DTYPES:
            raise ValueError(
                f"{owner}: {spec.name} is of {spec.dtype}, which cases do not have; expected one of "
                f"{', '.join(DTYPES)}, or its bytes as UInt8 with domains={{{spec.name!r}: gradoracle.Bits(8)}}"
            )


def _require_ranks(
    own: str,
    signature: Signature,
    dims: Mapping[str, Sizes],
    ranks: Mapping[str, Sizes],
    domains: Mapping[str, Domain],
    divides: Mapping[str, str],
) -> None:
    """Check the numbers of dims of ``*NAME``, and that nothing needs one of these dims, which not every case has.

    Raises:
        ValueError: a number is too large, a size of another dim 0, or such a dim is a bound or divides another.
    """
    for starred, found in ranks.items():
        if found.biggest > MOST_SPREAD:
            raise ValueError(f"family {own}: dims has {starred} of {found} dims; expected at most {MOST_SPREAD}")
    require_positive(f"family {own}", dims)
    maybe = {dim for several in signature.spreads.values() for dim in several}
    bounds = {n for domain in domains.values() for n in domain.dims}
    if missed := maybe & {*bounds, *divides, *divides.values()}:
        raise ValueError(f"family {own}: {min(missed)} is a bound or divides a dim, but not every case has it")


def _require_elements(own: str, signature: Signature, dims: Mapping[str, Sizes]) -> None:
    """Check that no tensor is empty at the smallest sizes.

    Raises:
        ValueError: one is.
    """
    smallest = {dim: sizes.smallest for dim, sizes in dims.items()}
    signature = signature.at()
    for spec in (*signature.inputs, *signature.outputs):
        for dim, found in zip(spec.dims, spec.shape(smallest), strict=True):
            if found < 1:
                given = ", ".join(f"{name}={smallest[name]}" for name in dim_names(dim))
                raise ValueError(
                    f"family {own}: {dim} of {spec.name} is {found} where {given}; expected sizes, in dims, with which "
                    "it is at least 1"
                )
