"""Propagation: one pass over a graph with quantities, operator by operator: values, errors passed on and committed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from gradoracle.oracle.exact.graph import Graph, UnsupportedOperator, functional, widened
from gradoracle.oracle.exact.recurrence import Recurrence
from gradoracle.oracle.exact.trees import followed, leaves
from gradoracle.oracle.rounding import effects, independent, worst_case
from gradoracle.oracle.rounding.annotations import FAST_EXP
from gradoracle.oracle.rounding.call import Call
from gradoracle.oracle.rounding.choices import argument, followed_through
from gradoracle.oracle.rounding.effects import names
from gradoracle.oracle.rounding.normalised import log_softmax, softmax
from gradoracle.oracle.rounding.probes import LN_2, LOG2_E, mixed
from gradoracle.oracle.rounding.quantity import (
    Quantity,
    any_error,
    cleared,
    common,
    each_error,
    errors_alone,
    quantities,
    where_finite,
)
from gradoracle.oracle.rounding.recurrence import Taken, recurrence, whole
from gradoracle.oracle.rounding.reductions import (
    accumulate,
    accumulating_errors,
    counts,
    extreme,
    matrix_product,
    running_errors,
    sum_of,
    triangular_solve,
)
from gradoracle.oracle.rounding.rounding_model import Roundoff

Rule = Callable[[Roundoff, Call], Any]  # gives a quantity, or a list of them where the operator returns several


def propagate(graph: Graph, inputs: Sequence[Quantity], roundoff: Roundoff, within: int = 0) -> list[Quantity]:
    """The quantities of the graph's outputs before they are stored.

    ``within`` is the place of the recurrence whose body the graph is.

    Raises:
        UnsupportedOperator: an operator has no rounding rule.
    """

    def call(node: Node, args: Any, kwargs: Any) -> Any:
        roundoff.node, roundoff.fixed = node, node in graph.fixed
        if isinstance(node.target, Recurrence):
            return recurrence(node.target, args, roundoff, node, placed(graph.positions[node]), propagate)
        return _applied(roundoff, node, placed(graph.positions[node]), args, widened(kwargs))

    def placed(position: int) -> int:
        return mixed(within, position) if within else mixed(position)

    given = [replace(quantity, place=placed(position)) for position, quantity in enumerate(inputs)]
    found: list[Any] = graph.interpreted(given, call, lambda value: _constant(roundoff, value))
    roundoff.node = None
    return [whole(quantity) for quantity in found]


def _applied(roundoff: Roundoff, node: Node, place: int, args: Any, kwargs: Any) -> Any:
    """The result of one call node; a list of quantities if the operator returns several."""
    name = effects.plain_name(node)
    if name == "getitem":
        return args[0][args[1]]
    if any(isinstance(x, Taken) for x in args):
        args = tuple([whole(x) for x in args])
    rule = _RULES.get(name)
    if name in effects.ACCUMULATE and (
        name not in effects.MOVE or (len(args) > 3 and args[3]) or kwargs.get("accumulate")
    ):
        rule = accumulate
    call = Call(name, functional(node), args, kwargs, place)
    if rule is None and _rounds_nothing(call):
        rule = _of_integers
    if rule is None:
        raise UnsupportedOperator(str(node.target), "rounding")
    found = followed_through(roundoff, call, rule(roundoff, call))
    contract = roundoff.contract
    if isinstance(found, Quantity) and found.is_float and contract.store_all and name not in effects.VIEW:
        found = roundoff.stored(found, contract.output, mixed(place, 2))
        if name in effects.SPECIAL:  # eager kernels of these go through a second operation of the dtype
            found = roundoff.stored(replace(found, held=None), contract.output, mixed(place, 10))
    return found


# ---- values that are made, moved or chosen ----


def _constant(roundoff: Roundoff, value: Tensor) -> Quantity:
    """A constant of the definition: exact, but for numbers that its format does not hold."""
    q = Quantity(value, held=roundoff.contract.dtype)
    if q.is_float and value.dim() == 0 and math.isfinite(float(value)):
        return roundoff.constant(q, float(value), value)
    return q


def _made(roundoff: Roundoff, call: Call) -> Quantity:
    """full, arange and the like."""
    return _constant(roundoff, call.value)


def _moved(roundoff: Roundoff, call: Call) -> Any:
    """Views, copies, indexing, padding: the errors move with the values."""
    several = isinstance(call.value, (list, tuple))
    floats = [q for q in call.sources if q.is_float]
    carried: dict[str, Any] = {"probes": call.probes()}
    if (call.value[0] if several else call.value).is_floating_point():
        carried |= each_error(lambda error: independent.moved(call, error))
    else:
        carried["undecided"] = _undecided_moved(call)
    held = common(q.held for q in floats)
    if several:
        return [
            Quantity(
                value,
                held=held,
                place=mixed(call.place, i),
                **{name: None if found is None else found[i] for name, found in carried.items()},
            )
            for i, value in enumerate(call.value)
        ]
    shares = floats and call.name in effects.VIEW
    return Quantity(call.value, held=held, place=floats[0].place if shares else call.place, **carried)


def _undecided_moved(call: Call) -> Any:
    """Which of the bools that an operator moves are undecided."""
    if not any(q.undecided is not None for q in call.sources):
        return None

    def mark(x: Any) -> Any:
        if not isinstance(x, Quantity):
            return x
        if x.value.dtype is torch.bool:
            return torch.zeros_like(x.value) if x.undecided is None else x.undecided
        return x.value

    return call.operator(*followed(mark, call.args), **followed(mark, call.kwargs))


def _kept(roundoff: Roundoff, call: Call) -> Quantity:
    """neg, abs, relu, clamp, floor: no rounding of their own."""
    source = call.sources[0]
    if not source.is_float:
        return call.exact()
    if call.name == "neg":
        return replace(source, value=call.value, probes=call.probes(), place=call.place)
    variance, floor = (independent.kinked(call, error) for error in ("variance", "floor"))
    # the result moves no further than the argument
    worst = None if source.worst is None else source.worst.expand_as(call.value)
    return Quantity(call.value, variance, floor, worst, call.probes(), source.held, place=call.place)


def _chosen(roundoff: Roundoff, call: Call) -> Quantity:
    """maximum and minimum of two tensors."""
    return _one_of_two(call, lambda error: independent.chosen(call, error), common(q.held for q in call.sources))


def _selected(roundoff: Roundoff, call: Call) -> Quantity:
    """where: the errors of the side that is taken, of both where that is undecided."""
    condition, x, y = call.args
    formats = (q.held if isinstance(q, Quantity) and q.value.dim() else roundoff.contract.dtype for q in (x, y))
    return _one_of_two(call, lambda error: independent.selected(condition, x, y, error), common(formats))


def _one_of_two(call: Call, rule: Callable[[str], Tensor | None], held: str | None) -> Quantity:
    def wide(error: str) -> Tensor | None:
        found = rule(error)
        return None if found is None else found.expand_as(call.value)

    return Quantity(call.value, **each_error(wide), probes=call.probes(), held=held, place=call.place)


# ---- bools and integers ----


def _compared(roundoff: Roundoff, call: Call) -> Quantity:
    """Comparisons: an answer, and where rounding may change it."""
    error = "variance" if any_error(call.args, "variance") else "worst"
    return replace(call.exact(), undecided=independent.undecided(call, error))


def _logical(roundoff: Roundoff, call: Call) -> Quantity:
    """Logical operators, shifts of integers and any: undecided where any of their arguments is."""
    value = torch.as_tensor(call.value)
    open_ = [q.undecided for q in call.sources if q.undecided is not None]
    undecided = None
    if open_ and call.name == "any":
        undecided = call.operator(open_[0], *call.args[1:], **call.kwargs)
    elif open_:
        undecided = torch.stack([torch.broadcast_to(u, value.shape) for u in open_]).any(0)
    return Quantity(value, probes=call.probes(), undecided=undecided)


def _indices(roundoff: Roundoff, call: Call) -> Quantity:
    """Places found by comparing values; taken as in truth."""
    return Quantity(call.value)


def _rounds_nothing(call: Call) -> bool:
    """Whether an operator makes integers or bools of decided ones alone, such as those that a case is given."""
    if any(q.is_float or q.probes is not None or q.undecided is not None or q.others is not None for q in call.sources):
        return False
    return not any(isinstance(x, Tensor) and x.is_floating_point() for x in leaves(call.value))


def _of_integers(roundoff: Roundoff, call: Call) -> Any:
    """Operators without a rule of their own, as in the exact readings: PyTorch's result."""
    return followed(lambda x: Quantity(x) if isinstance(x, Tensor) else x, call.value)


def _converted(roundoff: Roundoff, call: Call) -> Quantity:
    """Conversions: between floats exact (formats are the contract's), from bool with what is undecided."""
    source = call.sources[0]
    if source.is_float and call.value.is_floating_point():
        return replace(source, value=call.value.to(torch.float64))
    if call.value.is_floating_point():
        return replace(_as_float(source), held=roundoff.contract.dtype, place=call.place)
    return replace(call.exact(), undecided=source.undecided)


def _as_float(q: Quantity) -> Quantity:
    """A bool or integer that enters arithmetic: exact, but for what is undecided."""
    if q.is_float:
        return q
    open_ = None if q.undecided is None else q.undecided.to(torch.float64)
    probes = None if q.probes is None else q.probes.to(torch.float64)
    return Quantity(q.value.to(torch.float64), open_, None, open_, probes, place=q.place)


# ---- values that are computed ----


def _elementwise(roundoff: Roundoff, call: Call) -> Quantity:
    """One operation per element: errors pass on by its slopes, and it commits its own."""
    value, name = call.value, call.name
    if not value.is_floating_point():
        return call.exact()
    args = tuple(_as_float(a) if isinstance(a, Quantity) else a for a in call.args)
    call = replace(call, args=args)
    finite = where_finite(value)

    def passed(error: str) -> Tensor | None:
        found = worst_case.elementwise(call, value) if error == "worst" else independent.elementwise(call, value, error)
        return None if found is None else cleared(found.expand_as(value), finite)

    q = Quantity(value, **each_error(passed), probes=call.probes(), place=call.place)
    if not roundoff.contract.rounds:
        return q
    operands = quantities(args)
    if name in effects.ARITHMETIC and (held := roundoff.known(q)) is not None:
        return replace(q, held=held)
    if name == "add" and len(operands) == 2 and not call.kwargs and not args[1].value.any():
        x, zero = args  # x + 0 is x; and the error of storing x comes as a value of 0
        errs = any_error(zero, "variance") or any_error(zero, "probes")
        return replace(q, held=zero.held if errs else x.held, place=x.place)
    numbers = [float(a) for a in args if isinstance(a, (int, float)) and not isinstance(a, bool)]
    if _is_exact(call, numbers):
        q = replace(q, held=operands[0].held, place=operands[0].place)
        roundoff.check_overflow(q, value.abs(), roundoff.contract.elementwise, rounds_once=True)
        if (name == "mul" and abs(numbers[0]) < 1) or (name == "div" and abs(numbers[0]) > 1):
            q = roundoff.scaled_down(q, mixed(call.place, 12))
        return roundoff.factor(q, numbers[0])
    for number in numbers:
        if name in ("mul", "div"):
            q = roundoff.factor(q, number)
        elif name in ("add", "sub"):
            q = roundoff.constant(q, number, torch.full_like(value, number))
    return _own_rounding(roundoff, q, call)


def _is_exact(call: Call, numbers: list[float]) -> bool:
    """Whether an operation commits no rounding: times a power of two, plus zero."""
    if len(numbers) != 1 or set(call.kwargs) - {"alpha"}:
        return False
    if call.name in ("add", "sub"):
        return numbers[0] == 0
    if call.name == "mul" or (call.name == "div" and isinstance(call.args[0], Quantity)):
        return numbers[0] == 0 or abs(math.frexp(numbers[0])[0]) == 0.5
    return False


def _own_rounding(roundoff: Roundoff, q: Quantity, call: Call) -> Quantity:
    name, contract = call.name, roundoff.contract
    if name in ("add", "sub"):
        return roundoff.elementwise(q, call.place, summands=_summands(call))
    if name in effects.ARITHMETIC or (name == "pow" and len(call.args) == 2 and call.args[1] in (2, 2.0)):
        return roundoff.elementwise(q, call.place)
    x = call.sources[0]
    size = torch.where(q.value == 0, 1.0, q.value.abs())
    steep = torch.zeros_like(q.value)
    if name in effects.EXPONENTIAL:  # its argument is scaled by log2 e, a constant, and rounded once more
        steep = x.value.abs() if name != "expm1" else (x.value * (q.value + 1)).abs() / size
        steep = torch.where(steep.isfinite(), steep, 0.0)
        q = roundoff.shared(q, steep * q.value, LOG2_E)
        ulps: float | Tensor = contract.exp_ulps
    elif name in effects.LOGARITHM:  # that to base 2 is scaled by ln 2
        if roundoff.literal:
            q = roundoff.shared(q, q.value, LN_2)
        ulps = contract.log_ulps if name == "log1p" else contract.log_ulps / size.clamp_max(1.0)
    elif name == "rsqrt":
        ulps = 2.0
    else:  # as if the argument were rounded once more
        for argument, slope in independent.slopes(call, q.value.shape, of_all=True):
            steep = steep + torch.nan_to_num((slope * argument.value / size).square(), nan=0.0, posinf=0.0)
        steep, ulps = steep.sqrt(), contract.special_ulps
        if roundoff.literal:
            q = roundoff.shared(q, steep * q.value, LOG2_E)
    units = torch.sqrt(torch.as_tensor(ulps).square() + steep.square())
    return roundoff.elementwise(q, call.place, units, 2 * units)


def _summands(call: Call) -> list[Quantity]:
    """The two terms of an addition or subtraction; none if the second has a factor."""
    if call.kwargs.get("alpha", 1) != 1:
        return []
    return [a if isinstance(a, Quantity) else Quantity(torch.tensor(float(a))) for a in call.args[:2]]


def _product_of_one(roundoff: Roundoff, call: Call) -> Quantity:
    """prod and cumprod: relative errors add."""
    value, x = call.value, call.sources[0]
    variance, floor = (independent.product_of_one(call, error) for error in ("variance", "floor"))
    q = Quantity(value, variance, floor, worst_case.product_of_one(call), call.probes(), place=call.place)
    if not roundoff.contract.rounds:
        return q
    products: float | Tensor  # in any order k factors are multiplied k - 1 times
    if call.name == "cumprod" and x.value.dim():
        products = counts(x.value, call.args[1], 0)
    else:
        products = x.value.numel() / max(value.numel(), 1) - 1
    return roundoff.elementwise(q, call.place, products**0.5, products)


def _marked(roundoff: Roundoff, call: Call) -> Quantity:
    """The error of storing a value (``stored``) or each partial sum (``stored_sum``); its value is 0."""
    (source, where), contract = call.args, roundoff.contract
    place = mixed(call.place, 3)
    partial_sums = call.name == "storing_errors"
    value = source.value.cumsum(0) if partial_sums else source.value
    if where == FAST_EXP:
        q = roundoff.fast_exp(Quantity(value), place)
        return replace(errors_alone(q), place=call.place)
    dtype = getattr(contract, where)
    exact = source.variance is None and source.worst is None
    q = Quantity(value, held=None if partial_sums else source.held)
    q = errors_alone(roundoff.stored(q, dtype, place, may_be_zero=exact))
    if partial_sums:
        summed = each_error(lambda error: None if getattr(q, error) is None else getattr(q, error).sum(0))
        q = Quantity(q.value[0], **summed, probes=None if q.probes is None else q.probes.sum(1))
    return replace(q, held=dtype if contract.rounds else None, place=call.place)


_FAMILIES: Mapping[Rule, frozenset[str]] = {
    _made: effects.CREATE,
    _moved: effects.MOVE,
    _elementwise: effects.ARITHMETIC | effects.EXPONENTIAL | effects.LOGARITHM | effects.SPECIAL,
    _kept: names("neg abs relu sign floor ceil round trunc clamp conj_physical"),
    _chosen: names("maximum minimum fmax fmin"),
    _compared: names("eq ne lt le gt ge equal isnan isinf isfinite"),
    _logical: names(
        "logical_and logical_or logical_xor logical_not bitwise_and bitwise_or bitwise_xor bitwise_not any "
        "is_same_size _has_same_storage_numel __lshift__ __rshift__ bitwise_left_shift bitwise_right_shift"
    ),
    sum_of: effects.SUM,
    matrix_product: effects.PRODUCT,
    extreme: names("amax amin max min sort topk"),
    _product_of_one: names("prod cumprod"),
    softmax: names("_softmax"),
    log_softmax: names("_log_softmax"),
    _selected: names("where"),
    _converted: names("_to_copy convert_element_type"),
    triangular_solve: names("linalg_solve_triangular"),
    _marked: names("storing_error storing_errors"),
    accumulate: effects.ACCUMULATE,
    running_errors: names("running_errors"),
    accumulating_errors: names("accumulating_errors"),
    argument: names("argmax argmin"),
    _indices: names("searchsorted bucketize nonzero"),
}
_RULES = {name: rule for rule, members in reversed(list(_FAMILIES.items())) for name in members}
