"""Rules for operators that only move numbers, and for those that add where several land in one place.

PyTorch itself says where numbers go: the operator is run on their positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gradoracle.oracle.exact.graph import UnsupportedOperator, operator_name
from gradoracle.oracle.exact.scalars import CONSTANT, Array, Reader, Truths, Undecided, Value, boxed, names, rule
from gradoracle.oracle.exact.trees import followed, leaves

# operator -> positions of the arguments whose numbers are moved (the others are dims, indices, masks)
PLACED: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(
        names(
            "view.default permute.default expand.default unsqueeze.default squeeze.dims select.int slice.Tensor "
            "flip.default unfold.default diagonal.default gather.default index.Tensor index_select.default "
            "split_with_sizes.default cat.default as_strided.default constant_pad_nd.default scatter.value "
            "alias.default clone.default lift_fresh_copy.default"
        ),
        (0,),
    ),
    **dict.fromkeys(
        ("slice_scatter.default", "diagonal_scatter.default", "as_strided_scatter.default", "copy.default"), (0, 1)
    ),
    "scatter.src": (0, 3),
    "index_put.default": (0, 2),
}
FILLED = {"constant_pad_nd.default": 2, "scatter.value": 3}  # position of a number to place
STRIDED = ("as_strided.default", "as_strided_scatter.default")  # ask for strides: those of the traced tensor
FRESH = names(
    "full.default full_like.default empty.memory_format empty_permuted.default empty_strided.default "
    "new_empty_strided.default _efficientzerotensor.default _new_zeros_with_same_feature_meta.default "
    "scalar_tensor.default arange.start_step"
)
# never read memory that nothing wrote
CONSTANT.update(f"aten.{name}" for name in (*PLACED, *FRESH, "_to_copy.default") if "empty" not in name)


@rule(*(f"aten.{name}" for name in PLACED))
def _place(reader: Reader, *args: Value, **kwargs: Any) -> Value:
    name = operator_name(reader.node).removeprefix("aten.")
    if name == "index_put.default" and (args[3:4] == (True,) or kwargs.get("accumulate")):
        return _index_put_add(reader, *args[:3])
    if any(isinstance(x, Truths) for x in leaves(args)):
        return _place_truths(reader, PLACED[name], list(args), kwargs)
    pool = [boxed(reader.field.exact(0.0)).reshape(1)]  # position 0: what PyTorch fills with zeros
    positions = list(args)
    for place in PLACED[name]:
        strides = reader.node.args[place].meta["val"].stride() if name in STRIDED else None  # type: ignore[union-attr]
        positions[place] = _positions(reader, args[place], pool, strides)
    if name in FILLED and len(args) > FILLED[name]:
        positions[FILLED[name]] = sum(part.size for part in pool)
        pool.append(reader.real(args[FILLED[name]]).reshape(1))
    placed = reader.node.target(*positions, **kwargs)  # type: ignore[operator]
    numbers = np.concatenate(pool)
    if isinstance(placed, Tensor):
        return boxed(numbers[placed.numpy()])
    return [boxed(numbers[part.numpy()]) for part in placed]


def _positions(reader: Reader, x: Value, pool: list[Array], strides: Sequence[int] | None = None) -> Any:
    """The positions of the numbers of x in the pool, to which they are added: int64 in the shape of x."""
    if isinstance(x, (list, tuple)):
        return [_positions(reader, part, pool) for part in x]
    numbers = reader.real(x)
    start = sum(part.size for part in pool)
    pool.append(numbers.ravel())
    positions = torch.arange(start, start + numbers.size).view(numbers.shape)
    if strides is None:
        return positions
    return torch.empty_strided(positions.shape, tuple(strides), dtype=torch.int64).copy_(positions)


def _place_truths(reader: Reader, places: Sequence[int], args: list[Any], kwargs: dict[str, Any]) -> Truths:
    """Booleans, some unknown: values and unknowns are moved alike."""
    values, unknown = list(args), list(args)
    for place in places:
        values[place] = followed(lambda x: x.values if isinstance(x, Truths) else x, args[place])
        unknown[place] = followed(lambda x: x.unknown if isinstance(x, Truths) else x & False, args[place])
    if any(isinstance(x, (Truths, np.ndarray)) for x in leaves((values, unknown))):
        raise Undecided(str(reader.node))
    target: Any = reader.node.target
    return Truths(target(*values, **kwargs), target(*unknown, **kwargs))


@rule("aten.view.default")
def _view(reader: Reader, x: Value, shape: Sequence[int]) -> Value:
    return x.reshape(reader.shape) if isinstance(x, np.ndarray) else _place(reader, x, shape)


@rule("aten.permute.default")
def _permute(reader: Reader, x: Value, dims: Sequence[int]) -> Value:
    return x.transpose(tuple(dims)) if isinstance(x, np.ndarray) else _place(reader, x, dims)


@rule("aten.expand.default")
def _expand(reader: Reader, x: Value, shape: Sequence[int], **kwargs: Any) -> Value:
    return np.broadcast_to(x, reader.shape) if isinstance(x, np.ndarray) else _place(reader, x, shape)


@rule("aten.unsqueeze.default", "aten.squeeze.dims")
def _squeeze(reader: Reader, x: Value, *args: Any) -> Value:
    return x.reshape(reader.shape) if isinstance(x, np.ndarray) else _place(reader, x, *args)


@rule("aten.alias.default", "aten.clone.default", "aten.lift_fresh_copy.default")
def _same(reader: Reader, x: Value, **kwargs: Any) -> Value:
    return x


@rule("aten.is_same_size.default", "aten._has_same_storage_numel.default")
def _true(reader: Reader, *args: Value) -> bool:
    return True


@rule(*(f"aten.{name}" for name in FRESH))
def _fresh(reader: Reader, *args: Value, **kwargs: Any) -> Tensor:
    """New tensors that take only the shape of a computed one; what PyTorch leaves uninitialised is 0."""
    fill = args[1] if "full" in operator_name(reader.node) else 0
    return torch.full(reader.shape, fill, dtype=reader.dtype)


# Several numbers in one place.


@rule("aten.scatter_add.default")
def _scatter_add(reader: Reader, x: Value, dim: int, index: Tensor, source: Value) -> Array:
    x, source = reader.real(x), reader.real(source)
    positions = torch.arange(x.size).view(x.shape)
    if x.ndim == 0 or index.dim() == 0:
        return _added(reader, x, np.zeros(index.numel(), dtype=np.int64), source.reshape(-1))
    # an index may be shorter than x along the other dims
    near = positions[tuple(slice(None) if d == dim % x.ndim else slice(0, n) for d, n in enumerate(index.shape))]
    targets = torch.gather(near, dim, index)
    return _added(reader, x, targets.numpy(), source[tuple(slice(0, n) for n in index.shape)])


@rule("aten.scatter_reduce.two")
def _scatter_reduce(
    reader: Reader, x: Value, dim: int, index: Tensor, source: Value, reduce: str, *, include_self: bool = True
) -> Array:
    if reduce != "sum" or not include_self:
        raise UnsupportedOperator(f"aten.scatter_reduce.two with {reduce!r}", reader.field.reading)
    return _scatter_add(reader, x, dim, index, source)


def _index_put_add(reader: Reader, x: Value, indices: Sequence[Tensor | None], values: Value) -> Array:
    x = reader.real(x)
    targets = torch.ops.aten.index.Tensor(torch.arange(x.size).view(x.shape), list(indices)).numpy()
    return _added(reader, x, targets, np.broadcast_to(reader.real(values), targets.shape))


def _added(reader: Reader, x: Array, targets: Any, values: Array) -> Array:
    out = x.ravel().copy()
    for target, value in zip(targets.ravel().tolist(), values.ravel(), strict=True):
        out[target] = reader.field.total("add", out[target], value)
    return out.reshape(x.shape)
