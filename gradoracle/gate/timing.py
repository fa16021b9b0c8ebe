"""Timing: the process that times the kernels of one of the gate's trees, one call for each question of the gate.

The processes of both sides are alive at once and take turns, so that other load on the machine affects both equally.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from gradoracle.gate.side import Task, read_order, require_apart
from gradoracle.model.errors import UsageError, named
from gradoracle.project import settings

if TYPE_CHECKING:
    from gradoracle.cases.sample import Sample
    from gradoracle.execution import bench
    from gradoracle.execution.kernel_runner import KernelRunner
    from gradoracle.model.case import Case
    from gradoracle.model.dims import Sizes
    from gradoracle.model.family import Family
    from gradoracle.model.kernel import Kernel
    from gradoracle.project.request import Request

FORWARD, VJP = "forward", "forward and VJP"
LONG = 4096  # size of a dim without bound, unless one is given

Work = tuple[str, str, str]  # kernel, case, what is timed


def main(arguments: Sequence[str]) -> None:
    """Read an order of one task from a file, then the number of a work from each line; answer with its milliseconds.

    The first answer lists the works, and those that cannot be timed with the reason. When the gate closes the pipe,
    this process exits at once, even in the middle of a measurement.
    """
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # so that what kernels print is not taken for an answer
        questions: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(questions,), daemon=True).start()
        (task,) = read_order(Path(arguments[0])).tasks.values()
        try:
            serve(task, iter(questions.get, ""), answers)
        except UsageError as error:
            raise SystemExit(str(error)) from None


def _listen(questions: queue.SimpleQueue[str]) -> None:
    """Pass on the lines of standard input, and exit at its end."""
    for line in sys.stdin:
        questions.put(line)
    os._exit(1)


def serve(task: Task, questions: Iterable[str], answers: TextIO) -> None:
    """Answer questions until there are no more."""
    from gradoracle.execution import bench, device
    from gradoracle.project.request import Request

    def send(answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    request = Request(task.target, places=task.places, **settings.fields(task.settings))
    where = device.choose(request.device)
    works, why = _works(task, request, where)
    send({"works": list(works), "why": [[*work, reason] for work, reason in why.items()]})
    made = list(works.values())
    for question in questions:
        call = made[int(question)]
        send(bench.device_milliseconds(call) if where == "cuda" else bench.wall_milliseconds(call)[0])


def _works(task: Task, request: Request, where: str) -> tuple[dict[Work, bench.Work], dict[Work, str]]:
    """The calls that can be timed, each made once, and why others cannot."""
    from gradoracle.cases.saved_tensors import sample_of
    from gradoracle.check.judge_case import subjects
    from gradoracle.check.plan import setup_of
    from gradoracle.execution import device
    from gradoracle.execution.kernel_runner import KernelRunner

    device.prepare(where)
    family, kernels, _ = subjects(setup_of(request, where))
    require_apart(task)
    found: dict[Work, bench.Work] = {}
    why: dict[Work, str] = {}
    family = family.on(where)
    for name, kernel in kernels.items():
        for case in problems(family, kernel, request):
            sample = sample_of(case, family, None, where)
            for what, call in calls(KernelRunner(family, kernel, records=False), sample).items():
                work = name, case.line(device=where), what
                try:
                    call()
                    found[work] = call
                except Exception as error:
                    why[work] = named(error)
    return found, why


def problems(family: Family, kernel: Kernel, request: Request) -> Iterator[Case]:
    """The cases that are timed: plain ones, the kernel's own choice of blocks, at the ``timed`` sizes in each dtype.

    A dim without such a size has the largest one that is usually drawn, or about ``LONG`` if it can be longer.

    Raises:
        UsageError: a dim that the family does not have, or a dtype that the kernel does not support.
    """
    from gradoracle.cases.case_space import case_space
    from gradoracle.check.plan import dtypes_of
    from gradoracle.model.case import Case, Draw

    chosen = dtypes_of(request, family, kernel)
    within = case_space(family, kernel, dtypes=chosen, dims=request.dims or None)
    usual = {dim: _usual(sizes) for dim, sizes in within.sizes.items()}
    draws, spreads = {group[0]: Draw() for group in within.alternatives}, within.spreads
    for given in request.timed or ({},):
        if strange := sorted(given.keys() - usual.keys()):
            raise UsageError(f"--timed names {', '.join(strange)}; {family.name} has the dims {', '.join(usual)}")
        ranks = {name: max((n for n, dim in enumerate(d, 1) if dim in given), default=1) for name, d in spreads.items()}
        dims = within.settled(within.ranked({**usual, **given}, ranks), tuple(given))
        for dtype in chosen:
            yield Case(family.name, dims, dtype, draws=draws)


def _usual(sizes: Sizes) -> int:
    """The largest size that is usually drawn; of a dim that can exceed ``LONG``, at least that."""
    far = LONG - LONG % sizes.multiple
    return max(far, sizes.biggest) if sizes.large > LONG else sizes.biggest


def calls(subject: KernelRunner, sample: Sample) -> dict[str, Callable[[], object]]:
    """What is timed of a kernel: its forward, and its forward with its VJP, called as users call them."""
    import torch

    def forward() -> object:
        with torch.no_grad():
            return subject.outputs(sample, {})

    def explicit() -> object:
        assert subject.kernel.vjp is not None
        with torch.no_grad():
            subject.outputs(sample, {})
            return subject.kernel.vjp(dict(sample.inputs), dict(sample.cotangents), subject.options(sample), None)

    def by_autograd() -> object:
        leaves = {n: x.detach().requires_grad_(x.is_floating_point()) for n, x in sample.inputs.items()}
        outputs = subject.outputs(sample, leaves)
        pairs = [(o, g) for o, g in zip(outputs, sample.cotangents.values(), strict=False) if o.requires_grad]
        if not pairs:
            raise RuntimeError("no output requires a gradient, so there is no backward to time")
        expected = [leaf for leaf in leaves.values() if leaf.requires_grad]
        return torch.autograd.grad([o for o, _ in pairs], expected, [g for _, g in pairs], allow_unused=True)

    return {FORWARD: forward, VJP: explicit if subject.kernel.vjp is not None else by_autograd}
