"""Ledger cache: ledgers of earlier gates, in the cache, found by the content of everything that they depend on.

A ledger is kept if nothing in it can depend on the machine: every case was judged, none crashed, and no property
lacked memory. Nothing is kept if a package is installed in place, as its version does not determine its content.
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

from gradoracle.gate.answer import Answer
from gradoracle.gate.tree import Tree, deciding
from gradoracle.model import cache, serialize
from gradoracle.model.errors import UsageError
from gradoracle.model.ledger import CaseRecord, EndRecord, Header, JudgeRecord, Ledger, Record, Section
from gradoracle.model.ledger_file import SCHEMA, fields_of, record_of
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import Status
from gradoracle.project.config import Entry, Settings
from gradoracle.project.import_closure import digests, together

_OF_A_MACHINE = (Status.CRASHED, Status.ERROR)
_VARIABLES = ("TRITON_", "TORCH", "CUDA_", "PYTORCH_")  # prefixes of variables that may change what a kernel computes,
_PLACES = ("TRITON_CACHE_DIR", "TRITON_HOME", "TORCH_HOME")  # except those that only name a folder
_DRIVER = "/proc/driver/nvidia"
_INSTALLED = (".dist-info", ".egg-info")


class LedgerCache:
    """The kept ledgers.

    Args:
        root: the folder of the cache; None: nothing is kept.
        tell: prints what is wrong with an entry or with the folder.

    Attributes:
        is_on: whether anything is kept.
    """

    def __init__(self, root: Path | None, tell: Callable[[str], None]) -> None:
        self._entries = cache.Cache("ledgers", root, tell)
        self.is_on = root is not None

    def name(self, target: Entry, words: Settings, judge: Tree, kernels: Tree) -> str:
        """The name under which the ledger of a target is kept; "" if it cannot be kept.

        Args:
            target: the entry of the tree whose kernels are judged.
            words: the settings it is checked with.
            judge: the tree whose engine, properties and definition judge.
            kernels: the tree whose kernels are judged.
        """
        if not self.is_on or words.keys() & {"seconds", "python"} or _loose():
            return ""
        try:
            own = kernels.files(target, words)
            judging = judge.judges([target.target]) if judge.ships(target.target) else judge.files(target, words)
        except UsageError:
            return ""
        if not own or not judging:
            return ""
        parts = [own_files(kernels, target, own), judging, _engine() if not judge.is_gradoracle else {}]
        system = platform.python_version(), platform.system(), platform.machine(), graphics()
        variables = {
            name: value for name, value in os.environ.items() if name.startswith(_VARIABLES) and name not in _PLACES
        }
        decided = repr(sorted(deciding(words).items()))
        return cache.digest(SCHEMA, target.target, decided, parts, system, variables, sorted(_installed()))

    def find(self, name: str) -> Answer | None:
        """The answer of that name; None if there is none, or it cannot be read."""
        document: Any = self._entries.read(name) if name else None
        if document is None:
            return None
        try:
            header, judge, *records = (record_of(fields) for fields in document)
            if not isinstance(header, Header) or not isinstance(judge, JudgeRecord):
                raise serialize.Unreadable("it does not begin with a header")
            own = [each for each in (judge, *records) if not isinstance(each, Header)]
            return Answer(header.target, Ledger([Section(header, own)]), judge)
        except (serialize.Unreadable, TypeError, ValueError) as error:
            self._entries.damaged(name, str(error))
            return None

    def keep(self, name: str, found: Answer, files: Mapping[str, str]) -> None:
        """Keep an answer if any machine would find the same; ``files``: digests of the target's files."""
        if not name or found.error or not found.is_whole or any(map(_depends_on_machine, found.cases.values())):
            return
        assert found.ledger is not None
        records: list[Header | Record] = [found.ledger.header, JudgeRecord(files=files)]
        for case in found.cases.values():
            called = tuple(place for place in case.called if place.rpartition(":")[0] in files)
            records.append(replace(case, called=called))
        records += found.ledger.of(EndRecord)[:1]
        self._entries.write(name, [fields_of(each) for each in records])


def _depends_on_machine(case: CaseRecord) -> bool:
    return any(each.why is Reason.MEMORY or each.status in _OF_A_MACHINE for each in case.results)


def own_files(tree: Tree, target: Entry, files: dict[str, str]) -> dict[str, str]:
    """A target's files without those of its judge, which a shipped target shares with others."""
    if not tree.ships(target.target):
        return files
    return {file: digest for file, digest in files.items() if file.partition("/")[0] == "kernels"}


@functools.cache
def _engine() -> dict[str, str]:
    """Digests of the installed gradoracle, since a clone of it may be installed in place."""
    specs = map(importlib.util.find_spec, ("gradoracle", "gradoracle.kernels", "gradoracle.properties"))
    folders = sorted({Path(spec.origin).resolve().parent for spec in specs if spec is not None and spec.origin})
    return {folder.name: together(digests(folder.rglob("*.py"), folder)) for folder in folders}


def may_use_gpu(words: Settings) -> bool:
    """Whether a target may be checked on a GPU, found out without importing PyTorch."""
    return words.get("device") != "cpu" and bool(graphics())


def graphics() -> list[str]:
    """The NVIDIA GPUs of this machine and the driver's version, as the driver lists them."""
    listed = [*Path(_DRIVER).glob("gpus/*/information"), *Path(_DRIVER).glob("version")]
    lines = (line for file in sorted(listed) for line in file.read_text("utf-8", "replace").splitlines())
    return [line for line in lines if line.startswith(("Model", "NVRM"))]


@functools.cache
def _installed() -> dict[str, Path]:
    """All that is installed, by the names of the folders that hold its name and version."""
    folders = (Path(entry) for entry in dict.fromkeys(sys.path) if entry and os.path.isdir(entry))
    return {each.name: each for folder in folders for each in folder.iterdir() if each.suffix in _INSTALLED}


@functools.cache
def _loose() -> bool:
    """Whether something other than gradoracle is installed in place, so that its version does not determine it."""
    for name, folder in _installed().items():
        with contextlib.suppress(OSError, ValueError):
            installed = json.loads((folder / "direct_url.json").read_text(encoding="utf-8"))
            if installed.get("dir_info", {}).get("editable") and not name.startswith("gradoracle-"):
                return True
    return False
