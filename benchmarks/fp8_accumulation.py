"""How many bits a dot of 8-bit floats keeps on this GPU, by designed operands; bfloat16 and float16 are controls.

`python benchmarks/fp8_accumulation.py` prints a table and writes fp8_accumulation.json to $OUT, or here. It needs torch
and Triton alone, and under a minute; without a GPU it runs in gradoracle's interpreter. docs/how-to/eight-bit.md reads
what it found.

Each probe is one tile whose elements are all the same sum of a few products, at chosen places of K:

- fraction: 1 - 1 + 2^-d in one block of products. The largest d that survives is the number of fraction bits, relative
  to the largest product, that a product keeps where the products of a block are aligned.
- below: 1 - 1 + 1.75 * 2^-d with the d after which bits are lost, and with its negative: cut toward zero, toward minus
  infinity, or rounded.
- sum: 1 + 2^-d with the terms in two blocks. The largest d that changes the sum is the number of fraction bits of the
  accumulator; and 1 + 1.75 * 2^-d, whether that is cut or rounded.
- lost at: the places k of a small product that is lost beside 1 - 1 at k = 0 and 1: the block that is aligned.
- later: the same with 1 at 0, the small product at 40 and -1 at 100: whether sums of blocks are kept in float32.
- normal: the largest error, in units of 2^-13 of the largest product, over dots of 128 normal numbers.
"""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import torch

INTERPRETED = not torch.cuda.is_available()
if INTERPRETED:  # before Triton
    from gradoracle.host.interpreter import activation

    activation.activate()

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

DEPTH = 128
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "fp16": torch.float16, "bf16": torch.bfloat16}
LARGE = {"e4m3": 4, "e5m2": 7, "fp16": 7, "bf16": 20}
"""The exponent of operands whose product stands for 1."""
LEAST = {"e4m3": -6, "e5m2": -14, "fp16": -14, "bf16": -60}
"""The exponent of the smallest operand that is used."""
FARTHEST = 30


@triton.jit
def _dots(A, B, Z, TILE: tl.constexpr, N: tl.constexpr, K: tl.constexpr, MOST: tl.constexpr):
    """z [E, TILE, N] = a [E, TILE, K] @ b [E, K, N], one program for each of E."""
    e = tl.program_id(0)
    m, n, k = tl.arange(0, TILE), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(A + e * TILE * K + m[:, None] * K + k[None, :])
    b = tl.load(B + e * K * N + n[None, :] * K + k[:, None])  # b^T in memory, as wgmma wants it
    total = tl.zeros((TILE, N), tl.float32)
    if MOST < 0:  # noqa: SIM108
        total = tl.dot(a, b, total)
    else:
        total = tl.dot(a, b, total, max_num_imprecise_acc=MOST)
    tl.store(Z + e * TILE * N + m[:, None] * N + n[None, :], total)


@triton.jit
def _scaled_dots(
    A, B, SA, SB, Z, TILE: tl.constexpr, N: tl.constexpr, K: tl.constexpr, KIND: tl.constexpr, PACKED: tl.constexpr
):  # fmt: skip
    """By tl.dot_scaled: a [E, TILE, K / PACKED], scales in e8m0, sa [E, TILE, K / 32], sb [E, N, K / 32]."""
    e = tl.program_id(0)
    m, n, k, s = tl.arange(0, TILE), tl.arange(0, N), tl.arange(0, K // PACKED), tl.arange(0, K // 32)
    a = tl.load(A + e * TILE * (K // PACKED) + m[:, None] * (K // PACKED) + k[None, :])
    b = tl.load(B + e * (K // PACKED) * N + n[None, :] * (K // PACKED) + k[:, None])
    sa = tl.load(SA + e * TILE * (K // 32) + m[:, None] * (K // 32) + s[None, :])
    sb = tl.load(SB + e * N * (K // 32) + n[:, None] * (K // 32) + s[None, :])
    total = tl.dot_scaled(a, sa, KIND, b, sb, KIND)
    tl.store(Z + e * TILE * N + m[:, None] * N + n[None, :], total)


def operands(kind: str, terms: dict[int, tuple[float, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """a [K] and b [K], float64, with products significand * 2^exponent * 4^LARGE at the places of ``terms``."""
    a, b = torch.zeros(DEPTH, dtype=torch.float64), torch.zeros(DEPTH, dtype=torch.float64)
    for k, (significand, exponent) in terms.items():
        left = max(LARGE[kind] + exponent, LEAST[kind])
        a[k], b[k] = significand * 2.0**left, 2.0 ** (2 * LARGE[kind] + exponent - left)
    return a, b


def probes(kind: str) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The operands of every probe, by its name and number."""
    found = {}
    reach = min(FARTHEST, 2 * LARGE[kind] - 2 * LEAST[kind])
    for d in range(1, reach + 1):
        found[f"fraction {d}"] = operands(kind, {0: (1, 0), 1: (-1, 0), 4: (1, -d)})
        found[f"below {d}"] = operands(kind, {0: (1, 0), 1: (-1, 0), 4: (1.75, -d)})
        found[f"negative {d}"] = operands(kind, {0: (1, 0), 1: (-1, 0), 4: (-1.75, -d)})
        found[f"sum {d}"] = operands(kind, {0: (1, 0), 64: (1, -d)})
        found[f"summed {d}"] = operands(kind, {0: (1, 0), 64: (1.75, -d)})
        found[f"later {d}"] = operands(kind, {0: (1, 0), 40: (1, -d), 100: (-1, 0)})
    for k in range(2, DEPTH):
        found[f"lost {k}"] = operands(kind, {0: (1, 0), 1: (-1, 0), k: (1, -reach)})
    return found


def rounded(x: torch.Tensor, kind: str) -> torch.Tensor:
    """To the format's dtype; its values are exact there."""
    return x.float().to(FORMATS[kind])


def launched(kind: str, tile: int, most: int, scaled: bool, device: str) -> tuple[dict[str, float], float, str]:
    """What each probe gives, in units of the large product; the error of normal operands; the instruction."""
    given = probes(kind)
    made = torch.Generator().manual_seed(0)
    count, columns = len(given), 64
    a = torch.stack([each for each, _ in given.values()])[:, None].expand(count, tile, DEPTH)
    b = torch.stack([each for _, each in given.values()])[:, None].expand(count, columns, DEPTH)
    extra = 16
    normal = [torch.randn(extra, rows, DEPTH, generator=made, dtype=torch.float64) for rows in (tile, columns)]
    left, right = (rounded(torch.cat(pair), kind) for pair in zip((a, b), normal, strict=True))
    z = torch.empty(count + extra, tile, columns, dtype=torch.float32, device=device)
    place = (left.contiguous().to(device), right.contiguous().to(device))
    if scaled:
        ones = [torch.full((count + extra, rows, DEPTH // 32), 127, dtype=torch.uint8) for rows in (tile, columns)]
        run = _scaled_dots[(count + extra,)](*place, *(s.to(device) for s in ones), z, tile, columns, DEPTH, kind, 1)
    else:
        run = _dots[(count + extra,)](*place, z, tile, columns, DEPTH, most)
    z = z.cpu().double()
    unit = 4.0 ** LARGE[kind]
    if not (z[:count] == z[:count, :1, :1]).all():
        raise ValueError("elements of a tile of equal sums differ")
    values = {name: float(z[i, 0, 0]) / unit for i, name in enumerate(given)}
    x, y = left[count:].double(), right[count:].double()
    exact = x @ y.mT
    largest = torch.stack([(x[:, :, None, k] * y[:, None, :, k]).abs() for k in range(DEPTH)]).amax(0)
    worst = float(((z[count:] - exact).abs() / largest).max()) * 2.0**13
    ptx = getattr(run, "asm", {}).get("ptx", "") if run is not None else ""
    found = re.findall(r"(?:wgmma\.mma_async|mma\.sync|tcgen05\.mma)[\w.:]*", ptx)
    return values, worst, sorted(set(found))[0] if found else ""


def read(values: dict[str, float]) -> dict[str, Any]:
    """The numbers of the table."""

    def farthest(name: str, is_kept: Any) -> int:
        given = (key for key, v in values.items() if key.startswith(name + " ") and is_kept(key, v))
        return max((int(key.split()[1]) for key in given), default=0)

    def one(key: str) -> float:
        return 2.0 ** -int(key.split()[1])

    fraction = farthest("fraction", lambda key, v: v == one(key))
    kept = farthest("sum", lambda key, v: v == 1 + one(key))
    below = values.get(f"below {fraction}", 0.0) * 2.0**fraction
    negative = values.get(f"negative {fraction}", 0.0) * 2.0**fraction
    summed = (values.get(f"summed {kept}", 1.0) - 1) * 2.0**kept
    words = {(1.0, -1.0): "cut", (1.0, -2.0): "floor", (2.0, -2.0): "nearest"}
    lost = [int(key.split()[1]) for key, v in values.items() if key.startswith("lost ") and v == 0]
    return {
        "fraction": fraction,
        "products": words.get((below, negative), f"{below:g}, {negative:g}"),
        "sum": kept,
        "sums": {1.0: "cut", 2.0: "nearest"}.get(summed, f"{summed:g}"),
        "later": farthest("later", lambda key, v: v == one(key)),
        "lost at": lost,
    }


def spans(places: list[int]) -> str:
    """2-15, 32-47"""
    found: list[list[int]] = []
    for k in places:
        if found and found[-1][1] == k - 1:
            found[-1][1] = k
        else:
            found.append([k, k])
    return ",".join(f"{a}-{b}" if a < b else str(a) for a, b in found) or "none"


def special_scales(device: str) -> dict[str, list[str]]:
    """1 * 1 by tl.dot_scaled of e4m3 with the codes of scales that are special, 32 products; and the codes of e2m1."""
    codes = [0, 1, 126, 127, 128, 253, 254, 255]
    ones = torch.ones(len(codes), 64, DEPTH).to(torch.float8_e4m3fn).to(device)
    own = torch.tensor(codes, dtype=torch.uint8)[:, None, None].expand(-1, 64, DEPTH // 32).contiguous().to(device)
    z, answers = torch.empty(len(codes), 64, 64, dtype=torch.float32, device=device), {}
    for other in (127, 0, 254):
        same = torch.full_like(own, other)
        _scaled_dots[(len(codes),)](ones, ones, own, same, z, 64, 64, DEPTH, "e4m3", 1)
        answers[f"scales {codes} by {other}"] = [repr(float(v)) for v in z[:, 0, 0].cpu()]
    packed = torch.arange(16, dtype=torch.uint8)[:, None, None].expand(-1, 64, DEPTH // 2).contiguous()  # high nibble 0
    one = torch.full((16, 64, DEPTH // 2), 0x22, dtype=torch.uint8)
    scales = torch.full((16, 64, DEPTH // 32), 127, dtype=torch.uint8).to(device)
    z = torch.empty(16, 64, 64, dtype=torch.float32, device=device)
    _scaled_dots[(16,)](packed.to(device), one.to(device), scales, scales, z, 64, 64, DEPTH, "e2m1", 2)
    answers["e2m1 codes 0 to 15, 64 times"] = [repr(float(v)) for v in z[:, 0, 0].cpu()]
    return answers


def main() -> None:
    device = "cpu" if INTERPRETED else "cuda"
    name = "the interpreter" if INTERPRETED else torch.cuda.get_device_name()
    print(f"# {name}, torch {torch.__version__}, triton {triton.__version__}")
    print("kind | rows | most | fraction | products | sum | sums | later | lost at | normal | instruction")
    asked = [(64, -1), (64, 0), (64, 32), (64, 64), (64, 128), (16, -1), (16, 32)]
    plain = [(kind, tile, most, False) for kind in ("e4m3", "e5m2") for tile, most in asked]
    controls = [(kind, tile, -1, False) for kind in ("fp16", "bf16") for tile in (64, 16)]
    scaled = [(kind, 64, -1, True) for kind in ("e4m3", "e5m2")]
    record, started = [], time.time()
    for kind, tile, most, is_scaled in plain + controls + scaled:
        label = f"{kind} dot_scaled" if is_scaled else kind
        most_asked = "default" if most < 0 else str(most)
        try:
            values, worst, instruction = launched(kind, tile, most, is_scaled, device)
        except Exception as error:  # one kind that fails must not take the others along
            print(f"{label} | {tile} | {most_asked} | {type(error).__name__}: {str(error)[:300]}", flush=True)
            record.append(
                {"kind": label, "rows": tile, "most": most_asked, "error": f"{type(error).__name__}: {error}"}
            )
            continue
        found = read(values)
        row = {"kind": label, "rows": tile, "most": most_asked, **found, "normal": worst, "instruction": instruction}
        record.append(row | {"values": values})
        shown = row | {"lost at": spans(found["lost at"]), "normal": f"{worst:.3g}"}
        print(" | ".join(map(str, shown.values())), flush=True)
    try:
        special = special_scales(device)
    except Exception as error:
        special = {"error": [f"{type(error).__name__}: {str(error)[:300]}"]}
    for what, answers in special.items():
        print(f"{what}: {' '.join(answers)}")
    print(f"# {time.time() - started:.1f} s")
    out = Path(os.environ.get("OUT", ".")) / "fp8_accumulation.json"
    out.write_text(json.dumps({"device": name, "triton": triton.__version__, "kinds": record, "special": special}))


if __name__ == "__main__":
    main()
