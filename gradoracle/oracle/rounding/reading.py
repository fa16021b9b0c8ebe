"""The rounding reading: the error that rounding explains, per element, under a precision contract.

The graph is run once in float64. Each value carries a variance, as if all roundings were independent; R probes, in
which a rounding is a function of the value it rounds; and on request a bound with every rounding at its worst.
docs/background/budgets.md derives every rule.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from gradoracle.model.contract import Contract
from gradoracle.model.formats import FORMATS
from gradoracle.oracle.exact.graph import Graph, functional, widened
from gradoracle.oracle.exact.recurrence import Recurrence
from gradoracle.oracle.rounding.probes import SPLIT, Dice, mixed
from gradoracle.oracle.rounding.propagate import propagate
from gradoracle.oracle.rounding.quantity import FAR, Quantity, all_finite
from gradoracle.oracle.rounding.rounding_model import Roundoff

InputError = tuple[Tensor, "Tensor | None", "Tensor | None"]

_PROBED_AT = 2.0**-30  # the unit that float64 is probed with
_CONSTANTS_AT = 2.0**-18  # the unit of constants is at most this then, so that their effect remains linear
_ELEMENTS_AT_ONCE = 1 << 24  # of all probes of the largest tensor together
_SPLIT_WITHIN = 3 / FAR  # at other significands a correct kernel may err by three times what the split probe shows
_FEW_PROBES = ((1 << 21, 4), (1 << 19, 8))  # largest tensor of the graph, probes at most
_OUTPUT, _INPUT = 9, 11


@dataclass(frozen=True)
class Budget:
    """The error that rounding explains for one output of a graph; float64 tensors of its shape on the CPU.

    Attributes:
        value: the graph's value.
        sigma: one standard deviation of a correct kernel's error: the larger of ``independent`` and the probes' rms,
            and at least ``floor``. 0 only where a correct kernel returns exactly ``value``; finite where ``value`` is.
        independent: the standard deviation if all roundings were independent.
        errors: [R, *shape], the signed error of each probe.
        worst: a bound with every rounding at its worst; None if it was not requested.
        floor: the standard deviation of the part due to underflow.
        overflow: True where a declared intermediate, or the output itself, may exceed the range of its format in a
            correct kernel (the value and eight standard deviations); None if none does.
        before: the largest error before an output is stored in 8 bits: storing rounds what is that near to ``value``.
            None for other outputs, and where it is not known.
    """

    value: Tensor
    sigma: Tensor
    independent: Tensor
    errors: Tensor
    worst: Tensor | None
    floor: Tensor
    overflow: Tensor | None = None
    before: Tensor | None = None


def budgets(
    graph: Graph,
    args: Sequence[Tensor],
    contract: Contract,
    *,
    probes: int = 16,
    worst: bool = False,
    seed: int = 0,
    input_errors: Sequence[InputError | None] | None = None,
    output_dtypes: Sequence[str] | None = None,
    input_dtypes: Sequence[str] | None = None,
) -> list[Budget]:
    """The budget of each output of ``graph`` at ``args``.

    Args:
        graph: of a definition or of an algorithm (docs/background/budgets.md), traced at the shapes of ``args``.
        args: float64 (or integer) tensors, exactly the kernel's arguments.
        contract: the precision contract; ``EXACT`` for the expression of a property, which rounds nothing itself.
        probes: the most probes; graphs with large tensors take 8 or 4 (a tensor of 2^19, 2^21 elements). There
            is also the literal one (``probes.LITERAL``) and, if a format has few bits, ``probes.SPLIT``.
        worst: whether to compute the bound with every rounding at its worst.
        seed: of the probes.
        input_errors: for each argument None, or (variance, worst, probes' errors [R, *shape]) of its own error.
        output_dtypes: the format each output is stored in; default ``contract.output`` for all.
        input_dtypes: the format that holds each argument exactly; default ``contract.dtype`` for all.

    Raises:
        UnsupportedOperator: the graph has an operator without a rounding rule.
    """
    given = list(input_errors) if input_errors is not None else [None] * len(args)
    held = list(input_dtypes) if input_dtypes is not None else [contract.dtype] * len(args)
    dtypes = output_dtypes or [contract.output] * len(graph.outputs)
    count, at_once = _schedule(graph, args, probes)
    splits = bool(count) and contract.rounds_to_few_bits
    count += (count > 0) + splits  # the literal probe and the one that splits, in addition
    carried = [error[2] for error in given if error is not None and error[2] is not None]
    if carried:
        count = min(count, *(len(c) for c in carried))
    magnify = _magnified(contract)
    found: list[Quantity] = []
    signed: list[list[Tensor]] = []
    narrow = [i for i, dtype in enumerate(dtypes) if contract.rounds and FORMATS[dtype].width == 8]
    bare: dict[int, Quantity] = {}
    own: dict[int, list[Tensor]] = {i: [] for i in narrow}
    overflowing: dict[Node, list[tuple[int | None, Tensor]]] = {}
    for start in range(0, max(count, 1), at_once):
        run = range(start, min(start + at_once, count))
        dice = Dice(seed, run, splits) if run and contract.rounds else None
        roundoff = Roundoff(contract, dice, worst and start == 0, magnify, variances=start == 0)
        inputs = [
            _input(a, e, h, run, worst and start == 0, start == 0) for a, e, h in zip(args, given, held, strict=True)
        ]
        with torch.no_grad():
            inputs = [
                roundoff.given(q, mixed(i, _INPUT)) if q.is_float and e is None else q
                for i, (q, e) in enumerate(zip(inputs, given, strict=True))
            ]
            outputs = propagate(graph, inputs, roundoff)
            for i in narrow:
                bare.setdefault(i, outputs[i])
                own[i].append(_errors(outputs[i], len(run), magnify))
            for position, dtype in enumerate(dtypes):
                if outputs[position].is_float:
                    outputs[position] = roundoff.stored(
                        outputs[position], dtype, mixed(position, _OUTPUT), spacing=True
                    )
        if start == 0:
            overflowing = roundoff.overflowing
        signed.append([])
        for position, q in enumerate(outputs):  # probes are dropped one by one: those of long outputs are large
            signed[-1].append(_errors(q, len(run), magnify))
            outputs[position] = replace(q, probes=None)
        found = found or outputs
    masks = tainted(graph, args, overflowing) if overflowing else [None] * len(found)
    errors = signed[0] if len(signed) == 1 else [torch.cat(parts) for parts in zip(*signed, strict=True)]
    largest = [FORMATS[dtype].largest if contract.rounds else math.inf for dtype in dtypes]
    split = SPLIT if splits else None
    whole = list[Budget]()
    for e, mask, limit in zip(errors, masks, largest, strict=True):
        whole.append(_budget(found.pop(0), e, mask, worst, limit, split))  # dropped one by one: outputs may be large
    for i in narrow:
        alone = _budget(bare[i], torch.cat(own[i]), None, worst, math.inf, split)
        most = FAR * alone.sigma if alone.worst is None else torch.maximum(FAR * alone.sigma, alone.worst)
        whole[i] = replace(whole[i], before=most)
    return whole


def _magnified(contract: Contract) -> float:
    """The factor by which units are larger in probes, so that float64 shows the errors of float64."""
    if not contract.rounds:
        return 1.0
    units = FORMATS[contract.dtype].unit_roundoff, FORMATS[contract.constants].unit_roundoff
    return max(min(_PROBED_AT / units[0], _CONSTANTS_AT / units[1]), 1.0)


def _schedule(graph: Graph, args: Sequence[Tensor], probes: int) -> tuple[int, int]:
    """The number of probes, and of those run at once; the largest tensor of the graph decides.

    The carries of all steps of a recurrence are as costly as a tensor, and are not kept if they are large.
    """
    kept, carries = [1, *(t.numel() for t in args)], [1]
    for node in graph.nodes:
        if isinstance(node.target, Recurrence):
            carries.append(node.target.carried(len(node.args[1][0].meta["val"])))  # type: ignore[index, union-attr]
        shape = getattr(node.meta.get("val", node.meta.get("tensor_meta")), "shape", None)
        if shape is not None:
            (carries if _is_taken(node) else kept).append(torch.Size(shape).numel())
    largest = max(*kept, *carries)
    count = next((min(probes, few) for size, few in _FEW_PROBES if largest >= size), probes)
    return count, max(1, _ELEMENTS_AT_ONCE // max(kept))


def _is_taken(node: Node) -> bool:
    """Whether it is the carries of all steps of a recurrence, which are not kept if they are large."""
    if not node.args or not isinstance(node.args[0], Node) or not isinstance(node.args[0].target, Recurrence):
        return False
    own = node.args[0].target
    return int(node.args[1]) - own.carries in own.carry_yielded  # type: ignore[arg-type]


def _input(value: Tensor, error: InputError | None, held: str, run: range, worst: bool, variances: bool) -> Quantity:
    value = value.detach()
    if not value.is_floating_point():
        return Quantity(value)
    value = value.to(torch.float64)
    if error is None:
        return Quantity(value, held=held)
    variance, bound, errors = error
    return Quantity(
        value,
        variance if variances else None,
        None,
        bound if worst else None,
        None if errors is None or not len(run) else value + errors[run.start : run.stop],
    )


def _errors(q: Quantity, count: int, magnify: float) -> Tensor:
    """[count, *shape] signed errors, scaled back by ``magnify``; 0 where the value is not finite."""
    if q.probes is None or not q.is_float:
        return torch.zeros((count, *q.value.shape), dtype=torch.float64)
    errors = q.probes - q.value
    if not all_finite(errors):
        errors = torch.where(q.value.isfinite(), torch.nan_to_num(errors, nan=0.0), 0.0)
    return errors if magnify == 1 else errors / magnify


def _budget(q: Quantity, errors: Tensor, mask: Tensor | None, worst: bool, largest: float, split: int | None) -> Budget:
    value = q.value.to(torch.float64)
    zero = torch.zeros_like(value)
    finite = value.isfinite()
    whole = bool(finite.all())

    def proper(error: Tensor | None) -> Tensor:
        if error is None:
            return zero
        if whole and all_finite(error):
            return error.expand_as(value)
        return torch.where(finite, torch.nan_to_num(error.expand_as(value), nan=0.0, posinf=1e300), 0.0)

    independent, floor = (zero if x is None else proper(x).sqrt() for x in (q.variance, q.floor))
    seen = _seen(errors, split) if len(errors) else zero
    sigma = torch.maximum(torch.maximum(independent, proper(seen)), floor)
    bound = torch.maximum(proper(q.worst), errors.abs().amax(0) if len(errors) else zero) if worst else None
    beyond = finite & (value.abs() <= largest) & (value.abs() + FAR * sigma > largest)
    if bool(beyond.any()):
        mask = beyond if mask is None else mask | beyond
    return Budget(value, sigma, independent, errors, bound, floor, mask)


def _seen(errors: Tensor, split: int | None) -> Tensor:
    """The rms of the probes (the literal one counts, too), and at least what the splitting probe shows."""
    if split is None or split >= len(errors):
        return torch.linalg.vector_norm(errors, dim=0).div_(math.sqrt(max(len(errors) - 1, 1)))
    before, after = (torch.linalg.vector_norm(some, dim=0) for some in (errors[:split], errors[split + 1 :]))
    seen = torch.hypot(before, after).div_(math.sqrt(max(len(errors) - 2, 1)))
    return torch.maximum(seen, errors[split].abs().mul_(_SPLIT_WITHIN))


def tainted(
    graph: Graph, args: Sequence[Tensor], overflowing: dict[Node, list[tuple[int | None, Tensor]]]
) -> list[Tensor | None]:
    """Where an output depends on an intermediate that overflows: NaN is planted there and traced to the outputs."""

    def run(plant: bool) -> list[Any]:
        def call(node: Node, args: Any, kwargs: Any) -> Any:
            given, planted = list(args), overflowing.get(node, []) if plant else []
            for operand, mask in planted:
                if operand is not None:
                    given[operand] = torch.where(mask, torch.nan, given[operand])
            result = functional(node)(*given, **widened(kwargs))
            if isinstance(node.target, Recurrence):
                for _, masks in planted:
                    result = [torch.where(mask, torch.nan, x) for mask, x in zip(masks, result, strict=True)]
                return result
            for operand, mask in planted:
                if operand is None:
                    result = torch.where(mask if mask.dim() == result.dim() else mask.any(0), torch.nan, result)
            return result

        return graph.interpreted(args, call)

    with torch.no_grad():
        masks = [
            planted.isnan() & ~plain.isnan() if plain.is_floating_point() else None
            for planted, plain in zip(run(True), run(False), strict=True)
        ]
    return [mask if mask is not None and bool(mask.any()) else None for mask in masks]
