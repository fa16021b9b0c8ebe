"""Copies of tensors are in memory of their own, and whatever is written to them shows, also between their elements."""

from __future__ import annotations

import torch

from gradoracle.model.tensor_bits import addresses, changes, copies

FAR = 1 << 31


def laid_out() -> dict[str, torch.Tensor]:
    storage = torch.arange(24.0)
    shared = storage.as_strided((2, 2), (4, 1), 2)
    return {"x": storage.as_strided((3, 4), (8, 2)), "w": torch.arange(5), "b": torch.ones(()).expand(4), "y": shared}


def test_copies_have_the_layouts_of_the_tensors_and_share_what_these_share() -> None:
    tensors = laid_out()
    own = copies(tensors)
    for name, tensor in tensors.items():
        mine = own[name]
        assert torch.equal(mine, tensor) and mine.dtype is tensor.dtype
        assert (mine.stride(), mine.storage_offset()) == (tensor.stride(), tensor.storage_offset())
        assert mine.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    assert own["x"].untyped_storage().data_ptr() == own["y"].untyped_storage().data_ptr()
    assert changes(tensors, own) == {}


def test_what_was_written_is_known_by_its_elements() -> None:
    tensors = laid_out()
    own = copies(tensors)
    own["x"][1, 2] = -1.0
    own["w"].copy_(own["w"].flip(0))
    found = changes(tensors, own)
    assert found["x"].elements.nonzero().tolist() == [[1, 2]]
    assert int(found["w"].elements.sum()) == 4 and "b" not in found
    assert torch.equal(tensors["w"], torch.arange(5)), "the tensors themselves are as they were"


def test_a_write_between_the_elements_is_known_by_its_bytes() -> None:
    tensors = {"x": laid_out()["x"]}
    own = copies(tensors)
    own["x"].as_strided((24,), (1,), 0)[1] = torch.nan
    (change,) = changes(tensors, own).values()
    assert not change.elements.any() and 0 < change.around <= 4


def test_an_exchange_is_a_change() -> None:
    tensors = {"x": torch.arange(6.0)}
    own = copies(tensors)
    own["x"].copy_(own["x"].flip(0))
    assert changes(tensors, own)["x"].elements.all()


def test_of_a_tensor_that_is_mostly_gaps_only_the_elements_are_copied() -> None:
    far = addresses(FAR + 8, torch.float32).as_strided((2, 3), (FAR, 1), 0).copy_(torch.arange(6.0).view(2, 3))
    own = copies({"x": far})
    assert torch.equal(own["x"], far) and own["x"].stride() == far.stride() and not changes({"x": far}, own)
    own["x"][1, 2] = 0.0
    assert changes({"x": far}, own)["x"].elements.nonzero().tolist() == [[1, 2]]
