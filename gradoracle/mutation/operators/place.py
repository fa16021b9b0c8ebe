"""Place: one function in which faults are planted, and what its code says about its names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property

import libcst as cst

from gradoracle.mutation.operators.kinds import Kinds
from gradoracle.mutation.operators.syntax import argument, children, dotted, last_name, within

ACCESSES = ("load", "store", "atomic_add", "atomic_max", "atomic_min", "atomic_and", "atomic_or", "atomic_xor",
            "atomic_xchg", "atomic_cas")  # fmt: skip
RANGES = ("range", "static_range")

_SILENT = ("static_assert", "static_print", "device_print", "device_assert", "arange")
_SHAPED = {"zeros": 0, "full": 0, "reshape": 1, "view": 1, "broadcast_to": 1, "multiple_of": 1, "max_contiguous": 1}
_LAUNCH_OPTIONS = ("num_warps", "num_stages", "num_ctas", "device", "dtype", "maxnreg", "strict")
_BOUND = re.compile(r"^[A-Z][A-Z0-9_]*$|^(n|num|len|seq|max)_|seqlen|count|size|length|extent|numel")


class Place:
    """A function of a kernel file.

    Attributes:
        name: ``function`` or ``Class.method``.
        function: its definition.
        kernel: whether it is jitted.
        class_name: of the class whose method it is, else "".
        parameters: their names, in order.
        constants: those declared ``constexpr``.
        parents: of every node below it that faults may touch.
        nodes: those below which they may, in the order of the source.
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
        self.constants = frozenset(
            each.name.value
            for each in declared
            if each.annotation is not None and last_name(each.annotation.annotation) == "constexpr"
        )
        self.parents: dict[cst.CSTNode, cst.CSTNode] = {}

        self.nodes = tuple(self._below(self.function.body))

    def _below(self, node: cst.CSTNode) -> Iterator[cst.CSTNode]:
        for child in children(node):
            self.parents[child] = node
            if not self._untouched(child, node):
                yield child
                yield from self._below(child)

    def _untouched(self, node: cst.CSTNode, parent: cst.CSTNode) -> bool:
        """Say whether no fault is planted below: strings, checks that only raise, shapes of tiles, launch options."""
        if isinstance(node, (cst.SimpleString, cst.ConcatenatedString, cst.FormattedString, cst.Assert, cst.Raise)):
            return not isinstance(parent, cst.Arg)
        if isinstance(parent, cst.If) and node is not parent.orelse and only_raises(parent.body.body):
            return True
        if isinstance(node, cst.Call):
            return self.operation(node) in _SILENT or last_name(node).lstrip("_").startswith(("check", "refuse"))
        if isinstance(node, cst.Arg) and isinstance(parent, cst.Call):
            if node.keyword is not None and node.keyword.value in _LAUNCH_OPTIONS:
                return True
            operation = self.operation(parent)
            shape = _SHAPED.get(operation)
            if shape is not None and node is argument(parent, "shape", shape):
                return True
            return last_name(parent) in RANGES and len(parent.args) > 2 and node is parent.args[2]
        constexpr = isinstance(parent, cst.AnnAssign) and last_name(parent.annotation.annotation) == "constexpr"
        return constexpr and isinstance(node, (cst.Integer, cst.Float))

    def parent(self, node: cst.CSTNode) -> cst.CSTNode | None:
        """Return the node above; None of the function's own body."""
        return self.parents.get(node)

    def operation(self, node: cst.CSTNode) -> str:
        """Return which operation of Triton's language a call is of, such as "load"; "" of any other node."""
        if not isinstance(node, cst.Call):
            return ""
        name = dotted(node.func)
        root, _, _ = name.partition(".")
        return name.rpartition(".")[2] if root in self._languages and "." in name else ""

    def is_own(self, call: cst.Call) -> bool:
        """Say whether a call is of a function of the file, or of one that it imports from its own package."""
        root = dotted(call.func).partition(".")[0]
        return root in self._own or root == "self"

    def is_called(self, node: cst.CSTNode) -> bool:
        """Say whether a node is what a call calls, or below that."""
        above = self.parent(node)
        return isinstance(above, cst.Call) and above.func is node

    def kind(self, node: cst.CSTNode) -> str:
        """Return the kind of an expression (see `kinds`); "" in a wrapper."""
        if not self.kernel:
            return ""
        return self._kinds.of(node) or ("pointer" if self._is_address(node) else "")

    def _is_address(self, node: cst.CSTNode) -> bool:
        """Say whether an expression is what an access takes for an address, or a term of it."""
        above = self.parent(node)
        while isinstance(above, cst.BinaryOperation):
            above = self.parent(above)
        call = self.parent(above) if isinstance(above, cst.Arg) else None
        accesses = isinstance(call, cst.Call) and self.operation(call) in ACCESSES
        return accesses and isinstance(call, cst.Call) and above is argument(call, "pointer", 0)

    @cached_property
    def values(self) -> dict[str, list[cst.BaseExpression]]:
        """Return what each name is assigned, anywhere in the function."""
        found: dict[str, list[cst.BaseExpression]] = {}
        for node in within(self.function.body):
            if isinstance(node, cst.Assign):
                for target in node.targets:
                    self._assign(found, target.target, node.value)
            elif isinstance(node, (cst.AnnAssign, cst.AugAssign)) and node.value is not None:
                self._assign(found, node.target, node.value)
        return found

    @staticmethod
    def _assign(found: dict[str, list[cst.BaseExpression]], target: cst.CSTNode, value: cst.BaseExpression) -> None:
        if isinstance(target, cst.Name):
            found.setdefault(target.value, []).append(value)
        elif isinstance(target, cst.Tuple) and isinstance(value, cst.Tuple):
            for one, other in zip(target.elements, value.elements, strict=False):
                Place._assign(found, one.value, other.value)

    def is_tile(self, node: cst.CSTNode) -> bool:
        """Say whether an expression may have more than one element: made of an `arange`, or of what another call gives.

        In a function without any `arange` every parameter may.
        """
        return any(isinstance(each, cst.Name) and each.value in self._tiles for each in within(node)) or any(
            isinstance(each, cst.Call) and self._gives_tile(each) for each in within(node)
        )

    def _gives_tile(self, call: cst.Call) -> bool:
        casts = isinstance(call.func, cst.Attribute) and call.func.attr.value == "to"
        return not casts and self.operation(call) not in ("program_id", "num_programs", "cdiv", "minimum", "maximum")

    @cached_property
    def _tiles(self) -> frozenset[str]:
        ranged = any(self.operation(node) == "arange" for node in within(self.function.body))
        found = set() if ranged else set(self.parameters)
        while True:
            more = {
                name
                for name, values in self.values.items()
                if name not in found
                for part in values
                for each in within(part)
                if (isinstance(each, cst.Call) and self._gives_tile(each))
                or (isinstance(each, cst.Name) and each.value in found)
            }
            if not more:
                return frozenset(found)
            found |= more

    @cached_property
    def together(self) -> list[list[str]]:
        """Return the names that are assigned by one statement, of each that assigns several."""
        tuples = (
            node.targets[0].target
            for node in within(self.function.body)
            if isinstance(node, cst.Assign) and isinstance(node.targets[0].target, cst.Tuple)
        )
        names = ([one.value.value for one in each.elements if isinstance(one.value, cst.Name)] for each in tuples)
        return [each for each in names if len(each) > 1]

    @cached_property
    def subtracted(self) -> frozenset[str]:
        """Return the names that exponentials subtract, and those that these are made of by `where` or by assignment."""
        found = {
            each.value
            for node in within(self.function.body)
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
        tested = (node.test for node in within(self.function.body) if isinstance(node, (cst.If, cst.IfExp)))
        plain = (test.expression if isinstance(test, cst.UnaryOperation) else test for test in tested)
        return frozenset(each.value for each in plain if isinstance(each, cst.Name)) & self.constants

    @cached_property
    def _kinds(self) -> Kinds:
        pointers: set[str] = set()
        integers: set[str] = set()
        for node in within(self.function.body):
            if isinstance(node, cst.Call):
                if self.operation(node) in ACCESSES and node.args:
                    base, added = _split(node.args[0].value)
                    pointers |= base
                    integers |= added
                if isinstance(node.func, cst.Attribute) and node.func.attr.value == "to" and node.args:
                    to_integer = dotted(node.args[0].value).rpartition(".")[2] in ("int32", "int64")
                    if to_integer and isinstance(node.func.value, cst.Name):
                        integers.add(node.func.value.value)
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
        elif isinstance(node, cst.Name):
            held = self.values.get(node.value, []) if depth else []
            if not held:
                yield False
            for value in held:
                yield from self._compared(value, depth - 1)
        elif isinstance(node, cst.BinaryOperation):
            yield from self._compared(node.left, depth)
            yield from self._compared(node.right, depth)
        elif isinstance(node, cst.Subscript):
            yield from self._compared(node.value, depth)
        else:
            yield False

    def is_result(self, node: cst.CSTNode) -> bool:
        """Say whether a fault's value goes to a store of an output, or is returned as a gradient, times factors only.

        An output is what is rounded to its tensor's own dtype as it is stored.
        """
        rounded = False
        below, above = node, self.parent(node)
        while above is not None:
            if isinstance(above, cst.Arg):
                call = self.parent(above)
                stores = call is not None and self.operation(call) in ("store", "atomic_add")
                return stores and rounded and isinstance(call, cst.Call) and above is argument(call, "value", 1)
            if isinstance(above, cst.Return):
                return not self.kernel and self.function.name.value == "backward"
            if isinstance(above, (cst.Element, cst.Tuple)):
                returned = isinstance(above, cst.Element) or isinstance(self.parent(above), cst.Return)
                if not returned:
                    return False
                below, above = above, self.parent(above)
                continue
            divides = isinstance(above, cst.BinaryOperation) and isinstance(above.operator, cst.Divide)
            scaled = divides or _multiplies(above)
            if isinstance(above, cst.Call):
                if not (isinstance(above.func, cst.Attribute) and above.func.attr.value == "to"):
                    return False
                rounded = "element_ty" in dotted(above.args[0].value) if above.args else False
            elif not (scaled or isinstance(above, (cst.Attribute, cst.UnaryOperation))):
                return False
            if isinstance(above, cst.BinaryOperation) and below is above.right and not _multiplies(above):
                return False
            below, above = above, self.parent(above)
        return False


def _multiplies(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, cst.Multiply)


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
