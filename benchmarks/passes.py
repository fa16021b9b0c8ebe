"""Passes of the kernels whose blocks are a table: how each is launched alone with any blocks, and compiled offline."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from gradoracle.kernels.blocks import Blocks
from gradoracle.kernels.lse import guardrails as lse_guardrails
from gradoracle.kernels.lse.launch import Tensors
from gradoracle.kernels.sdpa import guardrails as sdpa_guardrails
from torch import Tensor

Launches = dict[str, Callable[[Blocks], None]]


@dataclass(frozen=True)
class Passes:
    """Those of one family.

    Attributes:
        family: its name.
        modules: of its package, those that launch a pass.
        part: the keyword of `launch` for the pass.
        first: the passes whose results others read.
        over_keys: those with one program for each tile of keys.
        names: pass -> name of its compilation, where it is another.
        kinds: what else its compilations differ by, as keywords of `compilation`; the first is what is timed.
        call: ``call(modules, q, k, v, g, tangents, precision)`` runs every pass once.
    """

    family: str
    modules: tuple[str, ...]
    part: str
    first: tuple[str, ...]
    over_keys: tuple[str, ...]
    names: dict[str, str]
    kinds: tuple[dict[str, bool], ...]
    call: Callable[..., None]

    def module(self, name: str) -> ModuleType:
        return importlib.import_module(f"gradoracle.kernels.{self.family}.{name}")

    @property
    def parts(self) -> tuple[str, ...]:
        """The passes, in the order of the table's rows."""
        found: tuple[str, ...] = self.module("tuned").PARTS
        return found

    @property
    def table(self) -> dict[tuple[tuple[int, int], str, int], tuple[Blocks, ...]]:
        """The blocks as they are: (capability, kind of dots, width) -> those of each pass."""
        found: dict[tuple[tuple[int, int], str, int], tuple[Blocks, ...]] = self.module("tuned").TUNED
        return found

    def launches(self, dtype: torch.dtype, precision: str, batch: int, heads: int, rows: int, width: int) -> Launches:
        """For each pass how it is launched with some blocks, on random inputs of T = M = ``rows``."""
        torch.manual_seed(0)
        q, k, v, g, *moved = (torch.randn(batch, heads, rows, width, dtype=dtype, device="cuda") for _ in range(7))
        modules = {name: self.module(name) for name in self.modules}
        launch, found = self.module("launch"), Launches()

        def record(kernel: Any, problem: Any, *given: Any, **asked: Any) -> None:
            def run(blocks: Blocks) -> None:
                launch.launch(kernel, problem._replace(blocks=blocks), *given, **asked)

            found[asked[self.part]] = run

        with contextlib.ExitStack() as stack:
            for module in modules.values():
                stack.enter_context(patch.object(module, "launch", record))
            self.call(modules, q, k, v, g, moved, precision)
        return found

    def as_chosen(self) -> contextlib.AbstractContextManager[object]:
        """In this context any blocks compile as the automatic ones do."""
        launch = self.module("launch")
        if hasattr(launch, "specialised"):
            return patch.object(launch, "specialised", lambda *_: True)
        return contextlib.nullcontext()

    def compilation(self, part: str, *given: Any, **asked: Any) -> Any:
        """What triton.compile takes of a pass."""
        return self.module("compilations").compilation(self.names.get(part, part), *given, **asked)


def _sdpa(modules: dict[str, Any], q: Tensor, k: Tensor, v: Tensor, g: Tensor, moved: Any, precision: str) -> None:
    problem = sdpa_guardrails.check(q, k, v, scale=None, causal=False, precision=precision, blocks=None)
    o, m, l = modules["output"].run(problem, q, k, v)
    m.normal_()
    l.fill_(float(q.shape[2]))
    modules["tangents"].run(problem, (q, k, v), tuple(moved), None, None, centred=True, primal=True)
    modules["moments"].run(problem, (q, k, v), None, None, tangents=tuple(moved))
    modules["gradients"].run(problem, (q, k, v), g, m, l, (True, True, True))
    modules["gradients"].run(problem, (q, k, v), g, m, l, (True, True, True), o)
    modules["hessian"].run(problem, (q, k, v), g, tuple(moved), (True, True, True))


def _lse(modules: dict[str, Any], q: Tensor, k: Tensor, _: Tensor, g: Tensor, moved: Any, precision: str) -> None:
    problem = lse_guardrails.check(
        q, k, None, None, None, scale=None, causal=False, softcap=None, backward="separate", workspace_limit=None,
        precision=precision, blocks=None, block_sizes=None,
    )  # fmt: skip
    tensors = Tensors(q, k, g[..., 0].float().contiguous(), tq=moved[0], tk=moved[1])
    _, m, l = modules["output"].run(problem, tensors)
    m.normal_()
    l.fill_(float(q.shape[2]))
    modules["separate"].run(problem, tensors, m, l, (True, True))
    tangent = modules["tangents"].run(problem, tensors, m, l)
    tangent.normal_()
    modules["hessian"].run(problem, tensors, m, l, tangent, (True, True))


PASSES = {
    "sdpa": Passes(
        "sdpa", ("output", "moments", "gradients", "tangents", "hessian"), "part", ("forward", "z", "r", "z'"),
        ("dk, dv", "hk, hv"), {}, ({},), _sdpa,
    ),
    "lse": Passes(
        "lse", ("output", "separate", "tangents", "hessian"), "step", ("forward", "jvp"), ("dkv", "hk"), {"dkv": "dk"},
        ({"plain": True}, {"plain": False}), _lse,
    ),
}  # fmt: skip
