"""Dims: which sizes a named dim may take. A domain is plain data; what is drawn from it is strategies.py's business."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The sizes of one named dim: ``minimum..maximum`` in steps of ``multiple``, or a fixed list of ``choices``.

    ``large`` is a bound above ``maximum`` that a few cases of each run may reach (T > 100 000); 0 means none.
    """

    minimum: int = 1
    maximum: int = 128
    multiple: int = 1
    choices: tuple[int, ...] = ()
    large: int = 0

    def __post_init__(self) -> None:
        """Refuse empty domains: an impossible domain must raise and never draw nothing."""
        if self.choices:
            if min(self.choices) < 1:
                raise ValueError(f"sizes must be at least 1, got choices {self.choices}")
        elif self.minimum < 1 or self.multiple < 1 or self.smallest > self.maximum:
            raise ValueError(
                f"no size fits {self}: wanted 1 <= minimum <= maximum with a multiple of {self.multiple} between them"
            )

    def __str__(self) -> str:
        if self.choices:
            return ", ".join(map(str, self.choices))
        step = f" in steps of {self.multiple}" if self.multiple > 1 else ""
        return f"{self.minimum} to {max(self.maximum, self.large)}{step}"

    @property
    def smallest(self) -> int:
        """The smallest size of the domain."""
        return min(self.choices) if self.choices else -(-self.minimum // self.multiple) * self.multiple

    @property
    def biggest(self) -> int:
        """The largest size that an ordinary case takes."""
        return max(self.choices) if self.choices else self.maximum // self.multiple * self.multiple

    def __contains__(self, size: object) -> bool:
        """Whether a size belongs to the domain (``large`` sizes do too)."""
        if not isinstance(size, int):
            return False
        if self.choices:
            return size in self.choices
        return self.minimum <= size <= max(self.maximum, self.large) and size % self.multiple == 0

    def intersect(self, other: Sizes) -> Sizes:
        """What both domains allow; ValueError where nothing is left."""
        nothing = f"no size is in both {{{self}}} and {{{other}}}"
        lists = [set(domain.choices) for domain in (self, other) if domain.choices]
        if lists:
            both = sorted(size for size in set.intersection(*lists) if size in self and size in other)
            if not both:
                raise ValueError(nothing)
            return Sizes(choices=tuple(both))
        multiple = math.lcm(self.multiple, other.multiple)
        minimum, maximum = max(self.minimum, other.minimum), min(self.maximum, other.maximum)
        if -(-minimum // multiple) * multiple > maximum:
            raise ValueError(nothing)
        large = min(self.large or self.maximum, other.large or other.maximum)
        return Sizes(minimum, maximum, multiple, (), large if large > maximum else 0)


def written(dim: str, domain: Sizes) -> str:
    """A domain as ``parse_sizes`` reads it: ``T=1:4096``, ``T=16:4096:16`` or ``D=64,128``."""
    if domain.choices:
        return f"{dim}={','.join(map(str, domain.choices))}"
    step = f":{domain.multiple}" if domain.multiple > 1 else ""
    return f"{dim}={domain.minimum}:{max(domain.maximum, domain.large)}{step}"


def sizes(minimum: int = 1, maximum: int = 128, *, multiple: int = 1, large: int = 0) -> Sizes:
    """Every multiple of ``multiple`` from ``minimum`` to ``maximum``."""
    return Sizes(minimum, maximum, multiple, (), large)


def multiples(multiple: int, maximum: int = 4096) -> Sizes:
    """Multiples of ``multiple`` up to ``maximum``: what a kernel without masks supports."""
    return Sizes(multiple, maximum, multiple)


def choices(*allowed: int) -> Sizes:
    """Exactly these sizes."""
    return Sizes(choices=tuple(allowed))


def parse_sizes(text: str) -> tuple[str, Sizes]:
    """Read ``T=1:4096``, ``T=16:4096:16``, ``T=64`` or ``D=64,128`` as (dim, domain).

    Raises:
        ValueError: showing what was given and the forms that are wanted.
    """
    wanted = "wanted NAME=SIZE, NAME=SIZE,SIZE..., NAME=MIN:MAX or NAME=MIN:MAX:MULTIPLE with sizes >= 1"
    name, equals, domain = text.partition("=")
    try:
        if not equals or not name.strip().isidentifier():
            raise ValueError
        if ":" in domain:
            bounds = [int(part) for part in domain.split(":")]
            if len(bounds) not in (2, 3):
                raise ValueError
            multiple = bounds[2] if len(bounds) == 3 else 1
            return name.strip(), sizes(
                bounds[0], bounds[1], multiple=multiple, large=bounds[1] if bounds[1] > 100_000 else 0
            )
        return name.strip(), Sizes(choices=tuple(int(part) for part in domain.split(",")))
    except ValueError:
        raise ValueError(f"--dim {text!r} is not understood; {wanted}") from None
