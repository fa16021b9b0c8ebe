"""A kernel repository of somebody else's: one family, one kernel, a helper, and a pyproject.toml that names them."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from documents import reports_in
from programs import gradoracle

from gradoracle.model.cache import VARIABLE
from gradoracle.model.comparison import Comparison, Kind, Line, Weight
from gradoracle.model.fault import VerdictKey
from gradoracle.model.finding import Outcome
from gradoracle.model.verdict import Report, Status

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


EDITED = re.compile(r"(.*?): (added|removed|changed)\b")


@dataclass(frozen=True)
class Answer:
    """What a gate answers.

    Attributes:
        code: its exit code.
        reports: a report for each target; none where it ended in a mistake.
        err: its progress and its mistake.
    """

    code: int
    reports: list[Report]
    err: str

    @property
    def report(self) -> Report:
        """That of the only target."""
        (found,) = self.reports
        return found

    @property
    def comparison(self) -> Comparison:
        """That of the only target."""
        assert self.report.comparison is not None
        return self.report.comparison

    def lines(self, kind: Kind, weight: Weight | None = None) -> list[Line]:
        """The lines of a kind, of one weight or of all, of every target."""
        every = [line for report in self.reports if report.comparison for line in report.comparison.lines]
        return [line for line in every if line.kind is kind and weight in (None, line.weight)]

    def says(self, kind: Kind, weight: Weight) -> str:
        """The texts of the lines of a kind and a weight, one below the other."""
        return "\n".join(line.text for line in self.lines(kind, weight))

    def regressed(self) -> set[tuple[str, str]]:
        """Property and dtype of each fault's leading verdict that held in the base and is violated in the change."""
        violated = {each.key for report in self.reports for each in report.verdicts if each.status is Status.VIOLATED}
        return {
            (line.property_name, line.dtype)
            for line in self.lines(Kind.VIOLATED, Weight.RED)
            if VerdictKey(line.property_name, line.kernel, line.dtype) in violated and " held in the base " in line.text
        }

    def wrong_tensors(self, property_name: str) -> set[str]:
        """The tensors that violate a property, in the counterexamples of all dtypes."""
        shown = [each.counterexample for each in self.report.verdicts if each.property_name == property_name]
        findings = [each for one in shown if one is not None for each in one.findings]
        return {each.tensor for each in findings if each.outcome is Outcome.VIOLATED}

    def edited_judges(self) -> dict[str, str]:
        """The pieces of the judge whose edit nobody acknowledged; whether each was added, removed or changed."""
        found = [EDITED.match(line.text) for line in self.lines(Kind.JUDGE, Weight.RED)]
        return {each[1]: each[2] for each in found if each is not None}


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

    def answer(self, *words: str, environment: dict[str, str] | None = None, cache: Path | None = None) -> Answer:
        """What the gate in it answers, as data; arguments as of ``gate``."""
        code, out, err = self.gate(*words, "--format", "json", environment=environment, cache=cache)
        return Answer(code, reports_in(out) if out else [], err)


def project(folder: Path) -> Project:
    """Make it, with one commit on main."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.lstrip())
    made = Project(folder)
    made.git("init", "--quiet", "--initial-branch=main")
    made.commit("the base")
    return made
