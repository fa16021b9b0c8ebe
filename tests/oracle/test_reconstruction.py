"""Reconstruction: a planted edit of a formula is found again from the tensors that it gives, and nothing else is."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gradoracle.check.diagnosis.known_numbers import known_numbers
from gradoracle.check.diagnosis.reconstruction import Expected, agreed, reconstruct
from gradoracle.model.finding import NO_EDIT, EditedDefinition
from gradoracle.oracle.exact.graph import Graph
from gradoracle.oracle.exact.trace import trace

GENERATOR = torch.Generator().manual_seed(3)
DIMS = {"B": 2, "T": 20, "M": 34, "D": 9}
Q, K, V, G = (torch.randn(2, n, 9, dtype=torch.float64, generator=GENERATOR) for n in (20, 34, 34, 20))
NAMES = ("q", "k", "v", "do")
SCALE = 1 / 3


def gradients(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    *,
    scale: float = SCALE,
    z: float = 1.0,
    sign: float = 1.0,
    rows: Callable[[Tensor, Tensor], Tensor] = torch.ge,
    of_q: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) of softmax(scale q k^T) v, without the last keys of each row; ``of_q``: multiplied for dk."""
    row, column = torch.arange(q.shape[1])[:, None], torch.arange(k.shape[1])[None, :]
    p = torch.softmax(torch.where(rows(row + 14, column), q @ k.mT * scale, -math.inf), -1)
    dp = g @ v.mT
    ds = sign * p * (dp - z * (p * dp).sum(-1, keepdim=True))
    return scale * ds @ k, scale * ds.mT @ (q if of_q is None else of_q), p.mT @ g


GRAPH = trace(gradients, Q, K, V, G)
TRUE = gradients(Q, K, V, G)


def expected(got: Tensor, output: int = 0, sigma: float = 1e-7) -> Expected:
    return Expected(("dq", "dk", "dv")[output], output, got, TRUE[output], sigma * TRUE[output].abs())


def found(*wrong: Expected, graph: Graph | None = GRAPH, saved: bool = False) -> tuple[EditedDefinition, ...] | None:
    return reconstruct(graph, (Q, K, V, G), NAMES, wrong, known_numbers(graph, DIMS, {}), saved)


def wrong(output: int, **fault: object) -> Expected:
    return expected(gradients(Q, K, V, G, **fault)[output], output)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("output", "fault", "cause", "words"),
    [
        (0, {"z": 0.0}, "term", "without mul("),
        (1, {"z": -1.0}, "sign", "with the sign of"),
        (0, {"z": 2.0}, "ratio", "multiplied by 2"),
        (0, {"sign": -1.0}, "sign", "with the sign of dq changed"),
        (2, {"scale": SCALE * math.log2(math.e)}, "ratio", "multiplied by log2 e"),
        (2, {"scale": 1.0}, "ratio", "multiplied by sqrt(D)"),
        (2, {"scale": SCALE / 2}, "ratio", "multiplied by 1 / 2"),
        (2, {"rows": torch.gt}, "comparison", "with > instead of >="),
        (1, {"of_q": G}, "operands", "with do instead of q"),
    ],
)
def test_an_edited_formula_is_found(output: int, fault: dict[str, object], cause: str, words: str) -> None:
    own = found(wrong(output, **fault))
    assert own is not None
    chosen = agreed([own, own])
    assert chosen.cause == cause and words in chosen.words, own


@pytest.mark.parametrize("fault", [{"z": 1.7}, {"z": 0.9}, {"scale": 0.3}, {"sign": 1.01}])
def test_no_fitted_number_explains_a_tensor(fault: dict[str, object]) -> None:
    assert found(wrong(0, **fault)) == ()


def test_a_right_tensor_and_small_errors_can_tell_nothing_and_noise_is_explained_by_nothing() -> None:
    assert found(expected(TRUE[0])) is None
    got = gradients(Q, K, V, G, sign=-1.0)[0]
    assert found(expected(got, sigma=1.0)) is None  # within 64 sigma
    noise = torch.randn(TRUE[0].shape, dtype=torch.float64, generator=GENERATOR)
    assert found(expected(TRUE[0] * (1 + 0.3 * noise))) == ()


def test_one_element_that_differs_is_enough_against_an_edit() -> None:
    for spoilt in (math.nan, 0.5, 1.001):
        got = wrong(0, sign=-1.0).got.clone()
        got[1, 3, 2] *= spoilt
        assert found(expected(got)) == ()


def test_every_wrong_tensor_has_to_be_given() -> None:
    both = [wrong(output, sign=-1.0) for output in (0, 1)]
    own = found(*both)
    assert own is not None and own[0].cause == "sign" and " of dq and dk " in own[0].words
    assert found(both[0], wrong(1, z=0.0)) == ()


def test_few_elements_can_tell_nothing() -> None:
    small = [x[:1, :1, :2].contiguous() for x in (Q, K, V, G)]
    true = gradients(*small)[2]
    one = Expected("dv", 0, -true, true, 1e-9 * true.abs())
    assert reconstruct(trace(gradients, *small), small, NAMES, [one], {}) is None
    broadcast = torch.ones(40, dtype=torch.float64)
    assert not Expected("dv", 0, -broadcast, broadcast, 1e-9 * broadcast).is_clear


def test_without_a_graph_the_outputs_are_multiplied() -> None:
    own = found(wrong(0, sign=-1.0), graph=None)
    assert own == (EditedDefinition("with the sign of dq changed", "sign"),)
    assert found(wrong(0, z=0.0), graph=None) == ()


def test_edits_keep_to_the_strides_that_views_were_made_for() -> None:
    def heads(q: Tensor, k: Tensor) -> tuple[Tensor, ...]:
        s = (q.transpose(0, 1).reshape(20, 18) * 0.5).view(20, 2, 9).transpose(0, 1)
        return (torch.tanh(s).reshape(40, 9) @ k[0].mT,)

    got, true = heads(Q / 2, K)[0], heads(Q, K)[0]
    graph = trace(heads, Q, K)
    one = Expected("s", 0, got, true, 1e-9 * true.abs())
    own = reconstruct(graph, (Q, K), ("q", "k"), [one], known_numbers(graph, {}, {}))
    assert own is not None and any("multiplied by 1 / 2" in each.words for each in own)


def test_a_kernel_that_keeps_what_forward_saved_is_found_as_such() -> None:
    """P = exp(S - m) / l of wrong scores with the correct m and l: its rows do not sum to 1."""

    def plain(q: Tensor, k: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        return (torch.softmax(q @ k.mT * SCALE, -1).mT @ g,)

    s = Q @ K.mT * SCALE
    true, got = torch.softmax(s, -1).mT @ G, (torch.softmax(s, -1) * torch.exp(s)).mT @ G
    graph, one = trace(plain, Q, K, G), Expected("dv", 0, got, true, 1e-7 * true.abs())
    for saved, count in ((False, 0), (True, 1)):
        own = reconstruct(graph, (Q, K, G), ("q", "k", "do"), [one], {"2": 2.0}, saved)
        assert own is not None and bool(own) == bool(count)


A, B, C = EditedDefinition("a", "operands"), EditedDefinition("b", "sign"), EditedDefinition("c", "sign")


@pytest.mark.parametrize(
    ("cases", "chosen"),
    [
        ([(A, B), (A, B)], B),
        ([(A, B), (A, C)], A),
        ([(A,), None, (A, C)], A),
        ([(A,), (A,), ()], NO_EDIT),
        ([(A,), (B,)], NO_EDIT),
        ([(A,), None], NO_EDIT),
        ([(A,)], NO_EDIT),
        ([], NO_EDIT),
    ],
)
def test_two_cases_must_agree_and_none_that_can_tell_may_differ(
    cases: list[tuple[EditedDefinition, ...] | None], chosen: EditedDefinition
) -> None:
    assert agreed(cases) == chosen


def test_numbers_have_the_names_of_the_definition() -> None:
    numbers = known_numbers(GRAPH, DIMS, {"eps": 1e-6, "causal": True, "window": None})
    assert {"2", "1 / 2", "log2 e", "ln 2", "eps", "1 / eps", "M", "1 / D", "sqrt(D)", "1 / sqrt(D)"} <= numbers.keys()
    assert numbers["1 / sqrt(D)"] == pytest.approx(SCALE) and numbers["1 / eps"] == pytest.approx(1e6)
    assert not {"causal", "window", "sqrt(M)", "-1", "1"} & numbers.keys()
    assert all(value > 0 for value in numbers.values())
