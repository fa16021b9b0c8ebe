"""Kernel: a callable under test and its declarations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from gradoracle.model.case import Case
from gradoracle.model.contract import Contract, default_contract
from gradoracle.model.derivative import Derivative
from gradoracle.model.dims import Sizes, require_positive
from gradoracle.model.modules import input_names, of_parameters
from gradoracle.model.revealed import entries, require_revealable, revealed_by, unrevealed, without
from gradoracle.model.signature import Defined, OptionValue
from gradoracle.model.state import returning_state

Tensors = dict[str, Tensor]
Options = dict[str, object]
Gradients = Sequence[Tensor | None]
Vjp = Callable[[Tensors, Tensors, Options, object], Gradients]
Jvp = Callable[[Tensors, Tensors, Options, object], tuple[Sequence[Tensor], Sequence[Tensor]]]
Hvp = Callable[[Tensors, Tensors, Tensors, Options, object], Gradients]


Shapes = Mapping[str, tuple[int, ...]]
Algorithm = Callable[[str, Shapes, str, Mapping[str, object]], str]


@dataclass(frozen=True)
class Kernel:
    """One implementation of a family's definition.

    Explicit derivatives get tensors by name: ``inputs`` those of the case, in order; ``tangents`` by the float input's
    name, ``cotangents`` by the output's. Gradients and products are one for each float input of the case, outputs and
    their tangents one for each output, in order.

    Attributes:
        name: the name in reports.
        family: the name of the family whose definition it implements.
        call: ``call(*inputs, **options)`` with the family's inputs in order.
        vjp: explicit, ``vjp(inputs, cotangents, options, blocks) -> gradients``; None: ``torch.autograd``.
        jvp: explicit, ``jvp(inputs, tangents, options, blocks) -> (outputs, output tangents)``; None: forward mode.
        hvp: explicit, ``hvp(inputs, tangents, cotangents, options, blocks) -> products``; None: double backward.
        contracts: dtype -> Contract; by default the preset of the dtype.
        algorithm: the algorithm of the family whose order of roundings its budgets assume; or
            ``algorithm(dtype, shapes, blocks, arguments)``, by the shapes of the inputs, which returns its name.
        dtypes: supported ones; None: all of the family's.
        dims: supported sizes, where narrower than the family's.
        options: option -> supported values, where narrower than the family's; an option or optional input with an empty
            tuple is never passed.
        deterministic: whether two runs are claimed to give the same bits.
        mutates: names of inputs that it may change.
        no_gradient: float inputs that are declared to have no gradient.
        blocks: named block configurations, passed as ``blocks=`` where a case names one.
        fits: ``fits(dtype, dims)`` returns the configurations for which this device has room; None: all.
        tiles: the number of elements of a dim in one tile, for maps of errors; or
            ``tiles(dtype, dims, blocks, order, arguments)``, with a configuration ("": the kernel's choice) and the
            order of the derivative.
        compiled_for: what decides for what the kernels of a case are compiled: cases for which it returns the same
            share compilations. A run of N cases on a GPU has about N/5 such kinds; None: kinds are not limited.
        needs_cuda: whether it refuses tensors of the CPU; interpreted, it is given tensors that claim to be on CUDA.
        ieee_dots: whether the interpreter multiplies in IEEE float32 wherever it asks ``tl.dot`` for less, so that the
            error of TF32 hides no smaller one.
        arguments: other keywords that are held fixed (``--arg``); ``call`` has them already, explicit derivatives and
            further entry points get them among their options.
        extras: what properties of its family use: other entry points, such as ``stats`` of SDPA, and facts about
            compilations; and those that reveal inputs (``revealed``).
        outside: whether it is not a shipped kernel; it is then judged by the widest shipped algorithm.
        autotuners: how many configurations each Triton autotuner of its modules has, of those with several.
        claims: the derivatives that it claims, and no other is judged; None: all of a shipped kernel, of another the
            forward, the VJP if its outputs ever require grad, the JVP if it has one, and the HVP if it is explicit.
            Others that it offers are judged too, and an error in them is of severity *robustness*.
        notes: printed once in the report, such as a signature that could not be read.
    """

    name: str
    family: str
    call: Callable[..., object]
    vjp: Vjp | None = None
    jvp: Jvp | None = None
    hvp: Hvp | None = None
    contracts: Mapping[str, Contract] = field(default_factory=dict)
    algorithm: str | Algorithm = "definition"
    dtypes: tuple[str, ...] | None = None
    dims: Mapping[str, Sizes] = field(default_factory=dict)
    options: Mapping[str, tuple[OptionValue, ...]] = field(default_factory=dict)
    deterministic: bool = False
    mutates: tuple[str, ...] = ()
    no_gradient: tuple[str, ...] = ()
    blocks: Mapping[str, object] = field(default_factory=dict)
    fits: Callable[[str, Mapping[str, int]], Collection[str]] | None = None
    tiles: Mapping[str, int] | Callable[[str, Mapping[str, int], str, int, Mapping[str, object]], Mapping[str, int]] = (
        field(default_factory=dict)
    )
    compiled_for: Callable[[Case], Hashable] | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)
    outside: bool = False
    notes: tuple[str, ...] = ()
    needs_cuda: bool = False
    ieee_dots: bool = False
    arguments: Mapping[str, object] = field(default_factory=dict)
    claims: tuple[Derivative, ...] | None = None
    autotuners: Mapping[str, int] = field(default_factory=dict)

    def is_judged(self, derivative: Derivative) -> bool:
        """Whether properties of a derivative apply to it."""
        return self.claims is None or derivative in self.claims

    def is_claimed(self, derivative: Derivative) -> bool:
        """Whether an error in a derivative that it offers is more than one of robustness."""
        if self.claims is not None:
            return derivative in self.claims
        return not self.outside or derivative is not Derivative.HVP or self.hvp is not None

    @property
    def must_have_gradients(self) -> bool:
        """Whether outputs that do not require grad are an error, whatever other cases show."""
        return not self.outside or (self.claims is not None and Derivative.VJP in self.claims)

    @property
    def revealed(self) -> tuple[str, ...]:
        """The inputs of the definition that it makes itself and reveals."""
        return revealed_by(self.extras)

    def contract(self, dtype: str) -> Contract:
        """The precision contract of cases of this dtype."""
        return self.contracts.get(dtype) or default_contract(dtype)

    def declares(self, dtype: str) -> bool:
        """Whether it declares the contract of this dtype; shipped kernels declare the default of each."""
        return not self.outside or dtype in self.contracts

    def tiles_of(self, dtype: str, dims: Mapping[str, int], blocks: str, order: int) -> Mapping[str, int]:
        """The number of elements in one tile of each dim for which the kernel declares it."""
        return self.tiles(dtype, dims, blocks, order, self.arguments) if callable(self.tiles) else self.tiles

    def algorithm_of(self, dtype: str, shapes: Shapes, blocks: str) -> str:
        """The name of the algorithm whose order of roundings its budgets assume for inputs of these shapes."""
        own = self.algorithm
        return own if isinstance(own, str) else own(dtype, shapes, blocks, self.arguments)

    def __call__(self, *inputs: object, **options: object) -> Any:
        """Run the kernel as its users do."""
        return self.call(*inputs, **options)

    def __repr__(self) -> str:
        return f"<kernel {self.name} of {self.family}>"


def kernel(
    family: Defined,
    *,
    name: str | None = None,
    contracts: Mapping[str, Contract] | None = None,
    algorithm: str = "definition",
    dtypes: Sequence[str] | None = None,
    dims: Mapping[str, Sizes] | None = None,
    deterministic: bool = False,
    mutates: Sequence[str] = (),
    no_gradient: Sequence[str] = (),
    state: Mapping[str, str] | None = None,
    blocks: Mapping[str, object] | None = None,
    tiles: Mapping[str, int] | None = None,
    needs_cuda: bool = False,
    ieee_dots: bool = False,
    vjp: Vjp | None = None,
    jvp: Jvp | None = None,
    hvp: Hvp | None = None,
    claims: Sequence[str] | None = None,
    reveals: Mapping[str, Callable[..., Tensor]] | None = None,
) -> Callable[[Callable[..., object]], Kernel]:
    """Declare a callable as a kernel of a family: ``@kernel(rmsnorm, dims={"N": multiples(16)})``.

    The parameters of an nn.Module instance that require grad are given by the inputs of the same names, where
    ``inner.weight`` is the input ``inner_weight``; the other inputs are the arguments of its ``forward``.

    Args:
        family: whose definition it implements.
        state: ``{"running_mean": "next_mean"}``: the callable changes the input ``running_mean`` in place (of a module:
            the buffer of that name), and what it is after the call is the output ``next_mean``, which the callable does
            not return. It is an input without a gradient.
        reveals: ``{"mask": function}``: integer inputs of the definition that the kernel is not given, since it makes
            them itself. ``function`` takes what the kernel takes and returns the tensor that the kernel used; before a
            case is judged it is asked for it, and the definition gets the answer.
        name, contracts, algorithm, dtypes, dims, deterministic, mutates, no_gradient, blocks, tiles, needs_cuda,
            ieee_dots, vjp, jvp, hvp, claims: fields of ``Kernel``.

    Raises:
        TypeError: the callable, or one that reveals an input, cannot take the family's inputs, or these lack a
            parameter of the module.
        ValueError: the family has no such dim or state, or no such integer input to be revealed, a size is 0, or a
            claim is no derivative.
    """
    claimed = None if claims is None else claims_of(claims)

    def build(function: Callable[..., object]) -> Kernel:
        kept = dict(state or {})
        if isinstance(function, nn.Module) and (input_names(function) or kept):
            function = of_parameters(function, family.signature, kept)
        label = str(name or getattr(function, "__name__", "kernel"))
        shown = dict(reveals or {})
        require_revealable(label, family, shown)
        seen = unrevealed(family, shown)
        supported, notes = accepted_options(seen, function)
        barred = {each: accepted_options(seen, own)[0] for each, own in shown.items()}
        _require_dims(label, family, dims or {})
        if kept:
            function = returning_state(function, label, family, kept)
        changed, constant = (tuple(dict.fromkeys((*names, *kept))) for names in (mutates, no_gradient))
        notes += tuple(f"{label} reveals {each}, which the definition is then given" for each in shown)
        return Kernel(
            label, family.name, without(function, family, shown), vjp, jvp, hvp, dict(contracts or {}),
            algorithm, tuple(dtypes) if dtypes else None, dict(dims or {}), supported, deterministic, changed,
            constant, dict(blocks or {}), tiles=dict(tiles or {}), outside=True, notes=notes,
            needs_cuda=needs_cuda, ieee_dots=ieee_dots, claims=claimed, extras=entries(shown, family, barred),
        )  # fmt: skip

    return build


def claims_of(names: Iterable[str]) -> tuple[Derivative, ...]:
    """Claimed derivatives by their names, in order; the forward is always among them.

    Raises:
        ValueError: one is unknown.
    """
    given = list(names)
    known = [each.value for each in Derivative]
    if unknown := [name for name in given if name not in known]:
        raise ValueError(f"{', '.join(map(repr, unknown))} cannot be claimed; expected some of {', '.join(known)}")
    return tuple(each for each in Derivative if each is Derivative.FORWARD or each.value in given)


def _require_dims(label: str, family: Defined, dims: Mapping[str, Sizes]) -> None:
    """Check that a family has the dims that a kernel narrows; raises ValueError."""
    known = (*family.signature.dims, *family.signature.spreads)
    if unknown := [dim for dim in dims if dim not in known]:
        raise ValueError(f"kernel {label}: dims has {', '.join(unknown)}; family {family.name} has {', '.join(known)}")
    require_positive(f"kernel {label}", dims)


def accepted_options(
    family: Defined, function: Callable[..., object]
) -> tuple[dict[str, tuple[OptionValue, ...]], tuple[str, ...]]:
    """The options of a family that a callable does not take, by its signature, and a note where that cannot be read.

    Optional inputs that are passed by keyword count as options.

    Returns:
        ({option: ()} for each option that must not be passed, notes).

    Raises:
        TypeError: the callable cannot take the family's inputs positionally, in order.
    """
    options = _by_keyword(family)
    label = getattr(function, "__name__", str(function))
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        note = f"the signature of {label} cannot be read, so no option of {family.name} is passed to it"
        return {name: () for name in options}, (note,) if options else ()
    positional = [p for p in parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters.values())
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    expected = family.signature.places
    required = [p.name for p in positional if p.default is p.empty]
    option_names = {*options, "blocks"}
    needed = [
        p.name
        for p in parameters.values()
        if p.kind is p.KEYWORD_ONLY and p.default is p.empty and p.name not in option_names
    ]
    names = ", ".join(" or ".join(spec.name for spec in place) for place in expected)
    if (len(positional) < len(expected) and not variadic) or len(required) > len(expected) or needed:
        raise TypeError(
            f"{label} does not fit family {family.name}: it takes {_written(parameters.values())}, expected the inputs "
            f"({names}) positionally and nothing else without a default; check an adapter, a function of ({names}) "
            f"that calls {label}"
        )
    named = set(parameters)
    return {name: () for name in options if name not in named and not takes_any}, ()


def _by_keyword(family: Defined) -> list[str]:
    """Names of the options and of the optional inputs that are passed by keyword."""
    inputs = [spec.name for spec in family.signature.inputs if spec.keyword and spec.optional]
    return [*(spec.name for spec in family.signature.options), *inputs]


def _written(parameters: Iterable[inspect.Parameter]) -> str:
    """Parameters as in a def: with its / and *, a default as ``...``, no annotation."""
    empty = inspect.Parameter.empty
    plain = [p.replace(annotation=empty, default=empty if p.default is empty else ...) for p in parameters]
    return str(inspect.Signature(plain)).replace("=Ellipsis", "=...")
