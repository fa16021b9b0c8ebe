"""Addresses: what a program does with the address of a tensor that it asks for, read off the line that asks.

Code that PyTorch does not dispatch takes an address (ctypes, an extension) and reads memory as the dtype that it
expects. An address that is only compared, or of which a remainder is taken, reaches no such code.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from types import FrameType, TracebackType

_OURS, _SUBJECTS = "gradoracle.", ("gradoracle.kernels.", "gradoracle.properties.")
_LIBRARIES = ("torch.", "triton.")
_ASKS = "data_ptr"


def knows_of_widening(frame: FrameType) -> bool:
    """Whether the code of a frame is PyTorch's, Triton's or gradoracle's, and no kernel's."""
    name = f"{frame.f_globals.get('__name__', '')}."
    return name.startswith(_LIBRARIES) or (name.startswith(_OURS) and not name.startswith(_SUBJECTS))


def is_compared(frame: FrameType) -> bool:
    """Whether the statement at which a frame is only compares the addresses that it asks for, or takes remainders."""
    return _only_compares(frame.f_code.co_filename, frame.f_lineno)


@functools.lru_cache(maxsize=256)
def _only_compares(file: str, line: int) -> bool:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return False
    around = [node for node in ast.walk(tree) if isinstance(node, ast.stmt) and _spans(node, line)]
    if not around:
        return False
    statement = max(around, key=lambda node: node.lineno)
    parents = {id(child): node for node in ast.walk(statement) for child in ast.iter_child_nodes(node)}
    asking = [node for node in ast.walk(statement) if isinstance(node, ast.Call) and _asks(node)]
    return bool(asking) and all(_compares(parents.get(id(node)), node) for node in asking)


def _spans(node: ast.stmt, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _asks(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Attribute) and node.func.attr == _ASKS


def _compares(parent: ast.AST | None, node: ast.Call) -> bool:
    if isinstance(parent, ast.BinOp):
        return isinstance(parent.op, ast.Mod) and parent.left is node
    return isinstance(parent, (ast.Compare, ast.BoolOp, ast.If, ast.Assert)) or (
        isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not)
    )


def place_of(trace: TracebackType | None) -> str:
    """The innermost line of a traceback outside of PyTorch, Triton and gradoracle, as ``file.py:7``; "" for none."""
    found = ""
    while trace is not None:
        frame = trace.tb_frame
        if not knows_of_widening(frame) and _is_of_a_file(frame):
            found = f"{frame.f_code.co_filename.rpartition('/')[2]}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


def _is_of_a_file(frame: FrameType) -> bool:
    """Whether a frame's code is in a file outside of the standard library."""
    file, own = frame.f_code.co_filename, frame.f_globals.get("__name__", "").partition(".")[0]
    return not file.startswith("<") and own not in sys.stdlib_module_names and own not in ("numpy", "functorch")
