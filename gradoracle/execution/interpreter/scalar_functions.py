"""`tl.map_elementwise`: a function of scalars, called for each element, which takes its own branches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle, interpreter_semantic

from gradoracle.execution.interpreter import lockstep
from gradoracle.execution.interpreter.values import held_as


def mapped(scalar_function: Callable[..., Any], *args: Any, pack: Any = 1, **_: Any) -> Any:
    """Replaces `tl.map_elementwise`: one tensor, or a tuple of them, of the broadcast shape of the arguments.

    Args:
        scalar_function: takes `pack` scalars of each argument in turn, and returns as many of each result.
        args: tensors of the language, scalars among them.
        pack: how many elements a call takes: neighbours in row-major order; on a GPU, neighbours that a thread holds.
    """
    tensors = [each if isinstance(each, tl.tensor) else interpreter_semantic.to_tensor(each) for each in args]
    if any(lockstep.differs(each.handle.data) for each in tensors):
        raise lockstep.OneByOne
    count = int(getattr(pack, "value", pack))
    shape = np.broadcast_shapes(*([int(size) for size in each.shape] for each in tensors))
    elements = [
        np.broadcast_to(each.handle.data.reshape([int(size) for size in each.shape]), shape).reshape(-1)
        for each in tensors
    ]
    if len(elements[0]) % count:
        raise ValueError(f"pack is {count}: expected a divisor of the {len(elements[0])} elements")
    types = [each.dtype.scalar for each in tensors]
    found: list[list[Any]] = []
    single = True
    for start in range(0, len(elements[0]), count):
        scalars = [
            _scalar(data[place], kind)
            for data, kind in zip(elements, types, strict=True)
            for place in range(start, start + count)
        ]
        results = scalar_function(*scalars)
        single = not isinstance(results, (tuple, list, tl.tuple))
        found.append([results] if single else list(results))
    outputs = [
        _tensor([each for results in found for each in results[first : first + count]], shape)
        for first in range(0, len(found[0]), count)
    ]
    return outputs[0] if single else tuple(outputs)


def _scalar(value: Any, dtype: Any) -> Any:
    return tl.tensor(TensorHandle(np.array([value], held_as(dtype)), dtype), dtype)


def _tensor(elements: list[Any], shape: tuple[int, ...]) -> Any:
    """The scalars that calls returned, as a tensor of their dtype."""
    scalars = [each if isinstance(each, tl.tensor) else interpreter_semantic.to_tensor(each) for each in elements]
    dtype = scalars[0].dtype.scalar
    data = np.array([each.handle.data.item() for each in scalars], held_as(dtype)).reshape(shape or (1,))
    return tl.tensor(TensorHandle(data, dtype), tl.block_type(dtype, list(shape)) if shape else dtype)
