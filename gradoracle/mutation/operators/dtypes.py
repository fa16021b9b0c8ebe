"""Faults in dtypes: casts left out or lowered, sums and intermediate values rounded, dots in fewer bits."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.kinds import kind_of_dtype
from gradoracle.mutation.operators.operator import Fault, Operator
from gradoracle.mutation.operators.place import Place
from gradoracle.mutation.operators.syntax import argument, argument_text, dotted, text, tight, within

_WIDE = {"float64": "float32", "float32": "bfloat16"}


def _cast(node: cst.Call) -> tuple[cst.BaseExpression, cst.BaseExpression] | None:
    """Return what is cast, and to which dtype; None where a call is no cast to floats."""
    if not (isinstance(node.func, cst.Attribute) and node.func.attr.value == "to" and len(node.args) == 1):
        return None
    if node.args[0].keyword is not None or kind_of_dtype(node.args[0].value) != "float":
        return None
    return node.func.value, node.args[0].value


def _dropped(node: cst.Call, place: Place) -> Iterator[Fault]:
    """Yield a fault at a cast; in kernels at one to more bits, since without one to fewer a dot does not compile."""
    found = _cast(node)
    if found is not None:
        upwards = dotted(found[1]).rpartition(".")[2] in _WIDE
        if upwards or not place.kernel:
            yield Fault(node, text(found[0]), "dtype" if upwards else "")


def _lowered(node: cst.Call, place: Place) -> Iterator[Fault]:
    found = _cast(node)
    if found is None:
        return
    root, _, name = dotted(found[1]).rpartition(".")
    lower = f"{root}.{_WIDE[name]}" if name in _WIDE and root else "tl.bfloat16" if place.kernel else "torch.bfloat16"
    if name in _WIDE or name in ("dtype", "element_ty") or dotted(found[1]) in place.constants:
        yield Fault(node, f"{tight(found[0], 15)}.to({lower}).to({text(found[1])})")


def _rounded(code: str, dtype: str) -> str:
    """Return code that rounds a value of a dtype to the next lower one, and widens it again."""
    root, _, name = dtype.rpartition(".")
    lower = f"{root}.{_WIDE[name]}" if name in _WIDE else "tl.bfloat16"
    return f"({code}).to({lower}).to({dtype})"


def _accumulator(node: cst.AugAssign | cst.Assign, place: Place) -> Iterator[Fault]:
    """Yield a fault at ``acc += x`` and at ``acc = ... acc ...`` where `acc` begins as zeros or full of a dtype."""
    name = _target(node)
    begun = _begun(name, place)
    if not begun or begun == text(node.value):
        return
    if isinstance(node, cst.AugAssign):
        if isinstance(node.operator, cst.AddAssign):
            yield Fault(node, f"{name} = {_rounded(f'{name} + {text(node.value)}', begun)}")
    elif any(isinstance(each, cst.Name) and each.value == name for each in within(node.value)):
        yield Fault(node.value, _rounded(text(node.value), begun))


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


def _intermediate(node: cst.Assign, place: Place) -> Iterator[Fault]:
    """Yield a fault where a new value is a dot, or a dot times factors."""
    if _begun(_target(node), place) or not isinstance(node.targets[0].target, cst.Name):
        return
    inner: cst.CSTNode = node.value
    while isinstance(inner, cst.BinaryOperation) and isinstance(inner.operator, cst.Multiply):
        inner = inner.left
    if place.operation(inner) == "dot" and isinstance(inner, cst.Call):
        dtype = argument(inner, "out_dtype", 5)
        yield Fault(node.value, _rounded(text(node.value), "tl.float32" if dtype is None else text(dtype.value)))


def _precision(node: cst.Arg, place: Place) -> Iterator[Fault]:
    call = place.parent(node)
    if isinstance(call, cst.Call) and place.operation(call) == "dot" and node.keyword is not None:
        plain = node.keyword.value == "input_precision" and isinstance(node.value, cst.SimpleString)
        if plain and node.value.value.strip("'\"") in ("ieee", "tf32x3"):  # type: ignore[attr-defined]
            yield Fault(node, argument_text(node.with_changes(value=cst.SimpleString('"tf32"'))))


OPERATORS = (
    Operator(
        "cast dropped",
        "A value is not widened to float32 or float64; around kernels, not cast at all.",
        (cst.Call,),
        _dropped,
    ),
    Operator(
        "cast lowered",
        "A value that is cast is rounded first: to bfloat16, on the way to float64 to float32.",
        (cst.Call,),
        _lowered,
        cause="dtype",
        caveat="where the value has no more bits than that, or is cast to as few",
    ),
    Operator(
        "accumulator rounded",
        "A sum over the steps of a loop is rounded to a lower dtype at each, as one held in that dtype would be.",
        (cst.AugAssign, cst.Assign),
        _accumulator,
        wrappers=False,
        cause="dtype",
    ),
    Operator(
        "intermediate rounded",
        "The result of a dot is rounded to a lower dtype before it is used.",
        (cst.Assign,),
        _intermediate,
        wrappers=False,
        cause="dtype",
    ),
    Operator(
        "dot precision",
        "A dot of float32 rounds its operands to tf32.",
        (cst.Arg,),
        _precision,
        wrappers=False,
        cause="dtype",
        caveat="where the operands are of 16 bits",
    ),
)
