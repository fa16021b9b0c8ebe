"""Programs in step give the bits of programs run one after the other, and what parts them is undone."""

from __future__ import annotations

import interpreted
import numpy as np
import pytest
import torch
from places import load

from gradoracle.host import interpreter

pytestmark = interpreted.NEEDED
interpreter.activate()
from triton.runtime.errors import InterpreterError  # noqa: E402

from gradoracle.host.interpreter import lockstep, reduction  # noqa: E402

PROGRAMS = 7


kernels = load("host.interpreter.lockstep_kernels")


@pytest.fixture
def steps(monkeypatch):
    """How many programs each group had that was started."""
    sizes: list[int] = []

    class Counted(lockstep.Group):
        def __init__(self, programs):
            sizes.append(len(programs))
            super().__init__(programs)

    monkeypatch.setattr(lockstep, "Group", Counted)
    monkeypatch.setattr(lockstep, "_alone", set())
    return sizes


def both(monkeypatch, launch, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What a launch makes of `z` with programs in step, and with each alone."""
    together, alone = z.clone(), z.clone()
    launch(together)
    monkeypatch.setattr(lockstep, "MOST_PROGRAMS", 1)
    launch(alone)
    return together, alone


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.int32), b.view(torch.int32))


OPERATIONS = (
    "none", "sum rows", "sum columns", "sum all", "kept", "largest", "scan", "transposed", "reshaped", "expanded",
    "joined", "dot", "half dot", "chosen", "scalars", "narrow",
)  # fmt: skip


@pytest.mark.parametrize("operation", OPERATIONS)
def test_programs_in_step_have_the_bits_of_programs_alone(operation, monkeypatch, steps):
    x = torch.randn(PROGRAMS, 13, 11, generator=torch.Generator().manual_seed(3))
    launch = lambda z: kernels.shapes[(PROGRAMS,)](x, z, 13, 11, operation, 16, 16)  # noqa: E731
    together, alone = both(monkeypatch, launch, torch.full((PROGRAMS, 16, 16), torch.nan))
    assert steps == [PROGRAMS]
    assert same_bits(together, alone) and not together.isnan().any()
    if operation != "none":
        assert not same_bits(together[0], together[1])


@pytest.mark.parametrize("programs", [1, 2, 31, 32, 33, 70])
def test_a_grid_of_any_size_runs_each_program_once(programs, monkeypatch, steps):
    x = torch.randn(programs, 4, 4)
    z = torch.zeros(programs, 4, 4)
    kernels.shapes[(programs,)](x, z, 4, 4, "none", 4, 4)
    assert torch.equal(x, z)
    assert max(steps[:1], default=1) < 2 * lockstep.MOST_PROGRAMS and sum(steps) in (programs, programs - 1)


@pytest.mark.parametrize(("size", "expected"), [(4, [32, 168]), (16, [32, 168]), (64, [32, 32, 32, 32, 32, 40])])
def test_more_programs_run_in_step_where_their_blocks_are_small(size, expected, steps):
    x, z = torch.randn(200, size, size), torch.zeros(200, size, size)
    kernels.shapes[(200,)](x, z, size, size, "none", size, size)
    assert torch.equal(x, z) and steps == expected


def test_no_group_is_more_than_eight_times_as_large_as_the_one_before(steps):
    z = torch.zeros(5000, dtype=torch.int32)
    kernels.grid[(5000, 1, 1)](z, 5000, 1)
    assert torch.equal(z, (torch.arange(5000) + 1000).int()) and steps == [32, 256, 2048, 2664]


def test_programs_whose_blocks_turn_out_large_run_again_in_small_groups(monkeypatch, steps):
    """The first 288 programs stop before their large blocks; those after them do not."""
    x = torch.arange(900.0)
    together, alone = both(monkeypatch, lambda z: kernels.late[(900,)](x, z, 288, 4096), torch.zeros(900))
    assert same_bits(together, alone) and torch.equal(together[288:], 4097 * x[288:])
    assert steps[:2] == [32, 256] and steps[2] > lockstep.MOST_PARTED >= max(steps[3:])


def test_a_launch_that_parts_does_so_once(monkeypatch, steps):
    """Sixteen numbers of steps, 35 programs each: two groups show that it parts, the third is all of them."""
    x = torch.arange(16.0) ** 2  # whose sums are exact
    together, alone = both(monkeypatch, lambda z: kernels.rests[(560,)](x, z, 16), torch.zeros(560))
    assert same_bits(together, alone) and torch.equal(together, x.cumsum(0).repeat(35))
    assert steps == [32, 256, 560, *[35] * 16]


def test_programs_know_their_place_in_a_grid_of_three_dims(steps):
    z = torch.zeros(2, 3, 5, dtype=torch.int32)
    kernels.grid[(5, 3, 2)](z, 5, 3)
    x, y, depth = torch.arange(5), torch.arange(3)[:, None], torch.arange(2)[:, None, None]
    assert torch.equal(z, (x + 10 * y + 100 * depth + 3000).int()) and steps == [30]


def test_programs_part_at_the_bound_of_a_loop(monkeypatch, steps):
    x = torch.randn(PROGRAMS)
    launch = lambda z: kernels.rests[(PROGRAMS,)](x, z, PROGRAMS)  # noqa: E731
    together, alone = both(monkeypatch, launch, torch.zeros(PROGRAMS))
    assert same_bits(together, alone) and steps == [PROGRAMS]
    assert torch.allclose(together, x.cumsum(0))


def test_stores_before_programs_part_are_taken_back(monkeypatch, steps):
    x = torch.tensor([[-1.0, -2.0], [1.0, 8.0], [0.5, 0.25], [-3.0, -4.0], [64.0, 64.0]])
    together, alone = both(monkeypatch, lambda z: kernels.branches[(5,)](x, z, 2), torch.ones(5, 2))
    assert same_bits(together, alone) and len(steps) > 1
    assert together[:, 0].tolist() == [2, 3 + 40, 3, 2, 3 + 70]


def test_stores_that_are_not_taken_back_would_show(monkeypatch, steps):
    monkeypatch.setattr(lockstep.Group, "take_back", lambda self: None)
    z = torch.ones(2, 2)
    kernels.branches[(2,)](torch.tensor([[-1.0, -2.0], [1.0, 0.0]]), z, 2)
    assert z[:, 0].tolist() != [2, 3]


def test_atomics_run_one_by_one_and_the_kernel_is_remembered(monkeypatch, steps):
    x = torch.randint(-8, 9, (PROGRAMS, 4)).float()  # whose sum is exact in any order
    launch = lambda z: kernels.atomics[(PROGRAMS,)](x, z, 4)  # noqa: E731
    first = torch.ones(PROGRAMS, 4)
    launch(first)
    assert steps == [PROGRAMS]
    second, alone = both(monkeypatch, launch, torch.ones(PROGRAMS, 4))
    assert steps == [PROGRAMS]
    assert same_bits(first, second) and same_bits(second, alone)
    assert first[0, 0] == 2 + x.sum() and bool((first[1:] == 2).all())


def test_blocks_of_more_axes_run_one_by_one(monkeypatch, steps):
    x, z = torch.randn(3, 64), torch.zeros(3, 64)
    kernels.many_axes[(3,)](x, z)
    assert torch.equal(z, x.view(3, 2, 2, 2, 2, 2, 2).permute(0, 6, 5, 4, 3, 2, 1).reshape(3, 64)) and steps == [3]


def test_of_stores_to_one_place_the_last_program_counts(monkeypatch, steps):
    z = torch.full((9,), -1, dtype=torch.int32)
    together, alone = both(monkeypatch, lambda z: kernels.one_place[(5,)](z, 8), z)
    assert torch.equal(together, alone) and together.tolist() == [4, 5, 6, 7, 8, 9, 10, -1, 4] and steps == [5]


def test_an_update_that_a_gpu_may_lose_is_lost(monkeypatch, steps):
    z = torch.zeros(1)
    kernels.lost_update[(5,)](z)
    assert z.item() == 1 and steps == [5]


def test_a_kernel_that_raises_leaves_no_group_behind(steps):
    with pytest.raises(InterpreterError, match="incompatible"):
        kernels.raising[(3,)](torch.zeros(1), torch.zeros(3))
    assert lockstep.group() is None


def test_shipped_kernels_have_the_bits_of_programs_alone(monkeypatch, steps):
    from gradoracle.kernels.lightning import BLOCKS, lightning
    from gradoracle.kernels.lse import lse
    from gradoracle.kernels.sdpa import sdpa

    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 2, 100, 20, dtype=torch.bfloat16).requires_grad_() for _ in range(3))

    def run(call):
        o = call()
        inputs = [x for x in (q, k, v) if x.requires_grad]
        grads = torch.autograd.grad(o, inputs, torch.ones_like(o), allow_unused=True)
        return torch.cat([t.detach().float().flatten() for t in (o, *grads) if t is not None])

    calls = [
        lambda: lightning(q, k, v, blocks=BLOCKS["narrow"]),
        lambda: sdpa(q, k, v, causal=True),
        lambda: lse(q, k, causal=True, softcap=3.0),
    ]
    together = [run(call) for call in calls]
    assert max(steps) > 1
    monkeypatch.setattr(lockstep, "MOST_PROGRAMS", 1)
    assert all(same_bits(a, run(call)) for a, call in zip(together, calls, strict=True))


@pytest.mark.parametrize(
    ("shape", "axis"), [((4096, 16, 4), 1), ((64, 3, 16), 1), ((15, 8, 32, 4), 2), ((64, 63, 1), 1), ((8, 16, 4), 1)]
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("op", [np.add, np.fmax, np.fmin])
def test_a_reduction_in_slices_has_the_bits_of_numpy_s(
    shape: tuple[int, ...], axis: int, dtype: str, op: np.ufunc
) -> None:
    draw = np.random.default_rng(0)
    data = draw.standard_normal(shape).astype(dtype)
    if op is np.add:  # which zero is the larger one numpy leaves open
        data[draw.random(shape) < 0.1] = -0.0
    data[draw.random(shape) < 0.1] = -np.inf
    data[draw.random(shape) < 0.1] = 0.0
    if op is not np.add:  # a sum's NaN has whatever sign
        data[draw.random(shape) < 0.1] = np.nan
    for keep in (False, True):
        found = reduction._reduced(op, data, axis, keep)
        assert found.tobytes() == op.reduce(data, axis=axis, keepdims=keep).tobytes()
        assert found.shape == op.reduce(data, axis=axis, keepdims=keep).shape
