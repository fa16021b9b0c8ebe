"""Syntax: children and text of libcst nodes, names, arguments of calls, and where parentheses are needed."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import fields
from functools import cache
from itertools import pairwise
from typing import TypeVar

import libcst as cst

Item = TypeVar("Item", bound="cst.Arg | cst.BaseElement")
_BLANK = cst.Module(())
_UNSEEN = (
    "annotation", "attr", "comma", "decorators", "equal", "footer", "header", "keyword", "leading_lines",
    "lines_after_decorators", "lpar", "name", "params", "returns", "rpar", "semicolon", "target", "targets",
    "trailing_whitespace", "type_parameters",
)  # fmt: skip


@cache
def _fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind) if f.name not in _UNSEEN and not f.name.startswith("whitespace"))


def children(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the nodes below one that are evaluated when it runs: no annotation, default, target or decorator."""
    for name in _fields(type(node)):
        held = getattr(node, name)
        if isinstance(held, cst.CSTNode):
            yield held
        elif isinstance(held, (tuple, list)):
            yield from (each for each in held if isinstance(each, cst.CSTNode))


def within(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield a node and all below it, in the order of the source."""
    yield node
    for child in children(node):
        yield from within(child)


def one_line(code: str) -> str:
    """Return a piece of code without comments, its lines joined."""
    code = code.strip()
    if "\n" not in code and "#" not in code:
        return code
    lines = [""]
    end = (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(f"({code}\n)").readline):
        if token.type in (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.ENDMARKER):
            continue
        if lines[-1] and token.start != end:
            lines[-1] += " "
        lines[-1] += token.string
        end = token.end
    joined = lines[0][1:].rpartition(")")[0]
    return re.sub(r"\s+([)\]}])", r"\1", re.sub(r"([(\[{])\s+", r"\1", joined)).strip()


def text(node: cst.CSTNode) -> str:
    """Return the code of a node on one line, with its own parentheses."""
    return one_line(_BLANK.code_for_node(node))


def dotted(node: cst.CSTNode) -> str:
    """Return ``a.b.c`` of a name or of attributes of one; "" of any other expression."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr.value}" if before else ""
    return ""


def qualified(node: cst.CSTNode) -> tuple[str, str]:
    """Return ``("a.b", "c")`` of ``a.b.c``, ``("", "a")`` of ``a``, and ``("", "")`` of any other expression."""
    root, _, name = dotted(node).rpartition(".")
    return root, name


def receiver(node: cst.CSTNode, *methods: str) -> cst.BaseExpression | None:
    """Return x of ``x.method(...)``, a call of one of these methods; None of anything else."""
    if isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute) and node.func.attr.value in methods:
        return node.func.value
    return None


def last_name(node: cst.CSTNode) -> str:
    """Return the name that an expression ends in: of ``a.b[c](d)`` b."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        return node.attr.value
    if isinstance(node, cst.Call):
        return last_name(node.func)
    return last_name(node.value) if isinstance(node, cst.Subscript) else ""


def argument(call: cst.Call, keyword: str, position: int) -> cst.Arg | None:
    """Return the argument of a call that is given by keyword, or at a position where no starred one is before it."""
    for at, each in enumerate(call.args):
        if each.keyword is not None:
            if each.keyword.value == keyword:
                return each
        elif each.star:
            position = -1
        elif at == position:
            return each
    return None


def called(call: cst.Call, without: Sequence[cst.Arg | None] = (), function: str = "") -> str:
    """Return the code of a call without some of its arguments, or of another function with the same ones."""
    kept = ", ".join(argument_text(each) for each in call.args if not any(each is dropped for dropped in without))
    return f"{function or text(call.func)}({kept})"


def renamed(call: cst.Call, name: str) -> str:
    """Return the code of a call of another function of the same module, with the same arguments."""
    return called(call, function=f"{qualified(call.func)[0]}.{name}")


def argument_text(arg: cst.Arg) -> str:
    """Return the code of an argument, without its comma."""
    return with_value(arg, text(arg.value))


def with_value(arg: cst.Arg, code: str) -> str:
    """Return the code of an argument with another value."""
    return f"{arg.star}{arg.keyword.value}={code}" if arg.keyword is not None else f"{arg.star}{code}"


def exchanges(items: Sequence[Item]) -> Iterator[tuple[Item, Item, str]]:
    """Yield each two neighbours among arguments or elements, and the code with them exchanged."""
    for one, other in pairwise(items):
        yield one, other, f"{_item(other)}, {_item(one)}"


def _item(node: cst.Arg | cst.BaseElement) -> str:
    if isinstance(node, cst.Arg):
        return argument_text(node)
    return f"*{text(node.value)}" if isinstance(node, cst.StarredElement) else text(node.value)


_OPPOSITES: dict[type, str] = {
    cst.Add: "-", cst.Subtract: "+", cst.AddAssign: "-=", cst.SubtractAssign: "+=", cst.FloorDivide: "%",
    cst.Modulo: "//",
}  # fmt: skip


def opposite(node: cst.BinaryOperation | cst.AugAssign) -> str:
    """Return the code of an operation with - for +, % for //, and the reverse."""
    left, right = (node.target, node.value) if isinstance(node, cst.AugAssign) else (node.left, node.right)
    return f"{text(left)} {_OPPOSITES[type(node.operator)]} {text(right)}"


def is_sum(node: cst.CSTNode | None) -> bool:
    """Say whether a node is a sum or a difference."""
    return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Add, cst.Subtract))


def is_product(node: cst.CSTNode | None) -> bool:
    """Say whether a node is a product or a quotient."""
    return isinstance(node, cst.BinaryOperation) and isinstance(node.operator, (cst.Multiply, cst.Divide))


_RANKS: dict[type, int] = {
    cst.Or: 2, cst.And: 3, cst.BitOr: 6, cst.BitXor: 7, cst.BitAnd: 8, cst.LeftShift: 9, cst.RightShift: 9,
    cst.Add: 10, cst.Subtract: 10, cst.Multiply: 11, cst.MatrixMultiply: 11, cst.Divide: 11, cst.FloorDivide: 11,
    cst.Modulo: 11, cst.Power: 13,
}  # fmt: skip
_LOOSE = {cst.Tuple: 0, cst.NamedExpr: 0, cst.Lambda: 0, cst.Yield: 0, cst.GeneratorExp: 15, cst.IfExp: 1}
_ATOM = 15


def rank(node: cst.CSTNode) -> int:
    """Return how tightly an expression binds, its own parentheses aside: 0 a tuple, 15 a name or a call."""
    if isinstance(node, (cst.BinaryOperation, cst.BooleanOperation)):
        return _RANKS[type(node.operator)]
    if isinstance(node, cst.UnaryOperation):
        return 4 if isinstance(node.operator, cst.Not) else 12
    if isinstance(node, cst.Comparison):
        return 5
    return _LOOSE.get(type(node), _ATOM)


def parenthesised(node: cst.CSTNode) -> bool:
    """Say whether an expression has parentheses of its own."""
    return bool(getattr(node, "lpar", ()))


def tight(node: cst.CSTNode, least: int) -> str:
    """Return the code of an expression, in parentheses where it binds less tightly than `least`."""
    code = text(node)
    return code if parenthesised(node) or rank(node) >= least else f"({code})"


def plus(node: cst.CSTNode, term: str, sign: str = "+") -> str:
    """Return the code of an expression and a term added to it or subtracted from it."""
    return f"{tight(node, 10)} {sign} {term}"
