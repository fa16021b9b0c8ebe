"""Kinds: which values of a jitted function are addresses, integers, floats or masks, as far as its code shows."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

import libcst as cst

from gradoracle.mutation.operators.syntax import dotted, qualified, receiver

POINTER, INTEGER, FLOAT, MASK, UNKNOWN = "pointer", "integer", "float", "mask", ""

_STRIDE = re.compile(r"(^|_)strides?(_|$)|^stride|_(?:[a-z]|row|col|rows|cols)$")
_COUNTED = ("arange", "cdiv", "program_id", "num_programs", "argmax", "argmin", "next_power_of_2")
_REAL = ("dot", "dot_scaled", "exp", "exp2", "log", "log2", "sqrt", "sqrt_rn", "rsqrt", "sigmoid", "softmax", "erf",
         "div_rn", "fdiv", "sin", "cos", "rand", "randn", "tanh", "log1p", "expm1")  # fmt: skip
_OF_FIRST = ("sum", "max", "min", "abs", "trans", "reshape", "view", "broadcast_to", "expand_dims", "zeros_like",
             "multiple_of", "max_contiguous", "cumsum", "ravel", "permute", "flip", "join", "cat")  # fmt: skip


def is_stride(name: str) -> bool:
    """Say whether a name reads like that of a stride: ``x_row``, ``stride_am``, ``q_b``."""
    return bool(_STRIDE.search(name))


def kind_of_dtype(node: cst.CSTNode) -> str:
    """Return the kind of numbers of a dtype; float where it is a variable."""
    _, name = qualified(node)
    return INTEGER if name.startswith(("int", "uint")) else FLOAT


class Kinds:
    """Kinds of expressions of one jitted function.

    Args:
        values: what each name is assigned, anywhere in the function.
        parameters: the names of its parameters.
        pointers: names that an address that is loaded or stored begins with.
        integers: names that are known to be integers: cast to one, or ranged over.
        operation: the name of the operation of Triton's language that a call is of, else "".
    """

    def __init__(
        self,
        values: Mapping[str, Sequence[cst.BaseExpression]],
        parameters: Sequence[str],
        pointers: frozenset[str],
        integers: frozenset[str],
        operation: Callable[[cst.CSTNode], str],
    ) -> None:
        self._values, self._parameters, self._pointers = values, frozenset(parameters), pointers
        self._integers, self._operation = integers, operation
        self._known: dict[str, str] = {}

    def of(self, node: cst.CSTNode) -> str:
        """Return the kind of an expression; "" where the code does not show it."""
        if isinstance(node, cst.Name):
            return self._of_name(node.value)
        if isinstance(node, cst.Integer):
            return INTEGER
        if isinstance(node, cst.Float):
            return FLOAT
        if isinstance(node, cst.Comparison):
            return MASK
        if isinstance(node, cst.UnaryOperation):
            return MASK if isinstance(node.operator, cst.Not) else self.of(node.expression)
        if isinstance(node, cst.BinaryOperation):
            return self._of_operation(node)
        if isinstance(node, cst.Subscript):
            return INTEGER if dotted(node.value).endswith("shape") else self.of(node.value)
        if isinstance(node, cst.IfExp):
            return self._joined(node.body, node.orelse)
        return self._of_call(node) if isinstance(node, cst.Call) else UNKNOWN

    def _of_name(self, name: str) -> str:
        if name not in self._known:
            self._known[name] = UNKNOWN  # while it is looked for: a loop's value is made of itself
            self._known[name] = self._looked_up(name)
        return self._known[name]

    def _looked_up(self, name: str) -> str:
        if name in self._pointers:
            return POINTER
        if name in self._integers:
            return INTEGER
        if name in self._parameters and name not in self._values:
            return INTEGER if name.isupper() or is_stride(name) else UNKNOWN
        found = [kind for kind in map(self.of, self._values.get(name, ())) if kind]
        return found[0] if found and all(kind == found[0] for kind in found) else (FLOAT if FLOAT in found else UNKNOWN)

    def _joined(self, *nodes: cst.CSTNode) -> str:
        found = {self.of(node) for node in nodes} - {UNKNOWN}
        for kind in (POINTER, FLOAT):
            if kind in found:
                return kind
        return found.pop() if len(found) == 1 else UNKNOWN

    def _of_operation(self, node: cst.BinaryOperation) -> str:
        left, right = self.of(node.left), self.of(node.right)
        if isinstance(node.operator, cst.Divide):
            return FLOAT
        if POINTER in (left, right):
            return POINTER
        if FLOAT in (left, right):
            return FLOAT
        if left == right:
            return left
        if INTEGER not in (left, right):
            return UNKNOWN
        # an integer and something unknown: an index; a literal decides nothing
        whole, other = (node.left, node.right) if left == INTEGER else (node.right, node.left)
        if isinstance(whole, cst.Integer) or MASK in (left, right):
            return UNKNOWN
        based = other is node.left and isinstance(node.operator, cst.Add) and isinstance(other, (cst.Name, cst.Call))
        return POINTER if based else INTEGER

    def _of_call(self, node: cst.Call) -> str:
        if receiver(node, "to") is not None and node.args:
            return kind_of_dtype(node.args[0].value)
        name = self._operation(node)
        if name in _COUNTED:
            return INTEGER
        if name in _REAL or name == "load" or dotted(node.func) == "float":
            return FLOAT
        if name in ("zeros", "full"):
            return kind_of_dtype(node.args[-1].value) if len(node.args) > 1 else FLOAT
        if name in _OF_FIRST and node.args:
            return self.of(node.args[0].value)
        if name in ("where", "maximum", "minimum"):
            return self._joined(*(each.value for each in node.args[1 if name == "where" else 0 :]))
        return UNKNOWN
