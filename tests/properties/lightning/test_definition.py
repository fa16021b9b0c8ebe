"""The definition of lightning: right term by term, the same in both of its forms, alike in every reading."""

from __future__ import annotations

import pytest
import torch
from gradoracle.properties.lightning.definition import LONGEST_LITERAL, by_pieces, literal
from mpmath import mp, mpf
from torch import Tensor

from gradoracle.cases.sample import Sample, build
from gradoracle.model.case import parse
from gradoracle.model.contract import PRESETS
from gradoracle.model.derivative import Derivative, program
from gradoracle.oracle.exact import certified
from gradoracle.oracle.exact.graph import Graph
from gradoracle.oracle.exact.trace import trace
from gradoracle.oracle.truth import Oracle
from tests.properties.lightning.linear_attention import FAMILY, ORACLE

STATES = ["", "initial_state~normal", "--return_state=true", "--return_state=true initial_state~normal"]


def sample(words: str, sizes: str = "N=7 D=3 Dv=2") -> Sample:
    _, _, case = parse(f"case:1 lightning cpu float32 B=2 H=2 {sizes} {words} seed=1")
    return build(case, FAMILY.signature, domains=FAMILY.domains)


@pytest.mark.parametrize("words", STATES)
def test_the_definition_is_the_sum_term_by_term(words: str) -> None:
    own = sample(words)
    doubles = {name: tensor.double() for name, tensor in own.inputs.items()}
    q, k, v = (doubles[name] for name in ("q", "k", "v"))
    got = FAMILY.definition(*doubles.values(), **own.options) if len(doubles) == 3 else _with_state(doubles, own)
    o, state = got if own.options["return_state"] else (got, None)
    (batch, heads, rows, width), columns = q.shape, v.shape[3]
    with mp.workdps(40):
        for b, h in torch.cartesian_prod(torch.arange(batch), torch.arange(heads)).tolist():
            known = _summed(q[b, h], k[b, h], v[b, h], doubles["initial_state"][b, h] if len(doubles) == 4 else None)
            for i in range(rows):
                for e in range(columns):
                    expected = sum(mpf(float(q[b, h, i, d])) * known[i][d][e] for d in range(width))
                    assert abs(float(o[b, h, i, e]) - expected) < 1e-14
            for d in range(width if state is not None else 0):
                for e in range(columns):
                    assert abs(float(state[b, h, d, e]) - known[-1][d][e]) < 1e-14  # type: ignore[index]


def _with_state(doubles: dict[str, Tensor], own: Sample) -> Tensor | tuple[Tensor, Tensor]:
    q, k, v, initial = doubles.values()
    found: Tensor | tuple[Tensor, Tensor] = FAMILY.definition(q, k, v, initial_state=initial, **own.options)
    return found


def _summed(q: Tensor, k: Tensor, v: Tensor, initial: Tensor | None) -> list[list[list[mpf]]]:
    """S0 + the sum over j <= i of k_j^T v_j, for each row i, one product after the other."""
    width, columns = k.shape[1], v.shape[1]
    zero = torch.zeros(width, columns) if initial is None else initial
    state = [[mpf(float(zero[d, e])) for e in range(columns)] for d in range(width)]
    found = []
    for row in range(q.shape[0]):
        for d in range(width):
            for e in range(columns):
                state[d][e] = state[d][e] + mpf(float(k[row, d])) * mpf(float(v[row, e]))
        found.append([list(line) for line in state])
    return found


def graph(form: object, derivative: Derivative, args: list[Tensor]) -> Graph:
    return trace(program(form, derivative, 3), *args)  # type: ignore[arg-type]


@pytest.mark.parametrize("derivative", list(Derivative))
@pytest.mark.parametrize(("rows", "piece"), [(1, 64), (5, 2), (64, 64), (65, 64), (70, 16)])
def test_both_forms_are_equal_in_certified_arithmetic(rows: int, piece: int, derivative: Derivative) -> None:
    """Balls of a proven radius of 1e-28 overlap: far below what float64 tells apart."""
    generator = torch.Generator().manual_seed(rows)

    def drawn(width: int) -> Tensor:
        return torch.randn(1, 2, rows, width, generator=generator, dtype=torch.float64)

    args = [drawn(3), drawn(3), drawn(2)]
    args += [drawn(3), drawn(3), drawn(2)] if derivative.takes_tangents else []
    args += [drawn(2)] if derivative.takes_cotangents else []

    def pieces(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return by_pieces(q, k, v, piece)

    graphs = [graph(form, derivative, args) for form in (literal, pieces)]
    narrow = [torch.full_like(value, 1e-28) for value in graphs[0](*args)]
    one, other = (certified.certify(g, args, narrow, operations=10**8) for g in graphs)
    for a, b in zip(one, other, strict=True):
        assert bool((a.radius <= 1e-28).all()) and bool((b.radius <= 1e-28).all())
        apart = (a.high - b.high) + (a.low - b.low)
        assert bool((apart.abs() <= a.radius + b.radius).all())


def test_long_sequences_are_summed_by_pieces_in_memory_linear_in_their_length() -> None:
    assert LONGEST_LITERAL == 512
    for rows in (513, 4096):
        q, k, v = (torch.zeros(1, 1, rows, width, dtype=torch.float64) for width in (4, 4, 3))
        nodes = [node.meta["val"].numel() for node in graph(FAMILY.definition, Derivative.VJP, [q, k, v, v]).nodes
                 if hasattr(node.meta.get("val"), "numel")]  # fmt: skip
        assert max(nodes) <= 64 * (rows + 64)
    q, k, v = (torch.randn(1, 1, 513, 4, dtype=torch.float64) for _ in range(3))
    assert torch.allclose(FAMILY.definition(q, k, v), literal(q, k, v), rtol=0, atol=1e-10)


@pytest.mark.parametrize("reading", ["certified", "mpmath"])
@pytest.mark.parametrize("derivative", list(Derivative))
@pytest.mark.parametrize("words", [STATES[0], STATES[3]])
def test_the_readings_agree(words: str, derivative: Derivative, reading: str) -> None:
    own, contract = sample(words), PRESETS["ieee32"]
    budgets = ORACLE.budgets(own, derivative, contract, algorithm="definition", worst=False, probes=4)
    one, other = (o.truth(own, derivative, budgets, contract) for o in (ORACLE, Oracle(FAMILY, reading)))
    for name, truth in one.items():
        assert torch.allclose(truth.value, other[name].value, rtol=1e-13, atol=1e-13), name
