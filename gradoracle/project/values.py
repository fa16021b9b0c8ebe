"""Values: reads the words of options; every error is one sentence. Nothing heavy is imported."""

from __future__ import annotations

import ast
import difflib
import os
import shutil
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradoracle.model.errors import UsageError
from gradoracle.model.severity import Severity

if TYPE_CHECKING:
    from gradoracle.model.dims import Sizes

DEVICES = ("auto", "cpu", "cuda")
LIKE = "@like="  # in a family text: between a reference and an example of the arguments
ORACLES = ("auto", "float64", "certified", "mpmath")


def one_of(option: str, given: str, allowed: Collection[str]) -> str:
    """One of the allowed values."""
    if given not in allowed:
        close = difflib.get_close_matches(given, allowed, n=1, cutoff=0.75)
        hint = f"did you mean {close[0]}? " if close else ""
        raise UsageError(f"{option} {given!r} is unknown: {hint}expected one of {', '.join(allowed)}")
    return given


def dtypes(text: str) -> tuple[str, ...]:
    """``float32,bfloat16`` as dtypes, each once."""
    from gradoracle.model.contract import PRESETS

    known = tuple(dict.fromkeys(preset.dtype for preset in PRESETS.values()))
    return tuple(dict.fromkeys(one_of("--dtype", part.strip(), known) for part in text.split(",")))


def contracts(texts: Iterable[str]) -> dict[str, str]:
    """``float32=tf32`` as {dtype: preset}; the preset must exist and be for this dtype."""
    from gradoracle.model.contract import contract

    found: dict[str, str] = {}
    for text in texts:
        dtype, preset = _pair("--contract", text, "DTYPE=PRESET, such as float32=tf32")
        try:
            contract(preset, dtype)
        except ValueError as error:
            raise UsageError(f"--contract {text}: {error}") from None
        _once("--contract", dtype, found)
        found[dtype] = preset
    return found


def claims(text: str) -> tuple[str, ...]:
    """``forward,vjp`` as names of derivatives, each once."""
    known = ("forward", "vjp", "jvp", "hvp")
    return tuple(dict.fromkeys(one_of("--claim", part.strip(), known) for part in text.split(",")))


def arguments(texts: Iterable[str]) -> dict[str, Any]:
    """``causal=True`` as {name: value}, the value a Python literal."""
    found: dict[str, Any] = {}
    for text in texts:
        name, literal = _pair("--arg", text, "NAME=VALUE, such as causal=True")
        if not name.isidentifier():
            raise UsageError(f"--arg {text!r}: {name!r} is not the name of an argument; expected NAME=VALUE")
        _once("--arg", name, found)
        try:
            found[name] = ast.literal_eval(literal)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise UsageError(
                f"--arg {text!r}: expected a Python literal after =, such as True, 0.5 or 'text'"
            ) from None
    return found


def dims(texts: Iterable[str]) -> dict[str, Sizes]:
    """``T=1:4096`` as {dim: sizes}."""
    from gradoracle.model.dims import parse_sizes

    found: dict[str, Sizes] = {}
    for text in texts:
        if of_tensor(text):
            raise UsageError(f"--dim {text} names the dims of a tensor, which only goes with --reference and --like")
        try:
            name, sizes = parse_sizes(text)
        except ValueError as error:
            raise UsageError(str(error)) from None
        _once("--dim", name, found)
        found[name] = sizes
    return found


def of_tensor(text: str) -> bool:
    """Whether a word of --dim is about a tensor of an example, ``x=B,N`` or ``index<V``, and not about sizes."""
    return "<" in text or any(letter.isalpha() for letter in text.partition("=")[2])


def like(reference: str, example: str, corrections: Iterable[str] = ()) -> str:
    """The family text of a reference and an example: ``mine.py:f@like=mine.py:inputs@x=B,N``."""
    return f"{reference}{LIKE}{'@'.join((example, *corrections))}"


def workers(text: str) -> int | None:
    """``auto`` as None, else a number of processes."""
    if text == "auto":
        return None
    return at_least("--workers", whole("--workers", text, "a number of processes, or auto"), 0)


def some_workers(text: str) -> int | None:
    """Like ``workers``, but at least one."""
    found = workers(text)
    return None if found is None else at_least("--workers", found, 1)


def all_or(option: str, text: str) -> int | None:
    """``all`` as None, else a number of at least 1."""
    return None if text == "all" else at_least(option, whole(option, text, "a number, or all"), 1)


def score(given: float | None) -> float | None:
    """A score from 0 to 1."""
    if given is not None and not 0 <= given <= 1:
        raise UsageError(f"--least must be from 0 to 1, got {given:g}")
    return given


def file(option: str, given: str, expected: str = "") -> Path:
    """A file, which must exist."""
    if not Path(given).is_file():
        raise UsageError(f"{option} {given}: no such file{f'; expected {expected}' if expected else ''}")
    return Path(given)


def shard(text: str) -> tuple[int, int]:
    """``I/N`` as (I, N) with 1 <= I <= N."""
    expected = "I/N with 1 <= I <= N, such as 2/4"
    part, slash, parts = text.partition("/")
    if not slash:
        raise UsageError(f"--shard {text!r} is invalid; expected {expected}")
    found = whole("--shard", part, expected), whole("--shard", parts, expected)
    if not 1 <= found[0] <= found[1]:
        raise UsageError(f"--shard {text!r} is out of range; expected {expected}")
    return found


def scheduler(text: str) -> str:
    """The address of a dask scheduler, such as ``tcp://host:8786``."""
    protocol, mark, place = text.partition("://")
    if not (protocol and mark and place):
        raise UsageError(
            f"--scheduler {text!r} is invalid; expected the address of a dask scheduler, such as tcp://host:8786"
        )
    return text


def whole(option: str, text: str, expected: str) -> int:
    """A whole number."""
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{option} {text!r} is invalid; expected {expected}") from None


def at_least(option: str, given: int, smallest: int) -> int:
    """A number that must be at least ``smallest``."""
    if given < smallest:
        raise UsageError(f"{option} must be at least {smallest}, got {given}")
    return given


def count(option: str, least: int) -> Callable[[Any], int]:
    """A reader of whole numbers that must be at least ``least``."""
    return lambda word: at_least(option, whole(option, word, "a whole number"), least)


def duration(option: str) -> Callable[[Any], float | None]:
    """A reader of positive numbers of seconds."""

    def read(word: Any) -> float | None:
        try:
            return seconds(float(word), option)
        except ValueError:
            raise UsageError(f"{option} {word!r} is invalid; expected a number of seconds") from None

    return read


def severity(word: str) -> Severity:
    """The severity that a word names.

    Raises:
        UsageError: it names none.
    """
    levels = (Severity.WRONG, Severity.PRECISION, Severity.ROBUSTNESS)
    return Severity(one_of("--fail-on", word, [level.value for level in levels]))


def seconds(given: float | None, option: str = "--seconds") -> float | None:
    """A number of seconds that must be positive and finite; None stays None."""
    if given is not None and not 0 < given < float("inf"):
        raise UsageError(f"{option} must be a positive number, got {given:g}")
    return given


def saved(path: str) -> str:
    """A file of saved tensors, which must exist."""
    return str(file("--inputs", path, "tensors saved with torch.save"))


def python(word: str) -> str:
    """The path of an interpreter: given as such, as the folder of its environment, or as the name of a command."""
    place = Path(word).expanduser()
    found = shutil.which(str(place / "bin" / "python" if place.is_dir() else place))
    if found is None:
        raise UsageError(
            f"--python {word}: no such interpreter; expected the path of a Python, or the folder of its environment"
        )
    return os.path.abspath(found)  # a link of an environment is not followed: it makes the interpreter its own


def _pair(option: str, text: str, expected: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name.strip() and equals and value.strip()):
        raise UsageError(f"{option} {text!r} is invalid; expected {expected}")
    return name.strip(), value.strip()


def _once(option: str, name: str, found: dict[str, Any]) -> None:
    if name in found:
        raise UsageError(f"{option} is given twice for {name}")
