"""Reconstruction: a planted change of a formula is found again from the tensors that it gives, and nothing else is."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from gradoracle.check.diagnosis.reconstruction import Expected, reconstruct
from gradoracle.oracle.exact.trace import trace

GENERATOR = torch.Generator().manual_seed(3)
Q, K, V, G = (torch.randn(2, n, 6, dtype=torch.float64, generator=GENERATOR) for n in (20, 34, 34, 20))
P = torch.softmax(Q @ K.mT * 0.5, -1)
NAMES = ("q", "k", "v", "do")


def gradients(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, *, scale: float = 0.5, z: float = 1.0, sign: float = 1.0, keys: int = 34
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) of softmax(scale q k^T) v; ``keys`` is up to which key dq sums."""
    p = torch.softmax(q @ k.mT * scale, -1)
    dp = g @ v.mT
    ds = sign * p * (dp - z * (p * dp).sum(-1, keepdim=True))
    return scale * ds[..., :keys] @ k[..., :keys, :], scale * ds.mT @ q, p.mT @ g


def found(got: Tensor, output: int, sigma: float = 1e-7) -> tuple[str, str]:
    expected = Expected(output, got, torch.full_like(got, sigma))
    likeness = reconstruct(trace(gradients, Q, K, V, G), (Q, K, V, G), NAMES, [expected])
    return likeness.cause, likeness.words


def wrong(output: int, **fault: float) -> Tensor:
    return gradients(Q, K, V, G, **fault)[output]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("output", "fault", "cause", "words"),
    [
        (0, {"z": 0.0}, "term", "without"),
        (1, {"z": -1.0}, "sign", "with the sign of"),
        (0, {"z": 1.7}, "ratio", "multiplied by 1.7"),
        (0, {"sign": -1.0}, "sign", "with the sign of"),
        (0, {"keys": 32}, "tail", "ending after 32 of 34"),
        (0, {"keys": 33}, "tail", "without its last member"),
        (2, {"scale": 0.5 * math.log2(math.e)}, "ratio", "multiplied by 1.4427"),
        (2, {"scale": 0.25}, "ratio", "multiplied by 0.5"),
    ],
)
def test_a_changed_formula_is_found(output: int, fault: dict[str, float], cause: str, words: str) -> None:
    said = found(wrong(output, **fault), output)
    assert said[0] == cause and words in said[1], said


@pytest.mark.parametrize(
    ("got", "cause", "words"),
    [
        (P.mT @ G.roll(-1, 1), "shift", "shifted by one"),
        (P.mT @ Q, "term", "with q in place of do"),
        (P.mT @ G.flatten().roll(-1).view(G.shape), "shift", "do read one element later"),
        (P.mT @ G.as_strided(G.shape, (120, 1, 1)), "layout", "do read with the stride of dim 2 along dim 1"),
        (P.mT.bfloat16().double() @ G, "dtype", "rounded to bfloat16"),
    ],
)
def test_operands_that_are_others_or_stand_elsewhere_are_found(got: Tensor, cause: str, words: str) -> None:
    said = found(got, 2)
    assert said[0] == cause and words in said[1], said


def test_a_right_tensor_and_noise_are_explained_by_no_change() -> None:
    right = wrong(0)
    assert found(right, 0) == ("", "")
    noise = right * (1 + 0.3 * torch.randn(right.shape, dtype=torch.float64, generator=GENERATOR))
    assert found(noise, 0) == ("", "")


def test_errors_within_the_noise_are_not_explained() -> None:
    got = wrong(0, z=0.9)
    assert found(got, 0)[0] == "ratio" and found(wrong(0, z=0.999), 0)[0] == "dtype"
    assert found(got, 0, sigma=1.0) == ("", "")


def test_what_is_lost_says_nothing_and_the_rest_does() -> None:
    got = wrong(0, z=-1.0)
    got[:, 3] = math.nan
    assert found(got, 0)[0] == "sign"


def test_what_is_not_finite_or_too_small_is_passed_over() -> None:
    assert found(wrong(0) * math.nan, 0) == ("", "")
    few = [x[:1, :1, :2].contiguous() for x in (Q, K, V, G)]
    got = gradients(*few, keys=1, sign=-1.0)[0]
    assert reconstruct(trace(gradients, *few), few, NAMES, [Expected(0, got, torch.full_like(got, 1e-9))]).words == ""


def test_edits_keep_to_the_strides_that_views_were_made_for() -> None:
    def heads(q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        s = (q.transpose(0, 1).reshape(20, 12) * 0.5).view(20, 2, 6).transpose(0, 1)
        return (torch.tanh(s).reshape(40, 6) @ k[0].mT,)

    got = heads(Q, 0.25 * K)[0]
    likeness = reconstruct(trace(heads, Q, K), (Q, K), ("q", "k"), [Expected(0, got, torch.full_like(got, 1e-9))])
    assert likeness.cause == "ratio" and "multiplied by 0.25" in likeness.words


def test_a_kernel_that_keeps_what_forward_saved_is_found_as_such() -> None:
    """P = exp(S - m) / l of wrong scores with the correct m and l: its rows do not sum to 1."""
    s = Q @ K.mT * 0.5
    p = P * torch.exp(0.3 * s)
    got, graph = p.mT @ G, trace(gradients, Q, K, V, G)
    expected = [Expected(2, got, torch.full_like(got, 1e-7))]
    shifted = (P * torch.exp(Q.flatten().roll(-1).view(Q.shape) @ K.mT * 0.5 - s)).mT @ G
    assert reconstruct(graph, (Q, K, V, G), NAMES, expected).words == ""
    assert reconstruct(graph, (Q, K, V, G), NAMES, [Expected(2, shifted, expected[0].sigma)]).words == ""
    found = reconstruct(graph, (Q, K, V, G), NAMES, [Expected(2, shifted, expected[0].sigma)], saved=True)
    assert found.cause == "shift" and "q read one element later" in found.words


def test_sums_that_are_lost_together_are_found() -> None:
    def two(a: Tensor, b: Tensor, c: Tensor) -> tuple[Tensor, ...]:
        return (a.mT @ b + c.mT @ torch.sin(b),)

    args, last = (K, V, K * V), slice(32, 34)
    got = two(*(x[:, last] for x in args))[0]
    expected = [Expected(0, got, torch.full_like(got, 1e-9))]
    likeness = reconstruct(trace(two, *args), args, ("a", "b", "c"), expected)
    assert likeness.cause == "sum" and "over its last 2 only" in likeness.words
