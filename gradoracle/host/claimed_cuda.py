"""Claimed CUDA: a package that refuses CPU tensors sees a GPU while its kernels are interpreted.

    with gradoracle.cuda_claimed():
        import package              # which asks for a GPU, or whether TRITON_INTERPRET is set

    @gradoracle.kernel(family, needs_cuda=True)
    def kernel(x): return package.operation(x)

Within a claim tensors of the CPU say that they are on cuda:0, tensors that are made there are made on the CPU,
`torch.cuda` and Triton's driver describe one H100, and TRITON_INTERPRET is set neither in `os.environ` nor in Triton's
knobs: only `triton.jit` knows that kernels are interpreted. Where they are not, on a GPU, nothing is claimed.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from gradoracle.host.interpreter import is_active

_NAME, _CAPABILITY, _MULTIPROCESSORS = "NVIDIA H100 80GB HBM3", (9, 0), 132
_SHARED, _MEMORY = 232448, 80 * 2**30
_PROPERTIES = {
    "name": _NAME, "major": 9, "minor": 0, "multi_processor_count": _MULTIPROCESSORS, "warp_size": 32,
    "total_memory": _MEMORY, "max_threads_per_multi_processor": 2048, "regs_per_multiprocessor": 65536,
    "shared_memory_per_block": 49152, "shared_memory_per_block_optin": _SHARED, "L2_cache_size": 50 * 2**20,
    "shared_memory_per_multiprocessor": 233472, "is_integrated": 0, "gcnArchName": "",
}  # fmt: skip
_DRIVER_PROPERTIES = {
    "max_shared_mem": _SHARED, "max_num_regs": 65536, "multiprocessor_count": _MULTIPROCESSORS, "warpSize": 32,
    "sm_clock_rate": 1980000, "mem_clock_rate": 2619000, "mem_bus_width": 5120,
}  # fmt: skip

device_of = vars(torch._C.TensorBase)["device"].__get__
"""The device of a tensor, also while another one is claimed."""
_ABSENT: Any = object()
_suspended = False


@contextmanager
def _unclaimed() -> Iterator[None]:
    """Within it tensors say where they are."""
    global _suspended
    before, _suspended = _suspended, True
    try:
        yield
    finally:
        _suspended = before


def _said(name: str, claimed: Any) -> property:
    """A property of tensors of the CPU that has the claimed value."""
    own = vars(torch._C.TensorBase)[name]

    def get(self: Tensor) -> Any:
        return claimed if not _suspended and device_of(self).type == "cpu" else own.__get__(self)

    return property(get)


def _on_cpu(stock: Callable[..., Any], named: bool = False) -> Callable[..., Any]:
    """A function that makes on the CPU what is asked for on CUDA; `named`: a device may also be a plain argument."""

    @functools.wraps(stock)
    def call(*args: Any, **kwargs: Any) -> Any:
        if "device" in kwargs:
            kwargs["device"] = _real(kwargs["device"], True)
        kwargs.pop("pin_memory", None)
        return stock(*[_real(value, named and place > 0) for place, value in enumerate(args)], **kwargs)

    return call


def _real(value: Any, named: bool) -> Any:
    """A device argument, on the CPU if it is CUDA."""
    if isinstance(value, torch.device):
        return torch.device("cpu") if value.type == "cuda" else value
    if named and (type(value) is int or (isinstance(value, str) and value.partition(":")[0] == "cuda")):
        return torch.device("cpu")
    return value


class _Here:
    """A context that changes nothing: a device or a stream."""

    cuda_stream, device_index = 0, 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.idx = self.prev_idx = 0
        self.device = torch.device("cuda", 0)

    def __enter__(self) -> _Here:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None  # synchronize, record, wait_stream


class _Driver:
    """What Triton's driver says of the claimed GPU."""

    utils = SimpleNamespace(get_device_properties=lambda device=0: dict(_DRIVER_PROPERTIES))

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_device_interface(self) -> Any:
        return torch.cuda

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cuda", 0)

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        return _CAPABILITY

    def get_current_device(self) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int = 0) -> int:
        return 0


def _always(value: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: value


_TORCH_CUDA: dict[str, Any] = {
    "is_available": _always(True), "is_initialized": _always(True), "device_count": _always(1),
    "current_device": _always(0), "set_device": _always(None), "synchronize": _always(None),
    "empty_cache": _always(None), "get_device_name": _always(_NAME), "get_device_capability": _always(_CAPABILITY),
    "get_device_properties": _always(SimpleNamespace(**_PROPERTIES)), "is_bf16_supported": _always(True),
    "mem_get_info": _always((_MEMORY, _MEMORY)), "current_stream": _always(_Here()), "default_stream": _always(_Here()),
    "device": _Here, "device_of": _Here, "stream": _Here, "Stream": _Here, "Event": _Here,
    "is_current_stream_capturing": _always(False),
}  # fmt: skip
_FACTORIES = (
    *("arange", "as_tensor", "empty", "empty_like", "empty_strided", "eye", "full", "full_like", "linspace"),
    *("logspace", "ones", "ones_like", "rand", "rand_like", "randint", "randint_like", "randn", "randn_like"),
    *("randperm", "scalar_tensor", "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like"),
)
_METHODS = ("new_empty", "new_empty_strided", "new_full", "new_ones", "new_tensor", "new_zeros")
_claimed = False


def _replacements() -> Iterator[tuple[Any, str, Any]]:
    """Whose attribute a claim replaces, its name and the replacement."""
    for name, value in _TORCH_CUDA.items():
        yield torch.cuda, name, value
    for name in _FACTORIES:
        yield torch, name, _on_cpu(getattr(torch, name))
    for name in _METHODS:
        yield Tensor, name, _on_cpu(getattr(Tensor, name))
    yield Tensor, "to", _on_cpu(Tensor.to, named=True)
    for name, value in (("device", torch.device("cuda", 0)), ("is_cuda", True), ("is_cpu", False)):
        yield Tensor, name, _said(name, value)
    yield Tensor, "get_device", lambda self: self.device.index if self.is_cuda else -1
    yield Tensor, "cuda", lambda self, *args, **kwargs: self
    yield Tensor, "pin_memory", lambda self, *args, **kwargs: self


@functools.cache
def _load_forward_mode() -> None:
    """Let PyTorch compile what it compiles at the first forward mode of a process: replaced factories it cannot."""
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore")
        forward_ad.make_dual(torch.zeros(()), torch.zeros(()))


@contextmanager
def cuda_claimed(wanted: bool = True) -> Iterator[None]:
    """Claim a CUDA device for the length of a ``with``, if Triton kernels are interpreted; may be nested.

    Args:
        wanted: False claims nothing.
    """
    global _claimed
    if not wanted or _claimed or not is_active():
        yield
        return
    from triton.runtime import driver

    from gradoracle.host.interpreter import launch_hooks
    from gradoracle.host.interpreter.activation import hidden

    _load_forward_mode()
    active, unclaimed = driver._active, launch_hooks.unclaimed
    plain: list[tuple[Any, str, Any]] = []
    _claimed = True
    try:
        for holder, name, value in list(_replacements()):
            plain.append((holder, name, vars(holder).get(name, _ABSENT)))
            setattr(holder, name, value)
        driver.set_active(_Driver())
        launch_hooks.unclaimed = _unclaimed
        with hidden():
            yield
    finally:
        _claimed = False
        launch_hooks.unclaimed, driver._active = unclaimed, active
        for holder, name, value in plain:
            if value is _ABSENT:
                delattr(holder, name)
            else:
                setattr(holder, name, value)
