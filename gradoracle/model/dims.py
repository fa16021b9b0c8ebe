"""Dims: the sizes that a named dim may take, and expressions of dims such as ``T+1``, ``2*D`` and ``T//2``.

``*batch`` stands for ``batch0``, ``batch1``..., as many as a case has: none to ``MOST_SPREAD``.
"""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, replace

MOST_SPREAD = 3  # dims that ``*NAME`` stands for


@dataclass(frozen=True)
class Sizes:
    """The sizes of one named dim: ``minimum..maximum`` in steps of ``multiple``, or a fixed list of ``choices``.

    A few cases of each run reach up to ``large``, above ``maximum`` (T > 100 000), or on a GPU up to ``large_on_gpu``.
    Sizes beyond, up to ``asked``, occur only where a user asks for them. 0 means none. A size of 0 is for the
    number of dims of ``*NAME``.
    """

    minimum: int = 1
    maximum: int = 128
    multiple: int = 1
    choices: tuple[int, ...] = ()
    large: int = 0
    large_on_gpu: int = 0
    asked: int = 0

    def __post_init__(self) -> None:
        """Refuse a domain without any size."""
        if self.choices:
            if min(self.choices) < 0:
                raise ValueError(f"sizes must be at least 1, got choices {self.choices}")
        elif self.minimum < 0 or self.multiple < 1 or self.smallest > self.maximum:
            raise ValueError(
                f"no size fits {self}: expected 0 <= minimum <= maximum with a multiple of {self.multiple} between them"
            )

    def __str__(self) -> str:
        if self.choices:
            return ", ".join(map(str, self.choices))
        step = f" in steps of {self.multiple}" if self.multiple > 1 else ""
        return f"{self.minimum} to {self.farthest}{step}"

    @property
    def smallest(self) -> int:
        """The smallest size of the domain."""
        return min(self.choices) if self.choices else -(-self.minimum // self.multiple) * self.multiple

    @property
    def biggest(self) -> int:
        """The largest size of an ordinary case."""
        return max(self.choices) if self.choices else self.maximum // self.multiple * self.multiple

    @property
    def farthest(self) -> int:
        """The largest size that belongs to the domain."""
        return max(self.choices) if self.choices else self._bounds()[-1]

    def __contains__(self, size: object) -> bool:
        """Whether a size belongs to the domain (``large`` sizes do too)."""
        if not isinstance(size, int):
            return False
        if self.choices:
            return size in self.choices
        return self.minimum <= size <= self.farthest and size % self.multiple == 0

    def on(self, device: str) -> Sizes:
        """The domain of cases that run on a device, "cpu" or another."""
        return replace(self, large=self.large_on_gpu) if device != "cpu" and self.large_on_gpu else self

    def intersect(self, other: Sizes) -> Sizes:
        """The sizes in both domains; ValueError if there are none."""
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
        fields, reached = [], maximum
        for one, two in zip(self._bounds(), other._bounds(), strict=True):
            fields.append(min(one, two) if min(one, two) > reached else 0)
            reached = max(reached, min(one, two))
        return Sizes(minimum, maximum, multiple, (), *fields)

    def _bounds(self) -> tuple[int, int, int]:
        """``large``, ``large_on_gpu`` and ``asked`` as bounds, each at least the one before."""
        large = max(self.maximum, self.large)
        on_gpu = max(large, self.large_on_gpu)
        return large, on_gpu, max(on_gpu, self.asked)


def written(dim: str, domain: Sizes) -> str:
    """A domain as ``parse_sizes`` reads it: ``T=1:4096``, ``T=16:4096:16`` or ``D=64,128``."""
    if domain.choices:
        return f"{dim}={','.join(map(str, domain.choices))}"
    step = f":{domain.multiple}" if domain.multiple > 1 else ""
    return f"{dim}={domain.minimum}:{domain.farthest}{step}"


def sizes(
    minimum: int = 1, maximum: int = 128, *, multiple: int = 1, large: int = 0, large_on_gpu: int = 0, asked: int = 0
) -> Sizes:
    """Every multiple of ``multiple`` from ``minimum`` to ``maximum``; beyond it as ``Sizes`` says."""
    return Sizes(minimum, maximum, multiple, (), large, large_on_gpu, asked)


def multiples(multiple: int, maximum: int = 4096) -> Sizes:
    """Multiples of ``multiple`` up to ``maximum``, such as a kernel without masks supports."""
    return Sizes(multiple, maximum, multiple)


def choices(*allowed: int) -> Sizes:
    """Exactly these sizes."""
    return Sizes(choices=tuple(allowed))


def parse_sizes(text: str) -> tuple[str, Sizes]:
    """Read ``T=1:4096``, ``T=16:4096:16``, ``T=64`` or ``D=64,128`` as (dim, domain).

    ``*batch=0:2`` is how many dims ``*batch`` stands for.

    Raises:
        ValueError: says what was given and which forms are expected.
    """
    expected = "expected NAME=SIZE, NAME=SIZE,SIZE..., NAME=MIN:MAX or NAME=MIN:MAX:MULTIPLE with sizes >= 1"
    name, equals, domain = text.partition("=")
    name = name.strip()
    try:
        if not equals or not name.removeprefix("*").isidentifier():
            raise ValueError
        if ":" in domain:
            bounds = [int(part) for part in domain.split(":")]
            if len(bounds) not in (2, 3):
                raise ValueError
            multiple = bounds[2] if len(bounds) == 3 else 1
            found = sizes(bounds[0], bounds[1], multiple=multiple, large=bounds[1] if bounds[1] > 100_000 else 0)
        else:
            found = Sizes(choices=tuple(int(part) for part in domain.split(",")))
        if found.smallest < 1 and not is_spread(name):
            raise ValueError
        return name, found
    except ValueError:
        raise ValueError(f"--dim {text!r} is invalid; {expected}") from None


def require_positive(owner: str, dims: Mapping[str, Sizes]) -> None:
    """Check that no size is 0, which only a number of dims may be; ``owner`` is whose dims these are, for the message.

    Raises:
        ValueError: one is.
    """
    for dim, found in dims.items():
        if found.smallest < 1 and not is_spread(dim):
            raise ValueError(f"{owner}: dims has a {dim} of size {found.smallest}; expected sizes of at least 1")


def is_spread(dim: str) -> bool:
    """Whether a dim is ``*NAME``, which stands for several."""
    return dim[:1] == "*" and dim[1:].isidentifier()


def spread(dim: str, present: Container[str] | None = None) -> tuple[str, ...]:
    """The dims that ``*NAME`` stands for: those present, or all that there can be; any other dim itself."""
    if not is_spread(dim):
        return (dim,)
    every = (f"{dim[1:]}{n}" for n in range(MOST_SPREAD))
    return tuple(each for each in every if present is None or each in present)


_OPERATORS: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: lambda left, right: left // right if right else 0,
}


@functools.lru_cache(maxsize=1024)
def dim_names(dim: str) -> tuple[str, ...]:
    """The named dims in an expression of names and whole numbers with ``+ - * //``, in order.

    Raises:
        ValueError: it is no such expression.
    """
    try:
        tree = ast.parse(dim, mode="eval").body
    except SyntaxError:
        raise ValueError(f"the dim {dim!r} is invalid") from None
    found: dict[str, None] = {}

    def visit(node: ast.expr) -> None:
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            visit(node.left)
            visit(node.right)
        elif isinstance(node, ast.Name):
            found.setdefault(node.id)
        elif not (isinstance(node, ast.Constant) and type(node.value) is int):
            raise ValueError(f"the dim {dim!r} is invalid")

    visit(tree)
    return tuple(found)


def size(dim: str, sizes: Mapping[str, int]) -> int:
    """The size of one dim, which may be a number or an expression of names and numbers."""
    if dim.isdigit():
        return int(dim)
    return sizes[dim] if dim in sizes else _value(ast.parse(dim, mode="eval").body, sizes)


def _value(node: ast.expr, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.Constant):
        return int(str(node.value))
    assert isinstance(node, ast.BinOp)
    return _OPERATORS[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))


def solved(dim: str, found: int, known: Mapping[str, int] | None = None) -> tuple[str, int] | None:
    """(name, its size) of a dim with one name, such as ``T+1``, that has a given size; None where nothing is known.

    ``known``: sizes of other names that it may have, such as B of ``B*T``.
    """
    sizes = known or {}
    names = [name for name in dim_names(dim) if name not in sizes]
    if len(names) != 1:
        return None

    def at(value: int) -> int:
        return size(dim, {**sizes, names[0]: value})

    low, high = 1, 2
    while at(high) < found and high < 1 << 40:
        high *= 2
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if at(middle) >= found else (middle + 1, high)
    return (names[0], low) if at(low) == found else None


def divisor(name: str, dims: Iterable[str]) -> int:
    """The number that a dim must be a multiple of where ``name//2`` and the like occur in some dims."""
    found = 1
    for dim in dims:
        for node in ast.walk(ast.parse(dim, mode="eval")):
            if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv)):
                continue
            if isinstance(node.left, ast.Name) and node.left.id == name and isinstance(node.right, ast.Constant):
                found = math.lcm(found, int(str(node.right.value)))
    return found
