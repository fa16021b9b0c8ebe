"""Activation: replaces Triton's methods by the corrected ones, or says why that is not possible.

Whether this Triton and this numpy can interpret kernels together is known before either is imported.
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

from gradoracle.model.versions import version

OLDEST_TRITON, NEWEST_TRITON = "3.6.0", "3.9.0"  # a newer one is refused only if it lacks a part
TESTED_TRITON, TESTED_NUMPY = "3.7.1", "2.4.6"  # the pair that the tests run with
_VARIABLE = "TRITON_INTERPRET"
_USE = f"use a Triton from {OLDEST_TRITON} to {NEWEST_TRITON}"
_EXCHANGES = ("cat", "dot", "dot_scaled", "gather", "histogram", "join", "reshape", "split", "trans")
"""Operations of Triton's builder that may bring the threads of a program together; reductions and scans do, too."""

_active = False
_hidden = False
_failure: str | None = None  # why activation failed


def explain_unavailable() -> str | None:
    """Why Triton kernels cannot be interpreted here and what to install, in one sentence; None if they can.

    It imports neither Triton nor numpy, but reads their versions, and remembers why `activate` failed in this process.
    """
    return _failure or lacking(version("triton"), version("numpy"))


def lacking(triton: str, numpy: str) -> str | None:
    """As `explain_unavailable`, of versions; "" stands for a package that is not installed."""
    for name, found in (("triton", triton), ("numpy", numpy)):
        if not found:
            return f"{name} is not installed and interpreting Triton kernels needs it: install {name}."
        if name == "triton" and _number(found) < _number(OLDEST_TRITON):
            return (
                f"Triton {found} was found and interpreting kernels needs {OLDEST_TRITON} or later: "
                f"install triton>={TESTED_TRITON}."
            )
    return None


def _number(found: str) -> tuple[int, int]:
    major, minor = found.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)


def activate() -> None:
    """Interpret Triton kernels on the CPU in this process, with a GPU's rounding; once is enough, twice is harmless.

    To be called before the modules with kernels are imported: `triton.jit` decides when it decorates.  Triton's own
    device functions (`tl.sum`, ...) are interpreted even if Triton was imported before, and kernels that Triton's own
    interpreter has run before are interpreted anew.
    Raises RuntimeError, in one sentence, if Triton and numpy cannot interpret together or this Triton lacks a method
    that is corrected; every later call raises the same.
    """
    global _active, _failure
    if _active:
        os.environ[_VARIABLE] = "1"
        return
    reason = explain_unavailable()
    if reason is not None:
        raise RuntimeError(reason)
    before = os.environ.get(_VARIABLE)
    os.environ[_VARIABLE] = "1"
    try:
        _install()
        _interpret_device_functions()
        _probe()
    except Exception as error:
        if before is None:
            del os.environ[_VARIABLE]
        else:
            os.environ[_VARIABLE] = before
        if isinstance(error, RuntimeError):
            _failure = str(error)
            raise
        own = f"{type(error).__name__}: {error}"
        _failure = f"the interpreter cannot correct Triton {version('triton')} ({own}): {_USE}."
        raise RuntimeError(_failure) from error
    _active = True


def _probe() -> None:
    import triton.language as tl
    from triton.runtime.errors import InterpreterError

    from gradoracle.host.interpreter import launch
    from gradoracle.host.interpreter.blocks import constant
    from gradoracle.host.interpreter.probe import exercise

    try:  # not through the launcher, which would import torch
        launch.run_grid(exercise.rewrite(), (1,), {"count": constant(2, tl.int32), "SIZE": 16})
    except InterpreterError as error:
        raise RuntimeError(
            f"Triton {version('triton')} cannot interpret kernels with numpy {version('numpy')} ({error}): "
            f"install triton=={TESTED_TRITON} and numpy=={TESTED_NUMPY}, which are tested together."
        ) from error


def is_active() -> bool:
    """Whether kernels decorated from now on are interpreted with a GPU's rounding."""
    return _active and (_hidden or os.environ.get(_VARIABLE) == "1")


def interprets_all() -> bool:
    """Whether no Triton program runs on the CPU but with a GPU's rounding: all are interpreted so, or none can run."""
    return is_active() or (explain_unavailable() is not None and os.environ.get(_VARIABLE) != "1")


@contextmanager
def hidden() -> Iterator[None]:
    """Let nobody but Triton's decorators see that kernels are interpreted: neither `os.environ` nor Triton's knobs."""
    global _hidden
    before, own = _hidden, os.environ.pop(_VARIABLE, None)
    _hidden = True
    try:
        yield
    finally:
        _hidden = before
        if own is not None:
            os.environ[_VARIABLE] = own


def _let_triton_see_it() -> None:
    """Let Triton's own modules read that the interpreter is on whenever it is active; others read the variable."""
    from triton import knobs as every

    knobs = type(every.runtime)
    stock = vars(knobs)["interpret"]

    class Seen(type(stock)):  # type: ignore[misc]
        """The knob as its reader is to see it."""

        def __get__(self, obj: Any, objclass: Any = None) -> Any:
            reader = str(sys._getframe(1).f_globals.get("__name__", ""))
            return True if is_active() and reader.startswith("triton.") else super().__get__(obj, objclass)

    seen = object.__new__(Seen)
    seen.__dict__.update(stock.__dict__)
    knobs.interpret = seen


def _install() -> None:
    try:
        from triton.runtime import interpreter

        from gradoracle.host.interpreter import language

        language.undo()  # before what follows keeps names of triton.language
        from gradoracle.host.interpreter import (
            autotuner,
            blocks,
            casts,
            dot,
            elementwise,
            launch,
            launch_hooks,
            libdevice,
            lockstep,
            loops,
            memory,
            reduction,
            scaled_dot,
            values,
        )
    except (AttributeError, ImportError) as error:  # the corrections import what they build on
        raise RuntimeError(
            f"Triton {version('triton')} lacks a part that the interpreter corrects ({error}): {_USE}."
        ) from error

    replaced: list[tuple[Any, dict[str, Callable[..., Any]]]] = [
        (interpreter.InterpreterBuilder, elementwise.METHODS),
        (interpreter.InterpreterBuilder, casts.METHODS),
        (interpreter.InterpreterBuilder, blocks.METHODS),
        (interpreter.InterpreterBuilder, dot.METHODS),
        (interpreter.InterpreterBuilder, memory.METHODS),
        (interpreter.InterpreterBuilder, libdevice.METHODS),
        (interpreter.TensorHandle, {"__init__": blocks.init_handle}),
        (interpreter.TensorDescHandle, memory.OF_DESCRIPTORS),
        (interpreter.ReduceOps, reduction.REDUCE_METHODS),
        (interpreter.ScanOps, reduction.SCAN_METHODS),
        (interpreter.GridExecutor, {"__call__": launch.launch}),
        # a bfloat16 block is held as float32, which Triton's tables of numpy dtypes must reflect
        (interpreter, {"_get_np_dtype": values.held_as, "_validate_np_data_size": values.fits}),
        (interpreter, {"_patch_lang": launch.keep_patched}),
    ]
    if hasattr(interpreter, "BlockPointerHandle"):  # Triton 3.9 has none any more
        replaced.append((interpreter.BlockPointerHandle, memory.OF_BLOCK_POINTERS))
    for holder, methods in replaced:
        for name, replacement in methods.items():
            _require(holder, name, replacement)
    launch.language_patch()
    added: list[tuple[Any, dict[str, Callable[..., Any]]]] = [
        (interpreter.InterpreterBuilder, elementwise.NEW_METHODS),
        (interpreter.InterpreterBuilder, scaled_dot.NEW_METHODS),
        (interpreter.ASTTransformer, {"visit_For": loops.visit_For}),
        (interpreter, {loops.NAME: loops.loop_over}),  # Triton gives its module's names to kernels that it rewrites
    ]
    for holder, methods in [*replaced, *added]:
        for name, replacement in methods.items():
            setattr(holder, name, replacement)
    for name, method in vars(interpreter.InterpreterBuilder).copy().items():
        if name.startswith("create_") and name not in lockstep.IN_STEP:
            setattr(interpreter.InterpreterBuilder, name, lockstep.refusing(method))
    exchanges = [(interpreter.InterpreterBuilder, f"create_{name}") for name in _EXCHANGES]
    for holder, name in [*exchanges, (interpreter.ReduceScanOpInterface, "apply")]:
        if (operation := getattr(holder, name, None)) is not None:
            setattr(holder, name, launch_hooks.exchanging(operation))
    autotuner.take_the_first()
    _let_triton_see_it()
    libdevice.fill_in()
    language.reach()
    semantic = interpreter.interpreter_semantic
    alike = blocks.typed_alike(semantic.binary_op_type_checking_impl)
    semantic.binary_op_type_checking_impl = MethodType(alike, semantic)
    semantic.cast = MethodType(blocks.cast_directly(semantic.cast), semantic)
    semantic.expand_dims = MethodType(blocks.expand_dims, semantic)
    semantic.broadcast_impl_value = MethodType(blocks.broadcast_impl_value, semantic)
    semantic.dot_scaled = MethodType(scaled_dot.of_words(semantic.dot_scaled), semantic)
    bitcast = scaled_dot.bytes_as_they_are(semantic._bitcast_to_fp_type)
    semantic._bitcast_to_fp_type = MethodType(bitcast, semantic)
    # Triton repeats every integer operation in int64 to check for overflow, and drops the result without debug=True
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(
        builder.options,
        sanitize_overflow=False,
        allowed_dot_input_precisions=dot.INPUT_PRECISIONS,
        max_num_imprecise_acc_default=dot.IMPRECISE,
    )


def _require(holder: Any, name: str, replacement: Callable[..., Any]) -> None:
    """Raise if Triton's method is absent or takes other arguments than the replacement."""
    where = f"{getattr(holder, '__qualname__', holder.__name__)}.{name}"
    stock = getattr(holder, name, None)
    if stock is None:
        raise RuntimeError(f"Triton {version('triton')} has no {where}, which the interpreter corrects: {_USE}.")
    expected, given = _positional(replacement), _positional(stock)
    if len(expected) > len(given) or (holder.__name__ == "InterpreterBuilder" and expected != given[: len(expected)]):
        raise RuntimeError(
            f"Triton {version('triton')} calls {where} with ({', '.join(given)}) and the interpreter corrects one "
            f"with ({', '.join(expected)}): {_USE}."
        )


def _positional(function: Callable[..., Any]) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in inspect.signature(function).parameters.values() if p.kind in kinds]


def _interpret_device_functions() -> None:
    """If Triton was imported as a compiler, its own jitted functions (`tl.sum`, ...) become interpreted ones."""
    import triton.language as tl
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    interpreted: dict[int, Any] = {}
    holders = [module for name, module in sys.modules.items() if name.startswith("triton.language")]
    for holder in [*holders, tl.tensor]:
        for name, value in list(vars(holder).items()):
            if isinstance(value, JITFunction):
                function = interpreted.setdefault(id(value), InterpretedFunction(value.fn))
                setattr(holder, name, _method(function) if holder is tl.tensor else function)


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """What a class binds to its instances (``x.sum()``), which only a function of Python is."""

    def method(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return method
