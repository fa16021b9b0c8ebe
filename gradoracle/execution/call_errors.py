"""Call errors: how a kernel call can end without tensors that can be judged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gradoracle.model.errors import first_line, named
from gradoracle.model.finding import Finding
from gradoracle.model.reason import Reason

REFUSALS = (ValueError, NotImplementedError, AssertionError, RuntimeError)


class Refused(Exception):
    """The kernel raised one of ``REFUSALS`` in its forward: it does not accept this case."""


class Unavailable(Exception):
    """Not checked: the kernel lacks the derivative on this case, or something else that a property needs is missing."""

    def __init__(self, text: str, why: Reason = Reason.LACKING) -> None:
        self.why = why
        super().__init__(text)


class NoDerivative(Unavailable):
    """The kernel does not offer this derivative, which is optional."""

    def __init__(self, text: str) -> None:
        super().__init__(text, Reason.NO_DERIVATIVE)


class Detached(NoDerivative):
    """The outputs do not require grad, and the kernel claims no VJP: it may have none."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.why = Reason.DETACHED


class Severed(NoDerivative):
    """The kernel's gradients are constants to autograd, which raises nothing: second derivatives are 0 in silence."""


class Crashed(Exception):
    """The kernel raised an error that no caller should see, or its device was lost; ``call``: the call that ran."""

    def __init__(self, text: str, why: Reason = Reason.RAISED, call: str = "") -> None:
        self.why, self.call = why, call
        super().__init__(text)


class DeviceLost(Crashed):
    """A CUDA error after which this process can launch nothing and must be replaced."""

    def __init__(self, call: str, how: str) -> None:
        self.how = how
        super().__init__(f"{call}: {how}", Reason.LOST, call)


class Wrong(Exception):
    """The kernel returned something other than a tensor of the expected shape and dtype; holds the Finding."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding
        super().__init__(finding.message)


def told_by_triton(error: BaseException) -> str:
    """The sentence of an error with which Triton refuses a kernel on a GPU, such as CompilationError; "" for others.

    The message of a CompilationError begins with the source; what is wrong is its last line.
    """
    own = [base.__name__ for base in type(error).__mro__]
    if "TritonError" not in own or "InterpreterError" in own:  # in the interpreter it is an error of the kernel's body
        return ""
    lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^")]
    return f"{own[0]}: {lines[-1]}" if lines else own[0]


def raise_if_lost(error: BaseException, call: str) -> None:
    """Raise DeviceLost for a CUDA error after which nothing runs; return for a refusal."""
    text = str(error)
    lost = ("CUDA error", "device-side assert", "an illegal memory access", "misaligned address", "CUDA driver error")
    if any(mark in text for mark in lost) or type(error).__name__ == "AcceleratorError":
        raise DeviceLost(call, named(error)) from None


@contextmanager
def needing(mode: str, call: str, kinds: tuple[type[Exception], ...] = (RuntimeError,)) -> Iterator[None]:
    """Turn an error raised inside into NoDerivative: the kernel does not support this mode of autograd.

    Args:
        mode: the mode, in words.
        call: the call that runs.
        kinds: the errors that say so.
    """
    try:
        yield
    except (Wrong, Refused, Unavailable, Crashed, MemoryError):
        raise
    except kinds as error:
        raise_if_lost(error, call)
        text = first_line(error) if isinstance(error, RuntimeError) else named(error)
        raise NoDerivative(f"no {mode}: {text}") from None
