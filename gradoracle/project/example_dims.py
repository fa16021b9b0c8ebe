"""Dims of an example: which sizes are one dim, which sizes each dim may take, and the ranges of integers."""

from __future__ import annotations

import string
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor

from gradoracle.model.dims import Sizes, dim_names, size, solved
from gradoracle.model.errors import UsageError
from gradoracle.model.family import IndexDomain, ordinary_sizes
from gradoracle.model.signature import Signature

_ASKED = 1 << 24  # the largest size that may be asked for
_MOST_FACTOR = 8


@dataclass(frozen=True)
class Corrections:
    """What a user says of an example's dims.

    Attributes:
        dims: the dims of a tensor, by its name, such as ``("B", "2*D")``.
        bounds: the dim or number below which the integers of a tensor lie, by its name.
        option: how it is said, for messages.
    """

    dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bounds: Mapping[str, str] = field(default_factory=dict)
    option: str = "--dim"


def corrections(words: Iterable[str], option: str = "--dim") -> Corrections:
    """``x=B,2*D`` and ``index<V`` as Corrections.

    Raises:
        UsageError: a word is neither.
    """
    dims: dict[str, tuple[str, ...]] = {}
    bounds: dict[str, str] = {}
    for word in words:
        name, mark, rest = word.partition("<") if "<" in word else word.partition("=")
        parts = tuple(part.strip() for part in rest.split(",")) if rest.strip() else ()
        try:
            valid = mark and name.strip().isidentifier() and all(dim_names(part) is not None for part in parts)
        except ValueError:
            valid = False
        if not valid or (mark == "<" and len(parts) != 1):
            raise UsageError(
                f"{option} {word!r} is invalid; expected TENSOR=DIM,DIM of names, numbers and expressions such as 2*D, "
                "or TENSOR<DIM for integers"
            )
        if mark == "<":
            bounds[name.strip()] = parts[0]
        else:
            dims[name.strip()] = parts
    return Corrections(dims, bounds, option)


class Shapes:
    """The dims of an example's tensors.

    Attributes:
        dims: by tensor.
        notes: sentences about what was assumed.
    """

    def __init__(self, corrections: Corrections) -> None:
        self._corrections = corrections
        self._sizes: dict[str, int] = {}
        self._least: dict[str, int] = {}
        self.dims: dict[str, tuple[str, ...]] = {}
        self.notes: list[str] = []

    def read(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Name the dims of the inputs: equal sizes are one dim, and a size of 1 is that number.

        A name that only an expression of a correction has, such as N of ``offsets=N+1``, has the size that fits.

        Raises:
            UsageError: a correction does not fit the shape, or gives a dim two sizes.
        """
        own = {name: dims for name, dims in self._corrections.dims.items() if name in shapes}
        for name, dims in own.items():
            shape = shapes[name]
            if len(dims) != len(shape):
                raise UsageError(
                    f"{self._said(name, dims)} names {len(dims)} dims, but {name} has shape {shape} in the example"
                )
            for dim, found in zip(dims, shape, strict=True):
                if dim.isidentifier() and self._sizes.setdefault(dim, found) != found:
                    raise UsageError(
                        f"{self._said(name, dims)} gives {dim} the size {found}, but it is {self._sizes[dim]} "
                        "elsewhere in the example; expected one size of each dim"
                    )
        for name, dims in own.items():
            for dim, found in zip(dims, shapes[name], strict=True):
                unknown = [each for each in dim_names(dim) if each not in self._sizes]
                if len(unknown) != 1:
                    continue
                if (fitting := solved(dim, found, self._sizes)) is None:
                    raise UsageError(
                        f"{self._said(name, dims)} has no size of {unknown[0]} with which {dim} is {found}, as in the "
                        "example"
                    )
                self._sizes[unknown[0]] = fitting[1]
        for name, dims in own.items():
            self._require(name, dims, shapes[name])
        for name, shape in shapes.items():
            self.dims[name] = own[name] if name in own else tuple(self._named(each) for each in shape)

    def result(self, name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        """The dims of an output, made of those of the inputs; sizes that none explains are numbers.

        Raises:
            UsageError: a correction does not fit the shape.
        """
        dims = self._corrections.dims.get(name)
        if dims is None:
            return tuple(self._explained(each) for each in shape)
        if len(dims) != len(shape):
            raise UsageError(
                f"{self._said(name, dims)} names {len(dims)} dims, but the reference returns shape {shape}"
            )
        self._require(name, dims, shape)
        return dims

    def domain(self, name: str, tensor: Tensor, results: Collection[int] = ()) -> IndexDomain:
        """The range of an integer input: below a dim where only one can bound it, else that of the example.

        Integers that rise from 0 are offsets where they end at the size of a dim, where a correction gives them one
        more than a dim, or where an output has one less and no input has.

        Args:
            name: of the input.
            tensor: of the example.
            results: the sizes of the outputs' dims.

        Raises:
            UsageError: a value in the example lies outside the range that was declared.
        """
        if str(tensor.dtype) == "torch.bool":
            return IndexDomain(2)
        values = tensor.long()
        low, high = int(values.min()), int(values.max())
        bound = self._corrections.bounds.get(name)
        negative = values[values < 0].unique()
        ignored = int(negative[0]) if len(negative) == 1 and high >= 0 else None
        low = int(values[values >= 0].min()) if ignored is not None else low
        if bound is not None:
            said = f"{self._corrections.option} {name}<{bound}"
            if high >= (limit := self._size(bound, said)) or low < 0:
                raise UsageError(f"{said} allows 0 to {limit - 1}, but {name} holds {low} to {high}")
            return IndexDomain(_bound(bound), ignore=ignored)
        rises = (
            tensor.dim() == 1 and len(values) > 1 and low == 0 == int(values[0]) and bool((values.diff() >= 0).all())
        )
        gaps = len(values) - 1
        composed = any(dim_names(dim) and not dim.isidentifier() for dim in self._corrections.dims.get(name, ()))
        of_a_result = gaps in results and gaps not in self._sizes.values()
        if rises and high > 1 and (high in self._sizes.values() or composed or of_a_result):
            self._own_dim(name)
            return IndexDomain(self._of_size(high) or self._as_in_the_example(name, high, high), kind="cu_seqlens")
        fitting = [dim for dim, known in self._sizes.items() if known >= high]
        if low >= 0 and len(fitting) == 1:
            (dim,) = fitting
            kind = "length" if self._sizes[dim] == high else "index"
            return IndexDomain(dim, kind=kind, ignore=ignored)
        self._as_in_the_example(name, low, high)
        return IndexDomain(high + 1, minimum=low, ignore=ignored)

    def _as_in_the_example(self, name: str, low: int, high: int) -> int:
        """Keep the dims that may bound integers as large as these need; the largest of these."""
        fitting = [dim for dim, known in self._sizes.items() if known >= high]
        for dim in fitting:
            self._least[dim] = max(self._least.get(dim, 1), high + 1 if self._sizes[dim] > high else high)
        if fitting:
            self.notes.append(
                f"{name} holds {low} to {high} as in the example, and {', '.join(fitting)} stay above; say which dim "
                f"bounds it with --dim '{name}<{fitting[-1]}'"
            )
        return high

    def sizes(self, signature: Signature) -> dict[str, Sizes]:
        """The sizes that each dim may take: from 1 on, larger ones than ordinary where they are asked for."""
        found = {dim: ordinary_sizes(dim, signature, self._least.get(dim, 1)) for dim in signature.dims}
        return {dim: replace(sizes, asked=_ASKED) for dim, sizes in found.items()}

    def require_used(self, tensors: Iterable[str]) -> None:
        """Check that every correction names a tensor.

        Raises:
            UsageError: one does not.
        """
        known = tuple(tensors)
        for name in (*self._corrections.dims, *self._corrections.bounds):
            if name not in known:
                option = self._corrections.option
                raise UsageError(f"{option} names the tensor {name!r}, which is none of {', '.join(known)}")

    def _named(self, found: int) -> str:
        return "1" if found == 1 else self._of_size(found) or self._new(found)

    def _of_size(self, found: int) -> str:
        return next((dim for dim, known in self._sizes.items() if known == found), "")

    def _new(self, found: int) -> str:
        letters = (f"{letter}{n or ''}" for n in range(100) for letter in string.ascii_uppercase)
        dim = next(letter for letter in letters if letter not in self._sizes)
        self._sizes[dim] = found
        return dim

    def _own_dim(self, name: str) -> None:
        """Give offsets a dim of their own, one for each sequence and one more, unless a user has named it."""
        if name not in self._corrections.dims:
            old = self.dims[name][0]
            others = (dims for other, dims in self.dims.items() if other != name)
            found = size(old, self._sizes)
            if old in self._sizes and old not in {n for dims in others for dim in dims for n in dim_names(dim)}:
                del self._sizes[old]
            own = self._of_size(found - 1) if found > 2 else ""  # 1 is no dim
            self.dims[name] = (f"{own or self._new(found - 1)}+1",)

    def _explained(self, found: int) -> str:
        """A dim, or a product, multiple, fraction or neighbour of dims, of that size."""
        if found == 1 or (dim := self._of_size(found)):
            return "1" if found == 1 else dim
        dims = list(self._sizes.items())
        for one, first in dims:
            for other, second in dims:
                if first * second == found:
                    return f"{one}*{other}"
        for factor in range(2, _MOST_FACTOR + 1):
            for one, first in dims:
                if factor * first == found:
                    return f"{factor}*{one}"
                if first // factor == found:
                    return f"{one}//{factor}"
        for one, first in dims:
            for other, second in [*dims, ("1", 1)]:
                if first + second == found:
                    return f"{one}+{other}"
        return str(found)

    def _size(self, dim: str, said: str) -> int:
        unknown = [n for n in dim_names(dim) if n not in self._sizes]
        if unknown:
            raise UsageError(f"{said} names the dim {unknown[0]!r}, which no tensor has; dims are {self._list()}")
        return size(dim, self._sizes)

    def _require(self, name: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> None:
        said = self._said(name, dims)
        for dim, found in zip(dims, shape, strict=True):
            if (expected := self._size(dim, said)) != found:
                raise UsageError(f"{said} gives {dim} the size {expected}, but {name} has shape {shape} in the example")

    def _said(self, name: str, dims: tuple[str, ...]) -> str:
        return f"{self._corrections.option} {name}={','.join(dims)}"

    def _list(self) -> str:
        return ", ".join(f"{dim}={known}" for dim, known in self._sizes.items()) or "none"


def _bound(text: str) -> int | str:
    return int(text) if text.isdigit() else text
