"""Proofs: mutants that are equivalent to the kernel, each with the reason, in a TOML file.

    [[equivalent]]
    mutant = "0123456789"
    where = "scan_kernel: n < N to n <= N"
    proof = "row N of the tile is masked by the store"

A proof names one mutant's key; once the code around it changes it matches no mutant, and the run says so.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from pathlib import Path

from gradoracle.model.errors import UsageError
from gradoracle.project import toml
from gradoracle.project.shipped_names import SHIPPED


def proofs_beside(name: str) -> Path | None:
    """The file of a shipped family; None if it has none."""
    for folder in importlib.import_module(SHIPPED).__path__:
        file = Path(folder) / name / "equivalents.toml"
        if file.exists():
            return file
    return None


def read_proofs(file: Path | None) -> Mapping[str, str]:
    """Proofs by the mutants' keys; none without a file.

    Raises:
        UsageError: the file is missing, is no TOML, or an entry lacks its mutant or its proof.
    """
    if file is None:
        return {}
    found = toml.read(file, f"--equivalents {file}")
    proofs: dict[str, str] = {}
    for number, entry in enumerate(found.get("equivalent", [])):
        for key in ("mutant", "proof"):
            if not isinstance(entry.get(key), str) or not entry[key].strip():
                raise UsageError(f"--equivalents {file}: entry {number + 1} has no {key}; expected mutant and proof")
        proofs[entry["mutant"]] = entry["proof"].strip()
    return proofs
