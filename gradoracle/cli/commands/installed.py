"""Installed: in a tree of gradoracle, a shipped name stands for the kernels that are installed, not for the tree's."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from gradoracle.model.errors import UsageError
from gradoracle.model.location import working_tree
from gradoracle.project.import_closure import holds_gradoracle
from gradoracle.project.shipped import KERNELS, family_names


def require_kernels_of_the_tree(targets: Iterable[str]) -> None:
    """See that the shipped kernels among some targets are, byte by byte, those of the tree that one stands in.

    Who edits a kernel of a clone, with gradoracle installed from somewhere else, would be told of another kernel.

    Raises:
        UsageError: they are not; outside of gradoracle's own tree never.
    """
    tree = working_tree(Path.cwd())
    spec = importlib.util.find_spec(KERNELS) if holds_gradoracle(tree) else None
    shipped = family_names() if spec is not None else []
    named = {target.partition(":")[0] for target in targets}
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for family in sorted(named.intersection(shipped)):
            for file in _files(tree / "kernels", Path(folder), family):
                if _text(tree / "kernels" / file) != _text(Path(folder, file)):
                    raise UsageError(
                        f"kernels/{file} of this tree is not what {family} stands for: that is {Path(folder, file)}; "
                        "install this tree (pip install --editable .), or run gradoracle in another folder"
                    )


def _files(here: Path, there: Path, family: str) -> list[str]:
    """What a family's kernels are made of in either folder: its own modules, and those that all families share."""
    return sorted({file.relative_to(root).as_posix() for root in (here, there) for file in _modules(root, family)})


def _modules(root: Path, family: str) -> Iterator[Path]:
    return chain(root.glob("*.py"), (root / family).rglob("*.py"))


def _text(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None
