"""What the SDPA kernels refuse: a ValueError that names the argument, the value given and what is expected."""

from __future__ import annotations

import functools
import re

import pytest
import torch
from gradoracle.kernels.sdpa import (
    Blocks,
    backward,
    blocks,
    forward,
    guardrails,
    hvp,
    hvp_central_difference,
    jvp,
    sdpa,
    vjp,
)
from programs import compiling

from tests.kernels.assertions import assert_refused
from tests.kernels.sdpa.reference import DEVICE, problem

(Q, K, V), TANGENTS, G = problem((2, 2, 5, 7, 4, 3), torch.float32)


@pytest.mark.parametrize(
    ("primals", "words"),
    [
        ((Q[0], K, V), ["q", "rank 3", "rank 4"]),
        ((Q, K, V[None]), ["v", "rank 5", "rank 4"]),
        ((None, K, V), ["q", "NoneType", "torch.Tensor"]),
        ((Q, K.to_sparse(), V), ["k", "sparse", "dense"]),
        ((Q, K.half(), V), ["k", "float16", "float32"]),
        ((Q, K, V.double()), ["v", "float64", "float32"]),
        ((Q.int(), K.int(), V.int()), ["q", "int32", "float32, bfloat16, float16"]),
        ((Q.to(torch.complex64),) * 3, ["q", "complex64", "float32, bfloat16, float16"]),
        ((Q, K[:1], V), ["k", "(1, 2, 7, 4)", "(2, 2, 5, 4)"]),
        ((Q, K[:, :1], V), ["k", "(2, 1, 7, 4)", "(2, 2, 5, 4)"]),
        ((Q, K[..., :3], V), ["k", "(2, 2, 7, 3)", "(2, 2, 5, 4)"]),
        ((Q, K, V[:, :, :6]), ["v", "(2, 2, 6, 3)", "(2, 2, 7, 4)"]),
        ((Q[:, :, :0], K, V), ["q", "T = 0", "from 1"]),
        ((Q, K[:, :, :0], V[:, :, :0]), ["k", "M = 0", "from 1"]),
        ((Q[..., :0], K[..., :0], V), ["q", "D = 0", "from 1 to 128"]),
        ((Q, K, V[..., :0]), ["v", "Dv = 0", "from 1 to 128"]),
        ((Q[:0], K[:0], V[:0]), ["q", "B = 0", "from 1"]),
        ((Q.repeat(1, 1, 1, 33), K.repeat(1, 1, 1, 33), V), ["q", "D = 132", "from 1 to 128"]),
        ((Q, K, V.repeat(1, 1, 1, 43)), ["v", "Dv = 129", "from 1 to 128"]),
        ((Q.to("meta"), K, V), ["q", "meta"]),
        ((Q, K.to("meta"), V), ["k", "meta", "device of q"]),
    ],
)
def test_primals_are_refused_by_name(primals, words):
    for function in (sdpa, forward):
        assert_refused(functools.partial(function, *primals), [words[0] + " ", *words])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": 0}, ["scale", "0", "above 0"]),
        ({"scale": -1.0}, ["scale", "-1.0", "above 0"]),
        ({"scale": float("nan")}, ["scale", "nan", "finite"]),
        ({"scale": float("inf")}, ["scale", "inf", "finite"]),
        ({"scale": "1"}, ["scale", "'1'", "str", "a number"]),
        ({"scale": True}, ["scale", "True", "bool", "a number"]),
        ({"scale": torch.tensor(1.0)}, ["scale", "Tensor", "a number"]),
        ({"causal": 1}, ["causal", "1", "True or False"]),
        ({"causal": None}, ["causal", "None", "True or False"]),
        ({"precision": "fp8"}, ["precision", "'fp8'", "'ieee', 'bf16x6' or 'tf32'"]),
        ({"precision": None}, ["precision", "None", "'ieee', 'bf16x6' or 'tf32'"]),
        ({"blocks": (16, 16)}, ["blocks", "(16, 16)", "Blocks"]),
        ({"blocks": Blocks(8, 16)}, ["blocks.query", "8", "power of two from 16"]),
        ({"blocks": Blocks(16, 48)}, ["blocks.key", "48", "power of two from 16"]),
        ({"blocks": Blocks(16, 16, num_warps=3)}, ["blocks.num_warps", "3", "1, 2, 4, 8 or 16"]),
        ({"blocks": Blocks(16, 16, num_stages=0)}, ["blocks.num_stages", "0", "from 1"]),
    ],
)
def test_options_are_refused_by_name(options, words):
    for function, arguments in ((sdpa, (Q, K, V)), (vjp, (Q, K, V, G)), (hvp, (Q, K, V, G, *TANGENTS))):
        assert_refused(functools.partial(function, *arguments, **options), [words[0] + " ", *words])


def test_cotangents_tangents_statistics_and_needs_are_refused_by_name():
    _, m, l = forward(Q, K, V)
    wrong = [
        (lambda: backward(Q, K, V, G[..., :2], m, l), ["g", "(2, 2, 5, 2)", "(2, 2, 5, 3)"]),
        (lambda: backward(Q, K, V, G.half(), m, l), ["g", "float16", "float32"]),
        (lambda: backward(Q, K, V, None, m, l), ["g", "NoneType"]),
        (lambda: backward(Q, K, V, G, m[..., :4], l), ["m", "(2, 2, 4)", "(2, 2, 5)"]),
        (lambda: backward(Q, K, V, G, m, l.double()), ["l", "float64", "float32"]),
        (lambda: backward(Q, K, V, G, m, None), ["l", "NoneType"]),
        (lambda: backward(Q, K, V, G, m, l, needs=(True, True)), ["needs", "three booleans"]),
        (lambda: vjp(Q, K, V, G, needs=(False,) * 3), ["needs", "at least one"]),
        (lambda: jvp(Q, K, V, TANGENTS[1], None, None), ["tq", "(2, 2, 7, 4)", "(2, 2, 5, 4)"]),
        (lambda: jvp(Q, K, V, None, None, TANGENTS[2].double()), ["tv", "float64", "float32"]),
        (lambda: jvp(Q, K, V, *TANGENTS, m=m), ["l", "NoneType"]),
        (lambda: hvp(Q, K, V, G, 1.0, None, None), ["tq", "float", "torch.Tensor"]),
        (lambda: hvp_central_difference(Q, K, V, G, *TANGENTS, step=0.0), ["step", "0.0", "above 0"]),
        (lambda: hvp_central_difference(Q, K, V, G, TANGENTS[1], None, None, step=1e-3), ["tq", "(2, 2, 5, 4)"]),
    ]
    for call, words in wrong:
        assert_refused(call, [words[0] + " ", *words])


def test_float32_tiles_that_a_gpu_would_spill_are_refused(monkeypatch):
    monkeypatch.setattr(guardrails, "interpreted", lambda: False)
    monkeypatch.setattr(blocks, "interpreted", lambda: False)
    for name, shipped in blocks.BLOCKS.items():
        if name in blocks.fitting(torch.float32, 128, 128):
            assert guardrails.check_blocks(shipped, torch.float32, "ieee") is shipped
        else:
            with pytest.raises(ValueError, match=r"blocks is Blocks\(.* at most 1024 for float32"):
                guardrails.check_blocks(shipped, torch.float32, "ieee")
        assert guardrails.check_blocks(shipped, torch.float32, "tf32") is shipped
        assert guardrails.check_blocks(shipped, torch.bfloat16, "ieee") is shipped


PROGRAM = """
import torch
from gradoracle.kernels.sdpa import sdpa
x = torch.ones(1, 1, 4, 4, dtype={dtype}, device={device!r})
try:
    print(sdpa(x, x, x).flatten()[0].item())
except ValueError as error:
    print(error)
"""


def test_a_cpu_tensor_without_the_interpreter_is_refused():
    said = compiling(PROGRAM.format(dtype="torch.float32", device="cpu"))
    assert said.startswith("q is on cpu: expected cuda") and "TRITON_INTERPRET=1" in said
    assert said.count("\n") == 1


@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_float64_on_a_gpu_is_refused():
    said = compiling(PROGRAM.format(dtype="torch.float64", device="cuda"))
    given, _, wanted = said.partition(": expected ")
    assert given == "q has dtype torch.float64" and said.count("\n") == 1
    assert re.findall(r"b?float\d+", wanted) == ["float32", "bfloat16", "float16"]


def test_bfloat16_is_refused_where_the_interpreter_would_multiply_raw_bits():
    program = PROGRAM.format(dtype="torch.bfloat16", device="cpu")
    activated = f"from gradoracle.host import interpreter; interpreter.activate(){program}"
    assert "multiplies as raw bits" in compiling(program, TRITON_INTERPRET="1")
    assert compiling(activated) == "1.0\n"
