"""Which cases of the gated delta rule there are: sizes, where inputs lie, and recipes of several tensors at once."""

from __future__ import annotations

from gradoracle.model.dims import sizes
from gradoracle.model.domains import AtMost, Between, UnitRows

DIMS = {
    "B": sizes(1, 3),
    "H": sizes(1, 4),
    "T": sizes(1, 320, large=131_072),
    "D": sizes(1, 128),
    "Dv": sizes(1, 128),
}
OPTIONS = {"scale": (None, 0.25, 1.0)}
# Beyond beta |k|^2 = 2, or with g above 0, a state grows without end, and so do all errors.
DOMAINS = {"k": UnitRows(), "g": AtMost(0.0, spread=1 / 16), "beta": Between(0.0, 1.0)}
JOINT = {
    "nothing is forgotten": {"g": "constant:0", "q": "normal", "k": "normal", "v": "normal"},
    "all is forgotten": {"g": "constant:3e3", "q": "normal", "k": "normal", "v": "normal"},
    "one key": {"k": "constant:1", "v": "positive", "beta": "constant:0"},
    "nothing is written": {"beta": "constant:-1e30", "initial_state": "normal"},
    "large initial state": {"initial_state": "normal:1000", "q": "normal", "k": "normal", "v": "normal"},
}
BESIDE_LARGE = {
    "g": "tiny:1e-2"
}  # what is forgotten within a few tokens would leave little of a long sequence to judge
