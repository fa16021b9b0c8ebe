"""Warp specialisation: does it make attention's forward faster on this GPU, and is its result right?

    python benchmarks/warp_specialisation.py        (on a GPU; a line for each block configuration and way of loading)

The kernel is the loop of SDPA's forward alone: no mask, no tail, D = 64 or 128, bfloat16. It loads by pointers, by
tensor descriptors, or by descriptors in a loop with `warp_specialize=True`. Inputs are made once for each D, so that an
error that stays after a configuration has run says that it wrote into them.
"""

from __future__ import annotations

from functools import partial

import torch
import triton
import triton.language as tl
from gradoracle.kernels.launching import LOG2E
from torch.nn.functional import scaled_dot_product_attention

B, H, T = 4, 16, 4096
BLOCKS = (
    (128, 128, 8, 2), (128, 64, 4, 3), (128, 64, 8, 3), (128, 128, 4, 2), (64, 128, 4, 2), (128, 128, 8, 3),
    (128, 64, 4, 2), (128, 128, 4, 3),
)  # fmt: skip
WAYS = {"pointers": (False, False), "descriptors": (True, False), "specialised": (True, True)}


@triton.jit
def forward(
    q, k, v, o, m, l, T, rate,
    D: tl.constexpr, BLOCK_QUERY: tl.constexpr, BLOCK_KEY: tl.constexpr, DESCRIBED: tl.constexpr, SPECIAL: tl.constexpr,
):  # fmt: skip
    """Compute o [BLOCK_QUERY, D], m and l [BLOCK_QUERY] of one tile of queries."""
    tiles = T // BLOCK_QUERY
    plane = (tl.program_id(0) // tiles).to(tl.int64) * T * D
    row = (tl.program_id(0) % tiles) * BLOCK_QUERY
    rows, keys, columns = row + tl.arange(0, BLOCK_QUERY), tl.arange(0, BLOCK_KEY), tl.arange(0, D)
    if DESCRIBED:
        q_rows = tl.make_tensor_descriptor(q + plane, [T, D], [D, 1], [BLOCK_QUERY, D])
        k_rows = tl.make_tensor_descriptor(k + plane, [T, D], [D, 1], [BLOCK_KEY, D])
        v_rows = tl.make_tensor_descriptor(v + plane, [T, D], [D, 1], [BLOCK_KEY, D])
        q_tile = q_rows.load([row, 0])
    else:
        q_tile = tl.load(q + plane + rows[:, None] * D + columns[None, :])
    largest = tl.full([BLOCK_QUERY], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_QUERY], tl.float32)
    output = tl.zeros([BLOCK_QUERY, D], tl.float32)
    for start in tl.range(0, T, BLOCK_KEY, warp_specialize=SPECIAL):
        if DESCRIBED:
            k_tile, v_tile = k_rows.load([start, 0]), v_rows.load([start, 0])
        else:
            places = plane + (start + keys)[:, None] * D + columns[None, :]
            k_tile, v_tile = tl.load(k + places), tl.load(v + places)
        scores = tl.dot(q_tile, tl.trans(k_tile))
        larger = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp2((scores - larger[:, None]) * rate)
        decay = tl.exp2((largest - larger) * rate)
        total = total * decay + tl.sum(weights, 1)
        output = tl.dot(weights.to(v_tile.dtype), v_tile, acc=output * decay[:, None])
        largest = larger
    output = output / total[:, None]
    tl.store(o + plane + rows[:, None] * D + columns[None, :], output.to(o.dtype.element_ty))
    tl.store(m + plane // D + rows, largest)
    tl.store(l + plane // D + rows, total)


def scratch(size: int, alignment: int, stream: int | None) -> torch.Tensor:
    """The memory that descriptors made on the device take."""
    return torch.empty(size, device="cuda", dtype=torch.int8)


def main() -> None:
    triton.set_allocator(scratch)
    print(torch.cuda.get_device_name(), "torch", torch.__version__, "triton", triton.__version__)
    for D in (64, 128):
        q, k, v = (torch.randn(B, H, T, D, device="cuda", dtype=torch.bfloat16) for _ in range(3))
        o, m, l = torch.empty_like(q), *torch.empty(2, B, H, T, device="cuda")
        expected = scaled_dot_product_attention(*(x[:1, :1].float() for x in (q, k, v)))
        for query, key, warps, stages in BLOCKS:
            launch = forward[(B * H * T // query,)]
            for way, (described, special) in WAYS.items():
                call = partial(
                    launch, q, k, v, o, m, l, T, D**-0.5 * LOG2E, D=D, BLOCK_QUERY=query, BLOCK_KEY=key,
                    DESCRIBED=described, SPECIAL=special, num_warps=warps, num_stages=stages,
                )  # fmt: skip
                said = f"D{D} {query}x{key}/{warps}/{stages} {way}:"
                try:
                    made = call()
                    torch.cuda.synchronize()
                    error = (o[:1, :1].float() - expected).abs().max().item()
                    time = triton.testing.do_bench(call, warmup=5, rep=60, return_mode="median")
                    done = "warp_specialize" in made.asm["ttgir"] and made.metadata.num_warps != warps
                    print(f"{said} {time:.4f} ms, error {error:.2e}, {'specialised' if done else 'not specialised'}")
                except Exception as failure:
                    print(said, type(failure).__name__, " ".join(str(failure).split())[-160:])
        time = triton.testing.do_bench(partial(scaled_dot_product_attention, q, k, v), return_mode="median")
        print(f"D{D} PyTorch's choice: {time:.4f} ms")


if __name__ == "__main__":
    main()
