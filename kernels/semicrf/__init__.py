"""The semi-Markov CRF in Triton, T from 1 to beyond 100 000: log Z with VJP, JVP and exact HVP, alpha, beta, marginals.

The scheme:

- One recursion in the log domain (`recursion`) makes alpha forward and beta backward in time. The last K positions
  are a ring of slots in registers, position tau in slot tau % K, and how long each slot's segment lasts is read off
  rotated tables of parameters. A program carries many rows (sequences, chunks, start states) as one axis of its
  tiles.
- Two paths use it. `parallel`, for few K C: the operator of each chunk over its K C states, a scan over operators,
  then all chunks at once. `sequential`, for any: chunk after chunk, states kept about every sqrt(T K) positions,
  alpha recomputed backward; a ring that does not fit in registers is cut, and what lies beyond it is added up by a
  launch of its own (`far`). No program loads what it stored: what crosses launches goes through memory, all else stays
  in registers.
- Posteriors (`posteriors`) need alpha and beta at each position but no recursion. dcum[t] is the probability that a
  segment of the label ends at t less that that one starts there; gradients of shared parameters are summed by
  program, then over programs.
- Numbers: float64 throughout, relative to cum_scores at the chunk's start (an exact difference) and to norms that are
  whole numbers, so that the norms of alpha, beta and log Z cancel without rounding at any T and any size of log Z.
  -inf is a weight of 0; nothing is clamped; a peak is taken at each step, whatever the scores.
- Tangents (JVP, HVP) are those of every line of the same kernels, carried along with the values.

Import the package with TRITON_INTERPRET=1 set to run it without a GPU.
"""

from __future__ import annotations

from .blocks import BLOCKS, LARGEST_FORCED_STATES, PATHS, Blocks, choose_path, workspace_bytes
from .inference import ForwardBackward, Marginals, forward_backward, marginals
from .semi_crf import semicrf

__all__ = [
    "BLOCKS",
    "LARGEST_FORCED_STATES",
    "PATHS",
    "Blocks",
    "ForwardBackward",
    "Marginals",
    "choose_path",
    "forward_backward",
    "marginals",
    "semicrf",
    "workspace_bytes",
]
