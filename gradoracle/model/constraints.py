"""Constraints between the dims, and between the optional inputs, of one case."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from gradoracle.model.dims import Sizes

V = TypeVar("V")


@dataclass(frozen=True)
class Constraints:
    """The constraints that every case of a family keeps.

    Attributes:
        divides: dim -> the dim that it divides, such as key heads and query heads.
        together: groups of optional inputs that are all given or all absent.
        alternatives: groups of optional inputs of which exactly one is given.
    """

    divides: Mapping[str, str] = field(default_factory=dict)
    together: tuple[tuple[str, ...], ...] = ()
    alternatives: tuple[tuple[str, ...], ...] = ()

    def settled(
        self, dims: Mapping[str, int], sizes: Mapping[str, Sizes], fixed: Collection[str] = ()
    ) -> dict[str, int]:
        """The sizes, changed so that ``divides`` holds: by default a divisor becomes the next smaller one that fits.

        Args:
            dims: size by dim.
            sizes: the domain of each dim.
            fixed: dims that keep their size where the other one can change.

        Raises:
            ValueError: no sizes of the two dims fit each other.
        """
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
        """Whether dim ``low`` can be smaller than ``high``: a dim is never smaller than one that divides it."""
        return self.divides.get(high) != low

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
        for group in self.together:
            there, missing = ([n for n in group if (n in given) is present] for present in (True, False))
            if there and missing:
                return f"{', '.join(there)} and not {', '.join(missing)}; expected all of them or none"
        for group in self.alternatives:
            there = [name for name in group if name in given]
            if len(there) != 1:
                return f"{' and '.join(there) or 'none'} of {', '.join(group)}; expected exactly one of them"
        return ""


def constrained(
    name: str,
    dims: Sequence[str],
    optional: Sequence[str],
    divides: Mapping[str, str],
    together: Sequence[Sequence[str]],
    alternatives: Sequence[Sequence[str]] = (),
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
        dict(divides), tuple(tuple(group) for group in together), tuple(tuple(group) for group in alternatives)
    )
