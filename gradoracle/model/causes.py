"""Causes of wrong tensors, by name: a diagnosis names one, and so does each planted fault."""

from __future__ import annotations

CAUSES = {
    "tail": "a mask, a bound or the padding of the last tile",
    "slice": "one head, batch member, tile or row is treated differently from the others",
    "ratio": "a missing or extra factor, such as a scale, log2 e or a count",
    "sign": "a wrong sign",
    "transpose": "two axes are exchanged, or one is reversed",
    "shift": "an index or a loop bound is off by one",
    "sum": "a sum over a group, a tile or a batch is missing, or counted twice",
    "dtype": "a value is rounded to a lower dtype than the contract allows, or returned in another",
    "stale": "a value is never written, written too late, or left from an earlier run",
    "layout": "the strides of an input or a cotangent are ignored",
    "term": "a term of the formula is missing or wrong",
    "range": "an exponential or a product leaves the range of its dtype",
    "offset": "an offset is computed in 32 bits and wraps past 2^31",
    "access": "a program accesses memory that is not its own, or races with another",
}

ROUNDING = "dtype"
