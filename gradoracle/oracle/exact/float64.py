"""float64: the graph run by PyTorch in double precision, on the CPU or a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from gradoracle.model.formats import FORMATS
from gradoracle.oracle.exact.graph import Graph, functional, widened
from gradoracle.oracle.exact.recurrence import Recurrence
from gradoracle.oracle.exact.trees import leaves

_SMALLEST_NORMAL = FORMATS["float64"].smallest_normal
_HUGE = 2.0**512  # a number that could bring what underflowed back
_NEVER_ZERO = frozenset(("exp", "exp2", "sigmoid", "erfc", "_softmax"))
_PRODUCTS = frozenset(("mul", "div", "pow", "reciprocal", "prod", "cumprod"))
# large where an argument, the last, is small
_STEEP = frozenset(("div", "reciprocal", "log", "log2", "log10", "rsqrt", "pow"))
_DIFFERENCES = frozenset(("sub", "add", "rsub"))
_ROUNDS_NOTHING = frozenset(
    ("neg", "abs", "relu", "maximum", "minimum", "amax", "amin", "where", "view", "expand", "permute", "select",
     "slice", "squeeze", "unsqueeze", "flip", "cat", "clone", "alias", "gather", "index", "index_select")
)  # fmt: skip


class Range:
    """Whether a graph's values leave the range of float64 on the way, so that it does not give the truth.

    Attributes:
        left: the first operator that does, and how, in words; "" if none does.
        made: by node, where it is not finite though its arguments are; of a recurrence a mask for each result.
    """

    def __init__(self) -> None:
        self.left = ""
        self.made: dict[Node, Any] = {}
        self._underflows = self._huge = False
        self._exact: set[Node] = set()  # what no rounding has a part in
        self._vanishing: set[Node] = set()  # what has zeros that may be differences of rounded numbers

    def see(self, node: Node, args: Any, value: Any) -> None:
        """The value that a node has from some arguments.

        An infinity or NaN of finite numbers is an overflow; at a pole it is the truth, unless a number underflowed
        before, or it was rounding that led there: 1 - exp(-1e-20) is 0. What underflows is lost in no sum, but where it
        is divided by, and where it meets a huge number.
        """
        if not isinstance(value, Tensor) or value.dtype is not torch.float64 or not value.numel():
            return
        name, flat = str(node.target).split(".")[-2:][0], leaves(args)
        given = [x for x in flat if isinstance(x, Tensor) and x.dtype is torch.float64]
        if not given or any(isinstance(x, float) and not math.isfinite(x) for x in flat):  # nothing is computed
            return
        largest = float(value.abs().max())
        if not largest < math.inf:  # NaN is not, either
            made = _where(given, value, torch.isfinite) & ~value.isfinite()
            if bool(made.any()):
                self.made[node] = made
                if self._underflows or not _at_a_pole(name, flat, made) or self._rounded_to_a_pole(node, name):
                    self.left = self.left or f"{name} gives {float(value[made][0])}"
        self._trace_zeros(node, name, given, value)
        self._huge |= _HUGE < largest < math.inf
        if name in _NEVER_ZERO or name in _PRODUCTS:
            lost = value.abs() < _SMALLEST_NORMAL
            if bool(lost.any()):
                kept = torch.isfinite if name in _NEVER_ZERO else torch.Tensor.bool
                self._underflows |= bool((lost & _where(given, value, kept)).any())
        if self._underflows and self._huge:
            self.left = self.left or f"{name} follows a number below 1e-308, and another is above 1e154"
        elif name in _STEEP:
            at = given[-1].abs()
            if bool(((at > 0) & (at < _SMALLEST_NORMAL)).any()):
                self.left = self.left or f"{name} takes a number below 1e-308"

    def _trace_zeros(self, node: Node, name: str, given: Sequence[Tensor], value: Tensor) -> None:
        """Note whether a value is exact, and whether it has zeros that rounding may have made."""
        exact = all(self._is_exact(each) for each in node.all_input_nodes)
        if exact and name in _ROUNDS_NOTHING:
            self._exact.add(node)
        difference = name in _DIFFERENCES and not exact
        follows = any(each in self._vanishing for each in node.all_input_nodes)
        if difference or follows:
            zero = value == 0
            if bool(zero.any()) and (follows or bool((zero & _where(given, value, torch.Tensor.bool)).any())):
                self._vanishing.add(node)

    def _is_exact(self, node: Node) -> bool:
        """Whether a node is an input, a constant, or made of these by operators that round nothing."""
        return node.op != "call_function" or node in self._exact or not _is_float(node)

    def _rounded_to_a_pole(self, node: Node, name: str) -> bool:
        """Whether what an operator takes at a pole may be off it: a zero of ``_trace_zeros``, or -1 of log1p."""
        at = node.args[1 if name == "div" else 0]
        if not isinstance(at, Node):
            return False
        return at in self._vanishing or (name == "log1p" and not self._is_exact(at))


def _is_float(node: Node) -> bool:
    value = node.meta.get("val")
    return not isinstance(value, Tensor) or value.is_floating_point()


def _where(given: Sequence[Tensor], value: Tensor, holds: Callable[[Tensor], Tensor]) -> Tensor:
    """For each element of a value whether something holds for its arguments: their elements there, or else for all."""
    found = torch.ones((), dtype=torch.bool)
    for each in given:
        try:
            found = found & holds(each).expand(value.shape)
        except RuntimeError:  # a reduction, or a product of matrices
            found = found & holds(each).all()
    return found


def _at_a_pole(name: str, args: Sequence[Any], made: Tensor) -> bool:
    """Whether what is not finite is so because a divisor is 0, or an argument at the edge of a domain or beyond."""
    if name not in _STEEP and name not in ("sqrt", "log1p"):
        return False
    at = torch.as_tensor(args[1] if name == "div" else args[0])
    edge = at == 0 if name in ("div", "reciprocal") else at <= (-1 if name == "log1p" else 0)
    return bool((edge | ~made).all())


def read(
    graph: Graph, args: Sequence[Tensor], *, device: torch.device | str = "cpu", within: Range | None = None
) -> list[Tensor]:
    """Every output of the graph in float64; casts to narrower floats are skipped.

    Args:
        graph: from ``trace``, on any device.
        args: tensors in the shapes that the graph was traced at; floats are converted to float64 (exactly).
        device: where the outputs are computed and stay.
        within: is shown every value.
    """
    where = torch.device(device)

    def call(node: Node, positional: Any, named: Any) -> Any:
        if isinstance(node.target, Recurrence):
            return _run(node, node.target, positional, call if within is not None else None, within)
        named = widened(named)
        if "device" in named:
            named["device"] = where
        value = functional(node)(*positional, **named)
        if within is not None:
            within.see(node, positional, value)
        return value

    given = (arg.detach().to(where) for arg in args)
    inputs = [arg.double() if arg.is_floating_point() else arg for arg in given]
    with torch.no_grad():
        return graph.interpreted(inputs, call, lambda constant: constant.to(where))


def _run(node: Node, recurrence: Recurrence, args: Any, call: Any, within: Range | None) -> list[Tensor]:
    """A recurrence; with ``within`` all of its body is computed by ``call``, and what is not finite is noted."""
    init, xs, constants = ([x.contiguous() for x in part] for part in args)
    if within is None:
        return recurrence.run(init, xs, constants)
    length, done = int(xs[0].shape[0]), 0
    since: int | None = None  # how many steps come before those that may depend on what is not finite

    def evaluate(graph: Graph, given: Sequence[Tensor]) -> Sequence[Tensor]:
        nonlocal done, since
        before = len(within.made)
        found = graph.interpreted(given, call)
        if len(within.made) > before and since is None:
            since = done
        done += len(given[0])
        return found

    found = recurrence.run(init, xs, constants, evaluate)
    if since is not None:
        after = slice(0, length - since) if recurrence.reverse else slice(since, length)
        masks = [torch.zeros_like(x, dtype=torch.bool) for x in found]
        for position, mask in enumerate(masks):
            mask[... if position < recurrence.carries else after] = True
        within.made[node] = masks
    return found
