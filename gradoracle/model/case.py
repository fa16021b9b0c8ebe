"""Case: one problem as plain values.

A case prints as one line, and the line builds the same bits on every machine::

    case:1 sdpa cpu bfloat16 B=1 H=2 T=33 M=65 D=32 Dv=16 --causal=true q~normal:3/transposed do~ties seed=17

In order: format version, target, device, dtype; ``family=NAME`` where the target does not name it, and ``from=PLACE``,
as for --family, where it is a user's own; the dims; options as ``--NAME=VALUE``; tensors as ``NAME~RECIPE/LAYOUT``; a
block configuration; the seed. Defaults are left out: an option's is the definition's, a tensor's ``normal`` (of
integers ``index``) and ``contiguous``; an optional input that is not named is absent, and so are those of the dims
``batch0``, ``batch1``, ``batch2`` of ``*batch`` that are not named.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar
from urllib.parse import quote, unquote

from gradoracle.model import layouts, recipes
from gradoracle.model.formats import DTYPES
from gradoracle.model.signature import OptionValue, Signature, cotangent_name, tangent_name

V = TypeVar("V")
VERSION = "case:1"
_RESERVED = ("family", "from", "blocks", "seed")
_FORMS = {"dim": "{}=SIZE", "option": "--{}=VALUE", "tensor": "{}~RECIPE/LAYOUT"}


class Fields(Mapping[str, V], Generic[V]):
    """Names and plain values, immutable; iteration keeps their order, equality and hash ignore it."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, V] | None = None) -> None:
        self._items: dict[str, V] = dict(items or {})

    def __getitem__(self, name: str) -> V:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


@dataclass(frozen=True)
class Draw:
    """The recipe and the layout of one tensor, by their text and name.

    Raises:
        ValueError: the recipe or the layout is unknown.
    """

    recipe: str = "normal"
    layout: str = "contiguous"

    def __post_init__(self) -> None:
        object.__setattr__(self, "recipe", recipes.canonical(self.recipe))
        layouts.layout(self.layout)

    @property
    def continuous(self) -> bool:
        """Whether values are sampled from a continuous distribution and none is repeated by a stride of 0."""
        return recipes.is_continuous(self.recipe) and not layouts.LAYOUTS[self.layout].repeats

    def __str__(self) -> str:
        return self.recipe if self.layout == "contiguous" else f"{self.recipe}/{self.layout}"


@dataclass(frozen=True)
class Case:
    """One problem as plain values, hashable and the same on every machine.

    Attributes:
        family: the name of the definition.
        dims: the size of every named dim.
        dtype: the dtype of the float inputs, tangents and cotangents.
        options: option values other than the definition's defaults: None, bool, int, float or str.
        draws: recipes and layouts by tensor: inputs as in the definition, tangents by ``tangent_name`` (``tq``),
            cotangents by ``cotangent_name`` (``do``). A tensor that is not named has ``Draw()``; an optional input that
            is not named is absent.
        blocks: the name of a block configuration of the kernel; "" leaves the choice to the kernel.
        seed: 0 to 2^63 - 1.

    Raises:
        ValueError: a size, dtype, option value or seed does not fit; one sentence.
    """

    family: str
    dims: Mapping[str, int]
    dtype: str = "float32"
    options: Mapping[str, OptionValue] = field(default_factory=dict)
    draws: Mapping[str, Draw] = field(default_factory=dict)
    blocks: str = ""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("dims", "options", "draws"):
            object.__setattr__(self, name, Fields(getattr(self, name)))
        for name, size in self.dims.items():
            if not name.isidentifier() or name in _RESERVED:
                raise ValueError(f"a dim is named {name!r}; expected a name other than {', '.join(_RESERVED)}")
            if type(size) is not int or size < 1:
                raise ValueError(f"dim {name} has size {size!r}; expected a whole number from 1 on")
        for name, value in self.options.items():
            if not (value is None or type(value) in (bool, int, float, str)) or value != value:
                raise ValueError(f"option {name} has value {value!r}; expected None, a bool, a number or a string")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype {self.dtype!r} is unknown; expected one of {', '.join(DTYPES)}")
        if type(self.seed) is not int or not 0 <= self.seed < 1 << 63:
            raise ValueError(f"seed {self.seed!r} is invalid; expected a whole number from 0 to 2^63 - 1")

    @property
    def continuous(self) -> bool:
        """Whether every tensor is sampled from a continuous distribution (the rule is local; else worst case)."""
        return all(draw.continuous for draw in self.draws.values())

    def draw(self, name: str) -> Draw:
        """The recipe and layout of a float tensor; by default ``Draw()``."""
        return self.draws.get(name, Draw())

    def with_dims(self, **sizes: int) -> Case:
        """The case with other sizes of some dims."""
        return replace(self, dims={**self.dims, **sizes})

    def with_options(self, **options: OptionValue) -> Case:
        """The case with other values of some options."""
        return replace(self, options={**self.options, **options})

    def with_draws(self, **draws: Draw) -> Case:
        """The case with other recipes or layouts of some tensors."""
        return replace(self, draws={**self.draws, **draws})

    def line(self, target: str = "", device: str = "cpu", place: str = "") -> str:
        """The case as one line for ``parse``, safe in single quotes in a shell.

        Args:
            target: the TARGET, as on the command line; by default the family's name.
            device: "cpu" or "cuda".
            place: the place of a user's own family, as for --family.
        """
        words = [VERSION, _quoted(target or self.family), device, self.dtype]
        named = {"family": "" if _family_of(target or self.family) == self.family else self.family, "from": place}
        words += [f"{name}={_quoted(value)}" for name, value in named.items() if value]
        words += [f"{name}={size}" for name, size in self.dims.items()]
        words += [f"--{name}={_value_text(value)}" for name, value in self.options.items()]
        words += [f"{name}~{draw}" for name, draw in self.draws.items()]
        if self.blocks:
            words.append(f"blocks={_quoted(self.blocks)}")
        return " ".join([*words, f"seed={self.seed}"])

    def __str__(self) -> str:
        return self.line()


def parse(line: str) -> tuple[str, str, Case]:
    """Read a case line: (target, device, case).

    Raises:
        ValueError: says what is wrong and what is expected.
    """
    words = line.split()
    if not words or words[0] != VERSION:
        raise ValueError(f"a case line starts with {VERSION}, got {repr(words[0]) if words else 'an empty line'}")
    if len(words) < 4:
        raise ValueError(
            f"case line {line!r} ends too soon; expected {VERSION} TARGET DEVICE DTYPE DIM=SIZE ... seed=N"
        )
    target, device, dtype = unquote(words[1]), words[2], words[3]
    if device not in ("cpu", "cuda"):
        raise ValueError(f"case line names device {device!r}; expected cpu or cuda as its third word")
    dims: dict[str, int] = {}
    options: dict[str, OptionValue] = {}
    draws: dict[str, Draw] = {}
    named: dict[str, str] = {}
    for word in words[4:]:
        _read(word, dims, options, draws, named)
    if "seed" not in named:
        raise ValueError(f"case line {line!r} lacks its seed; expected seed=N as its last word")
    for name in (each for each in _RESERVED[:-1] if named.get(each) == ""):
        raise ValueError(f"case line gives {name} as ''; expected {name}=NAME, or no {name} at all")
    seed = _whole(named["seed"], "seed", 0)
    try:
        family = unquote(named.get("family", "")) or _family_of(target)
        return target, device, Case(family, dims, dtype, options, draws, unquote(named.get("blocks", "")), seed)
    except ValueError as error:
        raise ValueError(f"case line: {error}") from None


def _read(
    word: str, dims: dict[str, int], options: dict[str, OptionValue], draws: dict[str, Draw], named: dict[str, str]
) -> None:
    """Sort one word of a line into dims, options, draws or the named fields."""
    into: dict[str, Any]
    value: Any
    if word.startswith("--"):
        name, mark, text = word[2:].partition("=")
        into, value = options, _value(name, text) if mark else None
    elif "~" in word:
        name, mark, text = word.partition("~")
        into, value = draws, _draw(name, text)
    else:
        name, mark, text = word.partition("=")
        into, value = (named, text) if name in _RESERVED else (dims, _size(name, text) if mark else 0)
    if not mark or not name.isidentifier():
        raise ValueError(f"case line holds {word!r}; expected DIM=SIZE, --OPTION=VALUE, TENSOR~RECIPE/LAYOUT or seed=N")
    if name in into:
        raise ValueError(f"case line gives {name} twice; expected it once")
    into[name] = value


def _draw(name: str, text: str) -> Draw:
    recipe, slash, layout = text.partition("/")
    try:
        return Draw(recipe, layout if slash else "contiguous")
    except ValueError as error:
        raise ValueError(f"case line, tensor {name}: {error}") from None


def _size(name: str, text: str) -> int:
    hint = f"; an option is written --{name}={text}, a tensor {name}~RECIPE" if text[:1].isalpha() else ""
    return _whole(text, f"dim {name}", 1, hint)


def _whole(text: str, what: str, least: int, hint: str = "") -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) < 1 << 63):
        raise ValueError(f"case line gives {what} as {text!r}; expected a whole number from {least} to 2^63 - 1{hint}")
    return int(text)


def _value(name: str, text: str) -> OptionValue:
    """An option's value, written as JSON."""
    try:
        value: OptionValue = json.loads(text)
        if isinstance(value, (list, dict)):
            raise ValueError
    except ValueError:
        raise ValueError(
            f'case line gives option {name} as {text!r}; expected null, true, false, a number or a "string"'
        ) from None
    return value


def _value_text(value: OptionValue) -> str:
    """JSON without single quotes and blanks, at which a shell or ``split`` would break it."""
    return json.dumps(value).replace("'", "\\u0027").replace(" ", "\\u0020")


def _quoted(text: str) -> str:
    """A word with blanks, quotes and control characters escaped; usual paths and module names stay as they are."""
    return quote(text, safe="/:.,+-_@=()[]{}#&!").replace("~", "%7E")


def _family_of(target: str) -> str:
    """The family that a shipped target names: sdpa of ``sdpa`` and of ``sdpa:kernel``."""
    return target.partition(":")[0]


def require_fit(case: Case, signature: Signature) -> None:
    """Check that a case names all dims of a signature and nothing unknown to it.

    Raises:
        ValueError: says what is missing or unknown, and what is expected.
    """
    tensors = [spec.name for spec in signature.inputs]
    tensors += [tangent_name(spec.name) for spec in signature.primals]
    tensors += [cotangent_name(spec.name) for spec in signature.outputs if spec.kind == "float"]
    options = {spec.name: spec for spec in signature.options}
    known: dict[str, Collection[str]] = {"dim": signature.dims, "option": options, "tensor": tensors}
    for what, given in zip(known, (case.dims, case.options, case.draws), strict=True):
        unknown = [name for name in given if name not in known[what]]
        if unknown:
            expected = f"expected some of {', '.join(known[what])}" if known[what] else "it has none"
            own = [_FORMS[kind].format(unknown[0]) for kind in known if unknown[0] in known[kind]]
            expected += f"; {unknown[0]} is written {own[0]}" if own else ""
            named = f"the case names {what} {', '.join(unknown)}"
            raise ValueError(f"{named}, which {case.family} does not have; {expected}")
    for name, value in case.options.items():
        if form := options[name].expected(value):
            raise ValueError(f"the case gives option {name} the value {json.dumps(value)}; expected {form}")
    whole = {spec.name for spec in signature.inputs if spec.kind == "int"}
    for name, draw in case.draws.items():
        recipes.require_kind(draw.recipe, name, integers=name in whole)
    spare = set()
    for starred, dims in signature.spreads.items():
        own_dims = [dim for dim in dims if dim in case.dims]
        if own_dims != list(dims[: len(own_dims)]):
            lacking = next(dim for dim in dims if dim not in case.dims)
            raise ValueError(
                f"the case gives {own_dims[-1]} and no {lacking}; expected the dims of {starred} from the first"
            )
        spare |= {*dims} - {*own_dims}
    missing = [dim for dim in signature.dims if dim not in case.dims and dim not in spare]
    if missing:
        expected = ", ".join(signature.dims)
        raise ValueError(f"the case gives no size of dim {', '.join(missing)}; {case.family} needs all of {expected}")
    signature.require(case.dims, case.draws, case.options)
