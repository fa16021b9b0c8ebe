"""Place: one function in which mistakes are planted, and what its code shows about its names.

That is which of its values are addresses, integers, floats or masks, which are tiles, bounds and results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import libcst as cst

from gradoracle.mutation.operators.syntax import (
    argument,
    children,
    dotted,
    is_product,
    last_name,
    qualified,
    receiver,
    within,
)

POINTER, INTEGER, FLOAT, MASK, UNKNOWN = "pointer", "integer", "float", "mask", ""

_STRIDE = re.compile(r"(^|_)strides?(_|$)|^stride|_(?:[a-z]|row|col|rows|cols)$")
_COUNTED = ("arange", "cdiv", "program_id", "num_programs", "argmax", "argmin", "next_power_of_2")
_REAL = ("dot", "dot_scaled", "exp", "exp2", "log", "log2", "sqrt", "sqrt_rn", "rsqrt", "sigmoid", "softmax", "erf",
         "div_rn", "fdiv", "sin", "cos", "rand", "randn", "tanh", "log1p", "expm1")  # fmt: skip
_OF_FIRST = ("sum", "max", "min", "abs", "trans", "reshape", "view", "broadcast_to", "expand_dims", "zeros_like",
             "multiple_of", "max_contiguous", "cumsum", "ravel", "permute", "flip", "join", "cat")  # fmt: skip

ACCESSES = ("load", "store", "atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor",
            "atomic_xchg", "atomic_cas")  # fmt: skip
RANGES = ("range", "static_range")

_SILENT = ("static_assert", "static_print", "device_print", "device_assert", "arange")
_SHAPED = {"zeros": 0, "full": 0, "reshape": 1, "view": 1, "broadcast_to": 1, "multiple_of": 1, "max_contiguous": 1}
_LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "device", "dtype", "maxnreg", "strict")
_BOUND = re.compile(r"^[A-Z][A-Z0-9_]*$|^(n|num|len|seq|max)_|seqlen|count|size|length|extent|numel")


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


class Place:
    """A function of a kernel file.

    Attributes:
        name: ``function`` or ``Class.method``.
        function: its definition.
        kernel: whether it is jitted.
        class_name: of the class whose method it is, else "".
        parameters: their names, in order.
        constants: those declared ``constexpr``.
        parents: of every node below it that mistakes may touch.
        nodes: those at which they may be planted, in the order of the source.
    """

    def __init__(
        self, name: str, function: cst.FunctionDef, kernel: bool, languages: frozenset[str], own: frozenset[str]
    ) -> None:
        self.name, self.function, self.kernel = name, function, kernel
        self.class_name = name.rpartition(".")[0]
        self._languages, self._own = languages, own
        given = function.params
        declared = [*given.posonly_params, *given.params, *given.kwonly_params]
        self.parameters = tuple(each.name.value for each in declared)
        self.constants = frozenset(each.name.value for each in declared if _is_constant(each.annotation))
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}
        self.nodes = tuple(self._below(self.function.body))

    def _below(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        for child in children(node):
            self.parents[child] = node
            if not self._untouched(child, node):
                yield child
                yield from self._below(child)

    def _untouched(self, node: cst.CSTNode, parent: cst.CSTNode) -> bool:
        """Say whether no mistake is planted below: strings, checks that only raise, shapes of tiles, launch options."""
        if isinstance(node, (cst.SimpleString, cst.ConcatenatedString, cst.FormattedString, cst.Assert, cst.Raise)):
            return not isinstance(parent, cst.Arg)
        if isinstance(parent, cst.If) and node is not parent.orelse and only_raises(parent.body.body):
            return True
        if isinstance(node, cst.Call):
            return self.operation(node) in _SILENT or last_name(node).lstrip("_").startswith(("check", "refuse"))
        if isinstance(node, cst.Arg) and isinstance(parent, cst.Call):
            if node.keyword is not None and node.keyword.value in _LAUNCH_OPTIONS:
                return True
            shape = _SHAPED.get(self.operation(parent))
            if shape is not None and node is argument(parent, "shape", shape):
                return True
            return last_name(parent) in RANGES and len(parent.args) > 2 and node is parent.args[2]
        constant = isinstance(parent, cst.AnnAssign) and _is_constant(parent.annotation)
        return constant and isinstance(node, (cst.Integer, cst.Float))

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Return the node above; None of the function's own body."""
        return self.parents.get(node)

    def operation(self, node: cst.CSTNode | None) -> str:
        """Return which operation of Triton's language a call is of, such as "load"; "" of any other node."""
        name = dotted(node.func) if isinstance(node, cst.Call) else ""
        root, *parts = name.split(".")
        return parts[-1] if parts and root in self._languages else ""

    def is_own(self, call: cst.Call) -> bool:
        """Say whether a call is of a function of the file, or of one that it imports from its own package."""
        root = dotted(call.func).partition(".")[0]
        return root in self._own or root == "self"

    def is_called(self, node: cst.CSTNode) -> bool:
        """Say whether a node is what a call calls."""
        above = self.parent(node)
        return isinstance(above, cst.Call) and above.func is node

    def kind(self, node: cst.CSTNode) -> str:
        """Return the kind of an expression (`Kinds`); "" in a wrapper."""
        if not self.kernel:
            return ""
        return self._kinds.of(node) or ("pointer" if self._is_address(node) else "")

    def _is_address(self, node: cst.CSTNode) -> bool:
        """Say whether an expression is the address of an access, or a term of it."""
        above = self.parent(node)
        while isinstance(above, cst.BinaryOperation):
            above = self.parent(above)
        call = self.parent(above) if isinstance(above, cst.Arg) else None
        return isinstance(call, cst.Call) and self.operation(call) in ACCESSES and above is argument(call, "pointer", 0)

    @cached_property
    def _inner(self) -> tuple[cst.CSTNode, ...]:
        return tuple(within(self.function.body))

    @cached_property
    def values(self) -> dict[str, list[cst.BaseExpression]]:
        """Return what each name is assigned, anywhere in the function."""
        found: dict[str, list[cst.BaseExpression]] = {}

        def assign(target: cst.CSTNode, value: cst.BaseExpression) -> None:
            if isinstance(target, cst.Name):
                found.setdefault(target.value, []).append(value)
            elif isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
                for one, other in zip(target.elements, value.elements, strict=False):
                    assign(one.value, other.value)

        for node in self._inner:
            if isinstance(node, cst.Assign):
                for target in node.targets:
                    assign(target.target, node.value)
            elif isinstance(node, (cst.AnnAssign, cst.AugAssign)) and node.value is not None:
                assign(node.target, node.value)
        return found

    def is_tile(self, node: cst.CSTNode) -> bool:
        """Say whether an expression may have several elements: made of an `arange`, or of the result of another call.

        In a function without any `arange` every parameter may.
        """
        return self._is_made_of(node, self._tiles)

    def _is_made_of(self, node: cst.CSTNode, tiles: frozenset[str]) -> bool:
        return any(
            each.value in tiles if isinstance(each, cst.Name) else isinstance(each, cst.Call) and self._gives_tile(each)
            for each in within(node)
        )

    def _gives_tile(self, call: cst.Call) -> bool:
        single = ("program_id", "num_programs", "cdiv", "minimum", "maximum")
        return receiver(call, "to") is None and self.operation(call) not in single

    @cached_property
    def _tiles(self) -> frozenset[str]:
        ranged = any(self.operation(node) == "arange" for node in self._inner)
        found = frozenset() if ranged else frozenset(self.parameters)
        while True:
            more = {name for name, held in self.values.items() if any(self._is_made_of(each, found) for each in held)}
            if more <= found:
                return found
            found |= more

    @cached_property
    def together(self) -> list[list[str]]:
        """Return the names that are assigned by one statement, of each that assigns several."""
        targets = (node.targets[0].target for node in self._inner if isinstance(node, cst.Assign))
        tuples = (each.elements for each in targets if isinstance(each, cst.Tuple))
        names = ([one.value.value for one in elements if isinstance(one.value, cst.Name)] for elements in tuples)
        return [each for each in names if len(each) > 1]

    @cached_property
    def subtracted(self) -> frozenset[str]:
        """Return the names that exponentials subtract, and those that these are made of by `where` or by assignment."""
        found = {
            each.value
            for node in self._inner
            if isinstance(node, cst.Call) and self.operation(node) in ("exp", "exp2") and node.args
            for part in within(node.args[0].value)
            if isinstance(part, cst.BinaryOperation) and isinstance(part.operator, cst.Subtract)
            for each in within(part.right)
            if isinstance(each, cst.Name)
        }
        for name in tuple(found):
            for value in self.values.get(name, ()):
                if isinstance(value, cst.Name) or self.operation(value) == "where":
                    found |= {each.value for each in within(value) if isinstance(each, cst.Name)}
        return frozenset(found)

    @cached_property
    def flags(self) -> frozenset[str]:
        """Return the constants that the function takes for true or false."""
        tested = (node.test for node in self._inner if isinstance(node, (cst.If, cst.IfExp)))
        plain = (test.expression if isinstance(test, cst.UnaryOperation) else test for test in tested)
        return frozenset(each.value for each in plain if isinstance(each, cst.Name)) & self.constants

    @cached_property
    def _kinds(self) -> Kinds:
        pointers: set[str] = set()
        integers: set[str] = set()
        for node in self._inner:
            if isinstance(node, cst.Call):
                if self.operation(node) in ACCESSES and node.args:
                    base, added = _split(node.args[0].value)
                    pointers |= base
                    integers |= added
                held = receiver(node, "to")
                if isinstance(held, cst.Name) and node.args and qualified(node.args[0].value)[1] in ("int32", "int64"):
                    integers.add(held.value)
            elif isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.FloorDivide, cst.Modulo)):
                integers |= {each.value for each in (node.left, node.right) if isinstance(each, cst.Name)}
            elif isinstance(node, cst.For) and last_name(node.iter) in RANGES and isinstance(node.target, cst.Name):
                integers.add(node.target.value)
        waiting = list(pointers | integers)
        while waiting:  # an address is made of an address and indices, an index of indices
            name = waiting.pop()
            for value in self.values.get(name, ()):
                if isinstance(value, cst.BinaryOperation):
                    base, added = _split(value) if name in pointers else (set(), set(_factors(value)))
                    waiting += (base - pointers) | (added - integers)
                    pointers |= base
                    integers |= added
        return Kinds(self.values, self.parameters, frozenset(pointers), frozenset(integers - pointers), self.operation)

    def is_bound(self, node: cst.CSTNode) -> bool:
        """Say whether an expression compares positions with how many there are: ``n < N``, and masks made of such.

        Every comparison in it, and in what its names were assigned, must be with a parameter that is named as a size.
        """
        return self.kernel and bool(seen := list(self._compared(node, 3))) and all(seen)

    def _compared(self, node: cst.CSTNode, depth: int) -> Iterator[bool]:
        if isinstance(node, cst.Comparison):
            right = node.comparisons[0].comparator
            ordered = isinstance(node.comparisons[0].operator, (cst.LessThan, cst.LessThanEqual))
            named = isinstance(right, cst.Name) and right.value in self.parameters and _BOUND.search(right.value)
            yield ordered and bool(named)
        elif isinstance(node, cst.Name) and depth and node.value in self.values:
            for value in self.values[node.value]:
                yield from self._compared(value, depth - 1)
        elif isinstance(node, cst.BinaryOperation):
            yield from self._compared(node.left, depth)
            yield from self._compared(node.right, depth)
        elif isinstance(node, cst.Subscript):
            yield from self._compared(node.value, depth)
        else:
            yield False

    def is_result(self, node: cst.CSTNode) -> bool:
        """Say whether a changed value goes to a store of an output, or is returned as a gradient, times factors only.

        An output is rounded to its tensor's own dtype as it is stored.
        """
        rounded = False
        below, above = node, self.parent(node)
        while above is not None:
            if isinstance(above, cst.Arg):
                call = self.parent(above)
                stores = isinstance(call, cst.Call) and self.operation(call) in ("store", "atomic_add")
                return stores and rounded and isinstance(call, cst.Call) and above is argument(call, "value", 1)
            if isinstance(above, cst.Return):
                return not self.kernel and self.function.name.value == "backward"
            if isinstance(above, cst.Tuple):
                if not isinstance(self.parent(above), cst.Return):
                    return False
            elif isinstance(above, cst.Call):
                if receiver(above, "to") is None:
                    return False
                rounded = "element_ty" in dotted(above.args[0].value) if above.args else False
            elif isinstance(above, cst.BinaryOperation):
                divisor = below is above.right and isinstance(above.operator, cst.Divide)
                if divisor or not is_product(above):
                    return False
            elif not isinstance(above, (cst.Element, cst.Attribute, cst.UnaryOperation)):
                return False
            below, above = above, self.parent(above)
        return False


def _is_constant(annotation: cst.Annotation | None) -> bool:
    return annotation is not None and last_name(annotation.annotation) == "constexpr"


def _split(address: cst.CSTNode) -> tuple[set[str], set[str]]:
    """Return the name that an address begins with, and those that are added to it, multiplied or not."""
    added: set[str] = set()
    while isinstance(address, cst.BinaryOperation):
        added |= set(_factors(address.right))
        address = address.left
    return ({address.value} if isinstance(address, cst.Name) else set()), added


def _factors(node: cst.CSTNode) -> Iterator[str]:
    if isinstance(node, cst.Name):
        yield node.value
    elif isinstance(node, cst.BinaryOperation) and not isinstance(node.operator, cst.Divide):
        yield from _factors(node.left)
        yield from _factors(node.right)
    elif isinstance(node, cst.Subscript):
        yield from _factors(node.value)


def only_raises(statements: Sequence[cst.CSTNode]) -> bool:
    """Say whether statements do nothing but raise an error."""
    inner = [small for each in statements if isinstance(each, cst.SimpleStatementLine) for small in each.body]
    plain = all(isinstance(each, cst.SimpleStatementLine) for each in statements)
    return plain and bool(inner) and all(isinstance(each, cst.Raise) for each in inner)
