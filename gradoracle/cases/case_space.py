"""Case space: all possible cases of one run, from the family, the kernel and the user's restrictions."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from gradoracle.model import recipes
from gradoracle.model.dims import MOST_SPREAD, Sizes, dim_names, spread
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel
from gradoracle.model.signature import Signature, TensorSpec, cotangent_name

LARGE, VERY_LARGE = 100_000, 1_000_000  # a dim beyond either is a coverage goal
TILE, TAIL = 64, 16  # rows of a tile; a size that is no multiple of 16 has a tail

# Weights, and the sizes that have them: powers of two and one either side, primes, block edges; small in the mean.
_SIZES = {
    4: (1, 2, 3, 4, 5, 7, 8, 9, 13),
    2: (15, 16, 17, 23, 31, 32, 33, 47, 48, 61, 63, 64, 65),
    1: (79, 97, 100, 127, 128, 129, 160, 193, 257, 300),
}
_LARGE_SIZES = (100_001, 100_003, 100_352, 131_071, 131_072, 1_048_575, 1_048_576)


@dataclass(frozen=True)
class CaseSpace:
    """All possible cases of one run.

    Attributes:
        family: gives dims, tensors and options.
        kernel: may support only some of them.
        dtypes: the dtypes, the plainest first.
        sizes: of each dim.
        ranks: how many dims each ``*NAME`` stands for.
    """

    family: Family
    kernel: Kernel
    dtypes: tuple[str, ...]
    sizes: Mapping[str, Sizes]
    ranks: Mapping[str, Sizes] = field(default_factory=dict)

    @property
    def signature(self) -> Signature:
        """The signature of the family."""
        return self.family.signature

    @cached_property
    def dims(self) -> tuple[str, ...]:
        """The dims that some case has."""
        return self.signature.dims_of({starred: found.biggest for starred, found in self.ranks.items()})

    @cached_property
    def spreads(self) -> dict[str, tuple[str, ...]]:
        """See ``Signature.spreads``."""
        return self.signature.spreads

    def counts(self, starred: str) -> tuple[int, ...]:
        """How many dims ``*NAME`` may stand for, one first, which is the plainest."""
        possible = (count for count in range(MOST_SPREAD + 1) if count in self.ranks[starred])
        return tuple(sorted(possible, key=lambda count: (count != 1, count)))

    def ranked(self, dims: Mapping[str, int], ranks: Mapping[str, int] | None = None) -> dict[str, int]:
        """The sizes with as many dims of each ``*NAME`` as ``ranks`` says, by default as many as are named.

        Sizes move up where earlier ones are missing. Where there are too few, small ones are added.
        """
        found = dict(dims)
        for starred, every in self.spreads.items():
            sizes = [found.pop(dim) for dim in every if dim in found]
            wanted = (ranks or {}).get(starred, len(sizes))
            count = min(self.counts(starred), key=lambda n: (n < wanted, abs(n - wanted)))
            for dim, size in zip(every[:count], [*sizes, *[0] * count], strict=False):
                found[dim] = size if size in self.sizes[dim] or size == dims.get(dim) else self.favoured(dim)[0]
        return {dim: found[dim] for dim in self.signature.dims if dim in found}

    def filled(self, dims: Mapping[str, int]) -> dict[str, int]:
        """The sizes with the dims of ``*NAME`` that come before a named one, of small size."""
        found = dict(dims)
        for every in self.spreads.values():
            last = max((place for place, dim in enumerate(every) if dim in dims), default=-1)
            found = {dim: self.favoured(dim)[0] for dim in every[: last + 1]} | found
        return found

    @cached_property
    def options(self) -> dict[str, tuple[Any, ...]]:
        """The values that each option may have, the definition's default first if it is among them."""
        found = {}
        for spec in self.signature.options:
            values = self.kernel.options.get(spec.name, spec.values)
            if values:
                found[spec.name] = tuple(sorted(values, key=lambda value: value != spec.default))
        return found

    @cached_property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The outputs that some case returns."""
        return tuple(s for s in self.signature.outputs if not s.asked_by or self._may_be_true(s.asked_by))

    def _may_be_true(self, option: str) -> bool:
        defaults = {spec.name: spec.default for spec in self.signature.options}
        return any(self.options.get(option, (defaults[option],)))

    @cached_property
    def floats(self) -> dict[str, TensorSpec]:
        """The float tensors by the name of their draw: primals, then cotangents."""
        cotangents = {cotangent_name(spec.name): spec for spec in self.outputs if spec.kind == "float"}
        return {spec.name: spec for spec in self.signature.primals if spec.name not in self.absent} | cotangents

    @cached_property
    def integers(self) -> dict[str, TensorSpec]:
        """The integer inputs by name."""
        inputs = (spec for spec in self.signature.inputs if spec.kind == "int")
        return {spec.name: spec for spec in inputs if spec.name not in self.absent}

    def recipes(self, name: str, *, integers: bool) -> Collection[str]:
        """The recipes, of integers or of floats, that a tensor may have; of floats with any number."""
        if integers:
            return self.family.domains[name].recipes if name in self.integers else ()
        return (*recipes.RECIPES, "normal:3") if name in self.floats else ()

    @cached_property
    def optional(self) -> tuple[str, ...]:
        """The names of the inputs that may be given or absent."""
        names = (spec.name for spec in self.signature.inputs if spec.optional)
        return tuple(name for name in names if name not in self.absent)

    @cached_property
    def alternatives(self) -> tuple[tuple[str, ...], ...]:
        """The groups of alternatives, reduced to the inputs that the kernel takes."""
        groups = (tuple(n for n in group if n in self.optional) for group in self.signature.constraints.alternatives)
        return tuple(group for group in groups if group)

    @cached_property
    def absent(self) -> frozenset[str]:
        """Optional inputs that the kernel does not take, and their companions."""
        refused = [s.name for s in self.signature.inputs if s.optional and self.kernel.options.get(s.name) == ()]
        return frozenset(each for name in refused for each in self.signature.constraints.companions(name))

    @cached_property
    def joint(self) -> dict[str, Mapping[str, str]]:
        """The joint recipes whose tensors some case has all, by name."""
        there = {*self.floats, *self.integers}
        return {name: joint for name, joint in self.family.joint.items() if there.issuperset(joint)}

    @cached_property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """See ``pairs``."""
        return pairs(self.signature)

    @cached_property
    def batch(self) -> tuple[str, ...]:
        """See ``batch_dims``."""
        return batch_dims(self.signature)

    @cached_property
    def rows(self) -> tuple[str, ...]:
        """Dims that some tensor has before its last: a case costs about their product."""
        widest = self.signature.at()
        before = [dim for spec in (*widest.inputs, *widest.outputs) for dim in spec.dims[:-1]]
        found = {name for dim in before for name in dim_names(dim)}
        return tuple(dim for dim in self.signature.dims if dim in found) or self.signature.dims

    def settled(self, dims: Mapping[str, int], fixed: Collection[str] = ()) -> dict[str, int]:
        """The sizes, changed to keep the family's constraints, those of ``fixed`` dims only if necessary."""
        return self.signature.constraints.settled(dims, self.sizes, fixed)

    def favoured(self, dim: str) -> tuple[int, ...]:
        """The sizes that a dim has in most cases, ascending, likelier ones repeated."""
        return _favoured(self.sizes[dim])

    def large(self, dim: str, above: int = LARGE) -> tuple[int, ...]:
        """The sizes of a dim in a few cases: beyond ``LARGE`` up to ``VERY_LARGE``, or beyond that."""
        sizes, most = self.sizes[dim], VERY_LARGE if above == LARGE else math.inf
        if sizes.choices:
            return tuple(size for size in sizes.choices if above < size <= most)
        found = {-(-size // sizes.multiple) * sizes.multiple for size in _LARGE_SIZES} if sizes.large else set()
        most = min(most, sizes.large)
        return tuple(sorted(size for size in found if size in sizes and above < size <= most))


def length(family: Family) -> str:
    """The dim against which errors are plotted: the first that exceeds 100 000, else the last of the first input."""
    for name in family.signature.dims:
        if name in family.dims and family.dims[name].large > LARGE:
            return name
    return next((spread(spec.dims[-1])[0] for spec in family.signature.inputs if spec.dims), "")


def case_space(
    family: Family, kernel: Kernel, *, dtypes: Sequence[str] | None = None, dims: Mapping[str, Sizes] | None = None
) -> CaseSpace:
    """The case space that family, kernel and user allow.

    A user's range may exceed the sizes that the family has by default, up to its ``farthest``.

    Raises:
        ValueError: a dim is unknown, no size of a dim or no dtype is left, or no sizes keep the constraints.
    """
    known = {**family.dims, **family.ranks}
    unknown = sorted(set(dims or {}) - set(known))
    if unknown:
        raise ValueError(f"family {family.name} has no dim {', '.join(unknown)}; it has {', '.join(known)}")
    chosen = {}
    for name, sizes in known.items():
        allowed = f"family {family.name} allows {sizes}"
        try:
            if name in kernel.dims:
                allowed += f", {kernel.name} supports {kernel.dims[name]}"
                sizes = sizes.intersect(kernel.dims[name])
            if dims and name in dims:
                allowed = f"{dims[name]} was asked for; {allowed}"
                sizes = _reaching(sizes, dims[name]).intersect(dims[name])
        except ValueError:
            raise ValueError(f"dim {name} of {kernel.name}: {allowed}; no size is in all of these") from None
        chosen[name] = sizes
    supported = tuple(dtype for dtype in dtypes or family.dtypes if kernel.dtypes is None or dtype in kernel.dtypes)
    if not supported:
        raise ValueError(
            f"{kernel.name} supports {', '.join(kernel.dtypes or ())}; expected one of {', '.join(dtypes or ())}"
        )
    ranks = {name: chosen.pop(name) for name in family.ranks}
    found = CaseSpace(family, kernel, supported, chosen, ranks)
    try:
        found.settled({dim: found.favoured(dim)[0] for dim in chosen})
    except ValueError as error:
        raise ValueError(f"dims of {kernel.name}: {error}") from None
    return found


def batch_dims(signature: Signature) -> tuple[str, ...]:
    """Dims of every tensor with two dims or more that are never the last: those that programs are spread over.

    They are in the order of the first tensor: sizes are chosen in this order, and a set has another in each process.
    """
    signature = signature.at()
    tensors = [spec.dims for spec in (*signature.inputs, *signature.outputs) if len(spec.dims) > 1]
    leading = dict.fromkeys(tensors[0][:-1]) if tensors else {}
    return tuple(dim for dim in leading if all(dim in dims[:-1] and dim != dims[-1] for dims in tensors))


def pairs(signature: Signature) -> tuple[tuple[str, str], ...]:
    """Pairs of dims at the same position of two inputs with equally many dims, such as T and M, or D and Dv."""
    found: dict[tuple[str, str], None] = {}
    for index, first in enumerate(signature.inputs):
        for second in signature.inputs[index + 1 :]:
            if len(first.dims) == len(second.dims):
                for a, b in zip(first.dims, second.dims, strict=True):
                    if a != b and a.isidentifier() and b.isidentifier() and (b, a) not in found:
                        found.setdefault((a, b))
    return tuple(found)


def _reaching(sizes: Sizes, asked: Sizes) -> Sizes:
    """The family's sizes with ``farthest`` as the maximum, if the user asks for sizes beyond the ordinary maximum."""
    if sizes.choices or asked.choices or not sizes.maximum < asked.maximum <= sizes.farthest:
        return sizes
    return Sizes(sizes.minimum, sizes.farthest, sizes.multiple, (), sizes.farthest)


@cache
def _favoured(sizes: Sizes) -> tuple[int, ...]:
    if sizes.choices:
        return tuple(sorted(size for size in sizes.choices if size <= LARGE) or sorted(sizes.choices))
    step, found = sizes.multiple, []
    for often, numbers in _SIZES.items():
        for number in numbers:
            size = number if step == 1 else number * step if often == 4 else math.ceil(number / step) * step
            if sizes.minimum <= size <= sizes.maximum and (size <= 320 or often == 4):
                found += [size] * often
    ends = [sizes.smallest, sizes.biggest, sizes.biggest - step]
    if sizes.biggest - sizes.smallest <= 8 * step:
        found = [*range(sizes.smallest, sizes.biggest + 1, step)]
    elif sizes.smallest > 64:
        span = (sizes.biggest - sizes.smallest) // step
        found += [sizes.smallest + step * (span * part // 16) for part in range(17)]
    return tuple(
        sorted(found + [size for size in ends if sizes.minimum <= size <= sizes.maximum and size not in found])
    )
