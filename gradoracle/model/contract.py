"""Precision contracts: which quantity a kernel rounds, to which number format, and how.

A contract is what a budget is computed from: it is declared, never fitted to a kernel. docs/background/budgets.md
derives how each field enters a budget.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from gradoracle.model.formats import DTYPES, FORMATS, Format


@dataclass(frozen=True)
class Contract:
    """What a correct kernel rounds, quantity by quantity; formats are names from ``FORMATS``.

    Attributes:
        name: the preset's name, as it is printed in headlines and given on the command line.
        dtype: the dtype of the kernel's inputs.
        operand: every operand of a matrix product that is not an input (nor a view of one, nor one scaled by a power of
            two) is rounded to this. Where it is coarser than ``dtype``, inputs are rounded to it too (tf32).
        accumulate: running sums.
        elementwise: the result of every other operation.
        output: what is returned.
        residuals: statistics that forward keeps for backward (m, l or the log-sum-exp).
        constants: scale, log2 e and other numbers in the source: one rounding each, the same for all elements.
        exp_ulps: largest error of exp and exp2, in units in the last place of ``elementwise``.
        log_ulps: the same for the logarithms; absolute where the logarithm is below 1.
        special_ulps: the same for tanh, sigmoid, erf, sin, pow and the like.
        fast_exp: largest relative error of the exponential that kernels on the CPU take in their forward pass, where an
            algorithm says that it does; 0: none is coarser than ``exp_ulps``.
        flush_to_zero: subnormal results of ``elementwise`` and ``accumulate`` may become 0.
        store_all: every operation's result is stored in ``output`` (eager execution in 16 bit).
        truncate: operands are cut, not rounded to nearest: an error in (-2u, 0] with mean -u.
        accumulate_block: products that the hardware adds before it cuts the sum once; 0: sums round to nearest. Tensor
            cores cut, so each of ``terms / accumulate_block`` steps loses u of the partial sum on average.
        aligned: the exponent to which tensor cores of 8-bit floats cut each product, next to the largest of a block,
            and to which they keep their sums; 0: that of the operand's format (``Format.aligned``), if it has one.
        inputs: every input is rounded to this before anything else; "": none is.
        rounds: False only for ``EXACT``, which commits no rounding at all.
    """

    name: str
    dtype: str
    operand: str
    accumulate: str = "float32"
    elementwise: str = "float32"
    output: str = "float32"
    residuals: str = "float32"
    constants: str = "float32"
    exp_ulps: float = 2.0
    log_ulps: float = 2.0
    special_ulps: float = 4.0
    fast_exp: float = 2.0**-20
    flush_to_zero: bool = True
    store_all: bool = False
    truncate: bool = False
    accumulate_block: float = 0.0
    aligned: int = 0
    inputs: str = ""
    rounds: bool = True

    @property
    def rounds_to_few_bits(self) -> bool:
        """Whether anything is rounded to so few significands that the errors of many values are those of a few."""
        formats = (self.operand, self.elementwise, self.output)
        return self.rounds and any(FORMATS[name].is_few for name in formats)


def _fused(format_: Format) -> Contract:
    """That of a kernel which rounds its operands and outputs to a format, and nothing in between."""
    dtype = format_.name
    return Contract(format_.preset, dtype, operand=dtype, output=dtype, fast_exp=2.0**-13, accumulate_block=16.0)


_FUSED = {each.name: _fused(each) for each in FORMATS.values() if each.preset and each.is_few}
_ALIGNED = FORMATS["float8_e4m3fn"].aligned
_IEEE32 = Contract("ieee32", "float32", operand="float32")

PRESETS: Mapping[str, Contract] = MappingProxyType(
    {
        contract.name: contract
        for contract in (
            _IEEE32,
            # three parts hold every bit of an operand that is not tiny; of nine products six are added, and the rest
            # of the largest, at most 2^-24 of it and 2^-27 in the mean square, is no more than what one of their sums
            # is cut by
            replace(_IEEE32, name="bf16x6", operand="bf16x6", accumulate_block=16.0 / 6.0),
            replace(_IEEE32, name="tf32x3", operand="tf32x3", truncate=True, accumulate_block=8.0 / 3.0),
            replace(_IEEE32, name="tf32", operand="tf32", truncate=True, accumulate_block=8.0),
            replace(_IEEE32, name="ieee32-fp8", aligned=_ALIGNED),
            *_FUSED.values(),
            replace(_FUSED["bfloat16"], name="bf16-fp8", aligned=_ALIGNED),
            replace(_FUSED["float16"], name="fp16-fp8", aligned=_ALIGNED),
            replace(_FUSED["bfloat16"], name="eager-bf16", residuals="bfloat16", store_all=True),
            replace(_FUSED["float16"], name="eager-fp16", residuals="float16", store_all=True),
            Contract(
                "float64", "float64", "float64", "float64", "float64", "float64", "float64", "float64",
                fast_exp=0.0, flush_to_zero=False,
            ),
        )
    }
)  # fmt: skip
"""Contracts by name; those of one dtype, the strongest first."""

EXACT = replace(PRESETS["float64"], name="exact", rounds=False)


def default_contract(dtype: str) -> Contract:
    """The contract under which an undeclared kernel of this dtype is judged.

    Raises:
        ValueError: no contract is known for ``dtype``.
    """
    if dtype not in DTYPES:
        raise ValueError(f"no precision contract for dtype {dtype!r}; contracts exist for {', '.join(DTYPES)}")
    return PRESETS[FORMATS[dtype].preset]


def contract(name: str, dtype: str) -> Contract:
    """The preset ``name``, for a kernel whose inputs are ``dtype``.

    Raises:
        ValueError: there is no such preset, or it is for another dtype.
    """
    fitting = [preset.name for preset in PRESETS.values() if preset.dtype == dtype]
    if name in fitting:
        return PRESETS[name]
    known = f"contract {name!r} is for {PRESETS[name].dtype}" if name in PRESETS else f"no contract is named {name!r}"
    expected = f"for {dtype} choose one of: {', '.join(fitting)}" if fitting else f"no preset fits dtype {dtype!r}"
    raise ValueError(f"{known}; {expected}")


def tried_on(dtype: str, *, eight_bits: bool = False) -> tuple[Contract, ...]:
    """The presets that may explain an error of a dtype, the strongest first.

    The last is the coarsest of the next lower dtype, for a kernel that casts its operands to that. Float64 has none:
    nothing is wider than what a kernel in float64 is compared with. Those of 8-bit products explain nothing unless the
    kernel has inputs of 8 bits (``eight_bits``).
    """
    own = [preset for preset in PRESETS.values() if preset.dtype == dtype and (eight_bits or not preset.aligned)]
    if dtype not in ("float32", "float16"):
        return tuple(own)
    return (*own, replace(PRESETS["eager-bf16"], dtype=dtype, inputs="bfloat16", elementwise="bfloat16"))


def weakest(presets: Iterable[str]) -> str:
    """The weakest of several presets of one dtype; "" if one of them is "", or if there is none."""
    names = set(presets)
    return "" if "" in names else max(names, key=list(PRESETS).index, default="")


def widened(own: Contract) -> Contract:
    """The contract of a kernel with every float in float64, whose contract as written is ``own``.

    Constants are as its source writes them, to the digits of float32 unless ``own`` promises more. Approximations that
    are declared coarser than the presets' stay as coarse as they are.
    """
    base, units = PRESETS["float64"], FORMATS[own.elementwise].unit_roundoff / FORMATS["float64"].unit_roundoff

    def kept(declared: float, usual: float) -> float:
        return usual + max(declared - usual, 0.0) * units

    return replace(
        base,
        name="widened",
        constants="float64" if own.constants == "float64" else "float32",
        exp_ulps=kept(own.exp_ulps, base.exp_ulps),
        log_ulps=kept(own.log_ulps, base.log_ulps),
        special_ulps=kept(own.special_ulps, base.special_ulps),
        fast_exp=0.0 if own.name in PRESETS else own.fast_exp,
    )


def representable(number: float, dtype: str) -> bool:
    """Whether ``number`` is held exactly in ``dtype`` (infinities are; subnormals are not considered)."""
    if number == 0 or not math.isfinite(number):
        return True
    significand, _ = math.frexp(number)
    return (significand * 2.0 ** FORMATS[dtype].bits).is_integer()
