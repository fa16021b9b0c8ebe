"""Triton kernels on the CPU, with the arithmetic of a GPU.

    from gradoracle import interpreter
    interpreter.activate()          # before the modules that hold kernels are imported
    import my_kernels               # triton.jit functions in it run in numpy, on CPU tensors

Triton has an interpreter (TRITON_INTERPRET=1) which is wrong in bfloat16, ignores TF32 and is slow; `activate`
corrects it in place.  What is computed, on Triton 3.6 to 3.9:

- casts among float64, float32, float16, bfloat16, integers and bool: one rounding, to nearest even;
- float32, float64 and 16-bit arithmetic: each operation rounded once.  A GPU's compiler may fuse a multiply and an
  add into one rounding; that is not modelled, nor are approximate instructions (exp2, division: correctly rounded
  or nearly so here) or flushing of subnormals;
- `tl.dot`: exact products of operands truncated (tf32), split (tf32x3) or as they are (ieee, bfloat16, float16,
  float64), added up in the accumulator's dtype; see dot.py for what a GPU does and how that was found;
- `tl.sum` in 16 bits: every addition rounded.

fp8 and scaled dots are Triton's own.  Programs run one after the other, so that no race can show.
"""

from __future__ import annotations

from .activation import activate, is_active
from .availability import explain_unavailable

__all__ = ["activate", "explain_unavailable", "is_active"]
