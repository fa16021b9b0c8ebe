"""Installed: a shipped name means the installed kernels, even inside a clone of gradoracle that differs from them."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable
from pathlib import Path

from gradoracle.model.errors import UsageError
from gradoracle.model.location import working_tree
from gradoracle.project.import_closure import holds_gradoracle
from gradoracle.project.shipped_names import KERNELS, family_names


def require_kernels_of_the_tree(targets: Iterable[str]) -> None:
    """Require that the shipped kernels among some targets are, byte by byte, those of the current working tree.

    Otherwise somebody who edits a kernel in a clone, with gradoracle installed from elsewhere, would get verdicts on
    the installed kernel. Outside gradoracle's own tree nothing is required.

    Raises:
        UsageError: they differ.
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
                        f"{family} means the installed {Path(folder, file)}, which differs from kernels/{file} of this "
                        "tree; install this tree (pip install --editable .), or run gradoracle in another folder"
                    )


def _files(here: Path, there: Path, family: str) -> list[str]:
    """The modules of a family's kernels in either folder: its own, and those that all families share."""
    found = ((root, file) for root in (here, there) for file in (*root.glob("*.py"), *(root / family).rglob("*.py")))
    return sorted({file.relative_to(root).as_posix() for root, file in found})


def _text(file: Path) -> bytes | None:
    return file.read_bytes() if file.is_file() else None
