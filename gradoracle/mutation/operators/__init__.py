"""Operators: the kinds of small mistakes that can be planted in a GPU kernel and in the autograd code around it.

`source` says in which functions; each file holds the operators of one part of a kernel. Needs libcst.

Raises:
    UsageError: on import, where libcst is not installed.
"""

from __future__ import annotations

from importlib.util import find_spec

from gradoracle.model.errors import UsageError

if find_spec("libcst") is None:
    raise UsageError("libcst is not installed; gradoracle mutate needs it: pip install 'gradoracle[mutate]'")

from gradoracle.mutation.operators import (
    arithmetic,
    bounds,
    dtypes,
    indices,
    launches,
    memory,
    results,
    selections,
    tiles,
)
from gradoracle.mutation.operators.operator import Fault, Operator
from gradoracle.mutation.operators.place import Place
from gradoracle.mutation.operators.source import Source

_MODULES = (bounds, indices, arithmetic, tiles, selections, dtypes, memory, launches, results)
OPERATORS = tuple(each for module in _MODULES for each in vars(module).values() if isinstance(each, Operator))
"""Every operator; where two plant the same mistake, the first has it."""

__all__ = ["OPERATORS", "Fault", "Operator", "Place", "Source"]
