"""Errors of Triton itself are refusals; those of a kernel's body in the interpreter are not."""

from __future__ import annotations

import pytest
from triton.compiler.errors import CompilationError
from triton.runtime.errors import InterpreterError, OutOfResources

from gradoracle.host.raised import told_by_triton
from gradoracle.model.call import derivative_of
from gradoracle.model.call_errors import Crashed, Refused
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
