"""One launch of an interpreted kernel: the grid's programs in lockstep or one by one, with little overhead.

Triton replaces some 150 attributes of `triton.language` by scanning its modules at every launch and again at every
call of a device function (`tl.sum`, `tl.max`, `tl.cdiv`, `tl.zeros` are such); that scan costs more than most
operations.  Here Triton's own replacements are recorded once, at activation, and installed for the length of a launch,
so that `triton.language` is unchanged outside of one.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from gradoracle.host.interpreter import (
    blocks,
    elementwise,
    expressions,
    intervention,
    language,
    launch_hooks,
    loads,
    lockstep,
    loops,
    values,
)
from gradoracle.model.formats import OF_DTYPES

_MISSING: Any = object()
_NOT_INTERPRETED = " not supported in interpreter mode"  # how Triton's interpreter ends, after an operation's name
_STOCK_PATCH_LANG = interpreter._patch_lang


class LanguagePatch:
    """Triton's replacements in `triton.language`, recorded once, installed and removed by launches."""

    def __init__(self) -> None:
        self._depth = 0
        self._changes: list[tuple[Any, str, Any, Any]] = []  # object, name, original, replacement
        scope = _STOCK_PATCH_LANG(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
        self._builtins: dict[int, Any] = {}  # replacements by id of what a builtin wraps
        originals: dict[tuple[int, str], list[Any]] = {}
        for holder, name, original in scope._changes:
            originals.setdefault((id(holder), name), [holder]).append(original)
        for (_, name), (holder, original, *later) in originals.items():
            replacement = getattr(holder, name)
            if tl.core.is_builtin(original) and not later:  # replaced once: by a lambda that binds the semantic
                replacement = _with_semantic(original)
            elif holder is tl.dtype and name == "to_ir":
                replacement = blocks.to_ir(replacement)
            elif holder is tl.tensor and name in _SCALARS:
                replacement = _SCALARS[name]
            if holder is tl.tensor and name in expressions.OPERATORS:
                replacement = expressions.OPERATORS[name](replacement)
            elif holder in (tl, tl.core) and name in _BUILTINS:
                replacement = _BUILTINS[name](replacement)
            if tl.core.is_builtin(original) and holder is not tl.tensor:
                self._builtins[id(getattr(original, "__wrapped__", original))] = replacement
            original = _MISSING if original is interpreter._MISSING else original
            self._changes.append((holder, name, original, replacement))
        for holder, name, replacement in blocks.LANGUAGE:
            self._changes.append((holder, name, getattr(holder, name), replacement))
        scope.restore()

    def __enter__(self) -> None:
        self._depth += 1
        if self._depth == 1:
            for holder, name, _, replacement in self._changes:
                setattr(holder, name, replacement)
            language.use(self._builtins)

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            language.use(None)
            for holder, name, original, _ in self._changes:
                if original is _MISSING:
                    delattr(holder, name)
                else:
                    setattr(holder, name, original)


def _with_semantic(builtin: Callable[..., Any]) -> Callable[..., Any]:
    """A builtin of `triton.language` bound to the interpreter's semantic."""
    semantic = interpreter.interpreter_semantic
    builtin = getattr(builtin, "__wrapped__", builtin)  # the wrapper only checks that there is a semantic

    def call(*args: Any, **kwargs: Any) -> Any:
        kwargs["_semantic"] = semantic
        return builtin(*args, **kwargs)

    return call


_SCALARS: dict[str, Any] = {"__index__": blocks.index, "__bool__": blocks.truth, "T": property(blocks.transpose)}
_BUILTINS: dict[str, Any] = {
    "where": expressions.where,
    "load": loads.load,
    "store": loads.store,
    "range": lambda stock: loops.counted,
    "map_elementwise": lambda stock: elementwise.mapped,
}


class _InPlace:
    """The patch scope of a device function: the launch of its kernel holds the real one."""

    def restore(self) -> None:
        pass


def keep_patched(fn: Callable[..., Any]) -> _InPlace:
    """Replaces Triton's `_patch_lang`, which scans `triton.language` at every call of a device function."""
    return _InPlace()


_parameters: dict[Callable[..., Any], inspect.Signature] = {}


def launch(self: Any, *args: Any, **kwargs: Any) -> None:
    """Replaces `GridExecutor.__call__`: the same steps, with nothing looked up twice and nothing copied on the CPU."""
    with values.as_this_thread(), launch_hooks.unclaimed():
        _launch(self, *args, **kwargs)


def _launch(self: Any, *args: Any, **kwargs: Any) -> None:
    signature = _parameters.get(self.fn)
    if signature is None:
        signature = _parameters[self.fn] = inspect.signature(self.fn)
    known = {name: value for name, value in kwargs.items() if name in signature.parameters}
    copied = any(_is_elsewhere(value) for value in (*args, *known.values()))
    host_args, host_kwargs = self._init_args_hst(args, known) if copied else (args, known)
    for hook in self.pre_run_hooks:
        hook(*host_args, **host_kwargs)
    bound = signature.bind(*host_args, **host_kwargs)
    bound.apply_defaults()
    if launch_hooks.watch is not None:
        launch_hooks.watch(self.fn, bound.arguments, self.constexprs, kwargs)
    arguments = bound.arguments
    if intervention.current is not None:
        replace = intervention.current.number
        arguments = {n: replace(value, n) if type(value) is float else value for n, value in arguments.items()}
    with language_patch():
        given = {name: value if name in self.constexprs else _converted(value) for name, value in arguments.items()}
        grid = self.grid(given) if callable(self.grid) else self.grid
        with launch_hooks.unwatched(self.fn.__code__):
            if launch_hooks.record is not None:
                where = grid if isinstance(grid, tuple) else tuple(grid)
                launch_hooks.record.begin(self.fn, where, bound.arguments, given)
                try:
                    run_grid(self.fn, grid, given)
                finally:
                    launch_hooks.record.end()
            else:
                run_grid(self.fn, grid, given)
    if copied:
        self._restore_args_dev(args, host_args, known, host_kwargs)


_arguments: dict[Any, tuple[Any, np.dtype[Any]]] = {}  # by dtype of a tensor, or by integer: its type, and as held
_NARROW = tuple(dtype for dtype in OF_DTYPES if dtype is not torch.float64)
_INTEGERS = 4096  # sizes and strides are few


def _converted(value: Any) -> Any:
    """An argument as a kernel receives it."""
    kind = type(value)
    if kind is float:
        return blocks.Scalar(value)
    if values.is_widened():
        tensor = value.base if kind is interpreter.TensorDescriptor else value
        if type(tensor) is torch.Tensor and tensor.dtype in _NARROW:
            raise values.CannotWiden(
                f"a launch on a tensor of {tensor.dtype} that was made before the kernel was called"
            )
    key = value if kind is int else value.dtype if kind is torch.Tensor else None
    if key not in _arguments:
        made = interpreter._implicit_cvt(value)
        if key is not None and len(_arguments) < _INTEGERS:
            _arguments[key] = (made.type, made.handle.data.dtype)
        return made
    type_, held = _arguments[key]
    data = np.array([value if kind is int else value.data_ptr()], held)
    return tl.tensor(interpreter.TensorHandle(data, type_), type_)


def run_grid(fn: Callable[..., Any], grid: Any, given: dict[str, Any]) -> None:
    """Every program of a grid; `given` are the kernel's arguments, as Triton's own or constants.

    Raises:
        InterpreterError: the kernel raises.
        CannotInterpret: it does what Triton's interpreter does not.
        CannotWiden: it does what has no meaning in float64.
    """
    grid = tuple(grid)
    if len(grid) > 3:
        raise ValueError(f"a grid of {len(grid)} dimensions was given; at most 3 are possible")
    nx, ny, nz = grid + (1,) * (3 - len(grid))
    builder = interpreter.interpreter_builder
    builder.set_grid_dim(nx, ny, nz)
    try:
        with language_patch(), np.errstate(all="ignore"):  # a GPU raises no floating-point warnings
            programs = list(itertools.product(range(nx), range(ny), range(nz)))
            lockstep.run(fn, given, programs, lambda program: builder.set_grid_idx(*program))
    except Exception as error:
        if (inner := _inability(error)) is not None:
            raise inner from None
        if triton.knobs.compilation.front_end_debugging:
            raise
        raise interpreter.InterpreterError(repr(error)) from error


def _inability(error: BaseException | None) -> Exception | None:
    """What the interpreter cannot do, if that is why a kernel or a function that it calls raised."""
    while error is not None and not isinstance(error, (values.CannotWiden, values.CannotInterpret)):
        if isinstance(error, NotImplementedError) and str(error).endswith(_NOT_INTERPRETED):
            operation = str(error).removesuffix(_NOT_INTERPRETED)
            return values.CannotInterpret(f"Triton's interpreter has no {operation}; a GPU runs it")
        error = error.__cause__
    return error


def _is_elsewhere(value: Any) -> bool:
    """Whether an argument holds memory that the interpreter must copy to the host, or may."""
    if isinstance(value, interpreter.TensorDescriptor):
        return _is_elsewhere(value.base)
    if not hasattr(value, "data_ptr"):
        return isinstance(value, tuple) and any(map(_is_elsewhere, value))
    device = getattr(interpreter._unwrap_tensor(value), "device", None)
    return device is None or device.type != "cpu"


_patch: LanguagePatch | None = None


def language_patch() -> LanguagePatch:
    """The one patch of this process, recorded at first use."""
    global _patch
    if _patch is None:
        _patch = LanguagePatch()
    return _patch
