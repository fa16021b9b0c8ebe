"""Written domain: a domain as a text, such as ``Permutation(N)`` or ``Distinct(V, sorted=True)``."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from gradoracle.model.dims import dim_names
from gradoracle.model.domains.domain import Domain


def is_written(text: str) -> bool:
    """Whether a text calls something, and is no list of dims."""
    try:
        return isinstance(ast.parse(text.strip(), mode="eval").body, ast.Call)
    except (SyntaxError, ValueError):
        return False


def read(text: str, classes: Mapping[str, type[Domain]]) -> Domain:
    """The domain that a text says; dims and names of inputs are written without quotes.

    Raises:
        ValueError: it names none of these classes, or its arguments do not fit.
    """
    call = ast.parse(text.strip(), mode="eval").body
    assert isinstance(call, ast.Call)
    name = call.func.id if isinstance(call.func, ast.Name) else ast.unparse(call.func)
    if name not in classes:
        raise ValueError(f"{name} is no domain; expected one of {', '.join(classes)}")
    try:
        positional = [_value(each) for each in call.args]
        return classes[name](*positional, **{str(each.arg): _value(each.value) for each in call.keywords})
    except TypeError as error:
        raise ValueError(f"{text} does not fit: {str(error).rpartition('__init__() ')[2]}") from None


def _value(node: ast.expr) -> object:
    """A number, a bool, a text, or a dim."""
    try:
        value: object = ast.literal_eval(node)
    except ValueError:
        value = ast.unparse(node).replace(" ", "")
        dim_names(str(value))
    if value is not None and not isinstance(value, (bool, int, str)):
        raise ValueError(f"{ast.unparse(node)} is no number, dim or name of an input")
    return value
