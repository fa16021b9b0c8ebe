"""Which cases of lightning attention there are: sizes, and recipes of several tensors at once."""

from __future__ import annotations

from gradoracle.model.dims import sizes

DIMS = {
    "B": sizes(1, 3),
    "H": sizes(1, 4),
    "N": sizes(1, 320, large=131_072),
    "D": sizes(1, 128),
    "Dv": sizes(1, 128),
}
JOINT = {
    "positive": {"q": "positive", "k": "positive", "v": "positive", "do": "positive"},
    "state that cancels": {"q": "alternating", "k": "alternating", "v": "positive", "do": "alternating"},
    "large initial state": {"initial_state": "normal:1000", "q": "normal", "k": "normal", "v": "normal"},
    "large negative state": {"q": "tiny:1e-4", "k": "positive:100", "v": "largemean:-300", "do": "tiny:1e-3"},
    "state that q hardly reads": {"q": "alternating", "initial_state": "largemean:10", "k": "normal"},
}
