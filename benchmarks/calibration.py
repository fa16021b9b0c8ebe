"""The calibration of budgets: how far correct kernels are out, in sigma. ``python benchmarks/calibration.py``.

Prints the table of docs/background/calibration.md. Every kernel here is correct: an rms far above 1 would mean that the
budget is too narrow, one far below 1 that it sees less than it could, and a worst element beyond 8 is a false alarm.

    --family F    sdpa (default), lse, lightning, gated_delta or semicrf: shipped kernel, interpreted, and plain PyTorch
    --seconds S   how long (default 240); cases form one fixed stream
    --seed N      of the stream
    --device D    cpu (default), or with sdpa cuda: PyTorch's kernels there, without the float64 reading
"""

from __future__ import annotations

import argparse
import platform
import random
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from gradoracle import __version__
from gradoracle.cases.sample import build
from gradoracle.check.evidence import Evidence
from gradoracle.execution import device as devices
from gradoracle.execution.kernel_runner import KernelRunner
from gradoracle.model.call_errors import Refused
from gradoracle.model.case import Case, Draw
from gradoracle.model.contract import PRESETS
from gradoracle.model.derivative import Derivative
from gradoracle.model.recipes import RECIPES
from gradoracle.oracle.exact import certified
from gradoracle.oracle.rounding.reading import Budget
from gradoracle.oracle.truth import Oracle
from gradoracle.project.target import resolve

BACKENDS = Path(__file__).parent / "torch_backends.py"
EXAMPLES = Path(__file__).parents[1] / "examples"
EAGER = {"bfloat16": "eager-bf16", "float16": "eager-fp16"}
DTYPES = ("float32", "bfloat16", "float16")
CONTINUOUS = [name for name, recipe in RECIPES.items() if recipe.continuous and name not in ("extreme", "tiny")]
EXTREMES = ["normal:10", "normal:30", "extreme", "tiny", "normal:1e-3"]
REPEATING = [name for name, recipe in RECIPES.items() if not recipe.continuous]


@dataclass(frozen=True)
class Subject:
    """A correct kernel, and the budget under which it is judged.

    Attributes:
        name: in the table.
        target: as for ``gradoracle check``.
        algorithm: of a kernel that declares none.
        presets: of contracts, by dtype; the defaults for others.
    """

    name: str
    target: str
    algorithm: str = "definition"
    presets: dict[str, str] = field(default_factory=dict)


SUBJECTS = {
    "sdpa": [
        Subject("PyTorch math", f"{BACKENDS}:math"),
        Subject("PyTorch flash", f"{BACKENDS}:flash", "flash"),
        Subject("PyTorch eager", f"{BACKENDS}:eager", presets=EAGER),
    ],
    "lse": [
        Subject("shipped, interpreted", "lse"),
        Subject("PyTorch eager, upcast", f"{EXAMPLES}/torch_lse.py:upcast"),
    ],
    "lightning": [
        Subject("shipped, interpreted", "lightning"),
        Subject("PyTorch eager, quadratic", f"{EXAMPLES}/torch_lightning.py:quadratic"),
        Subject("PyTorch eager, chunked", f"{EXAMPLES}/torch_lightning.py:chunked", "chunks of 64", EAGER),
    ],
    "gated_delta": [Subject("shipped, interpreted", "gated_delta")],
    "semicrf": [
        Subject("shipped, interpreted", "semicrf"),
        Subject("PyTorch eager, float32", f"{EXAMPLES}/torch_semicrf.py:recursion"),
    ],
}
ON_GPU = [
    Subject("PyTorch math", f"{BACKENDS}:math", presets=EAGER),
    Subject("PyTorch flash", f"{BACKENDS}:flash", "flash"),
    Subject("PyTorch cuDNN", f"{BACKENDS}:cudnn", "flash"),
    Subject("PyTorch mem-efficient", f"{BACKENDS}:efficient", "flash", {"float32": "tf32x3"}),
]
SHAPES = ((33, 65, 32), (1, 200, 8), (100, 40, 128), (7, 1, 64), (64, 64, 1), (17, 130, 16), (128, 128, 64), (2, 3, 5))
LARGE = ((5, 4096, 16), (1024, 96, 64))
WIDTHS = ((1, 5, 3), (7, 64, 64), (33, 32, 8), (64, 1, 70), (100, 128, 128), (130, 16, 1), (300, 64, 64), (512, 8, 16))
SEGMENTATIONS = ((1, 3, 2), (7, 4, 5), (33, 1, 12), (40, 3, 1), (64, 2, 3), (100, 4, 12), (130, 3, 5), (300, 4, 8))
SIZES = {
    "sdpa": [{"B": 1, "H": 2, "T": t, "M": m, "D": d, "Dv": d} for t, m, d in (*SHAPES, *LARGE)],
    "lse": [
        {"B": 1, "H": 2, "G": 1 + place % 2, "T": t, "M": m, "D": d}
        for place, (t, m, d) in enumerate((*SHAPES, LARGE[0]))
    ],
    "lightning": [{"B": 1, "H": 2, "N": n, "D": d, "Dv": e} for n, d, e in WIDTHS],
    "gated_delta": [{"B": 1, "H": 2, "T": t, "D": d, "Dv": e} for t, d, e in WIDTHS],
    "semicrf": [{"B": 2, "T": t, "C": c, "K": k} for t, c, k in SEGMENTATIONS],
}
SMALL = [{"B": 1, "H": 2, "T": t, "M": m, "D": d, "Dv": d} for t, m, d in ((5, 7, 4), (1, 9, 3), (12, 6, 8))]


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


class Family:
    """The correct kernels of one family, and the oracle of its definition."""

    def __init__(self, name: str, device: str) -> None:
        devices.prepare(device)
        self.name, self.device = name, device
        self.subjects = SUBJECTS[name] if device == "cpu" else ON_GPU
        found = [resolve(subject.target, name) for subject in self.subjects]
        self.kernels = [each.kernels[0] for each in found]
        self.family = found[0].family
        self.oracle, self.certified = Oracle(self.family), Oracle(self.family, "certified")

    def case(self, dims: dict[str, int], dtype: str, recipes: list[str], seed: int) -> Case:
        """A case without options, of some recipes in turn."""
        signature = self.family.signature
        one_of = [group[0] for group in signature.constraints.alternatives]  # a case has one of them
        primals = [spec.name for spec in signature.primals if not spec.optional or spec.name in one_of]
        outputs = [f"d{spec.name}" for spec in signature.outputs if not spec.asked_by]
        draws = {name: Draw(recipe) for name, recipe in zip([*primals, *outputs], recipes, strict=False)}
        return Case(self.name, dims, dtype, {}, draws, "", seed)

    def calibrate(self, rows: dict[tuple[str, ...], Row], draw: random.Random) -> None:
        """One case, on all kernels that accept it."""
        dtype, kind, seed = draw.choice(DTYPES), draw.random(), draw.randrange(1 << 30)
        dims = draw.choice(SIZES[self.name])
        if kind < 0.75:
            group, recipes = "ordinary", [draw.choice(CONTINUOUS)] * 4
        elif kind < 0.9:
            group, recipes = "extreme", [draw.choice(EXTREMES)] * 4
        else:
            group, recipes = "repeating", [draw.choice([*REPEATING, *REPEATING, "normal"]) for _ in range(4)]
        case = self.case(dims, dtype, recipes, seed)
        sample = build(case, self.family.signature, domains=self.family.domains)
        shown = tuple(size for dim, size in dims.items() if dim not in ("B", "H"))
        for subject, kernel in zip(self.subjects, self.kernels, strict=True):
            contracts = {d: PRESETS[preset] for d, preset in subject.presets.items()} or kernel.contracts
            runner = KernelRunner(self.family, replace(kernel, contracts=contracts), device=self.device)
            evidence = Evidence(case, sample, runner, self.oracle)
            algorithm = evidence.algorithm if subject.algorithm == "definition" else subject.algorithm
            contract = runner.kernel.contract(dtype)
            chunks = "own chunks" if algorithm.startswith("chunks") else algorithm
            row = rows.setdefault((dtype, f"rounding, {contract.name}, {chunks}", subject.name, group), Row())
            with suppress(Refused):  # there is no kernel for this dtype or width
                for derivative in (Derivative.FORWARD, Derivative.VJP):
                    tensors, worst = evidence.tensors(derivative), group == "repeating"
                    own = self.oracle.budgets(sample, derivative, contract, algorithm=algorithm, worst=worst)
                    for name, got in tensors.items():
                        where = f"{name} at {shown}, {recipes[0]}, seed {seed}"
                        row.add(got.cpu().double() - own[name].value, own[name], not worst, where)
                row.cases += 1

    def calibrate_float64(self, rows: dict[tuple[str, ...], Row], draw: random.Random) -> None:
        """The float64 reading, on a derivative of a small case, compared with balls of proven radius."""
        derivative, dims = draw.choice(list(Derivative)), draw.choice(SMALL)
        seed, repeats = draw.randrange(1 << 30), draw.random() < 0.2
        recipes = [draw.choice(REPEATING if repeats else [*CONTINUOUS, "normal:10"])] * 4
        sample = build(self.case(dims, "float64", recipes, seed), self.family.signature)
        found = self.oracle.budgets(sample, derivative, PRESETS["float64"], worst=True)
        group = "repeating" if repeats else "ordinary"
        row = rows.setdefault(("float64", "float64 against certified", derivative.value, group), Row())
        row.cases += 1
        for name, truth in self.certified.truth(sample, derivative, found, PRESETS["float64"]).items():
            where = f"{derivative.value} at {tuple(dims.values())}, {recipes[0]}, seed {seed}"
            row.add(truth.error(found[name].value), found[name], not repeats, where)


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
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--family", choices=tuple(SUBJECTS), default="sdpa")
    asked = parser.parse_args()
    if asked.family != "sdpa" and asked.device != "cpu":
        parser.error(f"--device {asked.device} goes with --family sdpa alone")
    rows: dict[tuple[str, ...], Row] = {}
    family, draw, end = Family(asked.family, asked.device), random.Random(asked.seed), time.monotonic() + asked.seconds
    in_float64 = asked.family == "sdpa" and asked.device == "cpu"
    missing = certified.unavailable() if in_float64 else None
    torch.set_num_threads(1)
    while time.monotonic() < end:
        for _ in range(3):
            family.calibrate(rows, draw)
        if in_float64 and missing is None:
            family.calibrate_float64(rows, draw)
    print(table(rows))
    note = f"seed {asked.seed}, {sum(r.cases for r in rows.values())} cases, gradoracle {__version__}"
    print(f"\n{note}, torch {torch.__version__}, {platform.machine()}, {torch.backends.cpu.get_cpu_capability()}")
    if missing is not None:
        print(missing)


if __name__ == "__main__":
    main()
