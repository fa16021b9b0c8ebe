"""Chips: the rates that a GPU's maker states, and the floor that they set to the time of a work.

Dense rates without sparsity, of the SXM modules, from NVIDIA's data sheets: "NVIDIA H100 Tensor Core GPU" (bfloat16 and
float16 989.4 TFLOP/s, TF32 494.7, float32 66.9, float64 33.5 without tensor cores; HBM3, 3.35 TB/s) and "NVIDIA H200
Tensor Core GPU" (the same rates; HBM3e, 4.8 TB/s).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_HOPPER = {
    "bfloat16": 989.4e12,
    "float16": 989.4e12,
    "tf32": 494.7e12,
    "tf32x3": 494.7e12 / 3,
    "bf16x6": 989.4e12 / 6,
    "float32": 66.9e12,
    "float64": 33.5e12,
}


@dataclass(frozen=True)
class Chip:
    """A GPU's peak rates.

    Attributes:
        name: that the rates are published for.
        operations: floating-point operations a second, by what is multiplied in. "tf32x3" and "bf16x6" are products of
            float32 numbers made of three TF32 and of six bfloat16 products.
        bandwidth: bytes a second of its memory.
    """

    name: str
    operations: Mapping[str, float]
    bandwidth: float


CHIPS = (
    Chip("H100", _HOPPER, 3.35e12),
    Chip("H200", _HOPPER, 4.8e12),
)


def chip_of(card: str) -> Chip | None:
    """The chip of a device as PyTorch names it, such as "NVIDIA H100 80GB HBM3"; None if its rates are not known here.

    A PCIe or NVL module of the same chip has other rates, and is not known.
    """
    words = card.split()
    other = {"PCIe", "NVL"}.intersection(words)
    return next((chip for chip in CHIPS if chip.name in words and not other), None)


@dataclass(frozen=True)
class Floor:
    """The least milliseconds of a work on a chip, and whether "dots" or "memory" sets them."""

    milliseconds: float
    by: str


def floor(chip: Chip | None, arithmetic: str, operations: float, moved: float) -> Floor | None:
    """The floor of a work: its operations at the peak rate, or its bytes at the peak bandwidth, whichever is longer.

    Args:
        chip: None: there is no floor.
        arithmetic: what is multiplied in, a key of the chip's rates.
        operations: floating-point operations of the work.
        moved: bytes of its inputs and outputs.
    """
    if chip is None or arithmetic not in chip.operations:
        return None
    dots, memory = 1e3 * operations / chip.operations[arithmetic], 1e3 * moved / chip.bandwidth
    return Floor(dots, "dots") if dots >= memory else Floor(memory, "memory")
