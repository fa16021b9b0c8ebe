"""Signature: the inputs, outputs and options of a definition, read from its jaxtyping annotations.

``Float[Tensor, "B H T D"]`` declares a differentiable tensor with named dims in the dtype of the case,
``Float32[Tensor, "B T"]`` one in float32 whatever the case's, ``Int[Tensor, "B"]`` an integer tensor,
``Float[Tensor, "H"] | None = None`` an optional one; keyword-only parameters that are no tensors are options.
``Float[Tensor, "*batch T"]`` declares one whose number of dims differs from case to case.
"""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from gradoracle.model.dims import Sizes, dim_names, is_spread, size, spread

V = TypeVar("V")
OptionValue = None | bool | int | float | str


@dataclass(frozen=True)
class TensorSpec:
    """One tensor of a definition: name, dims (each a name, a number, ``T+1`` or the like, ``*NAME``), kind, dtype."""

    name: str
    dims: tuple[str, ...]
    kind: str = "float"  # "float", or "int": integers, or bool where the dtype is "bool"
    optional: bool = False
    keyword: bool = False  # passed by keyword, not by position
    dtype: str = ""  # fixed, such as "float32"; "" of a float tensor: the case's, of an integer one: int64
    asked_by: str = ""  # of an output: the boolean option without which it is not returned
    range: Any = None  # of a float input: where its values lie (``model.domains.Range``)

    def held(self, dtype: str) -> str:
        """The dtype that a float tensor has in a case of ``dtype``; in float64 every tensor is float64."""
        return self.dtype if self.dtype and dtype != "float64" else dtype

    def shape(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The shape at given sizes of the named dims; expressions such as ``T+1`` are evaluated."""
        return tuple(size(dim, sizes) for dim in self.at(sizes).dims)

    def at(self, present: Container[str] | None = None) -> TensorSpec:
        """The tensor with the dims that ``*NAME`` stands for: those present, by default as many as there can be."""
        if not any(map(is_spread, self.dims)):
            return self
        return replace(self, dims=tuple(each for dim in self.dims for each in spread(dim, present)))


_KINDS = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "a string"}


@dataclass(frozen=True)
class OptionSpec:
    """A keyword option that is no tensor: its default, and its values in cases (the default first)."""

    name: str
    default: OptionValue
    values: tuple[OptionValue, ...]

    def expected(self, value: object) -> str:
        """What is expected instead of a value; "" where it has the type of the default or of a value in cases.

        int and float count as one type. Where the only known value is None, any type is accepted.
        """
        kinds = [_KINDS[type(known)] for known in (self.default, *self.values) if type(known) in _KINDS]
        if set(kinds) <= {"null"} or _KINDS.get(type(value)) in kinds:
            return ""
        return " or ".join(dict.fromkeys(kinds))


@dataclass(frozen=True)
class Constraints:
    """The constraints that every case of a family keeps.

    Attributes:
        divides: dim -> the dim that it divides, such as key heads and query heads.
        together: groups of optional inputs that are all given or all absent.
        alternatives: groups of optional inputs; a case gives exactly one of each.
        at_most: pairs of dims, or expressions of dims, of which the first is never larger: distinct indices and the
            values that they are chosen from.
    """

    divides: Mapping[str, str] = field(default_factory=dict)
    together: tuple[tuple[str, ...], ...] = ()
    alternatives: tuple[tuple[str, ...], ...] = ()
    at_most: tuple[tuple[str, str], ...] = ()

    def settled(
        self, dims: Mapping[str, int], sizes: Mapping[str, Sizes], fixed: Collection[str] = ()
    ) -> dict[str, int]:
        """The sizes, changed so that ``divides`` and ``at_most`` hold.

        By default a divisor becomes the next smaller one that fits, and what is too large as large as it may be.

        Args:
            dims: size by dim.
            sizes: the domain of each dim.
            fixed: dims that keep their size where the other one can change.

        Raises:
            ValueError: no sizes of the dims fit each other.
        """
        found = self._dividing(dims, sizes, fixed)
        for _ in self.at_most:  # one pair may undo another
            for low, high in self.at_most:
                found = _bounded(found, low, high, sizes, fixed)
            found = self._dividing(found, sizes, fixed)
        for low, high in self.at_most:
            if size(low, found) > size(high, found):
                raise ValueError(f"no sizes have {low} of at most {high}, and keep the other constraints")
        return found

    def _dividing(self, dims: Mapping[str, int], sizes: Mapping[str, Sizes], fixed: Collection[str]) -> dict[str, int]:
        """``settled`` for ``divides`` alone."""
        found = dict(dims)
        for part, whole in self.divides.items():
            small, large = found[part], found[whole]
            if large % small == 0:
                continue
            multiples = [n for n in range(small, sizes[whole].biggest + 1, small) if n in sizes[whole]]
            divisors = [n for n in range(1, large + 1) if large % n == 0 and n in sizes[part]]
            if multiples and (not divisors or (part in fixed and whole not in fixed)):
                found[whole] = max((n for n in multiples if n <= large), default=multiples[0])
            elif divisors:
                found[part] = max((n for n in divisors if n <= small), default=divisors[0])
            else:
                raise ValueError(f"no size of {part} ({sizes[part]}) divides a size of {whole} ({sizes[whole]})")
        return found

    def complete(self, given: Mapping[str, V]) -> dict[str, V]:
        """The given inputs without those whose companions are absent."""
        lone = {name for group in self.together if not set(group) <= given.keys() for name in group}
        return {name: value for name, value in given.items() if name not in lone}

    def companions(self, name: str) -> tuple[str, ...]:
        """The inputs that are given together with ``name``, itself included."""
        return next((group for group in self.together if name in group), (name,))

    def others(self, name: str) -> tuple[str, ...]:
        """The alternatives to ``name``."""
        return next((tuple(n for n in group if n != name) for group in self.alternatives if name in group), ())

    def comparable(self, low: str, high: str) -> bool:
        """Whether dim ``low`` can be smaller than ``high``: a dim is never smaller than one that divides it.

        Nor is one that is the most that another may be, alone or times others.
        """
        bounded = (text for text, most in self.at_most if most == low and high in dim_names(text))
        return self.divides.get(high) != low and not any(_at_least(text, high) for text in bounded)

    def require(self, dims: Mapping[str, int], given: Collection[str]) -> None:
        """Check that a case keeps the constraints.

        Raises:
            ValueError: says what the case gives and what is expected.
        """
        if unmet := self.unmet(dims, given):
            raise ValueError(f"the case gives {unmet}")

    def unmet(self, dims: Mapping[str, int], given: Collection[str]) -> str:
        """The first constraint that sizes and given inputs break, in words; "" if there is none."""
        for part, whole in self.divides.items():
            if dims[whole] % dims[part]:
                return f"{part}={dims[part]} and {whole}={dims[whole]}; expected a {part} that divides {whole}"
        for low, high in self.at_most:
            if size(low, dims) > size(high, dims):
                names = dict.fromkeys((*dim_names(low), *dim_names(high)))
                given_sizes = " and ".join(f"{dim}={dims[dim]}" for dim in names)
                return f"{given_sizes}; expected {low} of at most {high}"
        for group in self.together:
            there, missing = ([n for n in group if (n in given) is present] for present in (True, False))
            if there and missing:
                return f"{', '.join(there)} and not {', '.join(missing)}; expected all of them or none"
        for group in self.alternatives:
            there = [name for name in group if name in given]
            if len(there) != 1:
                return f"{' and '.join(there) or 'none'} of {', '.join(group)}; expected exactly one of them"
        return ""


def _at_least(text: str, dim: str) -> bool:
    """Whether an expression, which rises with every dim, is never smaller than one of its dims."""
    ones = dict.fromkeys(dim_names(text), 1)
    return all(size(text, {**ones, dim: number}) >= number for number in (1, 1 << 20))


def _bounded(
    dims: dict[str, int], low: str, high: str, sizes: Mapping[str, Sizes], fixed: Collection[str]
) -> dict[str, int]:
    """The sizes, changed so that ``low`` is at most ``high``, those of ``fixed`` dims only if necessary."""
    found, shared = dict(dims), {*dim_names(low)} & {*dim_names(high)}
    smaller = [dim for dim in dim_names(low) if dim not in shared]
    larger = [dim for dim in dim_names(high) if dim not in shared]
    turns = [(dim, True) for dim in sorted(smaller, key=lambda dim: -found[dim])] + [(dim, False) for dim in larger]
    for dim, falls in sorted(turns, key=lambda turn: turn[0] in fixed):
        if size(low, found) <= size(high, found):
            break
        found[dim] = _nearest(found, dim, sizes[dim], falls, lambda own: size(low, own) <= size(high, own))
    return found


def _nearest(
    dims: Mapping[str, int], dim: str, sizes: Sizes, falls: bool, fits: Callable[[Mapping[str, int]], bool]
) -> int:
    """The next size of a dim down (or up) that fits; the last one in that direction where none does."""
    most = sizes.smallest if falls else sizes.biggest
    allowed = sorted(sizes.choices or range(sizes.smallest, max(sizes.biggest, dims[dim]) + 1, sizes.multiple))
    steps = [n for n in allowed if n < dims[dim]][::-1] if falls else [n for n in allowed if n > dims[dim]]
    first, last = 0, len(steps)
    while first < last:  # the expressions rise with every dim
        middle = (first + last) // 2
        first, last = (first, middle) if fits({**dims, dim: steps[middle]}) else (middle + 1, last)
    return steps[first] if first < len(steps) else steps[-1] if steps else most


def constrained(
    name: str,
    dims: Sequence[str],
    optional: Sequence[str],
    divides: Mapping[str, str],
    together: Sequence[Sequence[str]],
    alternatives: Sequence[Sequence[str]] = (),
    at_most: Sequence[tuple[str, str]] = (),
) -> Constraints:
    """The constraints of a family.

    Raises:
        ValueError: they name an unknown dim, or an input that is not optional.
    """
    unknown = [dim for pair in divides.items() for dim in pair if dim not in dims]
    if unknown:
        raise ValueError(
            f"family {name}: divides names {', '.join(unknown)}; expected some of its dims {', '.join(dims)}"
        )
    for option, groups in (("together", together), ("alternatives", alternatives)):
        needed = [each for group in groups for each in group if each not in optional]
        if needed:
            expected = (
                f"expected some of its optional inputs {', '.join(optional)}"
                if optional
                else "it has no optional inputs"
            )
            raise ValueError(f"family {name}: {option} names {', '.join(needed)}; {expected}")
    return Constraints(
        dict(divides),
        tuple(tuple(group) for group in together),
        tuple(tuple(group) for group in alternatives),
        tuple(dict.fromkeys(at_most)),
    )


@dataclass(frozen=True)
class Signature:
    """Inputs in the order of the call, outputs in the order of the return, options by keyword.

    Attributes:
        outputs: the outputs of floats, which have derivatives.
        all_outputs: the outputs of integers too, in the order of the return; () where there are none.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    options: tuple[OptionSpec, ...]
    constraints: Constraints = field(default_factory=Constraints)
    all_outputs: tuple[TensorSpec, ...] = ()

    @property
    def primals(self) -> tuple[TensorSpec, ...]:
        """The differentiable inputs."""
        return tuple(spec for spec in self.inputs if spec.kind == "float")

    @property
    def whole(self) -> tuple[TensorSpec, ...]:
        """The outputs of integers."""
        return tuple(spec for spec in self.all_outputs if spec.kind == "int")

    @property
    def dims(self) -> tuple[str, ...]:
        """Every named dim in order of appearance, those that occur only in an expression included.

        Those of ``*NAME`` too; a case may lack the last ones.
        """
        found: dict[str, None] = {}
        for spec in (*self.inputs, *self.outputs):
            for dim in spec.at().dims:
                found.update(dict.fromkeys(dim_names(dim)))
        return tuple(found)

    @property
    def spreads(self) -> dict[str, tuple[str, ...]]:
        """``*NAME`` -> the dims that it stands for, as many as there can be."""
        dims = (dim for spec in (*self.inputs, *self.outputs) for dim in spec.dims if is_spread(dim))
        return {dim: spread(dim) for dim in dims}

    def ranks(self, present: Container[str]) -> dict[str, int]:
        """How many of these dims each ``*NAME`` stands for."""
        return {starred: sum(dim in present for dim in dims) for starred, dims in self.spreads.items()}

    def dims_of(self, ranks: Mapping[str, int]) -> tuple[str, ...]:
        """The named dims where each ``*NAME`` stands for so many, by default for none."""
        beyond = {dim for starred, dims in self.spreads.items() for dim in dims[ranks.get(starred, 0) :]}
        return tuple(dim for dim in self.dims if dim not in beyond)

    def at(self, present: Container[str] | None = None) -> Signature:
        """The signature with the dims that ``*NAME`` stands for: those present, by default as many as there can be."""
        if not self.spreads:
            return self
        inputs, outputs, every = (
            tuple(spec.at(present) for spec in specs) for specs in (self.inputs, self.outputs, self.all_outputs)
        )
        return replace(self, inputs=inputs, outputs=outputs, all_outputs=every)

    @property
    def places(self) -> tuple[tuple[TensorSpec, ...], ...]:
        """The positional arguments of a kernel in order, each as the inputs that may be given at its place."""
        found: dict[tuple[str, ...], tuple[TensorSpec, ...]] = {}
        for spec in self.inputs:
            if not spec.keyword:
                group = next((group for group in self.constraints.alternatives if spec.name in group), (spec.name,))
                found[group] = (*found.get(group, ()), spec)
        return tuple(found.values())

    def returned(self, options: Mapping[str, object]) -> tuple[TensorSpec, ...]:
        """The outputs that are returned under these options; an option that is left out has its default."""
        if not any(spec.asked_by for spec in self.outputs):
            return self.outputs
        known = {spec.name: spec.default for spec in self.options} | dict(options)
        return tuple(spec for spec in self.outputs if not spec.asked_by or known[spec.asked_by])

    def all_returned(self, options: Mapping[str, object]) -> tuple[str, ...]:
        """The names of all outputs that are returned under these options, those of integers included."""
        everything = replace(self, outputs=self.all_outputs or self.outputs)
        return tuple(spec.name for spec in everything.returned(options))

    def without_absent(self, draws: Mapping[str, V], options: Mapping[str, object]) -> dict[str, V]:
        """``draws`` without the cotangents of outputs that are not returned under these options."""
        there = self.returned(options)
        absent = {cotangent_name(spec.name) for spec in self.outputs if spec not in there}
        return {name: value for name, value in draws.items() if name not in absent}

    def require(self, dims: Mapping[str, int], draws: Mapping[str, object], options: Mapping[str, object]) -> None:
        """Check that a case keeps the constraints and has no cotangent of an output that is not returned.

        Raises:
            ValueError: says what the case gives and what is expected.
        """
        self.constraints.require(dims, draws)
        kept = self.without_absent(draws, options)
        for spec in self.outputs:
            if (name := cotangent_name(spec.name)) in draws and name not in kept:
                raise ValueError(
                    f"the case draws {name}, but {spec.name} is returned only with --{spec.asked_by}=true: expected "
                    f"that option, or no {name}"
                )

    def input(self, name: str) -> TensorSpec:
        """The input of that name; KeyError otherwise."""
        return {spec.name: spec for spec in self.inputs}[name]


class Defined(Protocol):
    """What kernels and properties know of a family: its name and its signature."""

    @property
    def name(self) -> str:
        """The name of the family."""

    @property
    def signature(self) -> Signature:
        """The signature of its definition."""


def cotangent_name(output: str) -> str:
    """The name of the cotangent of an output: ``do`` for ``o``."""
    return f"d{output}"


def tangent_name(primal: str) -> str:
    """The name of the tangent of a primal: ``tq`` for ``q``."""
    return f"t{primal}"


_JVP, _HVP = "jvp.", "hvp."


def jvp_name(output: str) -> str:
    """The name of the derivative of an output along the tangents: ``jvp.o`` for ``o``."""
    return f"{_JVP}{output}"


def hvp_name(primal: str) -> str:
    """The name of the derivative of a gradient along the tangents: ``hvp.q`` for that of ``q``."""
    return f"{_HVP}{primal}"


def undifferentiated(tensor: str) -> str:
    """What a kernel's tensor is the derivative of along the tangents: ``o`` of ``jvp.o``, ``dq`` of ``hvp.q``."""
    if tensor.startswith(_HVP):
        return cotangent_name(tensor.removeprefix(_HVP))
    return tensor.removeprefix(_JVP)


def _values_near(default: object) -> tuple[OptionValue, ...]:
    """The values of an option where only the default is known: a kernel that ignores the option must be seen.

    Three quarters of a float lie where the default does: a probability stays one, an exponent of 1.5 or 2 above 1.
    """
    if isinstance(default, bool):
        return default, not default
    if isinstance(default, float) and math.isfinite(default) and default != 0.0:
        return default, 0.75 * default
    return ()


def read_signature(
    function: Callable[..., object],
    *,
    outputs: Sequence[str] | None = None,
    options: Mapping[str, Sequence[OptionValue]] | None = None,
    optional_outputs: Mapping[str, str] | None = None,
) -> Signature:
    """Read the signature of an annotated definition.

    Args:
        function: its tensor parameters and its return are annotated with jaxtyping.
        outputs: names of the outputs; default ``out``, or ``out0, out1, ...`` of a tuple.
        options: the values of each option in cases. Of an option not named here, a bool has both values, a float
            other than 0 its default and three quarters of it, all others their default.
        optional_outputs: output -> the bool option without which it is not returned.

    Raises:
        TypeError: naming the parameter whose annotation is missing or is invalid, and what is expected.
        ValueError: an optional output or its option is not one of the definition's, or every output is optional.
    """
    name = getattr(function, "__name__", str(function))
    try:
        hints = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"the annotations of {name} cannot be evaluated: {error}; import what they name") from None
    inputs: list[TensorSpec] = []
    option_specs: list[OptionSpec] = []
    drawn = dict(options or {})
    for parameter in inspect.signature(function).parameters.values():
        keyword = parameter.kind is inspect.Parameter.KEYWORD_ONLY
        tensor = _tensor(hints.get(parameter.name))
        if tensor is not None:
            dims, kind, optional, dtype = tensor
            inputs.append(TensorSpec(parameter.name, dims, kind, optional, keyword, dtype))
        elif keyword and parameter.default is not inspect.Parameter.empty:
            values = drawn.pop(parameter.name, None)
            if values is None:
                values = _values_near(parameter.default)
            ordered = (parameter.default, *(value for value in values if value != parameter.default))
            option_specs.append(OptionSpec(parameter.name, parameter.default, ordered))
        else:
            raise TypeError(
                f"parameter {parameter.name!r} of {name} is neither a tensor annotated with jaxtyping such as "
                'Float[Tensor, "B N"] nor a keyword-only option with a default'
            )
    if drawn:
        raise TypeError(f"options {sorted(drawn)} have values, but {name} has no such keyword-only option")
    for spec in inputs:
        _require_dims(name, spec.name, spec.dims)
    returned = hints.get("return")
    parts = typing.get_args(returned) if typing.get_origin(returned) is tuple else (returned,)
    read = [_tensor(part) for part in parts]
    if any(part is None for part in read):
        raise TypeError(f'the return of {name} must be annotated, such as -> Float[Tensor, "B N"] or a tuple of these')
    default = ["out"] if len(read) == 1 else [f"out{i}" for i in range(len(read))]
    names = list(outputs) if outputs is not None else default
    if len(names) != len(read):
        raise TypeError(f"{name} returns {len(read)} tensors, but {len(names)} output names were given: {names}")
    given = [(name, part) for name, part in zip(names, read, strict=True) if part is not None]
    for output, (dims, *_) in given:
        _require_dims(name, output, dims)
    specs = tuple(TensorSpec(n, dims, kind, dtype=dtype) for n, (dims, kind, _, dtype) in given)
    taken = [*(spec.name for spec in inputs), *(tangent_name(spec.name) for spec in inputs if spec.kind == "float")]
    clash = {cotangent_name(spec.name) for spec in specs} & set(taken) or {n for n in taken if taken.count(n) > 1}
    if clash:
        raise TypeError(
            f"{name} has an input named {min(clash)!r}, the name of the cotangent or tangent of another of its tensors "
            "(d<output>, t<input>); rename one of them"
        )
    gradients = {cotangent_name(spec.name): spec.name for spec in inputs if spec.kind == "float"}
    for spec in specs:
        if spec.name in gradients:
            raise TypeError(
                f"{name} has an output named {spec.name!r}, the name of the gradient of its input "
                f"{gradients[spec.name]!r}; give it another one in outputs=, such as 'grad_{gradients[spec.name]}'"
            )
    asked = dict(optional_outputs or {})
    _require_optional(name, asked, names, option_specs)
    specs = tuple(replace(spec, asked_by=asked.get(spec.name, "")) for spec in specs)
    found = Signature(tuple(inputs), specs, tuple(option_specs))
    _require_apart(name, found)
    return found


def _require_dims(name: str, tensor: str, dims: Sequence[str]) -> None:
    """Check that each dim is a name, a number, an expression or ``*NAME``; raises as ``read_signature`` does."""
    for dim in dims:
        try:
            if not is_spread(dim):
                dim_names(dim)
        except ValueError:
            raise TypeError(
                f'the dims "{" ".join(dims)}" of {tensor} of {name} have {dim!r}, which is invalid; expected names, '
                "numbers and expressions of these, such as T+1, 2*D or T//2, or *NAME for any number of dims"
            ) from None


def _require_apart(name: str, signature: Signature) -> None:
    """Check that no dim has the name of one that ``*NAME`` stands for; raises as ``read_signature`` does."""
    own = {n for s in (*signature.inputs, *signature.outputs) for d in s.dims if not is_spread(d) for n in dim_names(d)}
    for starred, dims in signature.spreads.items():
        if clash := own & set(dims):
            raise TypeError(f"{name} has a dim {min(clash)!r}, as one of {starred} is called; rename one of them")


def _require_optional(
    name: str, asked: Mapping[str, str], outputs: Sequence[str], options: Sequence[OptionSpec]
) -> None:
    """Check that each optional output is an output and its option a bool; raises as ``read_signature`` does."""
    switches = [spec.name for spec in options if isinstance(spec.default, bool)]
    for output, option in asked.items():
        if output not in outputs:
            raise ValueError(
                f"optional_outputs of {name} names {output!r}, which is not an output of it; "
                f"expected some of {', '.join(outputs)}"
            )
        if option not in switches:
            expected = f"expected one of {', '.join(switches)}" if switches else "it has none"
            raise ValueError(
                f"optional_outputs of {name} has {output!r} asked for by {option!r}, "
                f"which is not a bool option of it; {expected}"
            )
    if asked and set(outputs) <= set(asked):
        raise ValueError(
            f"optional_outputs of {name} names every output; expected at least one that is always returned"
        )


def _tensor(annotation: object) -> tuple[tuple[str, ...], str, bool, str] | None:
    """(dims, kind, optional, fixed dtype) of a jaxtyping annotation, None for anything else."""
    optional = False
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        members = [member for member in typing.get_args(annotation) if member is not type(None)]
        optional = len(members) < len(typing.get_args(annotation))
        annotation = members[0] if len(members) == 1 else None
    dims, dtypes = getattr(annotation, "dim_str", None), getattr(annotation, "dtypes", None)
    if dims is None or dtypes is None:
        return None
    named = [str(dtype).removesuffix("_") for dtype in dtypes] if isinstance(dtypes, (tuple, list)) else []
    kind = "int" if named and all("int" in dtype or dtype == "bool" for dtype in named) else "float"
    fixed = named[0] if len(set(named)) == 1 else ""
    return tuple(dims.split()), kind, optional, fixed
