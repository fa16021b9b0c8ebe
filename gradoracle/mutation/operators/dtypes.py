"""Mistakes in dtypes: casts dropped or lowered, sums and intermediate values rounded, dots in fewer bits."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.operator import Fault, operator
from gradoracle.mutation.operators.place import Place, kind_of_dtype
from gradoracle.mutation.operators.syntax import argument, dotted, qualified, receiver, text, tight, with_value, within

_WIDE = {"float64": "float32", "float32": "bfloat16"}


def _cast(node: cst.Call) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """Return what is cast to floats, and to which dtype; None where a call is no such cast."""
    held = receiver(node, "to")
    if held is None or len(node.args) != 1 or node.args[0].keyword is not None:
        return None
    dtype = node.args[0].value
    return (held, dtype) if kind_of_dtype(dtype) == "float" else None


@operator()
def cast_dropped(node: cst.Call, place: Place) -> Iterator[Fault]:
    """A value is not widened to float32 or float64; around kernels, it is not cast at all.

    In kernels a cast to fewer bits stays, since a dot does not compile without it.
    """
    if (found := _cast(node)) is not None:
        upwards = qualified(found[1])[1] in _WIDE
        if upwards or not place.kernel:
            yield Fault(node, text(found[0]), "dtype" if upwards else "")


@operator(cause="dtype")
def cast_lowered(node: cst.Call, place: Place) -> Iterator[Fault]:
    """A value that is cast is rounded first: to bfloat16, on the way to float64 to float32.

    That changes nothing where the value has no more bits than that, or is cast to as few.
    """
    if (found := _cast(node)) is not None:
        value, dtype = found
        root, name = qualified(dtype)
        if name in _WIDE or name in ("dtype", "element_ty") or dotted(dtype) in place.constants:
            lower = f"{'tl' if place.kernel else 'torch'}.bfloat16"
            if name in _WIDE and root:
                lower = f"{root}.{_WIDE[name]}"
            yield Fault(node, f"{tight(value, 15)}.to({lower}).to({text(dtype)})")


def _rounded(code: str, dtype: str) -> str:
    """Return code that rounds a value of a dtype to the next lower one, and widens it again."""
    root, _, name = dtype.rpartition(".")
    lower = f"{root}.{_WIDE[name]}" if name in _WIDE else "tl.bfloat16"
    return f"({code}).to({lower}).to({dtype})"


@operator(wrappers=False, cause="dtype")
def accumulator_rounded(node: cst.AugAssign | cst.Assign, place: Place) -> Iterator[Fault]:
    """A sum over the steps of a loop is rounded to a lower dtype at each step, like a sum held in that dtype.

    Such sums are ``acc += x`` and ``acc = ... acc ...`` where `acc` begins as zeros or full of a dtype.
    """
    name = _target(node)
    dtype = _begun(name, place)
    if not dtype or dtype == text(node.value):
        return
    if isinstance(node, cst.AugAssign):
        if isinstance(node.operator, cst.AddAssign):
            yield Fault(node, f"{name} = {_rounded(f'{name} + {text(node.value)}', dtype)}")
    elif any(isinstance(each, cst.Name) and each.value == name for each in within(node.value)):
        yield Fault(node.value, _rounded(text(node.value), dtype))


def _target(node: cst.AugAssign | cst.Assign) -> str:
    target = node.target if isinstance(node, cst.AugAssign) else node.targets[0].target
    return target.value if isinstance(target, cst.Name) else ""


def _begun(name: str, place: Place) -> str:
    """Return the dtype with which a name begins as zeros or full of one value; "" where it does not."""
    for value in place.values.get(name, ())[:1]:
        operation = place.operation(value)
        if operation in ("zeros", "full") and isinstance(value, cst.Call):
            dtype = argument(value, "dtype", 1 if operation == "zeros" else 2)
            if dtype is not None and kind_of_dtype(dtype.value) == "float":
                return text(dtype.value)
    return ""


@operator(wrappers=False, cause="dtype")
def intermediate_rounded(node: cst.Assign, place: Place) -> Iterator[Fault]:
    """The result of a dot, or of a dot times factors, is rounded to a lower dtype before it is used."""
    name = _target(node)
    if not name or _begun(name, place):
        return
    inner: cst.CSTNode = node.value
    while isinstance(inner, cst.BinaryOperation) and isinstance(inner.operator, cst.Multiply):
        inner = inner.left
    if place.operation(inner) == "dot" and isinstance(inner, cst.Call):
        dtype = argument(inner, "out_dtype", 5)
        yield Fault(node.value, _rounded(text(node.value), "tl.float32" if dtype is None else text(dtype.value)))


@operator(wrappers=False, cause="dtype")
def dot_precision(node: cst.Arg, place: Place) -> Iterator[Fault]:
    """A dot of float32 rounds its operands to tf32. That changes nothing where the operands have 16 bits."""
    if node.keyword is not None and node.keyword.value == "input_precision":
        exact = isinstance(node.value, cst.SimpleString) and node.value.value.strip("'\"") in ("ieee", "tf32x3")
        if exact and place.operation(place.parent(node)) == "dot":
            yield Fault(node, with_value(node, '"tf32"'))
