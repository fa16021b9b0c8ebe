"""Written parameters: those that a kernel may write to, found in its source: a superset of those that it writes to."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import weakref
from collections.abc import Callable, Iterator
from typing import Any

_WRITING = ("store", "atomic_")  # tl.store, descriptor.store, tl.store_tensor_descriptor, tl.atomic_add ...
_HARMLESS = ("triton.", "builtins", "math")  # modules of functions that store nothing but as `_WRITING` names


def written_parameters(fn: Callable[..., Any]) -> frozenset[str] | None:
    """The parameters that may reach the address of a store or an atomic; None if the source does not show it.

    A name that occurs in an assignment to such a name may reach it, too, and so may an argument of a function that
    stores through that parameter, or of an unknown function.
    """
    return _stored(inspect.unwrap(fn), ())


_known: weakref.WeakKeyDictionary[Any, frozenset[str] | None] = weakref.WeakKeyDictionary()


def _stored(fn: Callable[..., Any], callers: tuple[Any, ...]) -> frozenset[str] | None:
    """What is known of a function, which many kernels call; of one that calls itself, that is nothing."""
    if fn in callers or not hasattr(fn, "__code__"):
        return None
    if fn not in _known:
        _known[fn] = _analysed(fn, callers)
    return _known[fn]


def _analysed(fn: Any, callers: tuple[Any, ...]) -> frozenset[str] | None:
    tree = _definition(fn)
    if tree is None:
        return None
    parameters = [arg.arg for arg in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)]
    if tree.args.vararg or tree.args.kwarg:
        return None
    reached: set[str] = set()
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        reached |= _reached_by(call, fn, callers)
    flows = [(_names(target), _names(value)) for target, value in _assignments(tree)]
    while True:
        more = {name for targets, sources in flows if targets & reached for name in sources} - reached
        if not more:
            return frozenset(reached.intersection(parameters))
        reached |= more


def _reached_by(call: ast.Call, fn: Any, callers: tuple[Any, ...]) -> set[str]:
    """The names whose addresses a call may write to."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    passed: dict[Any, set[str]] = {place: _names(arg) for place, arg in enumerate(call.args)}
    passed |= {keyword.arg: _names(keyword.value) for keyword in call.keywords}
    everything = set().union(*passed.values()) if passed else set()
    if name.startswith(_WRITING):
        owner = _names(call.func.value) if isinstance(call.func, ast.Attribute) else set()
        return passed.get(0, set()) | passed.get("pointer", set()) | owner
    callee = _called(call.func, fn)
    inner = getattr(callee, "fn", callee)  # of a jitted function
    if inner is None:
        return everything
    if isinstance(inner, type) or str(getattr(inner, "__module__", "")).startswith(_HARMLESS):
        return set()
    if not hasattr(inner, "__code__"):
        return everything
    written = _stored(inner, (*callers, fn))
    if written is None:
        return everything
    order = list(inspect.signature(inner).parameters)
    named = {order[place] if isinstance(place, int) and place < len(order) else place: names
             for place, names in passed.items()}  # fmt: skip
    return {each for name, names in named.items() if name in written or name is None for each in names}


def _called(node: ast.expr, fn: Any) -> Any:
    """The object that a call names, or None."""
    if isinstance(node, ast.Name):
        scope = {**getattr(fn, "__builtins__", {}), **fn.__globals__, **inspect.getclosurevars(fn).nonlocals}
        return scope.get(node.id)
    if isinstance(node, ast.Attribute):
        return getattr(_called(node.value, fn), node.attr, None)
    return None


def _assignments(tree: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            yield from ((target, node.value) for target in node.targets)
        elif isinstance(node, (ast.AugAssign, ast.NamedExpr)) or (isinstance(node, ast.AnnAssign) and node.value):
            assert node.value is not None
            yield node.target, node.value
        elif isinstance(node, ast.For):
            yield node.target, node.iter


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _definition(fn: Any) -> ast.FunctionDef | None:
    """The definition of a function in its file: Triton's interpreter compiles kernels anew, with the lines they had."""
    code = fn.__code__
    for node in _functions("".join(linecache.getlines(code.co_filename))):
        if node.name == code.co_name:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if first <= code.co_firstlineno <= (node.end_lineno or first):
                return node
    return None


@functools.lru_cache(maxsize=64)  # a kernel calls several functions of one file, and most of them more than once
def _functions(source: str) -> tuple[ast.FunctionDef, ...]:
    """The definitions of functions in a source; none where it cannot be parsed."""
    try:
        module = ast.parse(source)
    except SyntaxError:
        return ()
    return tuple(node for node in ast.walk(module) if isinstance(node, ast.FunctionDef))
