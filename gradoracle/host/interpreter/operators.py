"""Operators of PyTorch that read unwritten memory: partial sums that are added up by `torch.sum`, copied, converted.

A dispatch mode sees every operator below autograd. Memory that was allocated and not written holds a pattern that no
arithmetic produces, so an operator whose argument holds one reads unwritten memory: stores need not be followed. Views
read nothing, nor do operators that use a tensor for its shape alone; those that select elements read the selected ones;
those that write to a tensor read the elements that they add to. A value computed from an unwritten element may carry
the pattern on, and is then reported again, after the first.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import torch
import triton
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _push_mode

from gradoracle.host.interpreter.footprint import index_at
from gradoracle.model.wrong_accesses import Kind, SourceLine, WrongAccess, is_of_engine

_ALLOCATING = (f"{os.sep}guard_memory.py", f"{os.sep}memory.py")  # of the engine, on behalf of their callers
_TORCH, _TRITON = (os.path.dirname(os.path.abspath(module.__file__ or "")) + os.sep for module in (torch, triton))
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

# These use a tensor's shape or memory, or make a view, which their schemas do not say.
_UNREAD = {
    "_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "set_", "resize_", "resize_as_",
    "detach_", "t_", "transpose_", "squeeze_", "unsqueeze_", "as_strided_", "swapdims_", "swapaxes_", "is_same_size",
    "_has_same_storage_numel", "_is_zerotensor", "_new_zeros_with_same_feature_meta", "_assert_tensor_metadata",
}  # fmt: skip
# These write to `self` and do not read it.
_WRITTEN = {
    "copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_",
    "log_normal_", "fill_diagonal_", "masked_fill_", "masked_scatter_", "index_copy_", "index_fill_", "put_",
}  # fmt: skip
Given = Mapping[str, Any]
_INDEXED: Callable[[Tensor, Given], Tensor] = lambda p, given: torch.ops.aten.index(p, given["indices"])  # noqa: E731
_ALONG: Callable[[Tensor, Given], Tensor] = lambda p, given: p.index_select(given["dim"], given["index"])  # noqa: E731
_GATHERED: Callable[[Tensor, Given], Tensor] = lambda p, given: p.gather(given["dim"], given["index"])  # noqa: E731
# The elements of one argument that the others select: its places from 1, and 0 for fill values.
_SELECTED: Mapping[tuple[str, str], Callable[[Tensor, Given], Tensor]] = {
    ("index", "self"): _INDEXED,
    ("index_select", "self"): _ALONG,
    ("gather", "self"): _GATHERED,
    ("take", "self"): lambda p, given: p.take(given["index"]),
    ("embedding", "weight"): lambda p, given: p[given["indices"]],
    ("masked_select", "self"): lambda p, given: p.masked_select(given["mask"]),
    ("masked_fill", "self"): lambda p, given: p.masked_fill(given["mask"], 0),
    ("where", "self"): lambda p, given: torch.where(given["condition"], p, 0),
    ("where", "other"): lambda p, given: torch.where(given["condition"], 0, p),
    ("tril", "self"): lambda p, given: p.tril(given.get("diagonal", 0)),
    ("triu", "self"): lambda p, given: p.triu(given.get("diagonal", 0)),
    ("tril_", "self"): lambda p, given: p.tril(given.get("diagonal", 0)),
    ("triu_", "self"): lambda p, given: p.triu(given.get("diagonal", 0)),
    ("index_add_", "self"): _ALONG,
    ("index_reduce_", "self"): _ALONG,
    ("scatter_add_", "self"): _GATHERED,
    ("scatter_reduce_", "self"): _GATHERED,
    ("scatter_", "self"): lambda p, given: _GATHERED(p, given) if "reduce" in given else p[:0],
    ("index_put_", "self"): lambda p, given: _INDEXED(p, given) if given.get("accumulate") else p[:0],
    ("_index_put_impl_", "self"): lambda p, given: _INDEXED(p, given) if given.get("accumulate") else p[:0],
}


class Operators(TorchDispatchMode):
    """Checks operators for reads of unwritten memory, from `enter` to `leave`.

    Args:
        unwritten: the bits, as an unsigned number, of elements of a tensor that were allocated and not written; None
            for a tensor that was allocated with values.
        found: is called with each fault.
    """

    supports_higher_order_operators = True

    def __init__(self, unwritten: Callable[[Any], int | None], found: Callable[[WrongAccess], None]) -> None:
        super().__init__()
        self._unwritten, self._found = unwritten, found
        self._entered = 0

    def enter(self) -> None:
        """Start checking, unless active: within a backward pass PyTorch drops the mode at the end of a node."""
        if _get_current_dispatch_mode() is None:
            self._entered += 1
            self.__enter__()

    def leave(self) -> None:
        """Stop checking."""
        while self._entered:
            self._entered -= 1
            if _get_current_dispatch_mode() is not self:
                _push_mode(self)  # a dropped mode is removed again, with everything that entering set
            self.__exit__(None, None, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator after a check of what it reads."""
        kwargs = kwargs or {}
        read = _read(func)
        if read:
            for place, name in read:
                given = args[place] if place < len(args) else kwargs.get(name)
                for tensor in given if isinstance(given, (list, tuple)) else (given,):
                    if isinstance(tensor, Tensor):
                        self._hold(func, name, tensor, args, kwargs)
        return func(*args, **kwargs)

    def _hold(self, func: Any, name: str, tensor: Tensor, args: Any, kwargs: Any) -> None:
        """Check one argument that is read for the pattern."""
        size = tensor.element_size()
        if size not in _INTEGERS or tensor.layout is not torch.strided or tensor.is_neg() or tensor.is_conj():
            return
        bits = None
        with suppress(NotImplementedError, RuntimeError):  # a tensor without memory of its own
            bits = self._unwritten(tensor)
        if bits is None:
            return
        pattern = bits - (1 << 8 * size) if bits >> (8 * size - 1) else bits
        bad = tensor.detach().view(_INTEGERS[size]) == pattern
        if not bad.any():
            return
        select = _SELECTED.get((_name(func), name))
        if select is not None:
            places = torch.arange(1, tensor.numel() + 1).view(tensor.shape)
            try:
                chosen = select(places, _given(func, args, kwargs)).reshape(-1)
            except (RuntimeError, IndexError):  # the operator itself will raise
                return
            of_these = torch.zeros(tensor.numel() + 1, dtype=torch.bool)
            of_these[chosen] = True
            bad = bad & of_these[1:].view(tensor.shape)
        if bad.any():
            self._tell(func, name, tensor, bad)

    def _tell(self, func: Any, name: str, tensor: Tensor, bad: Tensor) -> None:
        frame = _caller()
        if frame is None:
            if torch._C._current_graph_task_id() == -1:
                return  # read by gradoracle, Triton or its interpreter, not by the kernel
            place = SourceLine("autograd", 0, "")
        else:
            place = SourceLine.of(frame)
        index = tuple(int(i) for i in bad.nonzero()[0])
        variable, there, whole = _named(frame, tensor, index) or (name, index, tensor)
        count, shape = int(bad.sum()), tuple(whole.shape)
        self._found(WrongAccess(Kind.UNWRITTEN, str(func), place, variable, there, (), None, count, shape))


@functools.cache
def _read(func: Any) -> tuple[tuple[int, str], ...]:
    """The arguments of an operator whose elements it may read: places, names. Of PyTorch's own operators alone."""
    schema = getattr(func, "_schema", None)
    if schema is None or getattr(func, "namespace", "") != "aten":
        return ()
    name = _name(func)
    if name in _UNREAD or name.endswith("_like") or name.startswith("new_"):
        return ()
    if any(given.alias_info is not None and not given.alias_info.is_write for given in schema.returns):
        return ()  # a view
    return tuple(
        (place, given.name)
        for place, given in enumerate(schema.arguments)
        if "Tensor" in str(given.type) and not given.is_out and not (name in _WRITTEN and given.name == "self")
    )


def _name(func: Any) -> str:
    return str(func._schema.name).removeprefix("aten::").removeprefix("_foreach_")


def _given(func: Any, args: Any, kwargs: Any) -> Given:
    """The arguments by name."""
    names = (argument.name for argument in func._schema.arguments)
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _caller() -> Any:
    """The innermost frame that is neither a library's nor gradoracle's; None where the engine comes first."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_TRITON) or (is_of_engine(file) and not file.endswith(_ALLOCATING)):
            return None
        if not is_of_engine(file) and not file.startswith(_TORCH):
            return frame
        frame = frame.f_back
    return None


def _named(frame: Any, tensor: Tensor, index: tuple[int, ...]) -> tuple[str, tuple[int, ...], Tensor] | None:
    """The caller's variable for this memory, and the element's index in it; None if it has none."""
    address = tensor.data_ptr() + tensor.element_size() * sum(
        i * stride for i, stride in zip(index, tensor.stride(), strict=True)
    )
    best: tuple[int, str, tuple[int, ...], Tensor] | None = None
    for name, value in _variables(frame):
        with suppress(NotImplementedError, RuntimeError):
            if value.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr():
                continue
            places, odd = divmod(address - value.data_ptr(), value.element_size())
            place = None if odd else index_at(places, value.shape, value.stride())
            if place is not None and (best is None or value.numel() > best[0]):
                best = value.numel(), name, place, value
    return None if best is None else best[1:]


def _variables(frame: Any) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a frame by name, including those in its dicts and tuples."""
    for name, value in (frame.f_locals if frame is not None else {}).items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, dict):
            yield from ((f"{name}[{key!r}]", each) for key, each in value.items() if isinstance(each, Tensor))
        elif isinstance(value, (tuple, list)):
            yield from ((f"{name}[{n}]", each) for n, each in enumerate(value) if isinstance(each, Tensor))
