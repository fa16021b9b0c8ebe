"""Walk: one pass over a graph with quantities: each operator's value, the errors it passes on and those it commits."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from gradoracle.model.contract import Contract
from gradoracle.oracle.exact.trace import Graph, UnsupportedOperator, widened
from gradoracle.oracle.exact.trees import followed
from gradoracle.oracle.rounding import bounds, effects, independent
from gradoracle.oracle.rounding.annotations import FAST_EXP
from gradoracle.oracle.rounding.normalised import log_softmax, softmax
from gradoracle.oracle.rounding.probes import LOG2_E, mixed, probed
from gradoracle.oracle.rounding.quantity import Quantity, any_error, cleared, quantities, values, where_finite
from gradoracle.oracle.rounding.reductions import (
    accumulate,
    accumulating_errors,
    extreme,
    matrix_product,
    running_errors,
    sum_of,
)
from gradoracle.oracle.rounding.rounding_model import Roundoff
from gradoracle.oracle.rounding.solve import triangular_solve


class Walk:
    """Carries quantities through a graph under a contract.

    Args:
        contract: the formats.
        roundoff: adds roundings.
        seed: of the places.
    """

    def __init__(self, contract: Contract, roundoff: Roundoff) -> None:
        self.contract, self.roundoff = contract, roundoff
        self._rules: tuple[tuple[frozenset[str], Callable[..., Any]], ...] = (
            (effects.CREATE, self.made),
            (effects.MOVE, self.moved),
            (effects.ARITHMETIC | effects.EXPONENTIAL | effects.LOGARITHM | effects.SPECIAL, self.elementwise),
            (effects.KEEP, self.kept),
            (effects.CHOOSE, self.chosen),
            (effects.COMPARE, self.compared),
            (effects.LOGIC, self.logical),
            (effects.SUM, lambda *call: sum_of(self.roundoff, *call)),
            (effects.PRODUCT, lambda *call: matrix_product(self.roundoff, *call)),
            (effects.EXTREME, lambda *call: extreme(self.roundoff, *call)),
            (effects.PRODUCT_OF_ONE, self.product_of_one),
            (effects.names("_softmax"), lambda *call: softmax(self.roundoff, *call)),
            (effects.names("_log_softmax"), lambda *call: log_softmax(self.roundoff, *call)),
            (effects.names("where masked_fill"), self.selected),
            (effects.names("_to_copy convert_element_type"), self.converted),
            (effects.names("linalg_solve_triangular"), lambda *call: triangular_solve(self.roundoff, *call)),
            (effects.names("storing_error storing_errors"), self.marked),
            (effects.names("running_errors"), lambda *call: running_errors(self.roundoff, *call)),
            (effects.names("accumulating_errors"), lambda *call: accumulating_errors(self.roundoff, *call)),
            (effects.names("argmax argmin argsort searchsorted bucketize nonzero"), self.indices),
        )

    def run(self, graph: Graph, inputs: Sequence[Quantity]) -> list[Quantity]:
        """The quantities of the graph's outputs, before they are stored; raises UnsupportedOperator."""

        def call(node: Node, args: Any, kwargs: Any) -> Any:
            return self.applied(node, mixed(graph.positions[node]), args, widened(kwargs))

        placed = [quantity.with_(place=mixed(position)) for position, quantity in enumerate(inputs)]
        found: list[Quantity] = graph.interpreted(placed, call, self.created)
        self.roundoff.node = None
        return found

    def created(self, value: Tensor) -> Quantity:
        """A constant of the definition: exact, but for numbers that its format does not hold."""
        q = Quantity(value, held=self.contract.dtype, place=0)
        if q.is_float and value.dim() == 0 and math.isfinite(float(value)):
            return self.roundoff.constant(q, float(value), value)
        return q

    def made(self, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int) -> Quantity:
        """full, arange and the like."""
        return self.created(operator(*values(args), **values(kwargs)))

    def applied(self, node: Node, place: int, args: Any, kwargs: Any) -> Any:
        """The result of one call node; a list of quantities where the operator returns several."""
        name, operator = effects.plain_name(node), effects.functional(node)
        self.roundoff.node = node
        if name == "getitem":
            return args[0][args[1]]
        rule = self.rule(name, args, kwargs)
        if rule is None:
            raise UnsupportedOperator(str(node.target), "rounding")
        found = rule(name, operator, args, kwargs, place)
        if isinstance(found, Quantity) and found.is_float and self.contract.store_all and name not in effects.VIEW:
            found = self.roundoff.stored(found, self.contract.output, mixed(place, 2))
            if name in effects.SPECIAL:  # eager kernels of these go through a second operation of the dtype
                found = self.roundoff.stored(found.with_(held=None), self.contract.output, mixed(place, 10))
        return found

    def rule(self, name: str, args: Any, kwargs: Any) -> Callable[..., Any] | None:
        """Which rule an operator falls under; None where there is none."""
        if name in effects.ACCUMULATE and (name not in effects.MOVE or _accumulates(name, args, kwargs)):
            return lambda *call: accumulate(self.roundoff, *call)
        return next((rule for members, rule in self._rules if name in members), None)

    # ---- values that are moved or chosen ----

    def moved(self, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int) -> Any:
        """Views, copies, indexing, padding: the errors move with the values."""
        value = operator(*values(args), **values(kwargs))
        if isinstance(value, (list, tuple)):
            return [self._picked(operator, args, kwargs, each, i, mixed(place, i)) for i, each in enumerate(value)]
        return self._picked(operator, args, kwargs, value, None, place, keep_place=name in effects.VIEW)

    def _picked(
        self, operator: Callable[..., Any], args: Any, kwargs: Any, value: Any, index: int | None, place: int,
        keep_place: bool = False,
    ) -> Quantity:  # fmt: skip
        def pick(x: Any) -> Any:
            return x if x is None or index is None else x[index]

        sources = quantities((args, kwargs))
        if not isinstance(value, Tensor):
            return Quantity(torch.as_tensor(value))
        undecided = _carried(operator, args, kwargs, sources)
        if not value.is_floating_point():
            return Quantity(value, undecided=pick(undecided), probes=pick(probed(operator, args, kwargs)))
        floats = [q for q in sources if q.is_float]
        formats = {q.held for q in floats}
        variance, floor, bound = (
            pick(independent.moved(operator, args, kwargs, sources, a)) for a in ("variance", "floor", "worst")
        )
        return Quantity(
            value,
            variance,
            floor,
            bound,
            pick(probed(operator, args, kwargs)),
            held=formats.pop() if len(formats) == 1 else None,
            place=floats[0].place if keep_place and floats else place,
        )

    def kept(self, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int) -> Quantity:
        """neg, abs, relu, clamp, floor: no rounding of their own."""
        value = operator(*values(args), **values(kwargs))
        source = quantities(args)[0]
        if not source.is_float:
            return Quantity(value, probes=probed(operator, args, kwargs))
        if name in ("neg", "positive"):
            return source.with_(value=value, probes=probed(operator, args, kwargs), place=place)
        return Quantity(
            value,
            independent.kinked(operator, args, kwargs, value, "variance"),
            independent.kinked(operator, args, kwargs, value, "floor"),
            bounds.kinked(operator, args, kwargs, value),
            probed(operator, args, kwargs),
            source.held,
            place=place,
        )

    def chosen(self, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int) -> Quantity:
        """maximum and minimum of two tensors."""
        value = operator(*values(args), **values(kwargs))
        found = [independent.chosen(args, a) for a in ("variance", "floor", "worst")]
        variance, floor, bound = (None if e is None else e.expand_as(value) for e in found)
        formats = {q.held for q in quantities(args)}
        return Quantity(
            value, variance, floor, bound, probed(operator, args, kwargs), formats.pop() if len(formats) == 1 else None,
            place=place,
        )  # fmt: skip

    def selected(self, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int) -> Quantity:
        """where and masked_fill: the errors of the side that is taken, of both where that is undecided."""
        condition, x, y = args if name == "where" else (args[1], args[2], args[0])
        value = operator(*values(args), **values(kwargs))
        found = [independent.selected(condition, x, y, a) for a in ("variance", "floor", "worst")]
        variance, floor, bound = (None if e is None else e.expand_as(value) for e in found)
        formats = {q.held if isinstance(q, Quantity) and q.value.dim() else self.contract.dtype for q in (x, y)}
        return Quantity(
            value, variance, floor, bound, probed(operator, args, kwargs), formats.pop() if len(formats) == 1 else None,
            place=place,
        )  # fmt: skip

    # ---- bools and integers ----

    def compared(self, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int) -> Quantity:
        """Comparisons: an answer, and where rounding may turn it."""
        value = operator(*values(args), **values(kwargs))
        attribute = "variance" if any_error(args, "variance") else "worst"
        return Quantity(
            value, probes=probed(operator, args, kwargs), undecided=independent.undecided(name, args, attribute)
        )

    def logical(self, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int) -> Quantity:
        """Logical operators and any / all: undecided where any of their arguments is."""
        value = torch.as_tensor(operator(*values(args), **values(kwargs)))
        open_ = [q.undecided for q in quantities(args) if q.undecided is not None]
        undecided = None
        if open_ and name in ("any", "all"):
            found = operator(open_[0] if name == "any" else ~open_[0], *args[1:], **kwargs)
            undecided = found if name == "any" else ~found
        elif open_:
            undecided = torch.stack([torch.broadcast_to(u, value.shape) for u in open_]).any(0)
        return Quantity(value, probes=probed(operator, args, kwargs), undecided=undecided)

    def indices(self, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int) -> Quantity:
        """Indices found by comparing values; taken as in truth."""
        return Quantity(operator(*values(args), **values(kwargs)))

    def converted(self, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int) -> Quantity:
        """Conversions: between floats exact (formats are the contract's), from bool with what is undecided."""
        (source,) = quantities(args)[:1]
        value = operator(*values(args), **values(kwargs))
        if source.is_float and value.is_floating_point():
            return source.with_(value=value.to(torch.float64))
        if value.is_floating_point():
            return _as_float(source).with_(held=self.contract.dtype, place=place)
        return Quantity(value, probes=probed(operator, args, kwargs), undecided=source.undecided)

    # ---- values that are computed ----

    def elementwise(self, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int) -> Quantity:
        """One operation an element: errors pass by its slopes, and it commits its own."""
        value = operator(*values(args), **values(kwargs))
        if not value.is_floating_point():
            return Quantity(value, probes=probed(operator, args, kwargs))
        args = tuple(_as_float(a) if isinstance(a, Quantity) else a for a in args)
        finite = where_finite(value)
        error = [independent.elementwise(name, operator, args, kwargs, value, a) for a in ("variance", "floor")]
        bound = bounds.elementwise(name, operator, args, kwargs, value)
        variance, floor, bound = (None if e is None else cleared(e.expand_as(value), finite) for e in (*error, bound))
        q = Quantity(value, variance, floor, bound, probed(operator, args, kwargs), place=place)
        if not self.contract.rounds:
            return q
        if name == "add" and len(quantities(args)) == 2 and not kwargs and not args[1].value.any():
            x, zero = args  # x + 0 is x; and the error of storing x comes as a value of 0
            errs = any_error(zero, "variance") or any_error(zero, "probes")
            return q.with_(held=zero.held if errs else x.held, place=x.place)
        numbers = [a for a in args if isinstance(a, (int, float)) and not isinstance(a, bool)]
        if _exact(name, args, numbers, kwargs):
            q = q.with_(held=quantities(args)[0].held, place=quantities(args)[0].place)
            smaller = (name == "mul" and abs(numbers[0]) < 1) or (name == "div" and abs(numbers[0]) > 1)
            q = self.roundoff.scaled_down(q, mixed(place, 12)) if smaller else q
            return self.roundoff.factor(q, float(numbers[0]))
        for number in numbers if name in ("mul", "div") else ():
            q = self.roundoff.factor(q, float(number))
        for number in numbers if name in ("add", "sub", "rsub") else ():
            q = self.roundoff.constant(q, float(number), torch.full_like(value, number))
        return self._own_rounding(q, name, operator, args, kwargs, place)

    def _own_rounding(
        self, q: Quantity, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int
    ) -> Quantity:
        contract = self.contract
        if name in effects.ARITHMETIC:
            return self.roundoff.elementwise(q, place)
        x = quantities(args)[0]
        size = torch.where(q.value == 0, 1.0, q.value.abs())
        if name in effects.EXPONENTIAL:  # its argument is scaled by log2 e, a constant, and rounded once more
            steep = x.value.abs() if name != "expm1" else (x.value * (q.value + 1)).abs() / size
            steep = torch.where(steep.isfinite(), steep, 0.0)
            q = self.roundoff.shared(q, steep * q.value, LOG2_E)
            ulps: float | Tensor = contract.exp_ulps
        elif name in effects.LOGARITHM:
            steep = torch.zeros_like(q.value)
            ulps = contract.log_ulps if name == "log1p" else contract.log_ulps / size.clamp_max(1.0)
        elif name == "rsqrt":
            steep, ulps = torch.zeros_like(q.value), 2.0
        elif name == "pow" and len(args) == 2 and args[1] in (2, 2.0):
            return self.roundoff.elementwise(q, place)
        else:  # as if the argument were rounded once more
            steep = torch.zeros_like(q.value)
            for argument, slope in independent.slopes(operator, args, kwargs, q.value.shape, of_all=True):
                steep = steep + torch.nan_to_num((slope * argument.value / size).square(), nan=0.0, posinf=0.0)
            if name == "gelu":  # 1 + erf cancels for negative arguments
                steep = steep + (x.value / size).square()
            steep, ulps = steep.sqrt(), contract.special_ulps
        units = torch.sqrt(torch.as_tensor(ulps).square() + steep.square())
        return self.roundoff.elementwise(q, place, units, 2 * units)

    def product_of_one(self, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int) -> Quantity:
        """prod and cumprod: relative errors add."""
        value = operator(*values(args), **values(kwargs))
        x = quantities(args)[0]
        variance, floor = (
            independent.product_of_one(name, operator, args, kwargs, x, a) for a in ("variance", "floor")
        )
        bound = bounds.product_of_one(operator, args, kwargs, value)
        q = Quantity(value, variance, floor, bound, probed(operator, args, kwargs), place=place)
        if not self.contract.rounds:
            return q
        terms = x.value.numel() / max(value.numel(), 1) if name == "prod" else x.value.shape[args[1]]
        return self.roundoff.elementwise(q, place, math.sqrt(terms), terms)

    def marked(self, name: str, operator: Callable[..., Any], args: Any, kwargs: Any, place: int) -> Quantity:
        """The error of storing a value (``stored``) or each partial sum (``stored_sum``); its value is 0."""
        source, where = args
        values_stored = source.value if name == "storing_error" else source.value.cumsum(0)
        if where == FAST_EXP:
            q = self.roundoff.fast_exp(Quantity(source.value), mixed(place, 3))
            probes = None if q.probes is None else q.probes - source.value
            return q.with_(value=torch.zeros_like(source.value), probes=probes, place=place)
        dtype = getattr(self.contract, where)
        erring = source.variance is not None or source.worst is not None
        bare = Quantity(values_stored, held=source.held if name == "storing_error" else None)
        q = self.roundoff.stored(bare, dtype, mixed(place, 3), may_be_zero=not erring)
        probes = None if q.probes is None else q.probes - values_stored
        q = q.with_(value=torch.zeros_like(values_stored), probes=probes)
        if name == "storing_errors":
            variance, floor, bound = (None if e is None else e.sum(0) for e in (q.variance, q.floor, q.worst))
            probes = None if q.probes is None else q.probes.sum(1)
            q = Quantity(q.value[0], variance, floor, bound, probes)
        return q.with_(held=dtype if self.contract.rounds else None, place=place)


def _as_float(q: Quantity) -> Quantity:
    """A bool or integer that enters arithmetic: exact, but for what is undecided."""
    if q.is_float:
        return q
    open_ = None if q.undecided is None else q.undecided.to(torch.float64)
    probes = None if q.probes is None else q.probes.to(torch.float64)
    return Quantity(q.value.to(torch.float64), open_, None, open_, probes, place=q.place)


def _exact(name: str, args: Any, numbers: list[Any], kwargs: Any) -> bool:
    """Whether an operation commits no rounding: times a power of two, plus zero."""
    if len(numbers) != 1 or set(kwargs) - {"alpha"}:
        return False
    number = float(numbers[0])
    if name in ("add", "sub"):
        return number == 0
    if name == "mul" or (name == "div" and isinstance(args[0], Quantity)):
        return number == 0 or abs(math.frexp(number)[0]) == 0.5
    return False


def _accumulates(name: str, args: Any, kwargs: Any) -> bool:
    return (len(args) > 3 and bool(args[3])) or bool(kwargs.get("accumulate", False))


def _carried(operator: Callable[..., Any], args: Any, kwargs: Any, sources: list[Quantity]) -> Any:
    """``undecided`` after an operator that moves bools."""
    if not any(q.undecided is not None for q in sources):
        return None

    def mark(x: Any) -> Any:
        if not isinstance(x, Quantity):
            return x
        if x.value.dtype is torch.bool:
            return torch.zeros_like(x.value) if x.undecided is None else x.undecided
        return x.value

    return operator(*followed(mark, args), **followed(mark, kwargs))
