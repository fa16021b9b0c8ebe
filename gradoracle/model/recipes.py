"""Recipes: how the values of a tensor are sampled, named by a short text such as ``normal:3`` or ``ties``.

A recipe makes float64 values from integer hashes; ``values`` rounds them to the dtype, once and to nearest even, by
integer arithmetic, so that the tensor has the same bits on every machine and holds its values exactly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from gradoracle.model import hashing
from gradoracle.model.formats import DTYPES, FORMATS
from gradoracle.model.hashing import Floats, Integers


@dataclass(frozen=True)
class Draft:
    """The input of a recipe: shape, stream (seed, name), parameter and dtype."""

    shape: tuple[int, ...]
    seed: int
    name: str
    parameter: float
    dtype: str

    @property
    def count(self) -> int:
        """How many elements there are."""
        return math.prod(self.shape)

    def normal(self) -> Floats:
        """Normal values, one an element, in row-major order."""
        return hashing.normal(self.seed, self.name, self.count)

    def uniform(self) -> Floats:
        """Values uniform on [-1, 1), one an element."""
        return 2.0 * hashing.uniform(self.seed, self.name, self.count) - 1.0

    def integers(self, low: int, high: int, part: str) -> Integers:
        """Integers low .. high - 1, one an element, from a stream of their own."""
        return hashing.integers(self.seed, f"{self.name} {part}", self.count, low, high)

    def powers(self) -> Floats:
        """Powers of two from 2^-p to 2^p, one an element."""
        most = int(self.parameter)
        exponents = self.integers(-most, most + 1, "powers")
        return ((exponents + 1023) << 52).view(np.float64)


@dataclass(frozen=True)
class Recipe:
    """One way to sample a float tensor.

    Attributes:
        name: the name in a case line.
        what: a description; ``p`` is the parameter.
        draw: the function that returns float64 values in row-major order.
        continuous: whether values are sampled from a continuous distribution with a spread comparable to its mean, so
            that roundings do not line up (the local rule decides; else the worst case).
        parameter: its default; None where the recipe takes none.
        least: the smallest parameter allowed, excluded unless ``whole``.
        whole: whether the parameter is an integer, ``least`` included.
    """

    name: str
    what: str
    draw: Callable[[Draft], Floats]
    continuous: bool
    parameter: float | None = None
    least: float = 0.0
    whole: bool = False


@dataclass(frozen=True)
class IndexRecipe:
    """One way to sample an integer tensor with values low .. high; ``draw(shape, seed, name, low, high)``."""

    name: str
    what: str
    draw: Callable[[tuple[int, ...], int, str, int, int], Integers]


def _outlier(draft: Draft) -> Floats:
    found = draft.normal()
    place = int(hashing.integers(draft.seed, f"{draft.name} place", 1, 0, draft.count)[0])
    found[place] = math.copysign(draft.parameter * (1.0 + abs(found[place])), found[place])
    return found


def _extreme(draft: Draft) -> Floats:
    found = draft.uniform()
    return np.copysign(draft.parameter * (0.5 + 0.5 * np.abs(found)), found)


def _tiny(draft: Draft) -> Floats:
    return draft.normal() * max(draft.parameter, 4.0 * FORMATS[draft.dtype].smallest_normal)


def _ties(draft: Draft) -> Floats:
    levels = int(draft.parameter)
    return hashing.normal(draft.seed, f"{draft.name} levels", levels)[draft.integers(0, levels, "ties")]


def _onehot(draft: Draft) -> Floats:
    last = draft.shape[-1] if draft.shape else 1
    rows = draft.count // last
    found = np.zeros((rows, last))
    found[np.arange(rows), hashing.integers(draft.seed, draft.name, rows, 0, last)] = 1.0
    return found


def _alternating(draft: Draft) -> Floats:
    signs = 1.0 - 2.0 * (np.arange(draft.count) % 2)
    return np.asarray(draft.parameter * signs * np.abs(draft.normal()))


def _powers(draft: Draft) -> Floats:
    return (1.0 - 2.0 * draft.integers(0, 2, "signs")) * draft.powers()


def _wide(draft: Draft) -> Floats:
    return draft.normal() * draft.powers()


def _forbidden(draft: Draft) -> Floats:
    """-inf with probability p, for scores that exclude what they weigh."""
    return np.where(
        hashing.uniform(draft.seed, f"{draft.name} places", draft.count) < draft.parameter, -np.inf, draft.normal()
    )


def _ramp(draft: Draft) -> Floats:
    """Rising along the last dim but one (the last of a 1-d tensor), with a tenth of noise."""
    shape = draft.shape or (1,)
    axis = max(len(shape) - 2, 0)
    place = np.arange(draft.count) // math.prod(shape[axis + 1 :]) % shape[axis]
    steps = (2.0 * place - (shape[axis] - 1)) / max(shape[axis] - 1, 1)
    return draft.parameter * (steps + 0.1 * draft.normal())


RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            Recipe("normal", "normal with standard deviation p", lambda d: d.parameter * d.normal(), True, 1.0),
            Recipe("uniform", "uniform on [-p, p)", lambda d: d.parameter * d.uniform(), True, 1.0),
            Recipe("positive", "absolute values of normal:p", lambda d: d.parameter * np.abs(d.normal()), True, 1.0),
            Recipe("alternating", "absolute values of normal:p with signs + - + -", _alternating, True, 1.0),
            Recipe("ramp", "rising from -p to p along the last dim but one, with noise p/10", _ramp, False, 1.0),
            Recipe("wide", "normal times a random power of two from 2^-p to 2^p", _wide, True, 6.0, 1, whole=True),
            Recipe("outlier", "normal, with one element beyond p in magnitude", _outlier, True, 100.0),
            Recipe("extreme", "random signs, magnitudes uniform on [p/2, p)", _extreme, True, 1e4),
            Recipe("tiny", "normal times p, or times 4 smallest normals of the dtype if more", _tiny, True, 1e-30),
            Recipe(
                "subnormal",
                "uniform between plus and minus the smallest normal of the dtype",
                lambda d: FORMATS[d.dtype].smallest_normal * d.uniform(),
                False,
            ),
            Recipe("largemean", "p plus normal", lambda d: d.parameter + d.normal(), False, 100.0, -math.inf),
            Recipe("ties", "p distinct normal values at random places", _ties, False, 3.0, 1, whole=True),
            Recipe("powers", "random signs, powers of two from 2^-p to 2^p", _powers, False, 4.0, 1, whole=True),
            Recipe("onehot", "zeros, with a one at a random place of each row of the last dim", _onehot, False),
            Recipe("constant", "p everywhere", lambda d: np.full(d.count, d.parameter), False, 0.3, -math.inf),
            Recipe("zeros", "zeros", lambda d: np.zeros(d.count), False),
        )
    }
)

# Used only where a joint recipe of a family or a case line names them: most definitions have no use for such values.
NAMED_RECIPES: Mapping[str, Recipe] = MappingProxyType(
    {"forbidden": Recipe("forbidden", "normal, with about p of all elements -inf", _forbidden, True, 0.25)}
)

INDEX_RECIPES: Mapping[str, IndexRecipe] = MappingProxyType(
    {
        recipe.name: recipe
        for recipe in (
            IndexRecipe(
                "index",
                "uniform over the domain",
                lambda shape, seed, name, low, high: hashing.integers(seed, name, math.prod(shape), low, high + 1),
            ),
            IndexRecipe("lowest", "the least value everywhere", lambda s, seed, name, low, high: np.full(s, low)),
            IndexRecipe("highest", "the greatest value everywhere", lambda s, seed, name, low, high: np.full(s, high)),
            IndexRecipe(
                "collisions",
                "one of two values at random",
                lambda shape, seed, name, low, high: hashing.integers(seed, f"{name} levels", 2, low, high + 1)[
                    hashing.integers(seed, name, math.prod(shape), 0, 2)
                ],
            ),
        )
    }
)

# Of some domains of integers alone, which make the values themselves (``Domain.recipes``).
DOMAIN_RECIPES: Mapping[str, str] = MappingProxyType(
    {
        "equal": "sequences of about equal length",
        "empty": "every other sequence is empty",
        "tails": "lengths about a multiple of a tile",
        "identity": "0, 1, 2 and so on",
        "reversed": "from the greatest value down",
        "prefix": "the first elements of each row, and no others",
        "clear": "no bit is set",
        "full": "every bit is set",
    }
)
_OF_INTEGERS = (*INDEX_RECIPES, *DOMAIN_RECIPES)

_FLOATS: Mapping[str, Recipe] = MappingProxyType({**RECIPES, **NAMED_RECIPES})


def split(text: str) -> tuple[str, float | None]:
    """The name and the parameter of a recipe's text; the parameter is None where the recipe takes none.

    Raises:
        ValueError: says what was given and what is expected.
    """
    name, colon, number = text.partition(":")
    if name in _OF_INTEGERS and not colon:
        return name, None
    recipe = _FLOATS.get(name)
    if recipe is None:
        known = ", ".join((*_FLOATS, *_OF_INTEGERS))
        raise ValueError(f"recipe {text!r} is unknown; expected NAME or NAME:NUMBER with NAME one of {known}")
    if recipe.parameter is None:
        if colon:
            raise ValueError(f"recipe {text!r} is invalid; {name} takes no number")
        return name, None
    if not colon:
        return name, recipe.parameter
    try:
        parameter = float(number)
    except ValueError:
        parameter = math.nan
    fits = recipe.least <= parameter <= 64 and parameter == int(parameter) if recipe.whole else parameter > recipe.least
    if not (math.isfinite(parameter) and fits):
        expected = f"a whole number from {recipe.least} to 64" if recipe.whole else "a finite number"
        above = " above 0" if recipe.least == 0 and not recipe.whole else ""
        raise ValueError(f"recipe {text!r} is invalid; after {name}: expected {expected}{above}")
    return name, parameter


def require_kind(text: str, name: str, *, integers: bool) -> None:
    """Check that a recipe makes floats, or with ``integers`` integers.

    Raises:
        ValueError: names the tensor and the recipes that fit it.
    """
    fitting: Collection[str] = _OF_INTEGERS if integers else _FLOATS
    if split(text)[0] not in fitting:
        holds, made = ("integers", "floats") if integers else ("floats", "integers")
        raise ValueError(
            f"tensor {name} holds {holds}, recipe {text!r} makes {made}; expected one of {', '.join(fitting)}"
        )


def canonical(text: str) -> str:
    """The shortest text of a recipe: ``normal:1.0`` becomes ``normal``, ``normal:3.0`` becomes ``normal:3``.

    Raises:
        ValueError: the recipe is unknown or its number does not fit.
    """
    name, parameter = split(text)
    if parameter is None or parameter == _FLOATS[name].parameter:
        return name
    short = f"{parameter:g}"
    return f"{name}:{short if float(short) == parameter else repr(parameter)}"


def is_continuous(text: str) -> bool:
    """Whether a recipe's roundings do not line up (the rule is then local); recipes of integers count as such."""
    name, _ = split(text)
    return name in _OF_INTEGERS or _FLOATS[name].continuous


def values(text: str, shape: Sequence[int], dtype: str, *, seed: int, name: str) -> Tensor:
    """A contiguous CPU tensor by a recipe, the same bits on every machine.

    A tensor with magnitudes beyond the dtype's range is scaled down by the power of two that brings them inside
    (``extreme:1e6`` in float16), so that values stay finite and distinct; those of ``forbidden`` may be -inf. In a
    format of 8 bits the largest of them becomes the largest number, as a quantised tensor has it.

    Raises:
        ValueError: the recipe or dtype is unknown, or the recipe is one of integers.
    """
    require_kind(text, name, integers=False)
    recipe_name, parameter = split(text)
    draft = Draft(tuple(shape), seed, name, 0.0 if parameter is None else parameter, dtype)
    drawn = _FLOATS[recipe_name].draw(draft).reshape(-1)
    largest = float(np.max(np.abs(drawn), where=np.isfinite(drawn), initial=0.0))
    if largest > (most := FORMATS[dtype].largest):
        down = 2.0 ** -(math.frexp(largest)[1] - math.frexp(most)[1] + 1)
        drawn = drawn * (most / largest if FORMATS[dtype].width == 8 else down)
    return rounded(drawn, dtype).reshape(tuple(shape))


def indices(text: str, shape: Sequence[int], low: int, high: int, *, seed: int, name: str) -> Tensor:
    """A contiguous int64 CPU tensor with values low .. high by a recipe of integers.

    Raises:
        ValueError: the recipe is unknown or makes floats, or the domain is empty.
    """
    require_kind(text, name, integers=True)
    if text not in INDEX_RECIPES:
        raise ValueError(f"tensor {name} has no recipe {text!r}; expected one of {', '.join(INDEX_RECIPES)}")
    if high < low:
        raise ValueError(f"integer tensor {name} has no possible value: its domain is {low}..{high}")
    drawn = INDEX_RECIPES[split(text)[0]].draw(tuple(shape), seed, name, low, high)
    return torch.from_numpy(np.ascontiguousarray(drawn, np.int64).reshape(tuple(shape)))


def rounded_within(numbers: Floats, dtype: str, low: float, high: float) -> Tensor:
    """As ``rounded``, to the nearest number from ``low`` to ``high``; finite numbers stay finite, infinite infinite.

    Where the dtype has no number in between it is the nearest of all.
    """
    least, most = -_inside(-low, dtype), _inside(high, dtype)
    if least <= most:
        numbers = np.where(np.isfinite(numbers), np.clip(numbers, least, most), numbers)
    return rounded(numbers, dtype)


def _inside(high: float, dtype: str) -> float:
    """The largest finite number of a dtype that is at most ``high``, or the next one below it."""
    form = FORMATS[dtype]
    if high >= form.largest:
        return form.largest
    nearest = float(rounded(np.array([high]), dtype).double())
    exponent = max(math.frexp(high)[1] - 1, form.lowest)
    return nearest if nearest <= high else nearest - 2.0 ** (exponent - form.bits + 1)


def rounded(numbers: Floats, dtype: str) -> Tensor:
    """Float64 numbers rounded once, to nearest even, to a dtype; subnormals are kept and overflow is infinite.

    In a format without infinities overflow gives the largest number, as in PyTorch's casts.
    Integer arithmetic on the bits: conversions of libraries round twice (float64 to bfloat16 through float32) or
    flush subnormals, depending on the machine and its settings.

    Args:
        numbers: [n], no NaN.
        dtype: a name from ``DTYPES``.

    Raises:
        ValueError: the dtype is unknown.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is unknown; expected one of {', '.join(DTYPES)}")
    if dtype == "float64":
        return torch.from_numpy(np.ascontiguousarray(numbers, np.float64).copy())
    found = np.empty(len(numbers), f"int{8 * DTYPES[dtype].itemsize}")
    for start in range(0, len(numbers), _CHUNK):
        found[start : start + _CHUNK] = FORMATS[dtype].encoded(numbers[start : start + _CHUNK]).astype(found.dtype)
    return torch.from_numpy(found).view(DTYPES[dtype])


_CHUNK = 1 << 14  # elements that fit the first caches
