"""A kernel repository of somebody else's: one family, one kernel, a helper, and a pyproject.toml that names them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from programs import gradoracle

from gradoracle.project.cache import VARIABLE

KERNEL = "my_kernels/rmsnorm.py"
HELPER = "my_kernels/scaling.py"
CONFIG = "pyproject.toml"
FILES = {
    CONFIG: """
[tool.gradoracle]
examples = 15
workers = 0

[tool.gradoracle.kernels.rmsnorm]
target = "my_kernels/rmsnorm.py"
property = "*_matches_the_oracle"
""",
    "my_kernels/__init__.py": "",
    HELPER: """
import torch


def root(x, eps):
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
""",
    KERNEL: """
import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle
from my_kernels.scaling import root

WIDEST = 64


@gradoracle.family(dims={"N": gradoracle.multiples(4, WIDEST)})
def rmsnorm(x: Float[Tensor, "B N"], w: Float[Tensor, "N"]) -> Float[Tensor, "B N"]:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * w


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        x32, w32 = x.float(), w.float()
        return (x32 * root(x32, 1e-6) * w32).to(x.dtype)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        x32, w32, g32 = x.float(), w.float(), g.float()
        r = root(x32, 1e-6)
        gw = g32 * w32
        dx = r * gw - x32 * r**3 * (gw * x32).mean(-1, keepdim=True)
        dw = (g32 * x32 * r).sum(0)
        return dx.to(x.dtype), dw.to(w.dtype)


@gradoracle.kernel(rmsnorm)
def my_rmsnorm(x, w):
    return _Norm.apply(x, w)
""",
}
IDENTITY = {f"GIT_{who}_{what}": "a@b.example" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}


@dataclass(frozen=True)
class Project:
    """A clone of it."""

    folder: Path

    def git(self, *words: str) -> str:
        """Run git in it."""
        environment = {**os.environ, **IDENTITY}
        done = subprocess.run(
            ["git", *words], cwd=self.folder, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout

    def edit(self, file: str, *pairs: tuple[str, str]) -> None:
        """Replace texts, each of which is there."""
        text = (self.folder / file).read_text()
        for before, after in pairs:
            assert before in text, f"{before!r} is not in {file}"
            text = text.replace(before, after)
        (self.folder / file).write_text(text)

    def commit(self, message: str = "a change") -> None:
        """Commit all."""
        self.git("add", "-A")
        self.git("commit", "--quiet", "--allow-empty", "-m", message)

    def gate(
        self, *words: str, environment: dict[str, str] | None = None, cache: Path | None = None
    ) -> tuple[int, str, str]:
        """Exit code, output and errors of the gate in it, by a process of its own.

        ``cache``: the folder of what gates keep; None: they keep nothing, so that no test knows what another found.
        """
        kept = ["--no-cache"] if cache is None else []
        own = {**os.environ, **({} if cache is None else {VARIABLE: str(cache)}), **(environment or {})}
        done = gradoracle("gate", *words, *kept, cwd=self.folder, env=own)
        return done.returncode, done.stdout, done.stderr


def project(folder: Path) -> Project:
    """Make it, with one commit on main."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.lstrip())
    made = Project(folder)
    made.git("init", "--quiet", "--initial-branch=main")
    made.commit("the base")
    return made
