"""Domain: the values that an integer input may have, and what may be done to them."""

from __future__ import annotations

import dataclasses
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gradoracle.model import hashing, layouts, recipes
from gradoracle.model.dims import dim_names, size
from gradoracle.model.signature import TensorSpec

Sizes = Mapping[str, int]  # the size of each dim


@dataclass(frozen=True)
class Neighbours:
    """The other integer inputs of a case: their domains and values, by name."""

    domains: Mapping[str, Domain] = field(default_factory=dict)
    values: Mapping[str, Tensor] = field(default_factory=dict)

    def ends(self, name: str) -> Tensor | None:
        """Where each sequence of an input of offsets or counts ends, [... N]; None where there is no such input."""
        return self.domains[name].ends(self.values[name]) if name in self.values and name in self.domains else None


NONE = Neighbours()


@dataclass(frozen=True)
class Drawing:
    """What the values of one input in a case are made of.

    Attributes:
        recipe: a name among the domain's ``recipes``.
        shape: of the tensor.
        sizes: of the dims.
        seed: of the case.
        name: of the random stream.
        dtype: of the tensor.
        beside: the inputs that the domain reads.
    """

    recipe: str
    shape: tuple[int, ...]
    sizes: Sizes
    seed: int
    name: str
    dtype: torch.dtype = torch.int64
    beside: Neighbours = NONE

    def plain(self, low: int, high: int) -> Tensor:
        """Integers low .. high by one of the four recipes that every range has."""
        return recipes.indices(self.recipe, self.shape, low, high, seed=self.seed, name=self.name)

    def integers(self, part: str, low: int, high: int, shape: Sequence[int] | None = None) -> Tensor:
        """Integers low .. high, uniform, from a stream of their own."""
        shape = self.shape if shape is None else tuple(shape)
        found = hashing.integers(self.seed, f"{self.name} {part}", math.prod(shape), low, high + 1)
        return torch.from_numpy(found).reshape(shape)

    def shuffled(self, values: Tensor, part: str = "order") -> Tensor:
        """The values in a random order along the last dim, another one in each row."""
        keys = self.integers(part, 0, (1 << 31) - 1, values.shape)
        return values.gather(-1, keys.argsort(stable=True, dim=-1))


@dataclass(frozen=True)
class Longer:
    """One more member along some axes of an input.

    Attributes:
        axes: the axes.
        before: the sizes of the dims without the new members.
        after: the sizes with them.
        first: whether new members come first; else they come last.
    """

    axes: tuple[int, ...]
    before: Sizes
    after: Sizes
    first: bool = False

    def joined(self, values: Tensor, slab: Tensor, axis: int) -> Tensor:
        """The values with a slab of one member at the end, or at the start."""
        return torch.cat([slab, values] if self.first else [values, slab], axis)

    def edge(self, values: Tensor, axis: int) -> Tensor:
        """The member next to the new one."""
        return values.narrow(axis, 0 if self.first else values.shape[axis] - 1, 1)

    def repeated(self, values: Tensor) -> Tensor:
        """The values with member 0 once more along each axis."""
        for axis in self.axes:
            values = self.joined(values, values.narrow(axis, 0, 1), axis)
        return values


class Domain(ABC):
    """The values of an integer input; a frozen dataclass for each kind of input."""

    @property
    def simplest(self) -> str:
        """The recipe that a failing case shrinks to, where "index", the default one of random values, is not it."""
        return "index"

    @property
    def rowwise(self) -> bool:
        """Whether the values of a row, along the last dim, depend on one another, so that none may be repeated."""
        return False

    @property
    def recipes(self) -> tuple[str, ...]:
        """The names of the recipes that make sense for it, "index" among them."""
        return tuple(recipes.INDEX_RECIPES)

    @property
    def reads(self) -> tuple[str, ...]:
        """The names of the inputs that the values depend on."""
        return ()

    @property
    def wanted(self) -> str:
        """What those inputs hold: "offsets" (or counts, which say where sequences end) or "lengths"."""
        return "offsets"

    def is_read_as(self, wanted: str) -> bool:
        """Whether another domain can read an input of this one as ``wanted``."""
        return False

    @property
    def dims(self) -> tuple[str, ...]:
        """The named dims whose sizes bound the values."""
        return tuple(dict.fromkeys(name for text in self.bounds for name in dim_names(text)))

    @property
    def bounds(self) -> tuple[str, ...]:
        """The dims and expressions of dims that bound the values."""
        bound = getattr(self, "bound", "")
        return (str(bound),) if bound != "" else ()

    def misfit(self, spec: TensorSpec) -> str:
        """Why an input of these dims and dtype cannot have this domain, as the end of a sentence; "" if it can."""
        return ""

    def at_most(self, dims: Sequence[str]) -> tuple[tuple[str, str], ...]:
        """Pairs of dims, or expressions of dims, of which the first is never larger, for an input of these dims."""
        return ()

    def grouped(self, dims: Sequence[str]) -> frozenset[str]:
        """The named dims whose members the values of an input of these dims divide into groups."""
        return frozenset()

    @abstractmethod
    def drawn(self, drawing: Drawing) -> Tensor:
        """The values of a case, contiguous, int64; the same on every machine."""

    @abstractmethod
    def fault(self, values: Tensor, sizes: Sizes, beside: Neighbours = NONE) -> str:
        """What is wrong with integers at given sizes of the dims, as the end of a sentence; "" if nothing.

        It begins with a verb and names place and value: ``holds 9 at [3], expected integers from 0 to 8``.
        """

    def ends(self, values: Tensor) -> Tensor | None:
        """Where each sequence ends, [... N]; None where the values divide nothing into sequences."""
        return None

    def allows(self, layout: str, shape: Sequence[int]) -> bool:
        """Whether an input of that shape keeps to the domain in a layout, which may repeat some of its elements."""
        if not layouts.LAYOUTS[layout].repeats or max(shape, default=1) == 1:
            return True
        if self.reads:
            return False
        return not self.rowwise or (layout == "expanded" and layouts.expanded_dim(shape) < len(shape) - 1)

    def extended(self, values: Tensor, longer: Longer, beside: Neighbours = NONE) -> Tensor:
        """The values with one more member along some axes; those of the former members stay where that is possible.

        Where no legal value is left for a new member it has an illegal one, which ``fault`` tells.

        Args:
            values: [...], of a case.
            longer: where the new members are.
            beside: the inputs that the domain reads, with new members.
        """
        return longer.repeated(values)

    @property
    def source(self) -> str:
        """The domain as an expression of Python, without what is the default."""
        words = []
        for place, each in enumerate(dataclasses.fields(self)):  # type: ignore[arg-type]
            value = getattr(self, each.name)
            if place == 0 and each.default is dataclasses.MISSING:
                words.append(_literal(value))
            elif value != each.default:
                words.append(f"{each.name}={_literal(value)}")
        return f"gradoracle.{type(self).__name__}({', '.join(words)})"

    @property
    @abstractmethod
    def words(self) -> str:
        """The domain in a few words, such as ``0 to V-1``."""


def _literal(value: object) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def place(mask: Tensor) -> tuple[int, ...]:
    """The index of the first true element."""
    return tuple(int(each) for each in mask.nonzero()[0])


def at(values: Tensor, mask: Tensor) -> str:
    """``9 at [3]``: the first marked element, and its index."""
    index = place(mask)
    return f"{int(values[index])} at {list(index)}"


def outside(values: Tensor, low: int, high: int, what: str = "integers", ignore: int | None = None) -> str:
    """``fault`` of values that are not between two numbers, those equal to ``ignore`` left out."""
    wrong = (values < low) | (values > high)
    if ignore is not None:
        wrong &= values != ignore
    if not wrong.any():
        return ""
    if low == high:
        return f"holds {at(values, wrong)}, expected {what[:-1] if what.endswith('s') else what} {low}"
    return f"holds {at(values, wrong)}, expected {what} from {low} to {high}"


def below(bound: int | str) -> str:
    """The largest number below a bound, in words."""
    return f"{bound}-1" if isinstance(bound, str) else str(bound - 1)


def top(bound: int | str, sizes: Sizes) -> int:
    """A bound at given sizes of the dims."""
    return size(str(bound), sizes)


def misfit_of_rows(spec: TensorSpec, what: str) -> str:
    """``Domain.misfit`` of what lies along a last dim, which ``*NAME`` is not."""
    if not spec.dims or spec.dims[-1].startswith("*"):
        return f"has dims [{' '.join(spec.dims)}], but {what} need a last dim of one name, number or expression"
    return ""


def product(dims: Sequence[str]) -> str:
    """The number of elements of a tensor of these dims, as an expression."""
    return "*".join(dim if dim.isidentifier() else f"({dim})" for dim in dims)


def named_dims(dims: Sequence[str]) -> frozenset[str]:
    """The names in dims and expressions of dims, those of ``*NAME`` left out."""
    return frozenset(name for dim in dims if not dim.startswith("*") for name in dim_names(dim))
