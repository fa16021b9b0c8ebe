"""Description: what a kernel declares, as plain values, and a kernel made of it whose functions are elsewhere.

A judge gets descriptions from a host, which has the kernels themselves.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from gradoracle.model.contract import Contract
from gradoracle.model.derivative import Derivative
from gradoracle.model.dims import Sizes
from gradoracle.model.errors import DeclarationError
from gradoracle.model.formats import DTYPES
from gradoracle.model.kernel import Kernel
from gradoracle.model.location import Place, place_of
from gradoracle.model.serialize import Unreadable
from gradoracle.model.signature import OptionValue
from gradoracle.model.wording import printable

_EXPLICIT = (Derivative.VJP, Derivative.JVP, Derivative.HVP)
_MOST = 1 << 40  # elements of a parameter
_ASKED = ("algorithm", "fits", "tiles", "compiled_for")  # declarations that may be functions

_GIVEN: Mapping[str, tuple[str, Callable[[Any], bool]]] = {  # what such a function should give
    "algorithm": ("the name of an algorithm", lambda found: isinstance(found, str)),
    "fits": (
        "names of block configurations",
        lambda found: isinstance(found, (tuple, list, Mapping)) and all(isinstance(each, str) for each in found),
    ),
    "tiles": (
        "a number of elements by dim",
        lambda found: isinstance(found, Mapping) and all(type(each) is int and each > 0 for each in found.values()),
    ),
}


@dataclass(frozen=True)
class Description:
    """A kernel's declarations, as of ``Kernel``.

    Attributes:
        call: where the kernel is defined.
        explicit: the derivatives for which it has functions of its own.
        asked: the declarations that are functions, of its sizes.
        entries: its further entry points, and other functions among its ``extras``.
        imported: the module or file that it can be imported from, and its name there; () where it has no name.
        constants: the other extras.
    """

    name: str
    family: str
    call: Place
    explicit: tuple[Derivative, ...]
    asked: tuple[str, ...]
    entries: Mapping[str, Place]
    constants: Mapping[str, tuple[str, ...]]
    contracts: Mapping[str, Contract]
    algorithm: str
    dtypes: tuple[str, ...] | None
    dims: Mapping[str, Sizes]
    options: Mapping[str, tuple[OptionValue, ...]]
    deterministic: bool
    mutates: tuple[str, ...]
    no_gradient: tuple[str, ...]
    blocks: tuple[str, ...]
    tiles: Mapping[str, int]
    outside: bool
    notes: tuple[str, ...]
    needs_cuda: bool
    ieee_dots: bool
    arguments: Mapping[str, OptionValue]
    claims: tuple[Derivative, ...] | None
    autotuners: Mapping[str, int] = field(default_factory=dict)
    imported: tuple[str, ...] = ()


@dataclass(frozen=True)
class HostedTarget:
    """What a host says of its target.

    Attributes:
        kernels: their descriptions.
        file: the file of the target's module, absolute; "" for a shipped one.
        families: by name: the names that the module has them by.
        parameters: dtype and shape of the parameters of an nn.Module that become inputs, by name.
    """

    kernels: tuple[Description, ...]
    file: str = ""
    families: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)


def require_sound(target: HostedTarget) -> None:
    """Check what a stranger says of a target, beyond the types of its fields.

    Raises:
        Unreadable: what is wrong with it.
    """
    names = [each.name for each in target.kernels]
    if not names or len({*names}) < len(names) or len({each.family for each in target.kernels}) > 1:
        raise Unreadable("its kernels have no names of their own, or several families")
    if any(name != " ".join(printable(name, 100).split()) for name in names):
        raise Unreadable("a kernel has a name that is not one line of text")
    for each in target.kernels:
        if not {*each.asked} <= {*_ASKED} or len(each.imported) not in (0, 2):
            raise Unreadable(f"{each.name} has declarations that there are not")
        for place in (each.call, *each.entries.values()):
            if place.parameters is not None:
                try:
                    _ = place.parameters.signature
                except (ValueError, TypeError) as error:
                    raise Unreadable(f"a function of {each.name} has no signature: {error}") from None
    for name, (dtype, shape) in target.parameters.items():
        if dtype not in DTYPES or not name.isidentifier() or min(shape, default=1) < 1 or math.prod(shape) > _MOST:
            said = printable(f"{name} of {dtype} {list(shape)}", 100)
            raise Unreadable(f"a parameter is {said}; expected a dense one of floats")


class Asked(Protocol):
    """Evaluates a declaration of a kernel, or another function among its extras, where the kernel is."""

    def __call__(self, kernel: str, what: str, arguments: tuple[Any, ...]) -> Any:
        """The value, as JSON holds it."""


@dataclass(frozen=True)
class Elsewhere:
    """A function that a host has. Called, it is evaluated there, which is possible on plain values."""

    place: Place
    kernel: str
    what: str
    ask: Asked = field(compare=False, repr=False)

    @property
    def __signature__(self) -> inspect.Signature:
        """What ``inspect.signature`` gives of it: that of the function itself.

        Raises:
            ValueError: it cannot be read there.
        """
        if self.place.parameters is None:
            raise ValueError(f"the signature of {self.what} of kernel {self.kernel} cannot be read")
        return self.place.parameters.signature

    def __call__(self, *arguments: Any) -> Any:
        """Its value there.

        Raises:
            DeclarationError: it is not what the declaration should give.
        """
        found = self.ask(self.kernel, self.what, arguments)
        expected, fits = _GIVEN.get(self.what, ("", lambda _: True))
        if not fits(found):
            shown = printable(repr(found), 100)
            raise DeclarationError(f"{self.what} of kernel {self.kernel} gives {shown}; expected {expected}")
        return found


def described(kernel: Kernel, autotuners: Mapping[str, int] | None = None) -> Description:
    """The description of a kernel."""
    functions = {name: value for name, value in kernel.extras.items() if callable(value)}
    given = {name: getattr(kernel, name) for name in _ASKED}
    return Description(
        kernel.name,
        kernel.family,
        place_of(kernel.call),
        tuple(each for each in _EXPLICIT if getattr(kernel, each.value) is not None),
        tuple(name for name, value in given.items() if callable(value)),
        {name: place_of(value) for name, value in functions.items()},
        {name: tuple(value) for name, value in kernel.extras.items() if name not in functions},
        dict(kernel.contracts),
        kernel.algorithm if isinstance(kernel.algorithm, str) else "",
        kernel.dtypes,
        dict(kernel.dims),
        {name: tuple(values) for name, values in kernel.options.items()},
        kernel.deterministic,
        kernel.mutates,
        kernel.no_gradient,
        tuple(kernel.blocks),
        {} if callable(kernel.tiles) else dict(kernel.tiles),
        kernel.outside,
        kernel.notes,
        kernel.needs_cuda,
        kernel.ieee_dots,
        dict(kernel.arguments),  # type: ignore[arg-type]
        kernel.claims,
        dict(kernel.autotuners if autotuners is None else autotuners),
    )


def kernel_of(own: Description, ask: Asked) -> Kernel:
    """A kernel as described, whose functions are elsewhere."""

    def elsewhere(what: str, place: Place = own.call) -> Any:
        return Elsewhere(place, own.name, what, ask)

    made = Kernel(
        own.name,
        own.family,
        elsewhere("call"),
        contracts=own.contracts,
        algorithm=own.algorithm,
        dtypes=own.dtypes,
        dims=own.dims,
        options=own.options,
        deterministic=own.deterministic,
        mutates=own.mutates,
        no_gradient=own.no_gradient,
        blocks=dict.fromkeys(own.blocks),
        tiles=own.tiles,
        extras={**own.constants, **{name: elsewhere(f"extra {name}", place) for name, place in own.entries.items()}},
        outside=own.outside,
        notes=own.notes,
        needs_cuda=own.needs_cuda,
        ieee_dots=own.ieee_dots,
        arguments=own.arguments,
        claims=own.claims,
        autotuners=own.autotuners,
    )
    return replace(made, **{name: elsewhere(name) for name in (*own.asked, *(each.value for each in own.explicit))})
