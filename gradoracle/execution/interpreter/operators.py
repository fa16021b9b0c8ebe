"""What operators of PyTorch read that nothing wrote: partial sums that are added up by `torch.sum`, copied, converted.

A dispatch mode sees every operator below autograd. Memory that was allocated and not written holds a pattern that no
arithmetic makes, so an operator that is given one reads what happens to be there: stores, whoever makes them, need
not be followed. Views read nothing, nor does what takes a tensor for its shape alone; what selects elements reads
those that it selects; what writes to a tensor reads of it what it adds to. What is computed from an element that
nothing wrote may carry the pattern on, and is then told again, after the first.
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

from gradoracle.execution.interpreter.faults import Fault, Kind, Place
from gradoracle.execution.interpreter.footprint import index_at

_ENGINE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_SUBJECTS = tuple(os.path.join(_ENGINE, name, "") for name in ("kernels", "properties"))  # they are nobody's engine
_ALLOCATING = (f"{os.sep}guard_memory.py", f"{os.sep}memory.py")  # of the engine, for whoever calls them
_LIBRARIES = tuple(os.path.dirname(os.path.abspath(module.__file__ or "")) + os.sep for module in (torch, triton))
_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

# A tensor's shape and memory are taken, or a view made, which schemas do not say of these.
_UNREAD = {
    "_unsafe_view", "unsafe_split", "unsafe_split_with_sizes", "unsafe_chunk", "set_", "resize_", "resize_as_",
    "detach_", "t_", "transpose_", "squeeze_", "unsqueeze_", "as_strided_", "swapdims_", "swapaxes_", "is_same_size",
    "_has_same_storage_numel", "_is_zerotensor", "_new_zeros_with_same_feature_meta", "_assert_tensor_metadata",
}  # fmt: skip
# These write to `self` and read nothing of it.
_WRITTEN = {
    "copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_", "geometric_", "cauchy_",
    "log_normal_", "fill_diagonal_", "masked_fill_", "masked_scatter_", "index_copy_", "index_fill_", "put_",
}  # fmt: skip
Given = Mapping[str, Any]
_INDEXED: Callable[[Tensor, Given], Tensor] = lambda p, given: torch.ops.aten.index(p, given["indices"])  # noqa: E731
_ALONG: Callable[[Tensor, Given], Tensor] = lambda p, given: p.index_select(given["dim"], given["index"])  # noqa: E731
_GATHERED: Callable[[Tensor, Given], Tensor] = lambda p, given: p.gather(given["dim"], given["index"])  # noqa: E731
# What is read of one argument, of which the others say which elements: its places from 1, and 0 for what is not of it.
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
    """Holds operators against memory that nothing wrote, from `enter` to `leave`.

    Args:
        unwritten: the bits, as an unsigned number, of a tensor's elements that were allocated and not written; None
            where it was allocated with values.
        found: what is done with a fault.
    """

    supports_higher_order_operators = True

    def __init__(self, unwritten: Callable[[Any], int | None], found: Callable[[Fault], None]) -> None:
        super().__init__()
        self._unwritten, self._found = unwritten, found
        self._entered = 0

    def enter(self) -> None:
        """From here on, unless it is so already: inside a backward pass, PyTorch forgets it with the node."""
        if _get_current_dispatch_mode() is None:
            self._entered += 1
            self.__enter__()

    def leave(self) -> None:
        """No longer."""
        while self._entered:
            self._entered -= 1
            if _get_current_dispatch_mode() is not self:
                _push_mode(self)  # what was forgotten is taken off again, with all that entering set
            self.__exit__(None, None, None)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator after a look at what it reads."""
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
        """Hold one argument that is read against the pattern."""
        size = tensor.element_size()
        if size not in _INTEGERS or tensor.layout is not torch.strided or tensor.is_neg() or tensor.is_conj():
            return
        bits = None
        with suppress(NotImplementedError, RuntimeError):  # what has no memory of its own
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
            except (RuntimeError, IndexError):  # the operator will say what is wrong
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
                return  # gradoracle, Triton or its interpreter look at it, and not the kernel
            place = Place("autograd", 0, "")
        else:
            place = Place(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        index = tuple(int(i) for i in bad.nonzero()[0])
        variable, there, whole = _named(frame, tensor, index) or (name, index, tensor)
        count, shape = int(bad.sum()), tuple(whole.shape)
        self._found(Fault(Kind.UNWRITTEN, str(func), place, variable, there, (), None, count, shape))


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
        if file.startswith(_ENGINE) and not file.startswith(_SUBJECTS) and not file.endswith(_ALLOCATING):
            return None
        if file.startswith(_LIBRARIES[1]):
            return None
        if not file.startswith((_ENGINE, _LIBRARIES[0])) or file.startswith(_SUBJECTS):
            return frame
        frame = frame.f_back
    return None


def _named(frame: Any, tensor: Tensor, index: tuple[int, ...]) -> tuple[str, tuple[int, ...], Tensor] | None:
    """What the caller calls this memory, and the element's index there; None where no variable of its holds it."""
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
    """The tensors of a frame by name, those in its dicts and tuples too."""
    for name, value in (frame.f_locals if frame is not None else {}).items():
        if isinstance(value, Tensor):
            yield name, value
        elif isinstance(value, dict):
            yield from ((f"{name}[{key!r}]", each) for key, each in value.items() if isinstance(each, Tensor))
        elif isinstance(value, (tuple, list)):
            yield from ((f"{name}[{n}]", each) for n, each in enumerate(value) if isinstance(each, Tensor))
