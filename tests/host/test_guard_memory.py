"""Poisoned memory: unwritten elements show, writes beyond a tensor show, and nothing else does."""

from __future__ import annotations

import pytest
import torch

from gradoracle.host.guard_memory import BAND, poisoned
from gradoracle.model.errors import out_of_memory
from gradoracle.model.tensor_bits import is_poison

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.int64)


@pytest.mark.parametrize("dtype", DTYPES)
def test_new_memory_holds_the_poison_until_it_is_written(dtype):
    with poisoned():
        tensors = [
            torch.empty(3, 5, dtype=dtype),
            torch.empty((3, 5), dtype=dtype),
            torch.empty_like(torch.zeros(5, 3, dtype=dtype).t()),
            torch.empty_strided((3, 5), (1, 3), dtype=dtype),
            torch.zeros(1, dtype=dtype).new_empty((3, 5)),
        ]
    for tensor in tensors:
        assert tensor.shape == (3, 5)
        assert is_poison(tensor).all()
        tensor.fill_(1)
        assert not is_poison(tensor).any()
    assert tensors[2].stride() == (1, 3)


def test_ordinary_nan_is_no_poison():
    values = torch.tensor([float("nan"), 0.0]) / 0.0
    assert not is_poison(values).any()
    assert not is_poison(torch.full((4,), float("nan"), dtype=torch.bfloat16)).any()


def test_a_write_beside_a_tensor_is_told_with_its_shape():
    with poisoned() as memory:
        tensor = torch.empty(7, 3)
        tensor.fill_(1)
    assert memory.overwritten() == []
    outside = torch.as_strided(tensor, (1,), (1,), tensor.storage_offset() + 21)
    outside.fill_(0.0)
    (told,) = memory.overwritten()
    assert "(7, 3)" in told
    assert "1 elements after" in told
    torch.as_strided(tensor, (2,), (1,), BAND - 2).fill_(0.0)
    assert any("2 elements before" in sentence for sentence in memory.overwritten())


def test_the_patches_end_with_the_block_also_on_error():
    plain = torch.empty
    with pytest.raises(ZeroDivisionError), poisoned():
        assert torch.empty is not plain
        _ = 1 / 0
    assert torch.empty is plain


def test_gradients_flow_through_poisoned_allocations():
    with poisoned():
        x = torch.empty(4, requires_grad=True)
        with torch.no_grad():
            x.copy_(torch.arange(4.0))
        (x * x).sum().backward()
    assert torch.equal(x.grad, 2 * torch.arange(4.0))


def test_tangents_flow_through_poisoned_allocations():
    def written(x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        y[:] = 3 * x
        return y

    with poisoned():
        value, tangent = torch.func.jvp(written, (torch.ones(4),), (torch.arange(4.0),))
    assert torch.equal(value, torch.full((4,), 3.0)) and torch.equal(tangent, 3 * torch.arange(4.0))


@pytest.mark.parametrize(
    ("error", "lacking"),
    [
        (torch.OutOfMemoryError("of a GPU"), True),
        (MemoryError("Unable to allocate 47.7 GiB for an array"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"), True),
        (RuntimeError("shape mismatch"), False),
        (ValueError("T must be a multiple of 16"), False),
    ],
)
def test_a_lack_of_memory_is_told_from_other_errors(error, lacking):
    assert out_of_memory(error) is lacking


def test_shapes_that_torch_compile_traces_have_no_memory() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with poisoned() as memory, FakeTensorMode():
        traced = torch.empty(3, 4), torch.empty_strided((2, 2), (1, 2))
    assert [t.stride() for t in traced] == [(4, 1), (1, 2)] and memory.overwritten() == []


def test_tensors_without_memory_have_no_bands() -> None:
    with poisoned() as memory:
        assert torch.empty(3, device="meta").is_meta and torch.empty_strided((2, 2), (1, 2), device="meta").is_meta
    assert memory.overwritten() == []
