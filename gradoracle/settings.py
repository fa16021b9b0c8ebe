"""Settings of a check, as the command line and pyproject.toml give them, and the request that they make together.

A setting is kept as the command line has it: a word, or a list of words where its option is repeatable. So one set of
rules and sentences serves both. What is more special wins: the command line, then the profile that it names, then the
kernel, then what holds for all; of repeatable settings by name (contract, arg, dim) each name by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradoracle import options
from gradoracle.errors import UsageError

Setting = str | list[str]  # a word, or those of a repeatable option
Settings = Mapping[str, Setting]

BY_NAME = ("contract", "arg", "dim")  # NAME=VALUE
LISTS = ("require", "timed")
WORDS = (
    "device", "dtype", "oracle", "examples", "seconds", "call-seconds", "seed", "property", "workers", "shard",
    "scheduler", "inputs", "family",
)  # fmt: skip
NAMES = (*WORDS, *BY_NAME, *LISTS)


def together(layers: Sequence[Settings]) -> dict[str, Setting]:
    """One setting of each name from several layers, the most special last."""
    found: dict[str, Setting] = {}
    for layer in layers:
        for name, setting in layer.items():
            below = found.get(name)
            if name in BY_NAME and isinstance(setting, list) and isinstance(below, list):
                own = {word.partition("=")[0].strip() for word in setting}
                setting = [*(word for word in below if word.partition("=")[0].strip() not in own), *setting]
            found[name] = setting
    return found


def fields(settings: Settings) -> dict[str, Any]:
    """The fields of a Request that settings say.

    Raises:
        UsageError: a value that is not understood or out of range; the sentence names its option.
    """
    found: dict[str, Any] = {}
    for name, setting in settings.items():
        field, read = _READ[name]
        found[field] = read(setting)
    return found


def _number(option: str, least: int) -> Callable[[Any], int]:
    return lambda word: options.at_least(option, options.whole(option, word, "a whole number"), least)


def _seconds(option: str) -> Callable[[Any], float | None]:
    def read(word: Any) -> float | None:
        try:
            return options.seconds(float(word), option)
        except ValueError:
            raise UsageError(f"{option} {word!r} is not understood; wanted a number of seconds") from None

    return read


_READ: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "device": ("device", lambda word: options.one_of("--device", word, options.DEVICES)),
    "dtype": ("dtypes", options.dtypes),
    "oracle": ("oracle", lambda word: options.one_of("--oracle", word, options.ORACLES)),
    "examples": ("examples", _number("--examples", 1)),
    "seconds": ("seconds", _seconds("--seconds")),
    "call-seconds": ("call_seconds", _seconds("--call-seconds")),
    "seed": ("seed", _number("--seed", 0)),
    "property": ("property", str),
    "workers": ("workers", options.workers),
    "shard": ("shard", options.shard),
    "scheduler": ("scheduler", options.scheduler),
    "inputs": ("inputs", options.saved),
    "family": ("family", str),
    "contract": ("contracts", options.contracts),
    "arg": ("arguments", options.arguments),
    "dim": ("dims", options.dims),
    "require": ("require", tuple),
    "timed": ("timed", options.problems),
}
