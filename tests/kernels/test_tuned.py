"""Tables of blocks: a row for each capability, kind of dots and width, and no tile larger than factors allow."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from gradoracle.kernels import blocks as shared
from gradoracle.kernels.blocks import Blocks, dots_of, padded_rows, tuned_for
from gradoracle.kernels.lse import blocks as lse
from gradoracle.kernels.lse import tuned as lse_tuned
from gradoracle.kernels.sdpa import blocks as sdpa
from gradoracle.kernels.sdpa import tuned as sdpa_tuned

DOTS = ("16 bit", "ieee", "split")
TABLES = {"sdpa": (sdpa, sdpa_tuned), "lse": (lse, lse_tuned)}


@pytest.mark.parametrize("family", list(TABLES))
def test_every_pass_has_blocks_of_every_kind(family: str) -> None:
    module, tuned = TABLES[family]
    assert set(tuned.TUNED) == set(itertools.product(((8, 0), (9, 0)), DOTS, module.TUNED_FEATURES))
    for row in tuned.TUNED.values():
        assert len(row) == len(tuned.PARTS)
        assert all(each.query & (each.query - 1) == 0 == each.key & (each.key - 1) for each in row)
        assert max(each.query for each in row) <= shared.LARGEST_QUERIES


@pytest.mark.parametrize("family", list(TABLES))
def test_the_choice_is_the_row_of_the_pass(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, tuned = TABLES[family]
    monkeypatch.setattr(module, "interpreted", lambda: False)

    def chosen(dtype: Any, precision: str, width: int, capability: tuple[int, int]) -> Any:
        return tuple(module.choose(part, dtype, precision, width, 100, 100, capability) for part in tuned.PARTS)

    assert chosen(torch.bfloat16, "bf16x6", 64, (9, 0)) == tuned.TUNED[(9, 0), "16 bit", 64]
    assert chosen(torch.float32, "ieee", 33, (12, 0)) == tuned.TUNED[(8, 0), "ieee", 64]
    assert chosen(torch.float32, "bf16x6", 128, (8, 6)) == tuned.TUNED[(8, 0), "split", 128]


def test_kinds_of_dots_and_capabilities() -> None:
    assert [dots_of(torch.float32, each) for each in ("ieee", "bf16x6", "tf32")] == ["ieee", "split", "split"]
    assert dots_of(torch.float16, "tf32") == "16 bit"
    assert [tuned_for(each) for each in ((9, 0), (9, 2), (8, 0), (8, 9), (10, 0), (12, 0))] == [
        (9, 0), (9, 0), (8, 0), (8, 0), (8, 0), (8, 0),
    ]  # fmt: skip


def test_factors_are_padded_to_whole_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    assert padded_rows(33, 70, Blocks(16, 64)) == 48
    assert padded_rows(33, 70, Blocks(4096, 16)) == 4096
    assert padded_rows(300, 7, None) % 256 == 0  # the interpreter's tile of 300 queries is of 512 or 256 rows
    monkeypatch.setattr(shared, "interpreted", lambda: False)
    assert [padded_rows(each, 7, None) for each in (1, 128, 129)] == [128, 128, 256]
