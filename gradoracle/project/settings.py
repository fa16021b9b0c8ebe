"""Settings of a check, as the command line and pyproject.toml give them, and the fields of a request that they make.

A setting is the value of an option, as the command line has it. What is more special wins: the command line, then the
profile that it names, then the kernel, then what holds for all; of repeatable settings by name (contract, arg, dim)
each name by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradoracle.project.options import OPTIONS, Form

Setting = str | list[str]  # a word, or those of a repeatable option
Settings = Mapping[str, Setting]


def together(layers: Sequence[Settings]) -> dict[str, Setting]:
    """One setting of each name from several layers, the most special last."""
    found: dict[str, Setting] = {}
    for layer in layers:
        for name, setting in layer.items():
            below = found.get(name)
            if OPTIONS[name].form is Form.BY_NAME and isinstance(setting, list) and isinstance(below, list):
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
        option = OPTIONS[name]
        found[option.field] = option.read(setting)
    return found
