"""Call errors: how a kernel call can end without tensors that can be judged."""

from __future__ import annotations

from gradoracle.model.call import End
from gradoracle.model.finding import Finding, malformed
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


def wrong(key: str, message: str) -> Wrong:
    """The error of a tensor that has not the form that it should have."""
    return Wrong(malformed(key, message))


_PLAIN: dict[str, type[Exception]] = {each.__name__: each for each in (Refused, NoDerivative, Detached, Severed)}


def end_of(error: Exception) -> End:
    """How a call ended, by one of these errors, as plain values."""
    kind, text = type(error).__name__, str(error)
    if isinstance(error, Wrong):
        return End(kind, error.finding.message, tensor=error.finding.tensor)
    if isinstance(error, DeviceLost):
        return End(kind, error.how, call=error.call)
    if isinstance(error, Crashed):
        return End(kind, text, error.why.value, error.call)
    return End(kind, text, error.why.value if isinstance(error, Unavailable) else "")


def error_of(end: End) -> Exception:
    """The error that ``end_of`` was given.

    Raises:
        ValueError: there is no such kind.
    """
    if end.kind in _PLAIN:
        return _PLAIN[end.kind](end.text)
    if end.kind == Unavailable.__name__:
        return Unavailable(end.text, Reason(end.why))
    if end.kind == DeviceLost.__name__:
        return DeviceLost(end.call, end.text)
    if end.kind == Crashed.__name__:
        return Crashed(end.text, Reason(end.why), end.call)
    if end.kind == Wrong.__name__:
        return wrong(end.tensor, end.text)
    raise ValueError(f"a call ended with {end.kind!r}, which is no way to end")
