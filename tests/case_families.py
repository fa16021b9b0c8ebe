"""Families and kernels whose cases are generated and never run: one like attention, one with integer inputs."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from gradoracle.model.dims import choices, multiples, sizes
from gradoracle.model.domains import IndexDomain
from gradoracle.model.family import family
from gradoracle.model.kernel import Kernel


@family(
    outputs=("o",),
    dims={
        "B": sizes(1, 3), "H": sizes(1, 4), "T": sizes(1, 320, large=131_072), "M": sizes(1, 320),
        "D": sizes(1, 128), "Dv": sizes(1, 128),
    },
    options={"scale": (None, 0.25)},
    joint={"logits 1e4": {"q": "normal:100", "k": "normal:100"}},
)  # fmt: skip
def attention(
    q: Float[Tensor, "B H T D"],
    k: Float[Tensor, "B H M D"],
    v: Float[Tensor, "B H M Dv"],
    *,
    scale: float | None = None,
    causal: bool = False,
) -> Float[Tensor, "B H T Dv"]: ...


@family(
    dims={"T": sizes(1, 200, large=150_000)},
    domains={"rows": IndexDomain("V"), "offsets": IndexDomain("T", 0, "cu_seqlens")},
)
def lookup(
    table: Float[Tensor, "V D"],
    rows: Int[Tensor, "T"],
    offsets: Int[Tensor, "S+1"],
    bias: Float[Tensor, "D"] | None = None,
    *,
    mode: str = "sum",
) -> tuple[Float[Tensor, "S D"], Float[Tensor, "S"]]: ...


@family(dims={"B": sizes(1, 3), "T": sizes(1, 200, large=150_000), "C": sizes(1, 4)})
def chain(x: Float[Tensor, "B T+1 C"], pairs: Float[Tensor, "C C"]) -> Float[Tensor, "B"]: ...


FLASH = Kernel("flash", "attention", lambda *args: None, blocks={"small": 16, "big": 64})
PLAIN = Kernel("plain", "attention", lambda *args: None)
CHAIN = Kernel("chain", "chain", lambda *args: None)
LOOKUP = Kernel("lookup", "lookup", lambda *args: None)
NARROW = Kernel(
    "narrow", "attention", lambda *args: None, dtypes=("bfloat16",), options={"scale": (), "causal": (True,)},
    dims={"T": multiples(16), "M": multiples(16), "D": choices(64, 128), "Dv": choices(64)},
)  # fmt: skip
