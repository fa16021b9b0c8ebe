"""Scaled faults: a mutant whose mistake is a factor t of what was planted: value + t (mutated value - value).

The difference of two sources is looked up as the smallest expression that differs, or as a statement that assigns to
one target; what differs otherwise (a mask, a missing store, a swapped argument) has no magnitude and no scaled form.
What is not plainly a float has none either: (1 - t) n in place of a bound n is the bound n - 1 for every t.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import lru_cache

from gradoracle.mutation.mutant import Mutant

# operators that change floats alone, and those that do where the operators' own reading of the code says float
FLOATS = frozenset(
    {
        "function replaced",
        "shift dropped",
        "accumulation lost",
        "result negated",
        "result doubled",
        "factors of a dot swapped",
    }
)
OTHERS = frozenset(
    {
        "sign",
        "term dropped",
        "factor dropped",
        "factor twice",
        "operands swapped",
        "constant",
        "clamp dropped",
        "initial value",
        "other value",
        "branches swapped",
        "selection dropped",
    }
)
_Statement = ast.Assign | ast.AugAssign
_SYMBOLS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}


def scaled(mutant: Mutant, t: float) -> Mutant | None:
    """The mutant with its mistake scaled by t; None where it has no magnitude.

    Its ``key`` is that of no other t.
    """
    if mutant.operator not in FLOATS | OTHERS:
        return None
    old, new = _differing(ast.parse(mutant.original), ast.parse(mutant.source))
    if isinstance(old, ast.expr) and isinstance(new, ast.expr):
        before, after = _text(mutant.original, old), _text(mutant.source, new)
        valued: ast.expr = old
        code = _between(before, after, t)
    elif isinstance(old, _Statement) and isinstance(new, _Statement) and _target(old) == _target(new):
        valued = old.value
        code = f"{_target(old)} = {_between(_value(mutant.original, old), _value(mutant.source, new), t)}"
    else:
        return None
    if (
        mutant.operator in OTHERS
        and _kinds(mutant.original, mutant.module).get(_span(mutant.original, valued)) != "float"
    ):
        return None
    source = _replaced(mutant.original, old, code)
    try:
        compile(source, "<scaled>", "exec", dont_inherit=True)
    except SyntaxError:
        return None
    return replace(mutant, source=source, after=" ".join(code.split()))


def _between(before: str, after: str, t: float) -> str:
    return f"(({before}) + {t!r} * (({after}) - ({before})))"


def _differing(old: ast.AST, new: ast.AST) -> tuple[ast.AST, ast.AST]:
    """The smallest pair of statements or expressions outside of which two trees are equal."""
    if type(old) is not type(new):
        return old, new
    pairs: list[tuple[ast.AST, ast.AST]] = []
    for field in old._fields:
        mine, theirs = getattr(old, field, None), getattr(new, field, None)
        if isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
            both = list(zip(mine, theirs, strict=True))
        else:
            both = [(mine, theirs)]
        for one, other in both:
            if _shown(one) == _shown(other):
                continue
            if not isinstance(one, ast.AST) or not isinstance(other, ast.AST):
                return old, new
            pairs.append((one, other))
    if len(pairs) != 1:
        return old, new
    inner = _differing(*pairs[0])
    is_whole = all(isinstance(each, (ast.expr, ast.stmt, ast.mod)) for each in inner)
    is_called = isinstance(old, ast.Call) and pairs[0][0] is old.func  # a function is no value to scale
    is_call = isinstance(old, ast.Expr)  # a statement that only calls: nothing takes its value
    return (old, new) if not is_whole or is_called or (is_call and inner == pairs[0]) else inner


def _shown(node: object) -> str:
    return ast.dump(node) if isinstance(node, ast.AST) else repr(node)


@lru_cache(maxsize=64)
def _kinds(text: str, module: str) -> dict[tuple[int, int], str]:
    """What the expressions of a source's functions are, by their bytes: float, integer, pointer, mask or not known."""
    import libcst as cst

    from gradoracle.mutation.operators import Source

    source = Source(text, module)
    nodes = ((place, node) for place in source.places for node in place.nodes)
    return {source.span(node): place.kind(node) for place, node in nodes if isinstance(node, cst.BaseExpression)}


def _target(node: _Statement) -> str:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return ast.unparse(targets[0]) if len(targets) == 1 else ""


def _value(source: str, node: _Statement) -> str:
    value = _text(source, node.value)
    if isinstance(node, ast.Assign):
        return value
    return f"{_target(node)} {_SYMBOLS.get(type(node.op), '@')} ({value})"


def _text(source: str, node: ast.expr) -> str:
    return ast.get_source_segment(source, node) or ast.unparse(node)


def _replaced(source: str, node: ast.expr | ast.stmt, code: str) -> str:
    """The source with other code at the place of a node."""
    start, end = _span(source, node)
    whole = source.encode()
    return (whole[:start] + code.encode() + whole[end:]).decode()


def _span(source: str, node: ast.expr | ast.stmt) -> tuple[int, int]:
    """The bytes of a node."""
    lines = [0]
    for line in source.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    end = lines[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
    return lines[node.lineno - 1] + node.col_offset, end
