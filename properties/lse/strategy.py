"""Which cases of LSE there are: sizes, options, segments, and recipes of several tensors at once."""

from __future__ import annotations

from gradoracle.model.dims import sizes
from gradoracle.model.domains import IndexDomain

DIMS = {
    "B": sizes(1, 3),
    "H": sizes(1, 4),
    "G": sizes(1, 4),
    "T": sizes(1, 320, large=131_072),
    "M": sizes(1, 320),
    "D": sizes(1, 256),
}
OPTIONS = {"scale": (None, 0.25, 1.0), "causal": (False, True), "softcap": (None, 2.0, 30.0)}
DOMAINS = {"q_segments": IndexDomain(3), "kv_segments": IndexDomain(3)}
JOINT = {
    "logits 1e4": {"q": "normal:100", "k": "normal:100"},
    "scores far below 0": {"q": "positive", "k": "largemean:-100"},
    "peaked": {"q": "normal:8", "k": "normal:1"},
    "positive": {"q": "positive", "k": "positive", "dlse": "positive"},
    "sinks that take nothing": {"sinks": "forbidden:0.5"},
}
