"""BlockSizes: tiles of the forward and of each backward by name, in the terms of JAX's splash attention."""

from __future__ import annotations

from dataclasses import dataclass

from .. import arguments


@dataclass(frozen=True)
class BlockSizes:
    """Sizes of the tiles of each pass, as splash attention names and checks them.

    Attributes:
        block_q, block_kv: rows of q and of k in a tile of the forward.
        block_kv_compute: keys that a dot of the forward takes; divides block_kv, and is it by default.
        block_q_dkv, block_kv_dkv: rows of q and of k in a tile of the pass that makes dk, and dq too where it is fused.
        block_kv_dkv_compute: keys that a dot of that pass takes; divides block_kv_dkv, and is it by default.
        block_q_dq, block_kv_dq: rows of q and of k in a tile of the pass that makes dq; None with a fused backward.
        use_fused_bwd_kernel: one kernel makes dq and dk and rebuilds P once; False, as in splash attention, by default.

    Every size is a power of two from 16 to 4096. Sizes of the backward are given all or not at all: without any, its
    kernel and its tiles are automatic, as those of the JVP and the HVP always are. A TPU copies `block_kv` keys to the
    memory next to its cores and takes them `block_kv_compute` at a time. A GPU kernel has no such copy: its tile is the
    compute size, and where that is less than the other, there are as many more tiles. So the partial dq of a fused
    backward, of which there is one a tile, are ceil(M / block_kv_dkv_compute).

    Raises:
        ValueError: naming the size, the value given and what is expected.
    """

    block_q: int
    block_kv: int
    block_kv_compute: int | None = None
    block_q_dkv: int | None = None
    block_kv_dkv: int | None = None
    block_kv_dkv_compute: int | None = None
    block_q_dq: int | None = None
    block_kv_dq: int | None = None
    use_fused_bwd_kernel: bool = False

    def __post_init__(self) -> None:
        fused = arguments.boolean("use_fused_bwd_kernel", self.use_fused_bwd_kernel)
        for name in ("block_q", "block_kv", *OPTIONAL):
            if name not in OPTIONAL or getattr(self, name) is not None:
                arguments.block_size(name, getattr(self, name))
        for name in DQ if fused else ():
            if getattr(self, name) is not None:
                raise ValueError(
                    f"{name} is {getattr(self, name)}: expected None, as block sizes for dq are not needed with a "
                    "fused kernel (use_fused_bwd_kernel=True)"
                )
        needed = DKV if fused else (*DKV, *DQ)
        if fused or any(getattr(self, name) is not None for name in OPTIONAL[1:]):
            for name in needed:
                if getattr(self, name) is None:
                    kind, relief = ("fused", "") if fused else ("separate", ", or none of them")
                    raise ValueError(f"{name} is None: expected every size of the {kind} backward{relief}")
        for compute, memory in COMPUTE.items():
            part, size = getattr(self, compute), getattr(self, memory)
            if part is not None and size % part:
                raise ValueError(f"{compute} is {part}: expected a divisor of {memory}, {size}")

    @property
    def backward(self) -> str | None:
        """Which backward these sizes are of: "fused", "separate", or None where they are of the forward alone."""
        if self.use_fused_bwd_kernel:
            return "fused"
        return None if self.block_q_dkv is None else "separate"

    def tile(self, step: str) -> tuple[int, int] | None:
        """Return rows of q and of k in a tile of the step "forward", "dq" or "dkv"; None where it is automatic."""
        if step == "forward":
            return self.block_q, self.block_kv_compute or self.block_kv
        if step == "dq" and self.block_q_dq is not None and self.block_kv_dq is not None:
            return self.block_q_dq, self.block_kv_dq
        if step == "dkv" and self.block_q_dkv is not None and self.block_kv_dkv is not None:
            return self.block_q_dkv, self.block_kv_dkv_compute or self.block_kv_dkv
        return None


DKV = ("block_q_dkv", "block_kv_dkv")
DQ = ("block_q_dq", "block_kv_dq")
OPTIONAL = ("block_kv_compute", *DKV, "block_kv_dkv_compute", *DQ)
COMPUTE = {"block_kv_compute": "block_kv", "block_kv_dkv_compute": "block_kv_dkv"}
