"""Samples of lightning's properties: what they compare bit for bit lies in memory alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from gradoracle.model.verdict import Status
from tests.properties.judging import judge
from tests.properties.lightning.linear_attention import ORACLE, kernel

LINE = "case:1 lightning cpu float32 B=2 H=2 N=21 D=6 Dv=5 tq~normal{0} tk~normal{0} tv~normal{0} seed=11"
RIGHT = kernel()


def rounds_by_address(*inputs: Tensor, **options: Any) -> Any:
    """The right kernel, which rounds in another way where an input is not aligned to 16 bytes, as compiled code may."""
    return RIGHT.call(*(t if t.data_ptr() % 16 == 0 else t * 3.0 / 3.0 for t in inputs), **options)


def test_an_input_is_exchanged_for_one_of_its_alignment() -> None:
    subject = replace(RIGHT, call=rounds_by_address)
    for layout in ("", "/offset"):
        found = judge("no_gradient_depends_on_its_own_input", LINE.format(layout), subject, ORACLE)
        assert found.status is Status.HOLDS, layout
