"""Errors of Triton itself are refusals; those of a kernel's body in the interpreter are not."""

from __future__ import annotations

import importlib.util

import interpreted
import pytest
from triton.compiler.errors import CompilationError
from triton.runtime.errors import InterpreterError, OutOfResources

from gradoracle.host import interpreter
from gradoracle.host.raised import told_by_triton
from gradoracle.model.call import derivative_of
from gradoracle.model.call_errors import Crashed, Refused, Unavailable
from gradoracle.model.derivative import Derivative
from tests.properties.toys import CASE, evidence, kernel


def test_the_sentence_of_triton_is_kept():
    sentence, lacking = "expected inner sizes of at least 16", OutOfResources(200, 100, "shared memory")
    error = CompilationError("def f():\n    x = tl.dot(a, b)", None, sentence)
    assert told_by_triton(error) == f"CompilationError: {sentence}"
    assert told_by_triton(lacking) == f"OutOfResources: {lacking}"
    assert told_by_triton(InterpreterError("NameError")) == "" == told_by_triton(ValueError("no"))


@pytest.mark.parametrize(
    ("error", "kind"), [(OutOfResources(2, 1, "shared memory"), Refused), (InterpreterError("NameError"), Crashed)]
)
def test_what_triton_refuses_is_refused(error, kind):
    def raising(*args):
        raise error

    with pytest.raises(kind):
        evidence(kernel(raising), CASE).forward()


@pytest.mark.xdist_group("interpreter")
@interpreted.NEEDED
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("tl.arange(0, N)", "ValueError: arange's range must be a power of 2"),
        ("tl.zeros((N, N), tl.float32)", "ValueError: Shape element 0 must be a power of 2"),
        ("tl.full((), 0, tl.float32) + undefined", ""),
        ("tl.full((), 0, tl.float32) + (1).missing", ""),
    ],
)
def test_what_triton_s_language_raises_in_the_interpreter_it_refuses_on_a_gpu(tmp_path, body: str, said: str) -> None:
    file = tmp_path / "refused.py"
    head = "import torch, triton\nimport triton.language as tl\n\n@triton.jit\ndef kernel(N: tl.constexpr):\n"
    file.write_text(f"{head}    x = {body}\n")
    interpreter.activate()
    spec = importlib.util.spec_from_file_location("refused", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with pytest.raises(InterpreterError) as caught:
        module.kernel[(1,)](3)
    assert told_by_triton(caught.value) == said


def test_other_derivatives_of_a_case_that_triton_refuses_are_not_checked():
    def refusing(*args):
        raise CompilationError("x", None, "Shape element 0 must be a power of 2")

    with pytest.raises(Unavailable, match="Shape element 0"):
        evidence(kernel(refusing), CASE).jvp()


@pytest.mark.parametrize(
    ("call", "derivative"),
    [
        ("forward", Derivative.FORWARD),
        ("scaled: vjp twice", Derivative.VJP),
        ("scaled: widened jvp", Derivative.JVP),
        ("forward over reverse", Derivative.HVP),
        ("double backward in the cotangents", Derivative.HVP),
        ("lse", None),
    ],
)
def test_a_call_names_the_derivative_that_it_evaluates(call: str, derivative: Derivative | None) -> None:
    assert derivative_of(call) is derivative
