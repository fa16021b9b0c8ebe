"""Kept: how trees stood in earlier gates, in the cache by the content of all that they depend on.

A snapshot is kept where nothing of it can be the machine's: every case was judged, none crashed, and no law lacked
memory. One of a project that is not installed by a version, or that imports such a one, is not kept.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import platform
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gradoracle.gate.snapshot import OnCase, Snapshot
from gradoracle.gate.tree import Tree, deciding
from gradoracle.model import serialize
from gradoracle.model.errors import UsageError
from gradoracle.model.verdict import Status
from gradoracle.project import cache
from gradoracle.project.config import Entry
from gradoracle.project.import_closure import digests, together
from gradoracle.project.settings import Settings

SCHEMA = "gradoracle-snapshot/1"  # raised when a field is renamed or removed, or changes its meaning
_DECIDED = (Status.HOLDS.value, Status.VIOLATED.value, Status.REFUSED.value, Status.NOT_CHECKED.value)
_VARIABLES = ("TRITON_", "TORCH", "CUDA_", "PYTORCH_")  # what begins so may decide what a kernel gives,
_PLACES = ("TRITON_CACHE_DIR", "TRITON_HOME", "TORCH_HOME")  # but for where something lies
_DRIVER = "/proc/driver/nvidia"
_TOLD_BY = (".dist-info", ".egg-info")


class Kept:
    """The snapshots that are kept.

    Args:
        root: the folder of the cache; None: nothing is kept.
        tell: is told what is wrong with an entry or with the folder.

    Attributes:
        is_on: whether anything is.
    """

    def __init__(self, root: Path | None, tell: Callable[[str], None]) -> None:
        self._entries = cache.Cache("snapshots", root, tell)
        self.is_on = root is not None

    def name(self, target: Entry, words: Settings, judge: Tree, kernels: Tree) -> str:
        """What the snapshot of a target is kept under; "" where it cannot be.

        Args:
            target: as the tree of its kernels has it.
            words: what it is checked with.
            judge: whose engine, laws and definition judge.
            kernels: whose kernels are judged.
        """
        if not self.is_on or "seconds" in words or _loose():
            return ""
        try:
            own = kernels.files(target, words)
            judging = judge.judges([target.target]) if _is_shipped(judge, target) else judge.files(target, words)
        except UsageError:
            return ""
        if not own or not judging:
            return ""
        parts = [own_files(kernels, target, own), judging, _engine() if not judge.is_gradoracle else {}]
        system = platform.python_version(), platform.system(), platform.machine(), graphics()
        variables = {
            name: value for name, value in os.environ.items() if name.startswith(_VARIABLES) and name not in _PLACES
        }
        said = repr(sorted(deciding(words).items()))
        return cache.digest(SCHEMA, target.target, said, parts, system, variables, sorted(_installed()))

    def find(self, name: str) -> Snapshot | None:
        """The snapshot of that name, where there is one that can be read."""
        document: Any = self._entries.read(name) if name else None
        if document is None:
            return None
        try:
            return serialize.from_plain(Snapshot, document, "snapshot")
        except serialize.Unreadable as error:
            self._entries.damaged(name, str(error))
            return None

    def keep(self, name: str, found: Snapshot, files: Mapping[str, str]) -> None:
        """Keep a snapshot that says of every case what any machine would; ``files``: that the target is made of."""
        if not name or found.error or not found.is_whole or not all(map(_is_the_kernels, found.cases.values())):
            return
        cases = {line: replace(case, called=_called(case, files)) for line, case in found.cases.items()}
        own = replace(found, cases=cases, files=dict(files), report=None)
        self._entries.write(name, serialize.to_plain(own))


def _called(case: OnCase, files: Mapping[str, str]) -> tuple[str, ...]:
    """Of what was called, what a target's own files hold."""
    return tuple(place for place in case.called if place.rpartition(":")[0] in files)


def _is_the_kernels(case: OnCase) -> bool:
    lacking = bool(case.memory)
    return not lacking and all(status in _DECIDED for status in case.laws.values())


def _is_shipped(tree: Tree, target: Entry) -> bool:
    return tree.is_gradoracle and tree.is_shipped(target.target)


def own_files(tree: Tree, target: Entry, files: dict[str, str]) -> dict[str, str]:
    """Of the files that a target is made of, those of its kernels: what judges a shipped one is told apart."""
    if not _is_shipped(tree, target):
        return files
    return {file: digest for file, digest in files.items() if file.partition("/")[0] == "kernels"}


@functools.cache
def _engine() -> dict[str, str]:
    """The gradoracle that is installed, by content: a clone of it may be installed in place."""
    specs = map(importlib.util.find_spec, ("gradoracle", "gradoracle.kernels", "gradoracle.properties"))
    folders = sorted({Path(spec.origin).resolve().parent for spec in specs if spec is not None and spec.origin})
    return {folder.name: together(digests(folder.rglob("*.py"), folder)) for folder in folders}


def may_use_gpu(words: Settings) -> bool:
    """Whether a target may be checked on a GPU, as far as that is seen without PyTorch."""
    return words.get("device") != "cpu" and bool(graphics())


def graphics() -> list[str]:
    """The NVIDIA GPUs of this machine and the driver's version, as the driver lists them; none without one."""
    listed = [*Path(_DRIVER).glob("gpus/*/information"), *Path(_DRIVER).glob("version")]
    lines = (line for file in sorted(listed) for line in file.read_text("utf-8", "replace").splitlines())
    return [line for line in lines if line.startswith(("Model", "NVRM"))]


@functools.cache
def _installed() -> dict[str, Path]:
    """All that is installed, by the names of the folders that tell its name and version."""
    folders = (Path(entry) for entry in dict.fromkeys(sys.path) if entry and os.path.isdir(entry))
    return {each.name: each for folder in folders for each in folder.iterdir() if each.suffix in _TOLD_BY}


@functools.cache
def _loose() -> bool:
    """Whether something other than gradoracle is installed in place, which its version does not tell."""
    for name, folder in _installed().items():
        with contextlib.suppress(OSError, ValueError):
            installed = json.loads((folder / "direct_url.json").read_text(encoding="utf-8"))
            if installed.get("dir_info", {}).get("editable") and not name.startswith("gradoracle-"):
                return True
    return False
