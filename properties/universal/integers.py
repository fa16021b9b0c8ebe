"""The property of outputs without a derivative: indices, counts, flags."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from gradoracle.properties.applicability import small_enough

from gradoracle.check.acceptance import TOO_WIDE, exactly, not_checked
from gradoracle.check.evidence import Evidence
from gradoracle.model.call_errors import wrong
from gradoracle.model.finding import Finding
from gradoracle.model.property import Families, PropertyKind, property
from gradoracle.model.reason import Reason
from gradoracle.oracle.rounding.integers import integers

OF_INTEGERS = Families("every family with an integer output", lambda family: bool(family.signature.whole))


@property(applies=small_enough, families=OF_INTEGERS, kind=PropertyKind.ORACLE)
def integer_outputs_equal_those_of_the_definition(evidence: Evidence) -> Iterator[Finding]:
    """Each integer output equals that of the definition, where rounding cannot change it.

    Holds because: an index or a flag is a step function of values that a correct kernel has up to rounding; where 16
    runs of the definition with every result off by a rounding agree, a correct kernel agrees with them. What sort,
    topk, max, min or argmax choose may be any index whose value ties with that of the rank within what these runs move
    both, given once; of values that are equal as given, a stable sort keeps the order.
    Catches: an index counted from the tile and not from the row, off by one at a tail, an index that is given twice or
    lies outside, a flag of another comparison.
    Cannot catch: which of several values an index names that rounding does not tell apart.
    """
    subject, sample = evidence.subject, evidence.sample
    got = evidence.keep("integer outputs", lambda: subject.integers(sample, evidence.blocks))
    dims = {spec.name: spec.dims for spec in evidence.oracle.family.signature.whole}
    for name, true in integers(evidence.oracle.family, sample, evidence.contract).items():
        found = got[name].detach().to("cpu", torch.int64)
        if found.shape != true.value.shape:
            raise wrong(name, f"{name} has shape {tuple(found.shape)}, expected {tuple(true.value.shape)}")
        undecided = int(true.undecided.sum())
        if undecided == found.numel():
            open_ = not_checked(name, f"{TOO_WIDE}: rounding may change every element")
            yield replace(open_, undecided=undecided, why=Reason.BUDGET)
            continue
        message, values = f"{name} differs from that of the definition", (found, true.value)
        fact = exactly(name, true.wrong(found), message, axes=dims[name], values=values)
        yield replace(fact, elements=found.numel() - undecided, undecided=undecided)
