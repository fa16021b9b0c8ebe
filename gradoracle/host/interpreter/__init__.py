"""Triton kernels on the CPU, with the arithmetic of a GPU.

    from gradoracle.host import interpreter
    interpreter.activate()          # before the modules that hold kernels are imported
    import my_kernels               # triton.jit functions in it run in numpy, on CPU tensors

`is_active()` says whether that was done; `explain_unavailable()` gives the reason, in one sentence, if it cannot be.

Triton has an interpreter (TRITON_INTERPRET=1) that is wrong in bfloat16, ignores TF32 and is slow; `activate` corrects
it in place.  What is computed, on the versions of Triton that `activation` names, with the conversions and
instructions of sm_90:

- casts among float64, float32, float16, bfloat16, integers and bool: one rounding, to nearest even (toward zero
  where asked for); to integers toward zero, saturating; to 8-bit floats saturating, and nothing but casts and dots
  takes these;
- float32, float64 and 16-bit arithmetic: each operation rounded once, `tl.fma` too.  A GPU's compiler may fuse a
  multiply and an add by itself; that is not modelled, nor are approximate instructions (exp2, division: correctly
  rounded or nearly so here), flushing of subnormals, or the sign of the bound that a NaN becomes in a clamp;
- `tl.dot`: exact products of operands truncated (tf32), split (tf32x3, bf16x3, bf16x6) or as they are (ieee, bfloat16,
  float16, float64), added up in the order of FFMA or of tensor cores (dot.py, accumulation.py), with the bits of sm_90;
- loop variables are int32 or int64 scalars: they have `.to`, wrap and divide toward zero (loops.py);
- `tl.map_elementwise`: its function runs once for each element, or for as many neighbours as it packs;
- exp, log, sin and functions of libdevice: accurate, rounded once to their dtype (functions.py, libdevice.py);
- `tl.sum` is a tree of halves, a scan takes one element after the other; each addition is rounded to the dtype.

Every bit of this is the same on every processor (docs/background/interpreter.md; `make portable`).

tests/host/interpreter/test_faithful.py compares over 100 operations with torch, fractions and, if there is one, a
GPU: on an H200 (Triton 3.6.0) every result that depends on no order of summation had the same bits, over all
65536 patterns of the 16-bit dtypes, NaN in clamp aside.

Speed, one attention forward of 6 programs with 3 steps of 64x64 in float32, 2-core CPU, Triton 3.7.1: 63 ms in
Triton's own interpreter, 9 ms here.

An autotuned kernel (`triton.autotune`) cannot be timed here: it runs with the first configuration that its own pruning
leaves, in the order of its list.  Other configurations are run by forcing them, as the property
every_autotuned_configuration_matches_the_oracle does in turn; the property trials_of_an_autotuner_leave_nothing_behind
runs each once before one is chosen, and sees what trials leave behind.

It has no scaled dots here.

Programs of a launch run in lockstep, up to 32 at a time: an operation of all of them is one of numpy, with the bits
that each would have alone (lockstep.py).  If they diverge, or reach an operation that only one can do (atomics, print),
their stores are undone and they run in smaller groups or one by one.  A non-atomic update of one address by programs in
lockstep is lost, as on a GPU; which other races show in the numbers depends on the groups.  All of them show in the
record of accesses (record.py):

    from gradoracle.host.interpreter.record import recording
    with recording() as record:
        my_kernels.kernel[grid](...)
    assert not record.faults()      # outside a tensor, races, no barrier: with line, programs and tensor[index]
"""

from __future__ import annotations

from gradoracle.host.interpreter.activation import activate, explain_unavailable, interprets_all, is_active

__all__ = ["activate", "explain_unavailable", "interprets_all", "is_active"]
