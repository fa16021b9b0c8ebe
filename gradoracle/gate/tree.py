"""Tree: one of the two working trees that a gate compares, read from its files and configuration, not imported."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from gradoracle.gate.answer import Answer
from gradoracle.gate.known_failures import KnownFailure, read
from gradoracle.model.errors import UsageError
from gradoracle.model.ledger import Piece
from gradoracle.model.location import working_tree
from gradoracle.project import config
from gradoracle.project.config import Config, Entry, Setting, Settings
from gradoracle.project.import_closure import Imports, closure, digests, holds_gradoracle, module_file, together
from gradoracle.project.shipped_names import SHIPPED

ENGINE, KNOWN = "the engine and the properties of gradoracle", "the known failures"
_ENGINE = ("gradoracle", "properties")
# Where the judging code begins, apart from the families' own modules.
_JUDGES = ("gradoracle/check/run.py", "gradoracle/project/target.py")
_PACE = ("workers", "python")  # settings that change no verdict: how fast a check runs, and where on this machine


@dataclass(frozen=True)
class Tree:
    """A working tree and the project in it.

    Attributes:
        root: its top folder.
        folder: of the project: where its pyproject.toml is; below ``root``, or ``root`` itself.
    """

    root: Path
    folder: Path

    @cached_property
    def config(self) -> Config:
        """The configuration in its pyproject.toml; empty where there is none."""
        file = self.folder / config.FILE
        return config.read(file, self.folder) if file.is_file() else config.EMPTY

    @cached_property
    def _imports(self) -> Imports:
        """The imports of its files, each read once."""
        return {}

    @cached_property
    def is_gradoracle(self) -> bool:
        """Whether the tree is gradoracle's own: its engine, properties and shipped kernels are then this tree's."""
        return self.folder == self.root and holds_gradoracle(self.root)

    @cached_property
    def known_failures(self) -> list[KnownFailure]:
        """The known failures that its configuration names."""
        file = self.config.known_failures
        return [] if file is None else read(file, file.relative_to(self.folder).as_posix())

    def entries(self, targets: Sequence[str]) -> dict[str, Entry]:
        """Targets by name: those given, else all of the configuration."""
        if not targets:
            return dict(self.config.kernels)
        return {entry.name: entry for entry in self.config.chosen(targets)}

    def settings(self, entry: Entry, profile: str | None, given: Settings) -> dict[str, Setting]:
        """The settings an entry is checked with; a profile that the project lacks is ignored."""
        chosen = {**config.PROFILES, **self.config.profiles}.get(profile or "", {})
        found = config.together((self.config.settings, entry.settings, chosen, given))
        found.pop("scheduler", None)  # both sides run here, from trees that a cluster does not have
        return found

    def files(self, entry: Entry, words: Settings) -> dict[str, str]:
        """Digests of the files of the tree that a target and its family consist of; empty where there are none.

        Args:
            entry: the target.
            words: its settings.

        Raises:
            UsageError: its file does not exist.
        """
        start = self._start(entry.target)
        if start is None:
            return {}
        family = words.get("family")
        named = self._start(family) if isinstance(family, str) else None
        starts = [start] if named is None else [start, named]
        return digests(self._closure(starts), self.root)

    @cached_property
    def engine(self) -> str:
        """A digest of the engine and the properties; "" if they are not this tree's."""
        if not self.is_gradoracle:
            return ""
        files = (file for folder in _ENGINE for file in (self.root / folder).rglob("*.py"))
        return together(digests(files, self.root))

    def judges(self, names: Iterable[str]) -> dict[str, str]:
        """Digests of the files of the engine and the properties that verdicts on some targets depend on."""
        if not self.is_gradoracle:
            return {}
        starts = [self.root / file for file in _JUDGES]
        starts += [file for name in names if (file := self._start(name)) is not None]
        return digests(
            (file for file in self._closure(starts) if file.relative_to(self.root).parts[0] in _ENGINE), self.root
        )

    def _closure(self, starts: Iterable[Path]) -> frozenset[Path]:
        return closure(starts, self.root, [self.folder, self.folder / "src"], self._imports)

    def is_shipped(self, target: str) -> bool:
        """Whether a target names a shipped family."""
        name = target.partition(":")[0]
        return module_file(f"{SHIPPED}.{name}", self.root) is not None and "/" not in name and "." not in name

    def ships(self, target: str) -> bool:
        """Whether a target names a family that this tree, gradoracle's own, ships."""
        return self.is_gradoracle and self.is_shipped(target)

    def _start(self, target: str) -> Path | None:
        """The file that a target names; None if it is not in this tree."""
        place = target.rpartition(":")[0] if ":" in target else target
        if place.endswith(".py"):
            file = self.folder / place
            if not file.is_file():
                raise UsageError(f"no file {place}")
            return file
        name = f"{SHIPPED}.{place}" if self.is_shipped(place) else place
        file_ = module_file(name, self.root, folders=[self.folder, self.folder / "src"])
        return file_ if file_ is not None and file_.resolve().is_relative_to(self.root) else None


def project(root: Path | None = None, below: Path | None = None) -> Tree:
    """A working tree and its project: that of the nearest pyproject.toml at or above a folder of it.

    Args:
        root: its top folder; default: of the tree around the current folder.
        below: the folder, relative to ``root``; default: the current one.
    """
    here = Path.cwd().resolve()
    if root is None:
        root = working_tree(here)
    folder = root / (here.relative_to(root) if below is None else below)
    return Tree(root, next((each for each in (folder, *folder.parents) if _holds_config(each, root)), folder))


def _holds_config(folder: Path, root: Path) -> bool:
    return folder.is_relative_to(root) and (folder / config.FILE).is_file()


def pieces(tree: Tree, entry: Entry, words: Settings, surveyed: Answer) -> dict[str, Piece]:
    """What judges a target, by name: fingerprints of its side and of the tree's files."""
    found = dict(surveyed.pieces)
    if tree.ships(entry.target):
        found[ENGINE] = Piece(together(tree.judges([entry.target])))
    found[f"the settings of {entry.name}"] = Piece(repr(sorted(deciding(words).items())))
    found[KNOWN] = Piece("; ".join(map(str, tree.known_failures)))
    return found


def deciding(given: Settings) -> dict[str, Setting]:
    """Settings without those that only change how fast a check runs."""
    return {name: value for name, value in given.items() if name not in _PACE}
