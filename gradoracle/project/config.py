"""Config: ``[tool.gradoracle]`` of a pyproject.toml, with a project's kernels and how they are checked.

    [tool.gradoracle]
    examples = 200
    contract = { float32 = "tf32" }
    known-failures = "known_failures.toml"

    [tool.gradoracle.profiles.fast]
    examples = 30

    [tool.gradoracle.kernels.attention]
    target = "my_kernels/attention.py:flash"
    family = "sdpa"
    dim = { D = [64, 128], T = "1:4096" }

Settings are those of ``gradoracle check`` by the names of its options. An unknown key is an error.
The most specific setting wins: the command line, then its profile, then the kernel, then the project. For settings by
name (contract, arg, dim) this applies to each name.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gradoracle.model.errors import UsageError
from gradoracle.project import toml
from gradoracle.project.options import OPTIONS, Form
from gradoracle.project.values import like, of_tensor

Setting = str | list[str]  # a word, or the words of a repeatable option
Settings = Mapping[str, Setting]

FILE = "pyproject.toml"
PROFILES: Mapping[str, Settings] = {"fast": {"examples": "30"}}  # unless the project has its own
_SETTINGS = tuple(option.name for option in OPTIONS.values() if option.in_file and not option.of_kernel)
_OF_A_KERNEL = tuple(option.name for option in OPTIONS.values() if option.of_kernel)


@dataclass(frozen=True)
class Entry:
    """A kernel of the project: its TARGET, relative to the current folder, and its settings."""

    name: str
    target: str
    settings: Settings


@dataclass(frozen=True)
class Config:
    """A project's configuration; ``EMPTY`` if there is none.

    Attributes:
        file: the pyproject.toml; None if there is none with a ``[tool.gradoracle]``.
        settings: the settings of all kernels.
        kernels: the kernels by name, in order.
        profiles: settings by name, for ``--profile``.
        known_failures: the file of known failures; None if none is named.
    """

    file: Path | None = None
    settings: Settings = field(default_factory=dict)
    kernels: Mapping[str, Entry] = field(default_factory=dict)
    profiles: Mapping[str, Settings] = field(default_factory=dict)
    known_failures: Path | None = None

    def chosen(self, targets: Sequence[str]) -> list[Entry]:
        """The entries of TARGETs, each once: a TARGET may be the name of a kernel here. Without TARGETs, all kernels.

        Raises:
            UsageError: no TARGET is given, and no kernel is named here.
        """
        if not targets and not self.kernels:
            raise UsageError(
                "no TARGET was given; expected a shipped family, a file, or kernels in [tool.gradoracle] of "
                "pyproject.toml"
            )
        names = dict.fromkeys(targets or self.kernels)
        return [self.kernels.get(name) or Entry(name, name, {}) for name in names]

    def profile(self, name: str | None) -> Settings:
        """The settings of a profile.

        Raises:
            UsageError: no profile has this name.
        """
        if name is None:
            return {}
        profiles = {**PROFILES, **self.profiles}
        if name not in profiles:
            raise UsageError(f"--profile {name!r} is unknown; expected one of {', '.join(profiles)}")
        return profiles[name]


EMPTY = Config()


def load(folder: Path | None = None) -> Config:
    """The config of a folder (by default the current one), from the nearest pyproject.toml at or above it.

    Raises:
        UsageError: the file cannot be read or is not valid TOML, a key is unknown, or a value does not fit its key.
    """
    folder = (Path.cwd() if folder is None else folder).resolve()
    file = next((each / FILE for each in (folder, *folder.parents) if (each / FILE).is_file()), None)
    if file is None:
        return EMPTY
    return read(file, Path.cwd())


def read(file: Path, folder: Path) -> Config:
    """The config of one pyproject.toml, with file TARGETs relative to ``folder``.

    Raises:
        UsageError: as ``load`` does.
    """
    document = toml.read(file, _shown(file))
    tool = document.get("tool", {})
    table = tool.get("gradoracle") if isinstance(tool, dict) else None
    return EMPTY if table is None else _Reader(file, folder).config(table)


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


def _shown(file: Path, folder: Path | None = None) -> str:
    """A file's path relative to a folder, by default the current one."""
    return Path(os.path.relpath(file, folder)).as_posix()


class _Reader:
    """Reads one file; every error message names the file, the table and the key."""

    def __init__(self, file: Path, folder: Path) -> None:
        self.file, self.folder = file, folder

    def config(self, table: Any) -> Config:
        own = self._table(table, "", (*_SETTINGS, "kernels", "profiles", "known-failures"))
        kernels = self._tables(own.pop("kernels", {}), "kernels")
        profiles = self._tables(own.pop("profiles", {}), "profiles")
        known = own.pop("known-failures", None)
        if known is not None and not isinstance(known, str):
            raise self._wrong("known-failures", "", known, "the path of a TOML file")
        return Config(
            self.file,
            self._settings(own, ""),
            {name: self._kernel(name, entry) for name, entry in kernels.items()},
            {name: self._profile(name, entry) for name, entry in profiles.items()},
            None if known is None else self.file.parent / known,
        )

    def _kernel(self, name: str, entry: Any) -> Entry:
        place = f"kernels.{name}"
        own = self._table(entry, place, ("target", *_OF_A_KERNEL, *_SETTINGS))
        target = own.pop("target", name)
        if not isinstance(target, str) or not target:
            raise self._wrong("target", place, target, "path/to/file.py[:callable] or module:callable")
        path, colon, callable_ = target.partition(":")
        if path.endswith(".py"):
            target = _shown(self.file.parent / path, self.folder) + colon + callable_
        return Entry(name, target, self._settings(own, place))

    def _profile(self, name: str, entry: Any) -> Settings:
        place = f"profiles.{name}"
        return self._settings(self._table(entry, place, _SETTINGS), place)

    def _settings(self, table: Mapping[str, Any], place: str) -> dict[str, Setting]:
        """The settings of a table, checked by reading each."""
        found = {key: self._setting(key, place, value) for key, value in table.items()}
        for key, setting in found.items():
            try:
                fields({key: setting})
            except UsageError as error:
                raise UsageError(f"{self._where(place)}: {error}") from None
        return found

    def _setting(self, key: str, place: str, value: Any) -> Setting:
        """A TOML value as words of the command line."""
        option = OPTIONS[key]
        if option.form is Form.BY_NAME:
            if not isinstance(value, dict):
                raise self._wrong(key, place, value, f"a table, such as {option.example}")
            return [
                f"{name}={repr(each) if key == 'arg' else self._word(key, place, each)}" for name, each in value.items()
            ]
        if option.form is Form.LIST:
            if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
                raise self._wrong(key, place, value, option.example)
            return list(value)
        return self._word(key, place, value)

    def _word(self, key: str, place: str, value: Any) -> str:
        """A scalar, or a list of scalars separated by commas."""
        if isinstance(value, list) and (OPTIONS[key].joined or key == "dim") and value:
            return ",".join(self._word(key, place, each) for each in value)
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            raise self._wrong(key, place, value, f"a value such as {OPTIONS[key].example}")
        return str(value)

    def _tables(self, value: Any, key: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise self._wrong(key, "", value, f"tables, [tool.gradoracle.{key}.NAME]")
        return value

    def _table(self, value: Any, place: str, known: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise UsageError(f"{self._where(place)} is {value!r}; expected a table")
        for key in value:
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
                hint = f"did you mean {close[0]}? " if close else ""
                raise UsageError(f"{self._where(place)}: {key!r} is unknown: {hint}expected one of {', '.join(known)}")
        return dict(value)

    def _wrong(self, key: str, place: str, value: Any, expected: str) -> UsageError:
        return UsageError(f"{self._where(place)}: {key} is {value!r}; expected {expected}")

    def _where(self, place: str) -> str:
        return f"{_shown(self.file)}, [tool.gradoracle{f'.{place}' if place else ''}]"
