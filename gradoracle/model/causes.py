"""Causes of wrong tensors, by name: a diagnosis names one, and so does each planted fault."""

from __future__ import annotations

CAUSES = {
    "tail": "a mask, a bound or the padding of the last tile",
    "slice": "one head, member of the batch, tile or row is treated unlike the others",
    "ratio": "a factor too many or too few: a scale, log2 e, a count",
    "sign": "a sign",
    "transpose": "two axes, or the order of one, are exchanged",
    "shift": "an index or a loop bound is off by one",
    "sum": "a sum over a group, a tile or a batch is missing, or taken twice",
    "dtype": "a value is rounded to a lower dtype than the contract says, or returned in another",
    "stale": "a value is never written, written too late, or of an earlier run",
    "layout": "strides of an input or of a cotangent are ignored",
    "term": "a term of the formula is missing or is another one",
    "range": "an exponential or a product leaves the range of its dtype",
    "offset": "an offset is computed in 32 bits, and wraps past 2^31",
    "access": "a program reads or writes what is not its own, or races with another",
}
