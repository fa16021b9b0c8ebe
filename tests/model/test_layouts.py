"""Layouts: same values, the strides that are promised, poison all round."""

from __future__ import annotations

import itertools

import pytest
import torch

from gradoracle.model.layouts import LAYOUTS, aligned, apply, expanded_dim, moved, pointwise, storage_of

SHAPES = [(), (1,), (5,), (3, 4), (1, 4), (2, 3, 4), (2, 1, 4, 5), (2, 3, 4, 5)]
KEEPING = [name for name, layout in LAYOUTS.items() if not layout.repeats]


def numbered(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.arange(1, torch.Size(shape).numel() + 1).reshape(shape).to(dtype)


@pytest.mark.parametrize(("shape", "name"), [*itertools.product(SHAPES, KEEPING)])
def test_values_are_kept(shape: tuple[int, ...], name: str) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        tensor = numbered(shape, dtype)
        laid = apply(tensor, name)
        assert laid.dtype == dtype and torch.equal(laid, tensor)
        assert laid.data_ptr() != tensor.data_ptr()


@pytest.mark.parametrize(("shape", "name"), [*itertools.product(SHAPES, LAYOUTS)])
def test_fits_says_whether_it_differs_from_contiguous(shape: tuple[int, ...], name: str) -> None:
    laid = apply(numbered(shape), name)
    plain = laid.stride() == numbered(shape).stride() and laid.storage_offset() == 0
    assert plain is (name == "contiguous" or not LAYOUTS[name].fits(shape))


@pytest.mark.parametrize(("name", "strides"), [
    ("contiguous", (60, 20, 5, 1)), ("transposed", (60, 20, 1, 4)), ("permuted", (60, 5, 15, 1)),
    ("sliced", (336, 56, 8, 1)), ("strided", (120, 40, 10, 2)), ("offset", (60, 20, 5, 1)),
    ("expanded", (0, 20, 5, 1)), ("broadcast", (0, 0, 0, 0)),
])  # fmt: skip
def test_strides(name: str, strides: tuple[int, ...]) -> None:
    assert apply(numbered((2, 3, 4, 5)), name).stride() == strides


@pytest.mark.parametrize("name", ["sliced", "strided", "offset"])
def test_what_lies_around_is_poison(name: str) -> None:
    laid = apply(numbered((2, 3, 4, 5)), name)
    memory = storage_of(laid)
    assert memory.isnan().sum() == memory.numel() - laid.numel() > 0
    ints = apply(numbered((2, 3), torch.int64), name)
    assert (storage_of(ints) < -(2**60)).sum() == storage_of(ints).numel() - 6 > 0
    if name != "strided":
        ends = memory.isnan()
        assert ends[0] and ends[-1]


def test_repeating_layouts_keep_the_first_element_along_what_they_expand() -> None:
    tensor = numbered((1, 3, 4))
    assert expanded_dim((1, 3, 4)) == 1
    assert torch.equal(apply(tensor, "expanded"), tensor[:, :1].expand(1, 3, 4))
    assert torch.equal(apply(tensor, "broadcast"), torch.ones(1, 3, 4))
    with pytest.raises(ValueError, match="no dim of more than one element"):
        expanded_dim((1, 1))


@pytest.mark.parametrize("name", LAYOUTS)
def test_moving_keeps_strides_offset_and_poison(name: str) -> None:
    laid = apply(numbered((2, 3, 4, 5)), name)
    copy = moved(laid, "cpu")
    assert (copy.stride(), copy.storage_offset()) == (laid.stride(), laid.storage_offset())
    assert torch.equal(storage_of(copy).nan_to_num(-1.0), storage_of(laid).nan_to_num(-1.0))


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_change_of_every_element_keeps_strides_and_offset(name: str) -> None:
    laid = apply(numbered((2, 3, 4, 5)), name)
    before = laid.clone()
    doubled = pointwise(laid, lambda storage: 2 * storage)
    assert (doubled.stride(), doubled.storage_offset()) == (laid.stride(), laid.storage_offset())
    assert torch.equal(doubled, 2 * before) and torch.equal(laid, before)


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_aligned_tensor_is_contiguous_in_storage_of_its_own(name: str) -> None:
    laid = apply(numbered((2, 3, 4, 5)), name)
    found = aligned(laid)
    assert torch.equal(found, laid) and found.is_contiguous() and found.data_ptr() % 16 == 0
    assert found.untyped_storage().data_ptr() != laid.untyped_storage().data_ptr()


def test_unknown_layout() -> None:
    with pytest.raises(ValueError, match="layout 'zigzag' is unknown; expected one of contiguous, transposed"):
        apply(numbered((2, 2)), "zigzag")
