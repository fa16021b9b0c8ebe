"""Truth: the float64 tensors that the results of a row's entries are compared with, of a part of the work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

HEADS = 2
SHARP = 8.0  # times q
Part = Callable[[Tensor], Tensor]


def first_heads(x: Tensor) -> Tensor:
    """Of [B, H, ...] batch member 0 and its first heads, on which no other has an influence."""
    return x[:1, :HEADS]


def first_heads_of_columns(x: Tensor) -> Tensor:
    """The same of [B, N, H, .]."""
    return x[:1, :, :HEADS].transpose(1, 2)


def whole(x: Tensor) -> Tensor:
    return x


@dataclass(frozen=True)
class Truth:
    """What the results of a row's entries are compared with.

    Attributes:
        names: of the tensors of a result that are compared, in order; an entry may return more behind them.
        tensors: set up and call give these tensors in float64, of the part of the inputs.
        part: cuts it out of a tensor of a result.
        parts: name -> the same of an entry whose results are laid out otherwise.
        stress: what the inputs that are not timed are, such as "q x 8"; "" where there are none.
        stressed: makes the inputs those, for the truth and the entries, while it is entered.
    """

    names: tuple[str, ...]
    tensors: Callable[[], Callable[[], Any]]
    part: Part = first_heads
    parts: Mapping[str, Part] = field(default_factory=dict)
    stress: str = ""
    stressed: Callable[[], AbstractContextManager[None]] = nullcontext

    def exact(self) -> list[Tensor]:
        """The float64 tensors."""
        return [x.detach() for x in flat(self.tensors()())]

    def of(self, who: str, result: Any) -> list[Tensor]:
        """What is compared of an entry's result.

        Raises:
            ValueError: the result has fewer tensors than the truth.
        """
        found = [x for x in flat(result) if isinstance(x, Tensor)][: len(self.names)]
        if len(found) < len(self.names):
            raise ValueError(f"{len(found)} tensors; expected {', '.join(self.names)}")
        return [self.parts.get(who, self.part)(x.detach()).clone() for x in found]


def flat(result: Any) -> list[Any]:
    """The tensors of a result, in order."""
    return [each for x in result for each in flat(x)] if isinstance(result, (tuple, list)) else [result]


def exact(how: partial[Any], formula: Callable[..., Tensor]) -> Callable[[], Any]:
    """The work of ``how`` for a formula, such as ``partial(works.backward, inputs=..., g=...)``, in float64, of the
    first heads of the tensors that it is given."""

    def of(given: Callable[[], Sequence[Tensor]]) -> Callable[[], list[Tensor]]:
        return lambda: [first_heads(x).double() for x in given()]

    return partial(how.func, formula, **{name: of(given) for name, given in how.keywords.items()})


def of_scores(
    derivative: str, how: partial[Any], formula: Callable[..., Tensor], inputs: Any, output: str, of: Sequence[str]
) -> Truth:
    """The truth of a function of q k, q the first of ``inputs`` (``works.Normal``); also with a sharp softmax."""
    return Truth(
        names(derivative, output, of),
        exact(how, formula),
        stress=f"q x {SHARP:g}",
        stressed=partial(inputs.scaled, SHARP),
    )


def names(derivative: str, output: str, inputs: Sequence[str]) -> tuple[str, ...]:
    """Of the tensors that a derivative gives: o; o and o' of a JVP; dq, dk ...; Hq, Hk ... of an HVP."""
    if derivative == "forward":
        return (output,)
    if derivative == "JVP":
        return output, f"{output}'"
    return tuple(f"{'H' if 'HVP' in derivative else 'd'}{name}" for name in inputs)
