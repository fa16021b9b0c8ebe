"""Where differentiation ends: after two derivatives, and at forward mode over forward mode."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import torch


def refuse(operator: str, what: str) -> NoReturn:
    """Raise the NotImplementedError of an operator that has no such derivative, as "third derivative"."""
    raise NotImplementedError(f"{operator} has no {what}: expected at most two derivatives, not both in forward mode")


class LastFunction(torch.autograd.Function):
    """A second derivative, which has none of its own. A subclass has `forward`, and names its `operator`."""

    operator: ClassVar[str]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        """Save nothing."""

    @classmethod
    def backward(cls, ctx: Any, *cotangents: Any) -> NoReturn:
        """Raise NotImplementedError."""
        refuse(cls.operator, "third derivative")

    @classmethod
    def jvp(cls, ctx: Any, *tangents: Any) -> NoReturn:
        """Raise NotImplementedError."""
        refuse(cls.operator, "third derivative")
