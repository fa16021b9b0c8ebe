"""The figures of docs/background/seeds.md, on the CPU: `python -m benchmarks.seeds [sdpa|lse|lightning|semicrf]...`."""

from __future__ import annotations

import sys

import torch

from . import lightning, lse, sdpa, semicrf

SEEDS = {"sdpa": sdpa, "lse": lse, "lightning": lightning, "semicrf": semicrf}


def main(names: list[str]) -> None:
    if unknown := set(names) - SEEDS.keys():
        sys.exit(f"seeds: {', '.join(sorted(unknown))} is unknown; expected some of {', '.join(SEEDS)}")
    for name in names or SEEDS:
        torch.manual_seed(0)
        for what, figure in SEEDS[name].rows():
            print(f"{what:66s} {figure if isinstance(figure, str) else f'{figure:.1e}'}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
