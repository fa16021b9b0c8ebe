"""Timing: the process that times the kernels of one of the gate's trees, one call whenever the gate asks for it.

Both sides are alive at once and take turns, so that what the machine does meanwhile befalls both alike.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from gradoracle.gate.side import PROTOCOL, Task, require_apart
from gradoracle.model import serialize
from gradoracle.model.errors import UsageError, named
from gradoracle.project import settings
from gradoracle.project.base_overlay import Places

if TYPE_CHECKING:
    from gradoracle.cases.sample import Sample
    from gradoracle.execution.bench import Work
    from gradoracle.execution.kernel_runner import Subject
    from gradoracle.model.case import Case
    from gradoracle.model.dims import Sizes
    from gradoracle.model.family import Family
    from gradoracle.model.kernel import Kernel
    from gradoracle.project.request import Request

FORWARD, VJP = "forward", "forward and VJP"
LONG = 4096  # of a dim without bound, where nothing is asked for

Key = tuple[str, str]  # a case with its kernel's name before it, and what is done


@dataclass(frozen=True)
class Timed:
    """What one process is to time.

    Attributes:
        protocol: ``side.PROTOCOL``.
        folder: of the project.
        task: the target; its settings say at which problems and in which dtypes.
    """

    protocol: str
    folder: str
    task: Task


def main(arguments: Sequence[str]) -> None:
    """Read what to time from a file, and then a number of a work a line; answer each with its milliseconds.

    The first answer says which works there are, ``[case, what is done]``, and why others are none. The end of the
    questions is that of the gate, and of this process, whatever it does then.
    """
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)  # what kernels print is no answer
        questions: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=_listen, args=(questions,), daemon=True).start()
        order = serialize.from_plain(Timed, json.loads(Path(arguments[0]).read_text(encoding="utf-8")))
        if order.protocol != PROTOCOL:
            raise SystemExit(f"the order is of protocol {order.protocol!r}; expected {PROTOCOL!r}")
        os.chdir(order.folder)
        try:
            serve(order, iter(questions.get, ""), answers)
        except UsageError as error:
            raise SystemExit(str(error)) from None


def _listen(questions: queue.SimpleQueue[str]) -> None:
    """Pass on the lines of standard input, whose end is that of the gate: nobody wants an answer any more."""
    for line in sys.stdin:
        questions.put(line)
    os._exit(1)


def serve(order: Timed, questions: Iterable[str], answers: TextIO) -> None:
    """Answer questions until there are no more."""
    from gradoracle.execution import bench, device
    from gradoracle.project.request import Request

    def say(answer: Any) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    task = order.task
    places = Places(task.judge, task.kernels) if task.kernels else None
    request = Request(task.target, places=places, **settings.fields(task.settings))
    where = device.choose(request.device)
    works, why = _works(task, request, where)
    say({"works": [list(key) for key in works], "why": [[*key, reason] for key, reason in why.items()]})
    calls = list(works.values())
    for question in questions:
        if where == "cuda":
            say(bench.device_milliseconds(calls[int(question)]))
        else:
            say(bench.wall_milliseconds(calls[int(question)])[0])


def _works(task: Task, request: Request, where: str) -> tuple[dict[Key, Work], dict[Key, str]]:
    """What can be timed, each run once, and why something cannot, by case and what is done."""
    from gradoracle.cases.saved_tensors import sample_of
    from gradoracle.check.judge_case import subjects
    from gradoracle.check.plan import setup_of
    from gradoracle.execution import device
    from gradoracle.execution.kernel_runner import Subject

    device.prepare(where)
    family, kernels, _ = subjects(setup_of(request, where))
    require_apart(task)
    found: dict[Key, Work] = {}
    why: dict[Key, str] = {}
    family = family.on(where)
    for name, kernel in kernels.items():
        for case in problems(family, kernel, request):
            sample = sample_of(case, family, None, where)
            for what, work in calls(Subject(family, kernel, records=False), sample).items():
                key = f"{name}: {case.line(device=where)}", what
                try:
                    work()
                    found[key] = work
                except Exception as error:
                    why[key] = named(error)
    return found, why


def problems(family: Family, kernel: Kernel, request: Request) -> Iterator[Case]:
    """The cases that are timed: plain ones, the kernel's own choice of blocks, at ``timed`` sizes in each dtype.

    A dim that is not named there has the largest size that is usually drawn, one that goes past ``LONG`` has that.

    Raises:
        UsageError: a dim that the family does not have, or a dtype that the kernel does not support.
    """
    from gradoracle.cases.case_space import domain
    from gradoracle.check.plan import dtypes_of
    from gradoracle.model.case import Case, Draw

    chosen = dtypes_of(request, family, kernel)
    within = domain(family, kernel, dtypes=chosen, dims=request.dims or None)
    usual = {dim: _usual(sizes) for dim, sizes in within.sizes.items()}
    draws = {group[0]: Draw() for group in within.alternatives}
    for given in request.timed or ({},):
        if strange := sorted(given.keys() - usual.keys()):
            raise UsageError(f"--timed names {', '.join(strange)}; {family.name} has the dims {', '.join(usual)}")
        dims = within.settled({**usual, **given}, tuple(given))
        for dtype in chosen:
            yield Case(family.name, dims, dtype, draws=draws)


def _usual(sizes: Sizes) -> int:
    """The largest that is usually drawn, of a dim that goes far beyond that ``LONG``."""
    far = LONG - LONG % sizes.multiple
    return max(far, sizes.biggest) if sizes.large > LONG else sizes.biggest


def calls(subject: Subject, sample: Sample) -> dict[str, Callable[[], object]]:
    """What is timed of a kernel: its forward, and its forward with its VJP, as its users call them."""
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
