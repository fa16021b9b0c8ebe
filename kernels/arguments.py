"""Arguments of kernels, checked before any launch: a ValueError names the argument, its value and what is expected."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from .blocks import Blocks, interpreted
from .faithfulness import interprets_bfloat16

LARGEST_ROWS = 2**30
PRECISIONS = ("ieee", "bf16x6", "tf32")  # of the dots of float32
SMALLEST_BLOCK, LARGEST_BLOCK = 16, 4096
WARPS = (1, 2, 4, 8, 16)
MOST_STAGES = 8


def tensor_of(name: str, value: object) -> torch.Tensor:
    """Return the value, a torch.Tensor."""
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{name} is a {type(value).__name__}: expected a torch.Tensor")
    return value


def dense(name: str, value: object, rank: int) -> torch.Tensor:
    """Return the value, a dense tensor of this rank, any strides."""
    tensor = tensor_of(name, value)
    if tensor.layout != torch.strided:
        raise ValueError(f"{name} has layout {tensor.layout}: expected a dense (strided) tensor")
    if tensor.dim() != rank:
        raise ValueError(f"{name} has rank {tensor.dim()} (shape {tuple(tensor.shape)}): expected rank {rank}")
    return tensor


def shape(name: str, tensor: torch.Tensor, expected: tuple[int, ...], letters: str = "") -> None:
    """Check that a tensor has the expected shape; `letters` names its dims, such as "[B, H, T]"."""
    if tuple(tensor.shape) != expected:
        shown = f"{letters} = {expected}" if letters else f"{expected}"
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}: expected {shown}")


def dtype(name: str, tensor: torch.Tensor, expected: torch.dtype, whose: str = "") -> None:
    """Check that a tensor has the expected dtype; `whose` says whose it is, such as "that of q"."""
    if tensor.dtype != expected:
        raise ValueError(f"{name} has dtype {tensor.dtype}: expected {whose + ', ' if whose else ''}{expected}")


def device(name: str, tensor: torch.Tensor, expected: torch.device, of: str = "q") -> None:
    """Check that a tensor is on the device of the argument `of`."""
    if tensor.device != expected:
        raise ValueError(f"{name} is on {tensor.device}: expected the device of {of}, {expected}")


def like(name: str, tensor: torch.Tensor, of: str, reference: torch.Tensor) -> None:
    """Check that a tensor has the dtype and the device of the argument `of`."""
    dtype(name, tensor, reference.dtype, f"that of {of}")
    device(name, tensor, reference.device, of)


def integers(name: str, tensor: torch.Tensor) -> None:
    """Check that a tensor holds int32 or int64."""
    if tensor.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{name} has dtype {tensor.dtype}: expected int32 or int64")


def computable(
    name: str, tensor: torch.Tensor, dtypes: Sequence[torch.dtype], interpreted_only: Sequence[torch.dtype] = ()
) -> None:
    """Check that Triton computes in the dtype of a tensor on this machine, on the tensor's device.

    Args:
        name: the argument's name.
        tensor: the argument.
        dtypes: dtypes that the kernels take everywhere.
        interpreted_only: dtypes that they take in the interpreter only.
    """
    everywhere = _listed([_short(each) for each in dtypes], "or")
    if tensor.dtype not in (*dtypes, *interpreted_only):
        expected = everywhere
        if interpreted_only:
            alone = _listed([_short(each) for each in interpreted_only], "or")
            expected = f"{', '.join(_short(each) for each in dtypes)}, or {alone} in the interpreter"
        raise ValueError(f"{name} has dtype {tensor.dtype}: expected {expected}")
    if interpreted():
        if tensor.device.type not in ("cpu", "cuda"):
            raise ValueError(f"{name} is on {tensor.device}: expected cpu or cuda")
        if tensor.dtype == torch.bfloat16 and not interprets_bfloat16():
            raise ValueError(
                f"{name} has dtype torch.bfloat16, which this Triton's interpreter multiplies as raw bits: expected "
                "another dtype, or the corrected interpreter, activated before this package is imported"
            )
        return
    if tensor.device.type != "cuda":
        raise ValueError(
            f"{name} is on {tensor.device}: expected cuda, or TRITON_INTERPRET=1 set before this package is imported"
        )
    if tensor.dtype in interpreted_only:
        raise ValueError(f"{name} has dtype {tensor.dtype}: expected {everywhere} on a GPU")


def extents(sizes: Iterable[tuple[str, torch.Tensor, str, int, int]]) -> None:
    """Check that dims are from 1 to their largest: (argument, tensor, the dim's letter, its size, the largest)."""
    for name, tensor, letter, size, largest in sizes:
        if not 1 <= size <= largest:
            raise ValueError(
                f"{name} has {letter} = {size} (shape {tuple(tensor.shape)}): expected {letter} from 1 to {largest}"
            )


def boolean(name: str, value: object) -> bool:
    """Return the value, True or False."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} is {value!r}: expected True or False")
    return value


def one_of(name: str, value: object, choices: Sequence[str]) -> str:
    """Return the value, one of several strings."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} is {value!r}: expected {_listed([repr(choice) for choice in choices], 'or')}")
    return value


def precision(value: object, dtype: torch.dtype) -> str:
    """Return the precision of dots, one of PRECISIONS: "ieee" where the dtype is not float32, as products are exact."""
    asked = one_of("precision", value, PRECISIONS)
    return asked if dtype == torch.float32 else "ieee"


def positive(name: str, value: object, default: str = "") -> float:
    """Return the value as a float, finite and above 0; `default` says what None, which the caller handles, means."""
    none = " or None" if default else ""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{name} is {value!r} of type {type(value).__name__}: expected a number{none}")
    if not math.isfinite(value) or value <= 0:
        shown = f", or None for {default}" if default else ""
        raise ValueError(f"{name} is {value!r}: expected a finite number above 0{shown}")
    return float(value)


def scale(value: object, features: int) -> float:
    """Return the scale of scores as a float: a finite number above 0, or 1 / sqrt(D) for None."""
    return 1.0 / math.sqrt(features) if value is None else positive("scale", value, "1 / sqrt(D)")


def whole(name: str, value: object, least: int, of: str) -> int:
    """Return the value, an integer of at least `least`; `of` names what it counts."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name} is {value!r}: expected a number of {of} from {least}")
    return value


def block_size(name: str, value: object) -> int:
    """Return the value, rows of a tile: a power of two from 16 to 4096."""
    integer = isinstance(value, int) and not isinstance(value, bool)
    if not integer or not SMALLEST_BLOCK <= value <= LARGEST_BLOCK or value & (value - 1):  # type: ignore[operator]
        raise ValueError(f"{name} is {value!r}: expected a power of two from {SMALLEST_BLOCK} to {LARGEST_BLOCK}")
    return value  # type: ignore[return-value]


def blocks(value: object) -> Blocks | None:
    """Return the value, a Blocks whose every field is one that a kernel can be launched with, or None."""
    if value is None:
        return None
    if not isinstance(value, Blocks):
        raise ValueError(f"blocks is {value!r}: expected a Blocks or None")
    block_size("blocks.query", value.query)
    block_size("blocks.key", value.key)
    launchable(value.num_warps, value.num_stages)
    return value


def launchable(num_warps: object, num_stages: object) -> None:
    """Check that a kernel can be launched with the num_warps and num_stages of a Blocks."""
    if isinstance(num_warps, bool) or num_warps not in WARPS:
        raise ValueError(f"blocks.num_warps is {num_warps!r}: expected {_listed([str(w) for w in WARPS], 'or')}")
    if not isinstance(num_stages, int) or not 1 <= num_stages <= MOST_STAGES:
        raise ValueError(f"blocks.num_stages is {num_stages!r}: expected a number of stages from 1 to {MOST_STAGES}")


def _listed(words: Sequence[str], last: str) -> str:
    """Return "a, b or c"."""
    return f" {last} ".join(([", ".join(words[:-1])] if words[:-1] else []) + [words[-1]])


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
