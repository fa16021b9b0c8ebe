"""The calibration of budgets: how far correct kernels are out, in sigma. ``python benchmarks/calibration.py``.

Prints the table of docs/background/calibration.md. Every kernel here is correct: an rms far above 1 would mean that the
budget is too narrow, one far below 1 that it sees less than it could, and a worst element beyond 8 is a false alarm.

    --family F    sdpa (default), lse, lightning or semicrf: the shipped kernel, interpreted, and plain PyTorch
    --seconds S   how long (default 240); cases form one fixed stream
    --seed N      of the stream
    --device D    cpu (default), or with sdpa cuda: PyTorch's kernels there, without the float64 reading
"""

from __future__ import annotations

import argparse
import platform
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from gradoracle import __version__
from gradoracle.cases.sample import build
from gradoracle.check.evidence import Evidence
from gradoracle.execution import device
from gradoracle.execution.kernel_runner import KernelRunner as Runner
from gradoracle.model.case import Case, Draw
from gradoracle.model.contract import PRESETS, default_contract
from gradoracle.model.derivative import Derivative, program
from gradoracle.model.recipes import RECIPES, values
from gradoracle.oracle.exact import certified
from gradoracle.oracle.exact.trace import Graph, trace
from gradoracle.oracle.rounding.reading import Budget, budgets
from gradoracle.oracle.truth import Oracle
from gradoracle.project.target import resolve

EXAMPLES = Path(__file__).parents[1] / "examples"
EAGER = {"bfloat16": "eager-bf16", "float16": "eager-fp16"}
Kernel = Callable[..., Sequence[Tensor]]
DTYPES = ("float32", "bfloat16", "float16")
NAMES = ("o", "dq", "dk", "dv")
SHAPES = ((33, 65, 32), (1, 200, 8), (100, 40, 128), (7, 1, 64), (64, 64, 1), (17, 130, 16), (128, 128, 64), (2, 3, 5))
LARGE = ((5, 4096, 16), (1024, 96, 64))
SMALL = ((5, 7, 4), (1, 9, 3), (12, 6, 8))
CONTINUOUS = [name for name, recipe in RECIPES.items() if recipe.continuous and name not in ("extreme", "tiny")]
EXTREMES = ["normal:10", "normal:30", "extreme", "tiny", "normal:1e-3"]
REPEATING = [name for name, recipe in RECIPES.items() if not recipe.continuous]


def definition(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(D)) v."""
    return torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1) @ v


def of_torch(backend: SDPBackend) -> Kernel:
    def kernel(q: Tensor, k: Tensor, v: Tensor, do: Tensor) -> Sequence[Tensor]:
        with sdpa_kernel(backend):
            return with_autograd(scaled_dot_product_attention, q, k, v, do)

    return kernel


def with_autograd(forward: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, do: Tensor) -> Sequence[Tensor]:
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    o = forward(*leaves)
    return (o.detach(), *torch.autograd.grad(o, leaves, do))


def eager(q: Tensor, k: Tensor, v: Tensor, do: Tensor) -> Sequence[Tensor]:
    return with_autograd(definition, q, k, v, do)


K = TypeVar("K", Kernel, str)


@dataclass(frozen=True)
class Subject(Generic[K]):
    """A correct kernel, or its target, and the budget under which it is judged.

    Attributes:
        name: in the table.
        kernel: itself, or the target of one.
        algorithm: of a kernel that declares none.
        presets: of contracts, by dtype; the defaults for others.
    """

    name: str
    kernel: K
    algorithm: str = "definition"
    presets: dict[str, str] = field(default_factory=dict)


SUBJECTS: dict[str, list[Subject[Kernel]]] = {
    "cpu": [
        Subject("PyTorch math", of_torch(SDPBackend.MATH)),
        Subject("PyTorch flash", of_torch(SDPBackend.FLASH_ATTENTION), "flash"),
        Subject("PyTorch eager", eager, presets=EAGER),
    ],
    "cuda": [
        Subject("PyTorch math", of_torch(SDPBackend.MATH), presets=EAGER),
        Subject("PyTorch flash", of_torch(SDPBackend.FLASH_ATTENTION), "flash"),
        Subject("PyTorch cuDNN", of_torch(SDPBackend.CUDNN_ATTENTION), "flash"),
        Subject("PyTorch mem-efficient", of_torch(SDPBackend.EFFICIENT_ATTENTION), "flash", {"float32": "tf32x3"}),
    ],
}


TARGETS: dict[str, list[Subject[str]]] = {
    "lse": [
        Subject("shipped, interpreted", "lse"),
        Subject("PyTorch eager, upcast", f"{EXAMPLES}/torch_lse.py:upcast"),
    ],
    "lightning": [
        Subject("shipped, interpreted", "lightning"),
        Subject("PyTorch eager, quadratic", f"{EXAMPLES}/torch_lightning.py:quadratic"),
        Subject("PyTorch eager, chunked", f"{EXAMPLES}/torch_lightning.py:chunked", "chunks of 64", EAGER),
    ],
    "semicrf": [
        Subject("shipped, interpreted", "semicrf"),
        Subject("PyTorch eager, float32", f"{EXAMPLES}/torch_semicrf.py:recursion"),
    ],
}
WIDTHS = ((1, 5, 3), (7, 64, 64), (33, 32, 8), (64, 1, 70), (100, 128, 128), (130, 16, 1), (300, 64, 64), (512, 8, 16))
SEGMENTATIONS = ((1, 3, 2), (7, 4, 5), (33, 1, 12), (40, 3, 1), (64, 2, 3), (100, 4, 12), (130, 3, 5), (300, 4, 8))
SIZES = {
    "lse": [
        {"B": 1, "H": 2, "G": 1 + place % 2, "T": t, "M": m, "D": d}
        for place, (t, m, d) in enumerate((*SHAPES, LARGE[0]))
    ],
    "lightning": [{"B": 1, "H": 2, "N": n, "D": d, "Dv": e} for n, d, e in WIDTHS],
    "semicrf": [{"B": 2, "T": t, "C": c, "K": k} for t, c, k in SEGMENTATIONS],
}


@dataclass
class Row:
    """One line of the table: the sum of squares and the largest error over all elements compared."""

    elements: int = 0
    cases: int = 0
    squares: float = 0.0
    worst: float = 0.0
    repeating: float = 0.0  # largest error / bound, on recipes that repeat values
    bias: float = 0.0  # |slope| over the rms slope of the probes
    at: str = ""

    def add(self, error: Tensor, budget: Budget, continuous: bool, where: str) -> None:
        """Count one tensor of one case; ``error`` is signed."""
        compared = budget.value.isfinite() & error.isfinite() & (budget.sigma > 0)
        if not continuous:
            assert budget.worst is not None
            shares = (error.abs() / budget.worst)[compared & (budget.worst > 0)]
            self.repeating = max(self.repeating, *shares.flatten().tolist(), 0.0)
            return
        size = (error / budget.sigma)[compared]
        if not size.numel():
            return
        self.elements += size.numel()
        self.squares += float(size.square().sum())
        if float(size.abs().max()) > self.worst:
            self.worst, self.at = float(size.abs().max()), where
        weight = torch.where(compared, budget.value / budget.sigma**2, 0.0)
        bottom = float((budget.value * weight).sum())
        if bottom > 0 and not (budget.sigma <= 2 * budget.floor).any():
            null = (budget.errors * weight).flatten(1).sum(1).square().mean().sqrt() / bottom
            scale = max(float(null), bottom**-0.5)
            if scale <= 0.01:
                self.bias = max(self.bias, abs(float((error * weight).sum()) / bottom) / scale)


class Graphs:
    """Traced programs, once for each shape."""

    def __init__(self) -> None:
        self.kept: dict[object, Graph] = {}

    def of(self, algorithm: str, derivative: Derivative, args: Sequence[Tensor]) -> Graph:
        key = (algorithm, derivative, tuple(a.shape for a in args))
        if key not in self.kept:
            own = program(definition, derivative, 3) if algorithm == "definition" else _vjp(algorithm)
            self.kept[key] = trace(lambda *x: own(*x), *args)
        return self.kept[key]


def _vjp(algorithm: str) -> Callable[..., object]:
    """The program of an algorithm; not imported above, since importing a family imports its kernels."""
    found: Callable[..., object] = resolve("sdpa").family.algorithms[algorithm]["vjp"]
    return found


def inputs(recipes: Sequence[str], shape: tuple[int, int, int], dtype: str, seed: int) -> list[Tensor]:
    """q, k, v, do: [1 2 n D]."""
    queries, keys, width = shape
    sizes = zip(recipes, ("q", "k", "v", "do"), (queries, keys, keys, queries), strict=True)
    return [values(recipe, (1, 2, n, width), dtype, seed=seed, name=name) for recipe, name, n in sizes]


def drawn(draw: random.Random, kind: float) -> tuple[str, list[str]]:
    """A group of recipes, by a number from 0 to 1, and one recipe of it for each tensor."""
    if kind < 0.75:
        return "ordinary", [draw.choice(CONTINUOUS)] * 4
    if kind < 0.9:
        return "extreme", [draw.choice(EXTREMES)] * 4
    return "repeating", [draw.choice([*REPEATING, *REPEATING, "normal"]) for _ in range(4)]


def calibrate_kernels(rows: dict[tuple[str, ...], Row], graphs: Graphs, draw: random.Random, device: str) -> None:
    """One case, on all kernels that accept it."""
    dtype, kind, seed = draw.choice(DTYPES), draw.random(), draw.randrange(1 << 30)
    shape = draw.choice(LARGE if kind > 0.97 else SHAPES)
    group, recipes = drawn(draw, 0.8 if kind > 0.97 else kind)  # large shapes are extreme
    own = inputs(recipes, shape, dtype, seed)
    exact = [x.double() for x in own]
    known: dict[tuple[str, str], list[Budget]] = {}
    for subject in SUBJECTS[device]:
        try:
            found = [x.cpu() for x in subject.kernel(*(x.to(device) for x in own))]
        except RuntimeError:  # no kernel for this dtype or width
            continue
        contract = PRESETS[subject.presets[dtype]] if dtype in subject.presets else default_contract(dtype)
        key = (subject.algorithm, contract.name)
        if key not in known:
            graph = graphs.of(subject.algorithm, Derivative.VJP, exact)
            known[key] = budgets(graph, exact, contract, worst=group == "repeating")
        row = rows.setdefault((dtype, f"rounding, {contract.name}, {subject.algorithm}", subject.name, group), Row())
        row.cases += 1
        for name, got, budget in zip(NAMES, found, known[key], strict=True):
            where = f"{name} at {shape}, {recipes[0]}, seed {seed}"
            row.add(got.double() - budget.value, budget, group != "repeating", where)


def calibrate_float64(rows: dict[tuple[str, ...], Row], graphs: Graphs, draw: random.Random) -> None:
    """The float64 reading, on a derivative of a small case, compared with balls of proven radius."""
    derivative, shape = draw.choice(list(Derivative)), draw.choice(SMALL)
    seed, repeats = draw.randrange(1 << 30), draw.random() < 0.2
    recipes = [draw.choice(REPEATING if repeats else [*CONTINUOUS, "normal:10"])] * 4
    q, k, v, do = inputs(recipes, shape, "float64", seed)
    tangents = inputs(["normal"] * 4, shape, "float64", seed + 1)[:3] if derivative.takes_tangents else []
    args = [q, k, v, *tangents, *([do] if derivative.takes_cotangents else [])]
    graph = graphs.of("definition", derivative, args)
    found = budgets(graph, args, PRESETS["float64"], worst=True)
    group = "repeating" if repeats else "ordinary"
    row = rows.setdefault(("float64", "float64 against certified", derivative.value, group), Row())
    row.cases += 1
    for ball, budget in zip(certified.certify(graph, args, [b.sigma / 16 for b in found]), found, strict=True):
        where = f"{derivative.value} at {shape}, {recipes[0]}, seed {seed}"
        row.add(ball.error(budget.value), budget, not repeats, where)


class Family:
    """The targets of one family, and the oracle of its definition."""

    def __init__(self, name: str) -> None:
        device.prepare("cpu")
        self.name, self.targets = name, TARGETS[name]
        found = [resolve(target.kernel, name) for target in self.targets]
        self.kernels = [each.kernels[0] for each in found]
        self.family = found[0].family
        self.oracle = Oracle(self.family)

    def calibrate(self, rows: dict[tuple[str, ...], Row], draw: random.Random) -> None:
        """One case without options, on all kernels."""
        dtype, kind, seed = draw.choice(DTYPES), draw.random(), draw.randrange(1 << 30)
        dims = draw.choice(SIZES[self.name])
        group, recipes = drawn(draw, kind)
        signature = self.family.signature
        one_of = [group[0] for group in signature.constraints.alternatives]  # a case has one of them
        primals = [spec.name for spec in signature.primals if not spec.optional or spec.name in one_of]
        outputs = [f"d{spec.name}" for spec in signature.outputs if not spec.asked_by]
        draws = {name: Draw(recipe) for name, recipe in zip([*primals, *outputs], recipes, strict=False)}
        shown = tuple(size for dim, size in dims.items() if dim not in ("B", "H"))
        case = Case(self.name, dims, dtype, {}, draws, "", seed)
        for target, kernel in zip(self.targets, self.kernels, strict=True):
            contracts = {d: PRESETS[preset] for d, preset in target.presets.items()} or kernel.contracts
            runner = Runner(self.family, replace(kernel, contracts=contracts))
            evidence = Evidence(case, build(case, signature, domains=self.family.domains), runner, self.oracle)
            algorithm = evidence.algorithm if target.algorithm == "definition" else target.algorithm
            own = self.oracle.budgets(
                evidence.sample,
                Derivative.VJP,
                runner.kernel.contract(dtype),
                algorithm=algorithm,
                worst=group == "repeating",
            )
            chunks = "own chunks" if algorithm.startswith("chunks") else algorithm
            reading = f"rounding, {runner.kernel.contract(dtype).name}, {chunks}"
            row = rows.setdefault((dtype, reading, target.name, group), Row())
            row.cases += 1
            for name, got in evidence.tensors(Derivative.VJP).items():
                where = f"{name} at {shown}, {recipes[0]}, seed {seed}"
                row.add(got.double() - own[name].value, own[name], group != "repeating", where)


def table(rows: dict[tuple[str, ...], Row]) -> str:
    """The rows as markdown."""
    lines = [
        "| dtype | reading | kernel | inputs | cases | elements | rms | worst | bias | of worst case | worst element |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    order = {name: i for i, name in enumerate((*DTYPES, "float64", "ordinary", "extreme", "repeating"))}
    for key in sorted(
        rows, key=lambda key: [order.get(part, part) if i in (0, 3) else part for i, part in enumerate(key)]
    ):
        row = rows[key]
        rms = f"{(row.squares / row.elements) ** 0.5:.2f}" if row.elements else ""
        shown = (
            [f"{row.worst:.1f}", f"{row.bias:.1f}", "", row.at]
            if row.elements
            else ["", "", f"{row.repeating:.2f}", ""]
        )
        lines.append(f"| {' | '.join([*key, str(row.cases), str(row.elements or ''), rms, *shown])} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=tuple(SUBJECTS), default="cpu")
    parser.add_argument("--family", choices=("sdpa", *TARGETS), default="sdpa")
    asked = parser.parse_args()
    if asked.family != "sdpa" and asked.device != "cpu":
        parser.error(f"--device {asked.device} goes with --family sdpa alone")
    rows: dict[tuple[str, ...], Row] = {}
    graphs, draw, end = Graphs(), random.Random(asked.seed), time.monotonic() + asked.seconds
    missing = certified.unavailable() if asked.family == "sdpa" else None
    torch.set_num_threads(1)
    other = None if asked.family == "sdpa" else Family(asked.family)
    while time.monotonic() < end:
        if other is not None:
            other.calibrate(rows, draw)
            continue
        for _ in range(3):
            calibrate_kernels(rows, graphs, draw, asked.device)
        if missing is None and asked.device == "cpu":
            calibrate_float64(rows, graphs, draw)
    print(table(rows))
    note = f"seed {asked.seed}, {sum(r.cases for r in rows.values())} cases, gradoracle {__version__}"
    print(f"\n{note}, torch {torch.__version__}, {platform.machine()}, {torch.backends.cpu.get_cpu_capability()}")
    if missing is not None:
        print(missing)


if __name__ == "__main__":
    main()
