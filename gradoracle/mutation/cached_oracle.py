"""Cached oracle: one that keeps its answers on disk, since every mutant is judged on the same cases.

Answers are keyed by the values that they are for, so a property that asks for the truth of what a kernel computed gets
the truth of exactly that.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from gradoracle.cases.sample import Sample
from gradoracle.model import layouts
from gradoracle.model.contract import Contract
from gradoracle.model.derivative import Derivative
from gradoracle.model.family import Family
from gradoracle.oracle.rounding.reading import Budget
from gradoracle.oracle.truth import Oracle, Truth

MOST = 1 << 25  # bytes; larger answers are not kept
Answer = TypeVar("Answer")


class CachedOracle(Oracle):
    """An ``Oracle`` whose budgets and truths are looked up in a folder first.

    Args:
        folder: of the answers; shared by the processes of one run only.
        family, reading, graphs: as for ``Oracle``.

    Attributes:
        keeps: whether answers are written; else they are only looked up.
    """

    def __init__(self, folder: Path, family: Family, reading: str, graphs: int) -> None:
        super().__init__(family, reading, graphs=graphs)
        self.folder, self.keeps = folder, True

    def budgets(self, sample: Sample, derivative: Derivative, contract: Contract, **more: Any) -> dict[str, Budget]:
        """As ``Oracle.budgets``."""
        asked = partial(super().budgets, sample, derivative, contract, **more)
        return self._once(("budgets", derivative, contract, sorted(more.items())), sample, asked)

    def truth(
        self, sample: Sample, derivative: Derivative, budgets: Mapping[str, Budget], contract: Contract
    ) -> dict[str, Truth]:
        """As ``Oracle.truth``; what it raises is not kept."""
        asked = partial(super().truth, sample, derivative, budgets, contract)
        return self._once(("truth", derivative, contract), sample, asked)

    def confirmed(
        self, sample: Sample, derivative: Derivative, algorithm: str, budgets: Mapping[str, Budget], contract: Contract
    ) -> dict[str, Truth] | None:
        """As ``Oracle.confirmed``."""
        asked = partial(super().confirmed, sample, derivative, algorithm, budgets, contract)
        return self._once(("confirmed", derivative, contract, algorithm), sample, asked)

    def _once(self, question: tuple[Any, ...], sample: Sample, answer: Callable[[], Answer]) -> Answer:
        file = self.folder / _key(question, sample)
        if file.exists():
            kept: Answer = pickle.loads(file.read_bytes())
            return kept
        found = answer()
        if self.keeps:
            content = pickle.dumps(found, pickle.HIGHEST_PROTOCOL)
            if len(content) <= MOST:
                part = file.with_suffix(f".{os.getpid()}")
                part.write_bytes(content)
                part.replace(file)
        return found


def _key(question: tuple[Any, ...], sample: Sample) -> str:
    """A name of a question on these values, whatever their layout; widened ones are others."""
    digest = hashlib.sha256(repr((question, sorted(sample.options.items()))).encode())
    for group in (sample.inputs, sample.cotangents, sample.tangents):
        for name, tensor in group.items():
            dense = tensor.detach()
            digest.update(f"{name} {tensor.dtype} {dense.dtype} {tuple(dense.shape)} ".encode())
            digest.update(layouts.content(dense))
        digest.update(b";")
    return digest.hexdigest()
