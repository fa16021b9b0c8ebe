"""Each operator plants exactly the faults that its statement says, in a small kernel or wrapper, and no other."""

from __future__ import annotations

import inspect

import pytest

from gradoracle.model.fault import PLANTED
from gradoracle.mutation.operators import OPERATORS
from gradoracle.mutation.plant import mutants

KERNEL = """
import triton
import triton.language as tl

@triton.jit
def kernel(X, Y, x_row, x_col, y_row, N, M, scale, BLOCK: tl.constexpr, FLAG: tl.constexpr):
    {}
"""

WRAPPER = """
import torch

class Norm(torch.autograd.Function):
    @staticmethod
    def {}
"""

BY_NAME = {operator.name: operator for operator in OPERATORS}

# operator, lines of a kernel, what stands there before and after, and the cause
IN_KERNELS = [
    ("comparison", "m = tl.arange(0, BLOCK) < N", [("tl.arange(0, BLOCK) < N", "tl.arange(0, BLOCK) <= N", "tail")]),
    ("comparison", "a = x_row == 3; b = x_row >= y_row", [
        ("x_row == 3", "x_row != 3", ""), ("x_row >= y_row", "x_row > y_row", "")]),
    ("comparison", "m = tl.arange(0, BLOCK)[:, None] <= N", [
        ("tl.arange(0, BLOCK)[:, None] <= N", "tl.arange(0, BLOCK)[:, None] < N", "tail")]),
    ("bound shifted", "m = tl.arange(0, BLOCK) < N", [
        ("tl.arange(0, BLOCK) < N", "tl.arange(0, BLOCK) < N - 1", "tail")]),
    ("bound shifted", "m = y_row <= x_row", [("y_row <= x_row", "y_row <= x_row + 1", "")]),
    ("bound shifted", "m = y_row > 0", []),
    ("bound shifted", "m = tl.exp(scale) < scale", []),
    ("mask dropped", "x = tl.load(X, mask=N < M, other=0.0)", [
        ("tl.load(X, mask=N < M, other=0.0)", "tl.load(X)", "tail")]),
    ("mask dropped", "m = x_row != 0; tl.store(Y, x, mask=m)", [("tl.store(Y, x, mask=m)", "tl.store(Y, x)", "")]),
    ("mask dropped", "x = tl.load(X, y_row < N, 0.0)", [("tl.load(X, y_row < N, 0.0)", "tl.load(X)", "tail")]),
    ("mask dropped", "x = tl.load(X)", []),
    ("condition dropped", "m = (x_row < N) & (x_col != 0)", [
        ("(x_row < N) & (x_col != 0)", "(x_row < N)", ""), ("(x_row < N) & (x_col != 0)", "(x_col != 0)", "tail")]),
    ("condition dropped", "m = N & 1", []),
    ("other value", "x = tl.load(X, mask=y_row < N, other=0.0)", [("other=0.0", "other=1.0", "tail")]),
    ("other value", 'x = tl.load(X, mask=y_row < 3, other=float("-inf"))', [('other=float("-inf")', "other=0.0", "")]),
    ("loop end", "for i in range(0, N, BLOCK):\n        x = i", [("N", "N - BLOCK", ""), ("N", "N + BLOCK", "")]),
    ("loop end", "for i in range(N):\n        x = i", [("N", "N - 1", ""), ("N", "N + 1", "")]),
    ("loop start", "for i in range(0, N, BLOCK):\n        x = i", [("0", "BLOCK", "")]),
    ("loop start", "for i in tl.static_range(M, N):\n        x = i", [("M", "M + 1", "")]),
    ("loop start", "for i in range(N):\n        x = i", [("N", "1, N", "")]),
    ("address shifted", "x = tl.load(X + x_row); tl.store(Y, x)", [
        ("X + x_row", "X + x_row + 1", ""), ("Y", "Y + 1", "shift")]),
    ("index shifted", "n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", [
        ("tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)", "tl.program_id(0) * BLOCK + tl.arange(0, BLOCK) + 1", "")]),
    ("index shifted", "a, b = x_row // N, x_row % N", [
        ("x_row // N", "x_row // N + 1", ""), ("x_row % N", "x_row % N + 1", "")]),
    ("index shifted", "x = tl.exp(scale)", []),
    ("index sign", "x = tl.load(X + x_row)", [("X + x_row", "X - x_row", "")]),
    ("index sign", "p = y + other(x); tl.store(p, 1.0)", [("y + other(x)", "y - other(x)", "")]),
    ("index sign", "n = x_row - y_row; x = scale - tl.exp(scale)", [("x_row - y_row", "x_row + y_row", "")]),
    ("index term dropped", "x = tl.load(X + x_row)", [("X + x_row", "X", "")]),
    ("index term dropped", "n = x_row + y_row", [("x_row + y_row", "x_row", ""), ("x_row + y_row", "y_row", "")]),
    ("index term dropped", "x = tl.load(X + x_row + tl.arange(0, BLOCK))", [("X + x_row", "X", "")]),
    ("index term dropped", "p = other(X) + x_row", [("other(X) + x_row", "other(X)", "")]),
    ("index term dropped", "n = x_row + tl.arange(0, BLOCK)", [
        ("x_row + tl.arange(0, BLOCK)", "tl.arange(0, BLOCK)", "")]),
    ("stride dropped", "n = N * x_row + M * x_col", [
        ("N * x_row", "N", ""), ("M * x_col", "M", "layout")]),
    ("stride dropped", "n = N.to(tl.int64) * x_row.to(tl.int64)", [
        ("N.to(tl.int64) * x_row.to(tl.int64)", "N.to(tl.int64)", "")]),
    ("stride swapped", "n = M * x_row + x_col + y_row", [("x_row", "x_col", ""), ("x_col", "x_row", "")]),
    ("dim swapped", "m = x_row < N", [("N", "M", "")]),
    ("dim swapped", "m = x_row < BLOCK", []),
    ("index swapped", "a, b = x_row // 4, x_row % 4\n    n = a", [("a", "b", "")]),
    ("index swapped", "a, b = tl.exp(scale), tl.exp(scale)\n    n = a", []),
    ("program axis", "i = tl.program_id(0); j = tl.program_id(axis=1)", [("0", "1", ""), ("1", "0", "")]),
    ("division exchanged", "i = x_row // N % M", [
        ("x_row // N % M", "x_row // N // M", ""), ("x_row // N", "x_row % N", "")]),
    ("64 bits dropped", "i = N.to(tl.int64); j = M.to(tl.int32)", [("N.to(tl.int64)", "N", "offset")]),
    ("clamp dropped", "i = tl.minimum(x_row, N)", [
        ("tl.minimum(x_row, N)", "x_row", ""), ("tl.minimum(x_row, N)", "N", "")]),
    ("sign", "x = scale + tl.exp(-scale); x -= scale", [
        ("scale + tl.exp(-scale)", "scale - tl.exp(-scale)", ""), ("-scale", "scale", ""),
        ("x -= scale", "x += scale", "")]),
    ("sign", "tl.store(Y, (scale * -tl.exp(scale)).to(Y.dtype.element_ty))", [
        ("-tl.exp(scale)", "tl.exp(scale)", "sign")]),
    ("term dropped", "x = scale + tl.exp(scale); y = x - scale", [
        ("scale + tl.exp(scale)", "scale", "term"), ("scale + tl.exp(scale)", "tl.exp(scale)", "term"),
        ("x - scale", "x", "term")]),
    ("term dropped", "x = tl.exp(scale - y); n = N + M", []),
    ("factor dropped", "x = tl.load(X) * scale / 2.0", [
        ("tl.load(X) * scale / 2.0", "tl.load(X) * scale", ""), ("tl.load(X) * scale", "tl.load(X)", ""),
        ("tl.load(X) * scale", "scale", "")]),
    ("factor dropped", "tl.store(Y, (2.0 * tl.load(X)).to(Y.dtype.element_ty))", [
        ("2.0 * tl.load(X)", "tl.load(X)", "ratio")]),
    ("factor dropped", "n = N * M", []),
    ("factor twice", "x = tl.load(X) * scale", [("tl.load(X) * scale", "tl.load(X) * scale * scale", "")]),
    ("factor twice", "tl.store(Y, (tl.load(X) / 3.0).to(Y.dtype.element_ty))", [
        ("tl.load(X) / 3.0", "tl.load(X) / 3.0 / 3.0", "ratio")]),
    ("factor twice", "x = tl.load(X) * tl.load(X)", []),
    ("operands swapped", "x = tl.exp(scale) - (scale - 1.0) / scale", [
        ("tl.exp(scale) - (scale - 1.0) / scale", "(scale - 1.0) / scale - tl.exp(scale)", ""),
        ("(scale - 1.0) / scale", "scale / (scale - 1.0)", ""),
        ("scale - 1.0", "1.0 - scale", "")]),
    ("operands swapped", "x = scale + 1.0 - tl.exp(scale)", [
        ("scale + 1.0 - tl.exp(scale)", "tl.exp(scale) - (scale + 1.0)", "")]),
    ("constant", 'x = scale * 0.5 + 0.0; n = N + 1; m = N * 1; y = float("-inf")', [
        ("0.5", "1.0", ""), ("0.0", "1.0", ""), ("1", "2", ""), ("1", "2", ""), ("1", "0", ""),
        ('float("-inf")', "0.0", "")]),
    ("constant", "x = tl.sum(tl.zeros([16, 2], tl.float32), axis=1); i = tl.program_id(1) + tl.arange(0, 16)", []),
    ("function replaced", "x = tl.exp(tl.abs(scale)) + tl.math.log(scale)", [
        ("tl.exp(tl.abs(scale))", "tl.exp2(tl.abs(scale))", ""), ("tl.abs(scale)", "scale", ""),
        ("tl.math.log(scale)", "tl.math.log2(scale)", "")]),
    ("reduction kind", "x = tl.sum(tl.maximum(scale, N), axis=0)", [
        ("tl.sum(tl.maximum(scale, N), axis=0)", "tl.max(tl.maximum(scale, N), axis=0)", ""),
        ("tl.maximum(scale, N)", "tl.minimum(scale, N)", "")]),
    ("reduction axis", "x = tl.sum(scale, axis=0); y = tl.max(scale, 1)", [("axis=0", "axis=1", ""), ("1", "0", "")]),
    ("accumulation lost", "x = tl.zeros([16], tl.float32)\n    x += scale", [("x += scale", "x = scale", "sum")]),
    ("accumulation lost", "x = tl.dot(X, Y, acc=scale)", [("tl.dot(X, Y, acc=scale)", "tl.dot(X, Y)", "sum")]),
    ("accumulation lost", "X += x_row * N; n = tl.load(X)", []),
    ("maximum zero", "m = tl.max(scale, axis=0); p = tl.exp(scale - m[:, None])", [
        ("tl.max(scale, axis=0)", "tl.zeros_like(tl.max(scale, axis=0))", "range")]),
    ("maximum zero", "a = tl.max(scale, axis=0); m = tl.where(a == 0, 0.0, a); p = tl.exp2(scale - m)", [
        ("tl.max(scale, axis=0)", "tl.zeros_like(tl.max(scale, axis=0))", "range")]),
    ("maximum zero", "m = tl.max(scale, axis=0); p = tl.exp(scale) - m", []),
    ("shift dropped", "p = tl.exp(scale - m) - m", [("scale - m", "scale", "")]),
    ("transpose dropped", "x = tl.trans(X) + Y.T", [("tl.trans(X)", "X", "transpose"), ("Y.T", "Y", "transpose")]),
    ("factors of a dot swapped", "s = tl.dot(q, tl.trans(k), acc=s); o = tl.dot(p, v)", [
        ("q, tl.trans(k)", "k, tl.trans(q)", ""), ("p, v", "v, p", "")]),
    ("broadcast axis", "x = scale[:, None] + scale[None, :, None]; y = scale[:, 0]", [
        ("scale[:, None]", "scale[None, :]", ""), ]),
    ("branches swapped", "x = tl.where(N < M, scale, 0.0); y = 1 if FLAG else 2", [
        ("scale, 0.0", "0.0, scale", ""), ("1 if FLAG else 2", "2 if FLAG else 1", "")]),
    ("selection dropped", "x = tl.where(x_row < N, scale, 0.0); y = tl.where(scale == 0, 1.0, scale)", [
        ("tl.where(x_row < N, scale, 0.0)", "scale", "tail"), ("tl.where(scale == 0, 1.0, scale)", "scale", "")]),
    ("selection dropped", "x = tl.where(x_row < N, 0.0, 1.0)", []),
    ("condition negated", "if N > 1:\n        x = 1", [("N > 1", "not N > 1", "")]),
    ("condition negated", "if N == 1:\n        x = 1", []),
    ("flag flipped", "if FLAG:\n        x = other(True)", [("FLAG", "not FLAG", ""), ("True", "False", "")]),
    ("flag flipped", "if not FLAG:\n        x = 1", [("not FLAG", "FLAG", "")]),
    ("cast dropped", "x = tl.load(X).to(tl.float32); y = x.to(tl.float16); n = N.to(tl.int64)", [
        ("tl.load(X).to(tl.float32)", "tl.load(X)", "dtype")]),
    ("cast dropped", "tl.store(Y, scale.to(Y.dtype.element_ty))", []),
    ("cast lowered", "tl.store(Y, (scale + 1.0).to(Y.dtype.element_ty)); x = scale.to(tl.bfloat16)", [
        ("(scale + 1.0).to(Y.dtype.element_ty)", "(scale + 1.0).to(tl.bfloat16).to(Y.dtype.element_ty)", "dtype")]),
    ("cast lowered", "x = tl.load(X).to(tl.float32); y = x.to(tl.float64); z = y.to(tl.float16)", [
        ("tl.load(X).to(tl.float32)", "tl.load(X).to(tl.bfloat16).to(tl.float32)", "dtype"),
        ("x.to(tl.float64)", "x.to(tl.float32).to(tl.float64)", "dtype")]),
    ("accumulator rounded", "x = tl.zeros([16], tl.float32)\n    x += scale\n    x = tl.dot(X, Y, acc=x)", [
        ("x += scale", "x = (x + scale).to(tl.bfloat16).to(tl.float32)", "dtype"),
        ("tl.dot(X, Y, acc=x)", "(tl.dot(X, Y, acc=x)).to(tl.bfloat16).to(tl.float32)", "dtype")]),
    ("accumulator rounded", "x = tl.full([16], 0.0, dtype=tl.float64)\n    x += scale\n    n = 0\n    n += 1", [
        ("x += scale", "x = (x + scale).to(tl.float32).to(tl.float64)", "dtype")]),
    ("intermediate rounded", "s = tl.dot(X, Y) * scale; t = scale * scale", [
        ("tl.dot(X, Y) * scale", "(tl.dot(X, Y) * scale).to(tl.bfloat16).to(tl.float32)", "dtype")]),
    ("dot precision", 's = tl.dot(X, Y, input_precision="ieee"); t = tl.dot(X, Y, input_precision="tf32")', [
        ('input_precision="ieee"', 'input_precision="tf32"', "dtype")]),
    ("store dropped", "tl.store(Y, scale)\n    tl.atomic_add(Y, scale)\n    x = tl.load(X)", [
        ("tl.store(Y, scale)", "", "stale"), ("tl.atomic_add(Y, scale)", "", "stale")]),
    ("barrier dropped", "tl.debug_barrier()", [("tl.debug_barrier()", "", "access")]),
    ("atomic to store", 'tl.atomic_add(Y + N, scale, mask=N < M, sem="relaxed")', [
        ('tl.atomic_add(Y + N, scale, mask=N < M, sem="relaxed")', "tl.store(Y + N, scale, mask=N < M)", "access")]),
    ("initial value", 'x = tl.zeros([16], tl.float32); y = tl.full([16], 1.0, tl.float32)', [
        ("tl.zeros([16], tl.float32)", "tl.full([16], 1, tl.float32)", ""),
        ("tl.full([16], 1.0, tl.float32)", "tl.full([16], 0.0, tl.float32)", "")]),
    ("arguments exchanged", "x = kernel(X, Y, 1, x_row, tl.load(X))", [("X, Y", "Y, X", "")]),
    ("result negated", "tl.store(Y, (scale + 1.0).to(Y.dtype.element_ty)); tl.store(X, scale)", [
        ("scale + 1.0", "-(scale + 1.0)", "sign")]),
    ("result doubled", "tl.store(Y, value=scale.to(Y.dtype.element_ty))", [
        ("scale", "2.0 * scale", "ratio")]),
    ("results exchanged", "return scale, x_row", [("scale, x_row", "x_row, scale", "")]),
]  # fmt: skip

# the same, of methods of an autograd function
IN_WRAPPERS = [
    ("comparison", "backward(ctx, g):\n        return None if g is None else g", [("g is None", "g is not None", "")]),
    ("condition dropped", "backward(ctx, g):\n        return 1 if g and ctx else 2", [
        ("g and ctx", "g", ""), ("g and ctx", "ctx", "")]),
    ("sign", "backward(ctx, g):\n        return -g, None", [("-g", "g", "sign")]),
    ("factor dropped", "backward(ctx, g):\n        return g * 2.0, None", [("g * 2.0", "g", "ratio")]),
    ("buffer unfilled", "forward(ctx, x):\n        return torch.zeros(3), x.new_zeros(4), torch.ones(3)", [
        ("torch.zeros(3)", "torch.empty(3)", "stale"), ("x.new_zeros(4)", "x.new_empty(4)", "stale")]),
    ("contiguous dropped", "forward(ctx, x):\n        return x.contiguous()", [("x.contiguous()", "x", "layout")]),
    ("transpose dropped", "forward(ctx, x):\n        return x.transpose(0, 1)", [
        ("x.transpose(0, 1)", "x", "transpose")]),
    ("constant", "forward(ctx, x):\n        kernel[x.shape[0], 1](x.stride(0), BLOCK=64, num_warps=4); return x[:3]", [
        ("0", "1", ""), ("1", "2", ""), ("1", "0", ""), ("0", "1", "")]),
    ("program missing", "forward(ctx, x):\n        kernel[(x.numel(), 1)](x)", [
        ("x.numel()", "x.numel() - 1", "stale")]),
    ("arguments exchanged", "forward(ctx, x, y):\n        kernel[(1,)](x, y, *x.stride(), *y.stride(), 3, N=x)", [
        ("x, y", "y, x", ""), ("*x.stride(), *y.stride()", "*y.stride(), *x.stride()", "")]),
    ("gradient dropped", "backward(ctx, g):\n        return g, *rest(g), None", [
        ("g", "None", "term"), ("g", "torch.zeros_like(g)", "term"),
        ("*rest(g)", "*(None for _ in rest(g))", "term")]),
    ("result negated", "backward(ctx, g):\n        return g + g, None", [("g + g", "-(g + g)", "sign")]),
    ("result doubled", "backward(ctx, g):\n        return g + g, None", [("g + g", "2 * (g + g)", "ratio")]),
    ("result doubled", "forward(ctx, g):\n        return g, g", []),
    ("results exchanged", "backward(ctx, g):\n        return g, -g, *g", [("g, -g", "-g, g", "")]),
    ("saved twice", "forward(ctx, x, w):\n        ctx.save_for_backward(x, w)", [("x", "w", ""), ("w", "x", "")]),
    ("saved exchanged", "backward(ctx, g):\n        x, w, *r = ctx.saved_tensors", [("x, w", "w, x", "")]),
    ("saved stale", "backward(ctx, g):\n        x, w = ctx.saved_tensors", [
        ("ctx.saved_tensors", 'globals().setdefault("_first_norm", ctx.saved_tensors)', "stale")]),
    ("partial sums lost", "backward(ctx, g):\n        return g.sum(0), g.sum(dim=1), g.sum()", [
        ("g.sum(0)", "g.select(0, 0)", "sum"), ("g.sum(dim=1)", "g.select(1, 0)", "sum")]),
    ("cast dropped", "backward(ctx, g):\n        return g.to(g.dtype), g.to(g.device, g.dtype)", [
        ("g.to(g.dtype)", "g", "")]),
    ("cast lowered", "backward(ctx, g):\n        return g.to(g.dtype)", [
        ("g.to(g.dtype)", "g.to(torch.bfloat16).to(g.dtype)", "dtype")]),
    ("mask dropped", "backward(ctx, g):\n        return load(g, mask=g)", []),
]  # fmt: skip


def planted(source, operator):
    return [(each.before, each.after, each.cause) for each in mutants(source, "small.py") if each.operator == operator]


def named(case):
    return f"{case[0]}: {case[1]}"


@pytest.mark.parametrize("case", IN_KERNELS, ids=named)
def test_an_operator_plants_these_faults_in_a_kernel(case):
    operator, lines, expected = case
    assert planted(KERNEL.format(lines), operator) == expected


@pytest.mark.parametrize("case", IN_WRAPPERS, ids=named)
def test_an_operator_plants_these_faults_in_a_wrapper(case):
    operator, lines, expected = case
    assert planted(WRAPPER.format(lines), operator) == expected


def test_every_operator_has_a_case_with_a_fault():
    assert {operator for operator, _, expected in (*IN_KERNELS, *IN_WRAPPERS) if expected} == set(BY_NAME)


def test_operators_are_named_apart_and_say_what_they_plant():
    assert len(BY_NAME) == len(OPERATORS) >= 20
    for operator in OPERATORS:
        assert inspect.getdoc(operator.propose) and operator.nodes
        assert operator.kernels or operator.wrappers
        assert operator.cause in ("", *PLANTED)


@pytest.mark.parametrize("case", IN_KERNELS, ids=named)
def test_a_kernels_faults_are_planted_in_no_plain_function(case):
    assert mutants(KERNEL.format(case[1]).replace("@triton.jit", ""), "small.py") == []


@pytest.mark.parametrize(
    ("after", "line"),
    [
        ("(scale - 1.0) / scale", "x = 2.0 * ((scale - 1.0) / scale) - scale"),
        ("scale - 2.0 * (scale / (scale - 1.0))", "x = scale - 2.0 * (scale / (scale - 1.0))"),
    ],
)
def test_a_fault_within_an_expression_gets_the_parentheses_that_it_needs(after, line):
    source = KERNEL.format("x = 2.0 * (scale / (scale - 1.0)) - scale")
    (found,) = (each.source for each in mutants(source, "small.py") if each.after == after)
    assert line in found


def test_a_fault_keeps_the_meaning_of_the_code_around_it():
    result = KERNEL.format(
        "tl.store(Y, (scale + 1.0).to(Y.dtype.element_ty)); tl.store(X, scale.to(X.dtype.element_ty))"
    )
    negated = [each.source for each in mutants(result, "small.py") if each.operator == "result negated"]
    assert "(Y, (-(scale + 1.0)).to(" in negated[0] and "(X, (-scale).to(" in negated[1]
    shifted = KERNEL.format("a, b = x_row // N, 3 * kernel(x_row % N)")
    assert any("a, b = x_row // N + 1, 3" in each.source for each in mutants(shifted, "small.py"))
    doubled = KERNEL.format("x = scale ** tl.exp(tl.abs(scale - N)) * tl.where(FLAG, scale - 1.0, 2.0)")
    dropped = [each for each in mutants(doubled, "small.py") if each.operator == "selection dropped"]
    assert ["* (scale - 1.0)\n" in each.source for each in dropped] == [True]


def test_code_of_several_lines_and_its_comments_become_one_line():
    one_line = "tl.load(X, mask=N < M, other=0.0,)"
    source = KERNEL.format("x = tl.load(\n        X,  # [BLOCK]\n        mask=N < M,\n        other=0.0,\n    )")
    found = [each for each in mutants(source, "small.py") if each.operator == "mask dropped"]
    assert [(each.before, each.after, each.line) for each in found] == [(one_line, "tl.load(X)", 7)]
