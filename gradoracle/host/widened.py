"""Widened: a kernel and its wrapper with every float in float64, while every tensor names the dtype it would have.

A ``Wide`` tensor names one dtype and carries another: guards, dispatch on dtypes and control flow see the dtype as
written, and every operation of PyTorch computes on the float64 values within. Triton's interpreter does the same with
its blocks (``interpreter.values.widened``).

Code that PyTorch does not dispatch takes an address (ctypes, an extension) and reads memory as the dtype that it
expects. What a program does with an address is read off the line that asks. An address that is only compared, or only
taken modulo a number, reaches no such code.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType, TracebackType
from typing import Any

import torch
from torch import Tensor
from torch._library import custom_ops
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

from gradoracle.host.claimed_cuda import device_of
from gradoracle.host.interpreter import intervention
from gradoracle.host.interpreter.values import CannotWiden
from gradoracle.host.interpreter.values import widened as widened_blocks
from gradoracle.model.formats import OF_DTYPES

FLOATS = tuple(dtype for dtype in OF_DTYPES if dtype is not torch.float64)
_OF_DTYPES = ("aten::promote_types", "aten::result_type", "aten::can_cast")  # these compute with dtypes, not values
_DTYPES = {OF_DTYPES[dtype].triton: dtype for dtype in FLOATS}
_TRITON_NAMES: dict[torch.dtype | None, str] = {dtype: name for name, dtype in _DTYPES.items()}
_ALLOCATE = ("empty", "new_empty", "zeros", "new_zeros", "ones", "new_ones", "full", "new_full")
_CAPSULES = ("to_dlpack", "_to_dlpack")
_PYTORCH = ("aten", "prim", "prims", "rngprims", "debugprims", "profiler", "inductor")  # namespaces of operators
_COMPLEX = {torch.complex64: torch.complex128, torch.complex32: torch.complex128}
_CARRIED = (torch.float64, torch.complex128)
_BY_VALUE = frozenset((bool, str, torch.dtype, torch.device, torch.layout, torch.memory_format))
_OTHER = object()  # an argument on which the dtypes of results may depend in a way that is not known
_MOST_NAMES = 4096
_names: dict[Any, Sequence[torch.dtype | None]] = {}  # of the results of operations, by what they depend on
_REPLACED = {
    torch.ops.aten._efficientzerotensor.default: torch.ops.aten.zeros.default,  # a tangent that is 0 has no memory
    torch.ops.aten._conj.default: torch.ops.aten.conj_physical.default,  # what is marked on the values, no one sees
}
_OURS, _SUBJECTS = "gradoracle.", ("gradoracle.kernels.", "gradoracle.properties.")
_LIBRARIES = ("torch.", "triton.")
_ASKS = "data_ptr"


class Wide(Tensor):
    """A tensor that names ``dtype`` and carries float64 values.

    Args:
        carried: the values, float64; of complex numbers, complex128.
        dtype: the dtype that it names.
    """

    carried: Tensor

    @staticmethod
    def __new__(cls, carried: Tensor, dtype: torch.dtype) -> Wide:
        """A tensor with the shape and strides of ``carried``."""
        made: Wide = torch.Tensor._make_wrapper_subclass(
            cls,
            carried.shape,
            strides=carried.stride(),
            storage_offset=carried.storage_offset(),
            dtype=dtype,
            device=device_of(carried),
        )
        made.carried = carried
        return made

    def data_ptr(self) -> int:
        """The address of the float64 values; to a line that only compares addresses, what it would be as written.

        Raises:
            CannotWiden: the address may reach code that reads the dtype as written.
        """
        asking = sys._getframe(1)
        if knows_of_widening(asking):
            return self.carried.data_ptr()
        if is_compared(asking):
            return self.carried.untyped_storage().data_ptr() + int(self.storage_offset()) * self.element_size()
        raise _handed_out("data_ptr()", self)

    def tolist(self) -> Any:
        """The values."""
        return self.carried.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """An array is memory, of another dtype than code from outside expects: CannotWiden."""
        raise _handed_out("numpy()", self)

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        """As ``numpy``."""
        raise _handed_out("numpy", self)

    def __dlpack__(self, **kwargs: Any) -> Any:
        """As ``numpy``."""
        raise _handed_out("DLPack", self)

    @property
    def __cuda_array_interface__(self) -> Any:
        """As ``numpy``."""
        raise _handed_out("__cuda_array_interface__", self)

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Wide({self.carried!r}, dtype={self.dtype})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """A call as ever, but that PyTorch would round a number to the named dtype before it is assigned."""
        if func is Tensor.data_ptr:
            raise _handed_out("data_ptr()", args[0])
        if func is Tensor.__setitem__ and isinstance(args[2], float):
            args = (*args[:2], Wide(torch.tensor(args[2], dtype=torch.float64), args[0].dtype))
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs or {})

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """An operation on the values within."""
        return _computed(func, args, kwargs or {})


def _handed_out(how: str, tensor: Tensor) -> CannotWiden:
    return CannotWiden(f"{how} hands memory of {tensor.dtype} to code that is not widened")


class _Widening(TorchDispatchMode):
    """Makes what PyTorch allocates and fills without an argument of dtype float64 ``Wide``, too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


def _computed(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation gives on float64 values, named as with the dtypes of its arguments."""
    name = func._schema.name
    if func.namespace not in _PYTORCH:
        return _elsewhere(func, args, kwargs)
    if str(func) == "aten.view.dtype":
        raise CannotWiden(f"{func} reads the bits of a float")
    if name in _OF_DTYPES:
        return func(*tree_map(_outlined, args), **tree_map(_outlined, kwargs))
    if func in _REPLACED:
        func = _REPLACED[func]
    if intervention.current is not None:
        args, kwargs = tree_map(_number, args), tree_map(_number, kwargs)
    with _float64_by_default():
        found = func(*tree_map(_within, args), **tree_map(_within, kwargs))
    values = found if isinstance(found, (tuple, list)) else (found,)
    if not any(isinstance(value, Tensor) and value.dtype in _CARRIED for value in values):
        return found
    dtypes = _named(func, args, kwargs, len(values))
    if intervention.current is not None:
        values = [_offered(func, args, kwargs, value, dtype) for value, dtype in zip(values, dtypes, strict=True)]
    wrapped = [_wrapped(value, dtype) for value, dtype in zip(values, dtypes, strict=True)]
    result = type(found)(wrapped) if isinstance(found, (tuple, list)) else wrapped[0]
    return return_and_correct_aliasing(func, args, kwargs, result)


def _elsewhere(func: Any, args: Any, kwargs: Any) -> Any:
    """An operator of another library: one that is written in Python runs widened.

    Raises:
        CannotWiden: it is not, and would receive float64 as the dtype that it expects.
    """
    defined = custom_ops.OPDEFS.get(func._schema.name)
    if defined is None:
        raise CannotWiden(f"{func} is an operator of another library, whose code is not widened")
    body = defined._backend_fns.get("cpu") or defined._backend_fns.get(None) or defined._init_fn
    with _Widening():
        return body(*args, **kwargs)


def _number(value: Any) -> Any:
    """A Python float, or what the current intervention makes of it."""
    return value if type(value) is not float or intervention.current is None else intervention.current.number(value)


def _offered(func: Any, args: Any, kwargs: Any, value: Any, dtype: torch.dtype | None) -> Any:
    """A result in float64, or what the current intervention makes of it; it learns what is allocated."""
    does, name = intervention.current, _TRITON_NAMES.get(dtype)
    if does is None or name is None or not isinstance(value, Tensor) or value.dtype is not torch.float64:
        return value
    returns = func._schema.returns
    alias = returns[0].alias_info if returns else None
    if alias is not None and not alias.is_write:  # a view
        return value
    own = func._schema.name.removeprefix("aten::")
    if own.startswith(_ALLOCATE):
        memory = value.untyped_storage()
        does.allocated(memory, memory.data_ptr(), memory.nbytes(), name)
        return value
    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
    if alias is not None:
        given = [each for each in given if _within(each) is not value]
    chosen = does.value(value, lambda: value if _is_selected(value, given, dtype) else value.to(dtype).double())
    chosen = does.written(value.data_ptr(), chosen, lambda held: chosen.to(_DTYPES[held]).double())
    return value.copy_(chosen) if alias is not None and chosen is not value else chosen


def _is_selected(value: Tensor, given: Sequence[Tensor], dtype: torch.dtype | None) -> bool:
    """Whether an operation only moved or selected numbers of the dtype that it gives, which rounds nothing."""
    floats = [each for each in given if isinstance(each, Wide)]
    if not floats or any(each.dtype is not dtype for each in floats):
        return False
    return bool(torch.isin(value, torch.cat([each.carried.reshape(-1) for each in floats])).all())


@contextmanager
def _float64_by_default() -> Iterator[None]:
    """What PyTorch allocates without being given a dtype is float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _named(func: Any, args: Any, kwargs: Any, count: int) -> Sequence[torch.dtype | None]:
    """The dtypes of an operation's results as written, from its arguments' shapes and dtypes alone."""
    key = (func, torch.get_default_dtype(), count, _kind(args), _kind(tuple(kwargs.items())))
    found = _names.get(key)
    if found is None:
        found = _names_as_written(func, args, kwargs, count)
        if len(_names) < _MOST_NAMES and _OTHER not in key[3:]:
            _names[key] = found
    return found


def _names_as_written(func: Any, args: Any, kwargs: Any, count: int) -> Sequence[torch.dtype | None]:
    try:
        named = func(*tree_map(_outlined, args), **tree_map(_outlined, kwargs))
    except (RuntimeError, NotImplementedError):  # the shape of the result depends on values: it selects elements
        given = [each.dtype for each in tree_leaves((args, kwargs)) if isinstance(each, Wide)]
        return [given[0] if given else None] * count
    several = named if isinstance(named, (tuple, list)) else (named,)
    return [each.dtype if isinstance(each, Tensor) else None for each in several]


def _kind(value: Any) -> Any:
    """What of an argument the dtypes of results depend on; ``_OTHER`` where that is not known."""
    if isinstance(value, Tensor):
        return value.dtype, value.dim() == 0, isinstance(value, Wide)
    if isinstance(value, (tuple, list)):
        kinds = tuple([_kind(each) for each in value])
        return _OTHER if _OTHER in kinds else kinds
    kind = type(value)
    if kind in (int, float, complex):
        return kind
    return value if value is None or kind in _BY_VALUE else _OTHER


def _outlined(value: Any) -> Any:
    """A tensor's shape and dtype without values; the device of a factory likewise."""
    if isinstance(value, Tensor):
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return torch.device("meta") if isinstance(value, torch.device) else value


def _within(value: Any) -> Any:
    """The float64 values of an argument; a dtype of a float is float64."""
    if isinstance(value, Wide):
        return value.carried
    if isinstance(value, Tensor):
        return value.double() if value.dtype in FLOATS else value.to(_COMPLEX.get(value.dtype, value.dtype))
    if not isinstance(value, torch.dtype):
        return value
    return torch.float64 if value in FLOATS else _COMPLEX.get(value, value)


def _wrapped(value: Any, dtype: torch.dtype | None) -> Any:
    if not isinstance(value, Tensor) or dtype is None:
        return value
    is_wide = dtype in FLOATS if value.dtype is torch.float64 else value.dtype is torch.complex128 and dtype in _COMPLEX
    return Wide(value, dtype) if is_wide else value


def widen(tensor: Tensor) -> Tensor:
    """A float tensor as ``Wide``, with its layout; any other is itself."""
    if tensor.dtype not in FLOATS or isinstance(tensor, Wide):
        return tensor
    storage = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
    values = storage.double().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
    return Wide(values, tensor.dtype)


def renamed(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """What ``widen`` makes of a tensor; one of float64 values, as a widened kernel returns them, names ``dtype``."""
    if tensor.dtype == torch.float64 and dtype in FLOATS and not isinstance(tensor, Wide):
        return Wide(tensor, dtype)
    return widen(tensor)


def narrowed(tensor: Tensor) -> Tensor:
    """The float64 values of a ``Wide`` tensor; any other is itself."""
    return tensor.carried if isinstance(tensor, Wide) else tensor


@contextmanager
def widening() -> Iterator[None]:
    """Compute in float64 whatever runs within, on tensors that ``widen`` made; torch.compile compiles nothing."""
    compiles = "torch._dynamo" in sys.modules  # as it is where something was compiled; loading it takes seconds
    eager = torch.compiler.set_stance("force_eager") if compiles else nullcontext()
    with widened_blocks(), _Widening(), _without_capsules(), eager:
        yield


@contextmanager
def _without_capsules() -> Iterator[None]:
    """Let ``to_dlpack``, which asks no class of tensors, refuse those that are widened, wherever it is imported."""
    stock = torch._C._to_dlpack

    def to_dlpack(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
        if isinstance(tensor, Wide):
            raise _handed_out("DLPack", tensor)
        return stock(tensor, *args, **kwargs)

    holders = [vars(module) for module in list(sys.modules.values()) if module is not None]
    held = [(names, name) for names in holders for name in _CAPSULES if names.get(name) is stock]
    try:
        for names, name in held:
            names[name] = to_dlpack
        yield
    finally:
        for names, name in held:
            names[name] = stock


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
