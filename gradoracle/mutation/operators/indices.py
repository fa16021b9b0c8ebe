"""Faults in indices and addresses: off by one, strides, bounds and axes exchanged, too few bits."""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from gradoracle.mutation.operators.kinds import is_stride
from gradoracle.mutation.operators.operator import Fault, Operator
from gradoracle.mutation.operators.place import ACCESSES, Place
from gradoracle.mutation.operators.syntax import argument, dotted, plus, text, within

_WHOLE = ("integer", "pointer")
_COUNTED = ("arange", "program_id")


def _address(node: cst.Arg, place: Place) -> Iterator[Fault]:
    call = place.parent(node)
    if isinstance(call, cst.Call) and place.operation(call) in ACCESSES and node is argument(call, "pointer", 0):
        name = f"{node.keyword.value}=" if node.keyword is not None else ""
        stores = place.operation(call) != "load"
        yield Fault(node, name + plus(node.value, "1"), "shift" if stores else "")


def _index(node: cst.Assign, place: Place) -> Iterator[Fault]:
    if len(node.targets) != 1:
        return
    held = node.value
    for each in [one.value for one in held.elements] if isinstance(held, cst.Tuple) else [held]:
        counted = any(isinstance(one, cst.Call) and place.operation(one) in _COUNTED for one in within(each))
        if place.kind(each) == "integer" and (isinstance(each, cst.BinaryOperation) or counted):
            yield Fault(each, plus(each, "1"))


def _index_sign(node: cst.BinaryOperation, place: Place) -> Iterator[Fault]:
    if isinstance(node.operator, (cst.Add, cst.Subtract)) and place.kind(node) in _WHOLE:
        new = "-" if isinstance(node.operator, cst.Add) else "+"
        yield Fault(node, f"{text(node.left)} {new} {text(node.right)}")


def _index_term(node: cst.BinaryOperation, place: Place) -> Iterator[Fault]:
    """Yield each term but, of a tile of indices, one without which it is a single index: that does not compile."""
    if not isinstance(node.operator, (cst.Add, cst.Subtract)) or place.kind(node) not in _WHOLE:
        return
    left, right = place.is_tile(node.left), place.is_tile(node.right)
    if left or not right:
        yield Fault(node, text(node.left))
    adds = isinstance(node.operator, cst.Add) and place.kind(node) == "integer"
    if adds and (right or not left):
        yield Fault(node, text(node.right))


def _stride_dropped(node: cst.BinaryOperation, place: Place) -> Iterator[Fault]:
    if not place.kernel or not isinstance(node.operator, cst.Multiply):
        return
    for kept, dropped in ((node.left, node.right), (node.right, node.left)):
        stride = _stride(dropped, place)
        if stride:  # where the stride of the last axis is 1, only another layout shows that it is not there
            siblings = _siblings(stride, place)
            last = stride == siblings[-1] and (len(siblings) > 1 or stride.endswith(("_col", "_cols")))
            yield Fault(node, text(kept), "layout" if last else "")
        elif place.kind(node) == "integer" and kept is node.left:
            yield Fault(node, text(kept))


def _stride(node: cst.CSTNode, place: Place) -> str:
    """Return the name of the parameter that an expression is, widened or not, if it is a stride; else ""."""
    while isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value == "to":
        node = node.func.value
    name = node.value if isinstance(node, cst.Name) else ""
    return name if name in place.parameters and is_stride(name) else ""


def _siblings(stride: str, place: Place) -> list[str]:
    """Return the strides of the same tensor, in the order of the parameters."""
    stem = stride.rpartition("_")[0]
    return [name for name in place.parameters if is_stride(name) and name.rpartition("_")[0] == stem]


def _stride_swapped(node: cst.Name, place: Place) -> Iterator[Fault]:
    if not place.kernel or place.is_called(node) or not _stride(node, place):
        return
    siblings = _siblings(node.value, place)
    if len(siblings) > 1 and place.kind(node) in ("integer", ""):
        yield Fault(node, siblings[(siblings.index(node.value) + 1) % len(siblings)])


def _bound_swapped(node: cst.Name, place: Place) -> Iterator[Fault]:
    if not place.kernel or not _is_dim(node.value, place) or place.is_called(node):
        return
    dims = [name for name in place.parameters if _is_dim(name, place)]
    if len(dims) > 1:
        yield Fault(node, dims[(dims.index(node.value) + 1) % len(dims)])


def _is_dim(name: str, place: Place) -> bool:
    """Say whether a parameter is named as a size is, ``N`` or ``DV``, and is no pointer nor has strides."""
    named = name in place.parameters and name not in place.constants and name.isupper() and len(name) <= 2
    strided = any(each.lower().startswith(f"{name.lower()}_") for each in place.parameters)
    return named and not strided and place.kind(cst.Name(name)) != "pointer"


def _index_swapped(node: cst.Name, place: Place) -> Iterator[Fault]:
    above = place.parent(node)
    if not place.kernel or place.is_called(node) or isinstance(above, cst.Attribute) or node.value not in place.values:
        return
    for names in place.together:
        if node.value in names and all(place.kind(cst.Name(name)) == "integer" for name in names):
            yield Fault(node, names[(names.index(node.value) + 1) % len(names)])
            return


def _program(node: cst.Call, place: Place) -> Iterator[Fault]:
    if place.operation(node) in ("program_id", "num_programs"):
        axis = argument(node, "axis", 0)
        if axis is not None and isinstance(axis.value, cst.Integer):
            new = "0" if axis.value.value != "0" else "1"
            yield Fault(axis.value, new)


def _division(node: cst.BinaryOperation, place: Place) -> Iterator[Fault]:
    if isinstance(node.operator, (cst.FloorDivide, cst.Modulo)) and place.kernel:
        new = "%" if isinstance(node.operator, cst.FloorDivide) else "//"
        yield Fault(node, f"{text(node.left)} {new} {text(node.right)}")


def _narrow(node: cst.Call, place: Place) -> Iterator[Fault]:
    if not (isinstance(node.func, cst.Attribute) and node.func.attr.value == "to" and len(node.args) == 1):
        return
    if dotted(node.args[0].value).rpartition(".")[2] in ("int64", "uint64"):
        yield Fault(node, text(node.func.value))


def _clamp(node: cst.Call, place: Place) -> Iterator[Fault]:
    if place.operation(node) in ("maximum", "minimum") and len(node.args) >= 2:
        for arg in node.args[:2]:
            yield Fault(node, text(arg.value))


_SUMS = (cst.BinaryOperation,)
OPERATORS = (
    Operator(
        "address shifted",
        "The address of a load, a store or an atomic operation is one element further.",
        (cst.Arg,),
        _address,
        wrappers=False,
    ),
    Operator(
        "index shifted",
        "An index that the code computes is one more.",
        (cst.Assign,),
        _index,
        wrappers=False,
    ),
    Operator(
        "index sign", "In an index or an address + becomes -, or - becomes +.", _SUMS, _index_sign, wrappers=False
    ),
    Operator(
        "index term dropped",
        "Of a sum in an index or an address one term is left out.",
        _SUMS,
        _index_term,
        wrappers=False,
    ),
    Operator(
        "stride dropped", "An index is not multiplied, by a stride or a size.", _SUMS, _stride_dropped, wrappers=False
    ),
    Operator(
        "stride swapped",
        "A stride is that of another axis of the same tensor.",
        (cst.Name,),
        _stride_swapped,
        wrappers=False,
    ),
    Operator("dim swapped", "A size is that of another dim.", (cst.Name,), _bound_swapped, wrappers=False),
    Operator(
        "index swapped",
        "An index is another of those that are assigned with it, such as the head in place of the batch member.",
        (cst.Name,),
        _index_swapped,
        wrappers=False,
    ),
    Operator(
        "program axis",
        "A program asks for its number along another axis of the grid.",
        (cst.Call,),
        _program,
        wrappers=False,
    ),
    Operator("division exchanged", "Of an index // becomes %, or % becomes //.", _SUMS, _division, wrappers=False),
    Operator(
        "64 bits dropped",
        "An index is not widened to 64 bits.",
        (cst.Call,),
        _narrow,
        wrappers=False,
        cause="offset",
        caveat="where no offset reaches 2^31",
    ),
    Operator(
        "clamp dropped", "Of the larger or the smaller of two values one is taken.", (cst.Call,), _clamp, wrappers=False
    ),
)
