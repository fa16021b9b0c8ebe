"""Errors of semi-CRF kernels in sigma against the length of the sequence: docs/background/semicrf_length.md, plot.

`python benchmarks/length.py` (K = 3, C = 2; on the CPU the shipped kernel runs in Triton's interpreter, a few minutes
in all). `--longest T` leaves out what is longer.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gradoracle.host import interpreter

if not torch.cuda.is_available():
    interpreter.activate()

from gradoracle.kernels import semicrf as kernels
from gradoracle.properties.semicrf import KERNELS
from gradoracle.properties.semicrf.readings import recursion as recursion
from gradoracle.properties.semicrf.readings.budgets import budgets

from gradoracle.model.contract import PRESETS, Contract
from gradoracle.model.derivative import Derivative

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests.properties.semicrf import single as float32_inside  # noqa: E402
from tests.properties.semicrf.samples import random_walk  # noqa: E402

PAGE = ROOT / "docs" / "background" / "semicrf_length.md"
LENGTHS = (1_000, 10_000, 100_000, 131_072, 262_144, 524_288, 1_048_576)
SEEDS = 4  # samples of the fast kernel; the interpreted one takes two
TENSORS = ("log_z", "dcum_scores", "dtransition", "dduration_bias")
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Subject:
    """A kernel and the contract under which it is judged."""

    title: str
    contract: Contract
    call: Callable[[Mapping[str, Tensor]], Tensors]
    seeds: int


@dataclass(frozen=True)
class Point:
    """One length: rms of the error in sigma over seeds and elements, median sigma / |truth|, and the largest error."""

    rms: dict[str, float]
    relative: float
    largest: float
    seconds: float


def shipped(inputs: Mapping[str, Tensor]) -> Tensors:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    given = {name: t.to(device) for name, t in inputs.items()}
    order = ("cum_scores", "transition", "duration_bias")
    leaves = [given[name].requires_grad_() for name in order]
    z = kernels.semicrf(*leaves, given["lengths"])
    found = torch.autograd.grad(z.sum(), leaves)
    return {"log_z": z.detach().cpu()} | {f"d{name}": g.cpu() for name, g in zip(order, found, strict=True)}


def single(inputs: Mapping[str, Tensor]) -> Tensors:
    return float32_inside.run(inputs, torch.ones(1))


SUBJECTS = (
    Subject("shipped", KERNELS[0].contract("float32"), shipped, 2),
    Subject("float32 inside", PRESETS["ieee32"], single, SEEDS),
)


def point(subject: Subject, steps: int) -> Point:
    squares: dict[str, list[Tensor]] = {name: [] for name in TENSORS}
    largest, relative, seconds = 0.0, [], []
    for seed in range(subject.seeds):
        inputs = random_walk({"B": 1, "T": steps, "C": 2, "K": 3}, seed=seed)
        exact = recursion.run(recursion.Problem(inputs), torch.ones(1))
        true = {"log_z": exact.log_z} | {f"d{name}": x for name, x in exact.gradients.items()}
        stored = {name: "float32" for name in true}
        known = budgets(inputs, torch.ones(1), subject.contract, Derivative.VJP, stored=stored)
        began = time.perf_counter()
        got = subject.call(inputs)
        seconds.append(time.perf_counter() - began)
        for name in TENSORS:
            error = (got[name].double() - true[name]).abs()
            off = torch.where(error > 0, error / known[name].sigma, 0.0)
            squares[name].append(off.square().mean())
            largest = max(largest, float(off.max()))
        scale = known["dcum_scores"].sigma / true["dcum_scores"].abs()
        relative.append(float(scale[scale.isfinite()].median()))
    rms = {name: math.sqrt(float(torch.stack(parts).mean())) for name, parts in squares.items()}
    return Point(rms, sum(relative) / len(relative), largest, max(seconds))


def table(subject: Subject, points: Mapping[int, Point]) -> str:
    first = next(iter(points.values()))
    lines = [
        f"## {subject.title[0].upper()}{subject.title[1:]}",
        "",
        f"Contract `{subject.contract.name}`; {subject.seeds} samples each.",
        "",
        "| T | " + " | ".join(TENSORS) + " | dcum against T = 1 000 | worst | sigma of dcum, relative | seconds |",
        "|---" * (len(TENSORS) + 5) + "|",
    ]
    for steps, at in points.items():
        ratio = at.rms["dcum_scores"] / first.rms["dcum_scores"]
        numbers = " | ".join(f"{at.rms[name]:.2f}" for name in TENSORS)
        shown = f"{steps:,}".replace(",", " ")
        lines.append(f"| {shown} | {numbers} | {ratio:.2f} | {at.largest:.1f} | {at.relative:.1e} | {at.seconds:.1f} |")
    return "\n".join(lines)


def plot(found: Mapping[str, Mapping[int, Point]]) -> str:
    """An SVG of the rms error of dcum in sigma against T, on logarithmic axes, with one line for each kernel."""
    width, height, left, bottom = 640, 380, 70, 330
    low, high, floor, top = math.log10(1e3), math.log10(1.2e6), -2.0, 1.0

    def at(steps: float, value: float) -> tuple[float, float]:
        across = left + (math.log10(steps) - low) / (high - low) * (width - left - 30)
        return across, bottom - (math.log10(max(value, 1e-2)) - floor) / (top - floor) * (bottom - 30)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for power in (-2, -1, 0, 1):
        x, y = at(1e3, 10.0**power)
        parts.append(f'<line x1="{x}" y1="{y}" x2="{width - 30}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 8}" y="{y + 4}" text-anchor="end">{10.0**power:g}</text>')
    for power in (3, 4, 5, 6):
        x, y = at(10.0**power, 1e-2)
        parts.append(f'<line x1="{x}" y1="{y}" x2="{x}" y2="30" stroke="#eee"/>')
        parts.append(f'<text x="{x}" y="{y + 18}" text-anchor="middle">1e{power}</text>')
    parts.append(f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle">T</text>')
    parts.append('<text x="16" y="20">rms error of dcum_scores, in sigma</text>')
    for i, (title, points) in enumerate(found.items()):
        colour = ("#1f5fa8", "#c2571a")[i % 2]
        places = [at(steps, p.rms["dcum_scores"]) for steps, p in points.items()]
        parts.append(
            f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="'
            + " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
            + '"/>'
        )
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places]
        parts.append(f'<text x="{width - 180}" y="{50 + 18 * i}" fill="{colour}">{title}</text>')
    return "\n".join([*parts, "</svg>", ""])


HEAD = """# The semi-CRF's error against the length of the sequence

Does the error of a semi-CRF kernel, in sigma, grow with the length of the sequence? This page is the output of
`python benchmarks/length.py` ({where}): the rms of error / sigma over all elements of a tensor and all
samples, on random walks with K = 3 and C = 2. The truth is the float64 recursion with exact exponents.

- *shipped*: the Triton kernel, forward and backward{how}.
  Its results are rounded to float32 once; sigma is that rounding, at any T.
- *float32 inside*: a correct kernel in float32 with norms in float64 (`tests/properties/semicrf/single.py`). Its error
  grows in proportion to T, not to the root of T: a parameter that is added to numbers on a coarser lattice loses the
  same bits at each position, and not the same ones forward and backward. Budgets account for it, since their probes are
  runs of such a kernel with every rounding simulated (`properties/semicrf/readings/rounded.py`).

![rms error of dcum in sigma against T](semicrf_length.svg)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--longest", type=int, default=LENGTHS[-1])
    lengths = [steps for steps in LENGTHS if steps <= parser.parse_args().longest]
    cuda = torch.cuda.is_available()
    where = torch.cuda.get_device_name() if cuda else "2-core CPU, no GPU"
    found: dict[str, dict[int, Point]] = {}
    sections = [HEAD.format(where=where, how="" if cuda else ", interpreted; seconds are the interpreter's")]
    single(random_walk({"B": 1, "T": 10, "C": 2, "K": 3}))  # compiles it
    for subject in SUBJECTS:
        found[subject.title] = {}
        for steps in lengths:
            found[subject.title][steps] = point(subject, steps)
            print(subject.title, steps, found[subject.title][steps], file=sys.stderr, flush=True)
        sections.append(table(subject, found[subject.title]))
    PAGE.write_text("\n".join(sections[:1]) + "\n" + "\n\n".join(sections[1:]) + "\n")
    PAGE.with_suffix(".svg").write_text(plot(found))
    print("\n\n".join(sections[1:]))


if __name__ == "__main__":
    main()
