"""Which cases of the semi-CRF there are: sizes, lengths, and recipes that forbid paths."""

from __future__ import annotations

from gradoracle.model.dims import sizes
from gradoracle.model.domains import IndexDomain

DIMS = {
    "B": sizes(1, 3),
    "T": sizes(1, 320, large=131_072, large_on_gpu=1_048_576),
    "C": sizes(1, 4, asked=64),
    "K": sizes(1, 12, asked=1024),
}
DOMAINS = {"lengths": IndexDomain("T", kind="length")}
JOINT = {
    "forbidden transitions": {"transition": "forbidden:0.3"},
    "forbidden transitions by duration": {"transition_by_duration": "forbidden:0.3"},
    "forbidden durations": {"duration_bias": "forbidden:0.3"},
    "forbidden starts": {"proj_start": "forbidden:0.2"},
    "forbidden ends": {"proj_end": "forbidden:0.2"},
    "every path forbidden": {"duration_bias": "forbidden:1"},
    "no positions": {"lengths": "lowest"},
    "full lengths": {"lengths": "highest"},
}
# One path, or a short sequence, would leave little to judge; and log Z beyond 1e6 is where a clamp shows.
BESIDE_LARGE = {"K": 3, "C": 3, "cum_scores": "normal:10", "lengths": "highest"}
