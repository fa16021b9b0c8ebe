"""What the semi-CRF kernels refuse, which layouts they take, and how much memory they allocate."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from gradoracle.kernels import semicrf as kernels
from gradoracle.kernels.semicrf.guardrails import check
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from tests.kernels.assertions import assert_same_bits
from tests.kernels.semicrf.test_kernel import call, computed
from tests.kernels.semicrf.test_reference import Scores, draw


def given(**changed: Any) -> dict[str, Any]:
    """Return arguments of B = 2, T = 7, K = 3, C = 2, some of them changed."""
    arguments = {
        "cum_scores": torch.zeros(2, 8, 2),
        "transition": torch.zeros(2, 2),
        "duration_bias": torch.zeros(3, 2),
        "lengths": torch.tensor([7, 4]),
    }
    return arguments | changed


BAD = {
    "cum_scores is no tensor": ({"cum_scores": [1.0]}, "cum_scores is a list: expected a torch.Tensor"),
    "cum_scores of rank 2": (
        {"cum_scores": torch.zeros(8, 2)},
        r"cum_scores has rank 2 \(shape \(8, 2\)\): expected rank 3",
    ),
    "float64": ({"cum_scores": torch.zeros(2, 8, 2).double()}, "cum_scores has dtype torch.float64: expected float32"),
    "T = 0": (
        {"cum_scores": torch.zeros(2, 1, 2)},
        r"cum_scores has T \+ 1 = 1 .*: expected T \+ 1 from 2, a leading 0",
    ),
    "C = 0": ({"cum_scores": torch.zeros(2, 8, 0)}, r"cum_scores has C = 0 .*: expected C from 1 to 64"),
    "C = 65": ({"cum_scores": torch.zeros(2, 8, 65)}, r"cum_scores has C = 65 .*: expected C from 1 to 64"),
    "K = 0": ({"duration_bias": torch.zeros(0, 2)}, r"duration_bias has K = 0 .*: expected K from 1 to 1024"),
    "K = 1025": ({"duration_bias": torch.zeros(1025, 2)}, r"duration_bias has K = 1025 .*: expected K from 1 to 1024"),
    "durations of other labels": (
        {"duration_bias": torch.zeros(3, 4)},
        r"duration_bias has shape \(3, 4\): expected \[K, C\] = \(3, 2\)",
    ),
    "a transition of other labels": (
        {"transition": torch.zeros(2, 3)},
        r"transition has shape \(2, 3\): expected \[C, C\] or \[K, C, C\] = \(2, 2\)",
    ),
    "a transition of other durations": (
        {"transition": torch.zeros(4, 2, 2)},
        r"transition has shape \(4, 2, 2\): expected \[C, C\] or \[K, C, C\] = \(3, 2, 2\)",
    ),
    "a transition of rank 1": (
        {"transition": torch.zeros(2)},
        r"transition has rank 1 .*: expected rank 2, \[C, C\], or 3",
    ),
    "a transition of another dtype": (
        {"transition": torch.zeros(2, 2).half()},
        "transition has dtype torch.float16: expected that of cum_scores, torch.float32",
    ),
    "T + 1 projections": (
        {"proj_start": torch.zeros(2, 8, 2)},
        r"proj_start has shape \(2, 8, 2\): expected \[B, T, C\], where cum_scores is \[B, T \+ 1, C\], = \(2, 7, 2\)",
    ),
    "projections of another dtype": (
        {"proj_end": torch.zeros(2, 7, 2).bfloat16()},
        "proj_end has dtype torch.bfloat16: expected that of cum_scores",
    ),
    "lengths of float": ({"lengths": torch.ones(2)}, "lengths has dtype torch.float32: expected int32 or int64"),
    "lengths of another batch": (
        {"lengths": torch.tensor([7])},
        r"lengths has shape \(1,\): expected \[B\] = \(2,\)",
    ),
    "lengths of rank 2": ({"lengths": torch.tensor([[7, 4]])}, r"lengths has rank 2 .*: expected rank 1"),
    "a length above T": ({"lengths": torch.tensor([7, 8])}, r"lengths\[1\] is 8: expected lengths from 0 to T = 7"),
    "a negative length": ({"lengths": torch.tensor([-1, 3])}, r"lengths\[0\] is -1: expected lengths from 0 to T = 7"),
    "another path": ({"path": "fast"}, "path is 'fast': expected 'auto', 'sequential' or 'parallel'"),
    "a parallel path for many states": (
        {"path": "parallel", "duration_bias": torch.zeros(129, 2)},
        "path is 'parallel' where K C = 258: expected 'sequential', or K C at most 256",
    ),
    "blocks is a tuple": ({"blocks": (4, 64)}, r"blocks is \(4, 64\): expected a semicrf Blocks or None"),
    "a chunk of 0": ({"blocks": kernels.Blocks(0, 64)}, "blocks.chunk is 0: expected a number of positions from 1"),
    "a tile of 48": (
        {"blocks": kernels.Blocks(4, 48)},
        "blocks.tile is 48: expected a power of two from 16 to 1048576",
    ),
    "three warps": ({"blocks": kernels.Blocks(4, 64, num_warps=3)}, "blocks.num_warps is 3: expected 1, 2, 4, 8 or 16"),
    "validate is a word": ({"validate": "yes"}, "validate is 'yes': expected True or False"),
    "a NaN, validated": (
        {"cum_scores": torch.full((2, 8, 2), torch.nan), "validate": True},
        r"cum_scores\[0, 0, 0\] is nan: expected finite numbers",
    ),
    "-inf in cum_scores, validated": (
        {"cum_scores": torch.full((2, 8, 2), -torch.inf), "validate": True},
        r"cum_scores\[0, 0, 0\] is -inf: expected finite numbers",
    ),
    "+inf, validated": (
        {"transition": torch.full((2, 2), torch.inf), "validate": True},
        r"transition\[0, 0\] is inf: expected finite numbers, or -inf",
    ),
    "a NaN in a projection, validated": (
        {"proj_end": torch.zeros(2, 7, 2).index_fill(1, torch.tensor(3), torch.nan), "validate": True},
        r"proj_end\[0, 3, 0\] is nan: expected finite numbers, or -inf",
    ),
    "projections of another batch": (
        {"proj_end": torch.zeros(1, 8, 2)},
        r"proj_end has shape \(1, 8, 2\): expected .* = \(2, 7, 2\)$",
    ),
    "a projection is no tensor": ({"proj_start": 0.0}, "proj_start is a float: expected a torch.Tensor"),
    "a length far above T": (
        {"lengths": torch.tensor([7, 9])},
        r"lengths\[1\] is 9: expected lengths from 0 to T = 7$",
    ),
    "lengths of the T that cum_scores has": (
        {"lengths": torch.tensor([7, 8]), "validate": True},
        r"lengths\[1\] is 8: expected lengths from 0 to T = 7; if T is 8, "
        "cum_scores of 8 positions lacks its leading 0",
    ),
    "cum_scores of T positions beside projections": (
        {"cum_scores": torch.zeros(2, 7, 2), "lengths": torch.tensor([6, 4]), "proj_end": torch.zeros(2, 7, 2)},
        r"proj_end has shape \(2, 7, 2\): expected .* = \(2, 6, 2\); if T is 7, cum_scores of 7 positions lacks its",
    ),
}


@pytest.mark.parametrize("function", ["semicrf", "forward_backward", "marginals"])
@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_refused_in_one_sentence(what: str, function: str) -> None:
    changed, message = BAD[what]
    with pytest.raises(ValueError, match=message) as error:
        getattr(kernels, function)(**given(**changed))
    assert "\n" not in str(error.value)


def test_what_is_allowed_is_not_refused() -> None:
    forbidden = torch.full((2, 2), -torch.inf)
    z = kernels.semicrf(**given(transition=forbidden, validate=True))
    assert z.tolist() == [-torch.inf, -torch.inf]
    for dtype in (torch.int32, torch.int64):
        both = torch.stack((torch.tensor([7, 4], dtype=dtype),) * 2, 1)
        assert torch.equal(kernels.semicrf(**given(lengths=both[:, 0])), kernels.semicrf(**given()))


def test_a_cotangent_of_another_shape_is_refused() -> None:
    from gradoracle.kernels.semicrf.guardrails import check_cotangent

    problem = check(*given().values())
    with pytest.raises(ValueError, match=r"g has shape \(3,\): expected \[B\] = \(2,\)"):
        check_cotangent(problem, torch.zeros(3))


def layouts(x: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the same numbers in other strides."""
    wide = torch.full((*x.shape[:-1], x.shape[-1] * 2), torch.nan)
    wide[..., ::2] = x
    shifted = torch.full((x.numel() + 3,), torch.nan)
    shifted[3:] = x.flatten()
    turned = x.transpose(0, -1).contiguous().transpose(0, -1)
    return {"every other": wide[..., ::2], "transposed": turned, "offset": shifted[3:].view(x.shape)}


@pytest.mark.parametrize("layout", ["every other", "transposed", "offset"])
@pytest.mark.parametrize("path", kernels.PATHS)
def test_any_strides_give_the_same_bits(path: str, layout: str) -> None:
    scores = draw(3, 12, 3, 2, per_duration=True)
    other = Scores(*(layouts(x)[layout] for x in scores[:5]), scores.lengths)
    assert_same_bits(computed(scores, path=path), computed(other, path=path))


def test_expanded_inputs_and_cotangents() -> None:
    scores = draw(3, 12, 3, 2, lengths=(12, 12, 12))
    one = Scores(*(x[:1] if x.dim() == 3 else x for x in scores[:5]), scores.lengths)
    expanded = Scores(*(x.expand(3, -1, -1) if x.dim() == 3 else x for x in one[:5]), scores.lengths)
    dense = Scores(*(x.contiguous() for x in expanded[:5]), scores.lengths)
    assert_same_bits(computed(expanded), computed(dense))
    leaves = [x.requires_grad_() for x in scores.leaves()]
    z = call(scores)
    found = torch.autograd.grad(z, leaves, torch.tensor(0.5).expand(3), retain_graph=True)
    assert_same_bits(found, torch.autograd.grad(z, leaves, torch.full((3,), 0.5)))


class Peak(TorchDispatchMode):
    """Counts the bytes of storages made since it began: those alive, and the most that ever were."""

    def __init__(self) -> None:
        super().__init__()
        self.alive, self.most = 0, 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        held = {
            each.untyped_storage()._cdata for each in tree_flatten((args, kwargs))[0] if isinstance(each, torch.Tensor)
        }
        for each in tree_flatten(result)[0]:
            if isinstance(each, torch.Tensor):
                storage = each.untyped_storage()
                if storage._cdata not in self._known and storage._cdata not in held:
                    self._add(storage)
        return result

    def _add(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._known.add(key)
        self.alive += size
        self.most = max(self.most, self.alive)

        def gone() -> None:
            self._known.discard(key)
            self.alive -= size

        weakref.finalize(storage, gone)


MEMORY = [
    ("sequential", 2, 2000, 3, 2, False, None),
    ("sequential", 1, 120, 20, 9, False, kernels.Blocks(40, 64)),
    ("sequential", 2, 150, 6, 5, True, None),
    ("parallel", 2, 2000, 3, 2, False, None),
    ("parallel", 1, 700, 8, 4, True, None),
]


@pytest.mark.parametrize(("path", "B", "T", "K", "C", "per_duration", "blocks"), MEMORY)
def test_memory_is_within_the_formula(
    path: str, B: int, T: int, K: int, C: int, per_duration: bool, blocks: kernels.Blocks | None
) -> None:
    scores = draw(B, T, K, C, per_duration=per_duration, projected=False)
    cum, transition, duration, start, end, lengths = scores
    problem = check(cum, transition, duration, lengths, start, end, path, blocks)
    sizes = {"batch": B, "positions": T, "durations": K, "labels": C, "per_duration": per_duration}
    formula = kernels.workspace_bytes(path=path, chunk=problem.chunk, **sizes)
    results = sum(x.nbytes for x in scores.leaves()) + 3 * 8 * B
    leaves = [x.requires_grad_() for x in scores.leaves()]
    gc.collect()
    with Peak() as peak:
        torch.autograd.grad(call(scores, path=path, blocks=blocks).sum(), leaves)
    assert peak.most <= formula + results, (peak.most, formula, results)
    assert peak.most >= formula / 20, "a formula that says nothing"


def test_the_sequential_memory_is_of_the_root_of_t_k() -> None:
    def bytes_of(positions: int, durations: int) -> int:
        chunk = max(durations, round((positions * durations) ** 0.5))
        sizes = {"batch": 1, "positions": positions, "durations": durations, "labels": 8, "chunk": chunk}
        return kernels.workspace_bytes(path="sequential", **sizes)

    for durations in (4, 64):
        for positions in (1 << 16, 1 << 20):
            root = (positions * durations) ** 0.5
            assert bytes_of(positions, durations) <= 8 * (34 * root * 8 + 28 * durations * 8 * 8)
            assert bytes_of(4 * positions, durations) < 2.05 * bytes_of(positions, durations)
