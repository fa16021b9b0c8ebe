"""Settings: values of options from the command line and pyproject.toml, and the fields of a request made of them.

The most specific setting wins: the command line, then its profile, then the kernel, then the project; for settings by
name (contract, arg, dim) this applies to each name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gradoracle.model.errors import UsageError
from gradoracle.project.options import OPTIONS, Form
from gradoracle.project.values import like, of_tensor

Setting = str | list[str]  # a word, or the words of a repeatable option
Settings = Mapping[str, Setting]


def together(layers: Sequence[Settings]) -> dict[str, Setting]:
    """The settings of several layers together, the most specific layer last."""
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
    """The settings as fields of a Request.

    Raises:
        UsageError: a value is invalid or out of range; names the option.
    """
    own = {name: setting for name, setting in settings.items() if name not in ("reference", "like")}
    reference, example = (str(settings[name]) if name in settings else None for name in ("reference", "like"))
    if reference is None and example is None:
        return {OPTIONS[name].field: OPTIONS[name].read(setting) for name, setting in own.items()}
    if reference is None or example is None:
        given, other = ("--reference", "--like") if example is None else ("--like", "--reference")
        raise UsageError(f"{given} goes with {other}; expected both: a reference, and an example of the arguments")
    if "family" in own:
        raise UsageError("--reference cannot be combined with --family: each says what the kernel computes")
    words = [word for word in own.get("dim", ()) if of_tensor(word)]
    own["dim"] = [word for word in own.get("dim", ()) if word not in words]
    own["family"] = like(reference, example, words)
    return {OPTIONS[name].field: OPTIONS[name].read(setting) for name, setting in own.items()}
