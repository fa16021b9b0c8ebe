"""Results of the builder's operations, offered to an intervention: arithmetic, functions, casts, dots, constants.

What only moves or selects values rounds nothing: loads, reshapes, selections, maxima, signs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from triton._C.libtriton import ir
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

from gradoracle.host.interpreter import intervention
from gradoracle.host.interpreter.blocks import FLOATS
from gradoracle.host.interpreter.dot import float32_dot
from gradoracle.host.interpreter.intervention import Intervening
from gradoracle.host.interpreter.rounding import cut, nearest

Handle = Any
Method = Callable[..., Any]
_OPERATIONS = """
    fadd fsub fmul fdiv precise_divf frem fma exp exp2 log log2 sin cos sqrt precise_sqrt rsqrt erf
    fp_trunc fp_ext si_to_fp ui_to_fp extern_elementwise dot_scaled
"""
ROUNDING = ("cast_impl", *(f"create_{name}" for name in _OPERATIONS.split()))
CONSTANTS = ("get_fp16", "get_bf16", "get_fp32", "get_fp64")


@contextmanager
def intervening(does: Intervening) -> Iterator[None]:
    """Intervene in whatever runs widened within, Triton's programs included; not to be nested.

    Raises:
        RuntimeError: an intervention is current already.
    """
    with intervention.intervening(does), _replaced(does):
        yield


@contextmanager
def _replaced(does: Intervening) -> Iterator[None]:
    """The builder with methods that offer what they give."""
    stock: dict[str, Method] = {}

    def replace(name: str, made: Callable[[Method], Method]) -> None:
        method = getattr(InterpreterBuilder, name, None)
        if method is not None:
            stock[name] = method
            setattr(InterpreterBuilder, name, made(method))

    try:
        for name in ROUNDING:
            replace(name, _offering)
        replace("create_fp_to_fp", lambda method: _cast(method, does))
        for name in CONSTANTS:
            replace(name, lambda method: _constant(method, does))
        replace("create_dot", lambda method: _dot(method, does))
        yield
    finally:
        for name, method in stock.items():
            setattr(InterpreterBuilder, name, method)


def _offering(method: Method) -> Method:
    def create(self: Any, *args: Any, **kwargs: Any) -> Handle:
        made = method(self, *args, **kwargs)
        return TensorHandle(intervention.offered(made.data, made.dtype.scalar.name), made.dtype)

    return create


def _cast(method: Method, does: Intervening) -> Method:
    def create_fp_to_fp(self: Any, src: Handle, dst_type: Any, rounding_mode: Any) -> Handle:
        made = method(self, src, dst_type, rounding_mode)
        name = made.dtype.scalar.name

        def narrow() -> Any:
            if rounding_mode == ir.ROUNDING_MODE.RTZ and made.data.dtype == np.float64 and name in FLOATS:
                return cut(made.data, name).astype(np.float64)
            return nearest(made.data, name)

        return TensorHandle(does.value(made.data, narrow), made.dtype)

    return create_fp_to_fp


def _constant(method: Method, does: Intervening) -> Method:
    offering = _offering(method)
    return lambda self, value: offering(self, does.number(value))


def _dot(method: Method, does: Intervening) -> Method:
    def create_dot(self: Any, a: Handle, b: Handle, d: Handle, input_precision: Any, *rest: Any) -> Handle:
        made = method(self, a, b, d, input_precision, *rest)

        def narrow() -> Any:
            data = made.data
            if a.dtype.scalar.name == "fp32":
                left, right, onto = (each.data.astype(np.float32) for each in (a, b, d))
                data = float32_dot(left, right, onto, input_precision).astype(np.float64)
            return nearest(data, made.dtype.scalar.name)

        return TensorHandle(does.value(made.data, narrow), made.dtype)

    return create_dot
