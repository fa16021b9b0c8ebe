"""Any strides of primals, cotangents, tangents and statistics: the same bits as contiguous ones, and no copies."""

from __future__ import annotations

import pytest
import torch
from gradoracle.kernels.sdpa import backward, forward, hvp, jvp, jvp_frozen, sdpa, vjp

from tests.kernels.assertions import assert_same_bits
from tests.kernels.sdpa.reference import DEVICE, problem

DIMS = (2, 2, 33, 21, 16, 16)


def transposed(x):
    """[B, H, R, C] stored as [B, R, H, C], as attention layers give it."""
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def columns_first(x):
    return x.mT.contiguous().mT


def sliced(x):
    b, h, r, c = x.shape
    whole = torch.full((b, h, 2 * r, 3 * c), torch.nan, dtype=x.dtype, device=x.device)
    whole[:, :, ::2, 1::3] = x
    return whole[:, :, ::2, 1::3]


def offset(x):
    whole = torch.full((x.numel() + 3,), torch.nan, dtype=x.dtype, device=x.device)
    whole[3:] = x.flatten()
    return whole[3:].view(x.shape)


def reversed_storage(x):
    """Heads of one buffer in another order, with holes between them."""
    b, h, r, c = x.shape
    whole = torch.full((h, b, r + 1, c + 5), torch.nan, dtype=x.dtype, device=x.device)
    view = whole.permute(1, 0, 2, 3)[:, :, :r, :c]
    view.copy_(x)
    return view


LAYOUTS = [transposed, columns_first, sliced, offset, reversed_storage]


def everything(primals, tangents, g, **options):
    o, m, l = forward(*primals, **options)
    return [
        o, m, l,
        *backward(*primals, g, m, l, **options),
        *jvp(*primals, *tangents, **options),
        *jvp_frozen(*primals, *tangents, m=m, l=l, **options),
        *hvp(*primals, g, *tangents, **options),
    ]  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_a_layout_of_any_one_tensor_changes_no_bit(layout):
    primals, tangents, g = problem(DIMS, torch.float32)
    tensors = [*primals, *tangents, g]
    plain = everything(primals, tangents, g, causal=True)
    for i in range(len(tensors)):
        moved = [layout(x) if j == i else x for j, x in enumerate(tensors)]
        assert torch.equal(moved[i], tensors[i])
        assert_same_bits(plain, everything(moved[:3], moved[3:6], moved[6], causal=True))


@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (3,), (0, 1, 2, 3)], ids=str)
def test_results_of_expanded_inputs_and_cotangents_are_correct(dims):
    primals, tangents, g = problem(DIMS, torch.float32)

    def expanded(x):
        for dim in dims:
            x = x.narrow(dim, 0, 1)
        return x.expand([-1 if i not in dims else size for i, size in enumerate(shape)])

    views = []
    for x in (*primals, *tangents, g):
        shape = x.shape
        views.append(expanded(x))
        assert all(views[-1].stride(dim) == 0 for dim in dims)
    copies = [x.clone(memory_format=torch.contiguous_format) for x in views]
    assert_same_bits(everything(views[:3], views[3:6], views[6]), everything(copies[:3], copies[3:6], copies[6]))


def test_gradients_of_the_expanded_cotangent_of_a_sum_are_correct():
    primals, _, _ = problem(DIMS, torch.float32)
    leaves = [x.clone().requires_grad_() for x in primals]
    sdpa(*leaves).sum().backward()
    assert_same_bits([leaf.grad for leaf in leaves], vjp(*primals, torch.ones(2, 2, 33, 16, device=DEVICE)))


def test_statistics_of_any_strides():
    primals, tangents, g = problem(DIMS, torch.float32)
    _, m, l = forward(*primals)
    moved = [torch.stack([x, x * torch.nan], -1).transpose(0, 1)[..., 0].transpose(0, 1) for x in (m, l)]
    assert not moved[0].is_contiguous()
    assert_same_bits(backward(*primals, g, m, l), backward(*primals, g, *moved))
    assert_same_bits(jvp(*primals, *tangents, m=m, l=l), jvp(*primals, *tangents, m=moved[0], l=moved[1]))


def test_a_layout_costs_no_copy(monkeypatch):
    """Whatever is allocated is an output or a row statistic: [B, H, rows, columns] of the outputs, or [B, H, T]."""
    primals, tangents, g = problem(DIMS, torch.float32)
    moved = [sliced(x) for x in (*primals, *tangents, g)]
    seen: list[tuple[int, ...]] = []

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            result = function(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor) and not function.is_view:
                seen.append((str(function), *result.shape))
            return result

    with Recorder():
        forward(*moved[:3])
        vjp(*moved[:3], moved[6])
        jvp(*moved[:3], *moved[3:6])
        hvp(*moved[:3], moved[6], *moved[3:6])
        jvp(*moved[:3], moved[3], None, None)
    copying = [
        name for name, *_ in seen if any(word in name for word in ("clone", "copy", "contiguous", "cat", "zeros_like"))
    ]
    assert copying == []
    allocated = [shape for name, *shape in seen if "empty" in name]
    # forward: o; vjp: o and three gradients; jvp: o and its tangent; hvp: three; jvp: o and its tangent
    assert sum(len(shape) == 4 for shape in allocated) == 1 + 4 + 2 + 3 + 2


def test_nothing_given_is_written_to():
    primals, tangents, g = problem(DIMS, torch.float32)
    _, m, l = forward(*primals)
    given = [*primals, *tangents, g, m, l]
    before = [x.clone() for x in given]
    everything(primals, tangents, g, causal=True)
    backward(*primals, g, m, l)
    jvp_frozen(*primals, *tangents, m=m, l=l)
    assert_same_bits(given, before)


@pytest.mark.parametrize("needs", [tuple(bool(bits >> i & 1) for i in range(3)) for bits in range(1, 8)], ids=str)
def test_every_subset_of_gradients_has_the_same_bits(needs):
    primals, tangents, g = problem(DIMS, torch.float32)
    for alone, together in (
        (vjp(*primals, g, needs=needs), vjp(*primals, g)),
        (hvp(*primals, g, *tangents, needs=needs), hvp(*primals, g, *tangents)),
    ):
        for need, mine, theirs in zip(needs, alone, together, strict=True):
            assert (mine is None) != need
            assert mine is None or torch.equal(mine, theirs)


def test_only_the_gradients_asked_for_are_launched(monkeypatch):
    from gradoracle.kernels.sdpa import gradients, hessian, moments

    primals, tangents, g = problem(DIMS, torch.float32)
    launched: list[str] = []
    for module in (gradients, hessian, moments):
        monkeypatch.setattr(module, "launch", lambda kernel, *_, **__: launched.append(kernel.__name__))
    leaf = primals[2].clone().requires_grad_()
    sdpa(*primals[:2], leaf).backward(g)
    assert launched == ["moments_kernel", "key_kernel"]  # the former only for the factors of each row
    launched.clear()
    leaf = primals[0].clone().requires_grad_()
    sdpa(leaf, *primals[1:]).backward(g)
    assert launched == ["query_kernel"]  # which makes them from the output
    launched.clear()
    hvp(*primals, g, *tangents, needs=(False, False, True))
    assert launched == ["moments_kernel", "key_hvp_kernel"]
