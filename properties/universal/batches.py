"""Properties of batches: members that are independent in the definition are so in the kernel, in any order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch
from gradoracle.properties.agreement import agree, derivative_of
from gradoracle.properties.applicability import OF_A_DIM_OF_ALL_OUTPUTS, small_enough
from gradoracle.properties.members import (
    apart,
    appended,
    changed,
    everywhere,
    extensible,
    isolates_gradients,
    permutable,
    rolled,
    separable,
    together_extensible,
    within_domains,
)
from torch import Tensor

from gradoracle.check.evidence import Evidence
from gradoracle.model.call_errors import Refused, Unavailable
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.property import property
from gradoracle.model.reason import Reason


@property(applies=small_enough, one_in=5)
def batch_and_head_permutation_equivariance(evidence: Evidence) -> Iterator[Finding]:
    """Permuting the members of a batch, or the heads, permutes outputs and gradients alike, with no other change.

    Holds because: the definition itself has this symmetry, which is tried on it in float64 for each named dim before
    the kernel is called (so the queries of attention count, and those of causal attention do not). The gradient of
    what all members share does not change. All such dims are rolled at once by one member, dims that divide one
    another (key heads and the query heads that share them) by the same part of each.
    Catches: an index that exchanges the data of members, a stride multiplied by the wrong id, the first or
    last member treated differently, a tile that is skipped at some places. vjp_matches_the_oracle sees it too.
    Cannot catch: a fault that is the same for all members; forward_matches_the_oracle does.
    """
    _require_members_alike(evidence)
    along, family = permutable(evidence), evidence.oracle.family
    turned = {n: rolled(t, family.signature.input(n).dims, along) for n, t in evidence.sample.inputs.items()}
    if not along or not within_domains(evidence, turned):
        raise Unavailable("no permutable dim has more than one member")
    moved = evidence.variant(
        "members rolled",
        lambda sample: changed(family, sample, lambda tensor, dims, name: rolled(tensor, dims, along)),
    )
    back = {name: rolled(tensor, evidence.axes(name), along, -1) for name, tensor in moved.results().items()}
    yield from agree(evidence, back, evidence.results())


@property(applies=small_enough, one_in=5, families=OF_A_DIM_OF_ALL_OUTPUTS)
def batch_members_are_independent(evidence: Evidence) -> Iterator[Finding]:
    """A batch member that is NaN throughout does not change the outputs and gradients of the other members.

    Holds because: along a dim that every output has, and along which members are independent in the definition, no
    value of one member enters another's result. NaN survives every multiplication by a mask. The gradient of an input
    that all members share is left out: it is a sum over them. Gradients are left out where autograd carries the
    NaN to other members' in the definition itself, as softmax does if a mask leaves one key.
    Catches: a load that runs over into the next member and is masked by multiplication, a reduction over the whole
    tensor, a sum across the batch, programs that share a tile. tail_and_padding_invariance sees the sums.
    Cannot catch: what happens within a member; the matching properties do.
    """
    family = evidence.oracle.family
    evidence.results()  # what is refused without NaN is refused
    dims = sorted(separable(evidence))
    if not dims:
        raise Unavailable("no dim with independent members has more than one")
    dim = dims[evidence.case.seed % len(dims)]

    def spoilt(tensor: Tensor, own: tuple[str, ...], name: str) -> Tensor:
        if dim not in own or not tensor.is_floating_point():
            return tensor
        tensor = tensor.clone(memory_format=torch.contiguous_format)
        tensor.narrow(own.index(dim), tensor.shape[own.index(dim)] - 1, 1).fill_(torch.nan)
        return tensor

    variant = evidence.variant(f"NaN in the last of {dim}", lambda sample: changed(family, sample, spoilt))
    try:
        variant.results()
    except Refused as refusal:
        raise Unavailable(f"the kernel refuses NaN: {refusal}") from None
    others: dict[str, Tensor] = {}
    having = {name: tensor for name, tensor in evidence.results().items() if dim in evidence.axes(name)}
    outputs = {name: x for name, x in having.items() if derivative_of(evidence, name) is Derivative.FORWARD}
    if len(outputs) < len(having) and not isolates_gradients(evidence, variant.sample, dim):
        having = outputs
    for name, base in having.items():
        axis, tensor = evidence.axes(name).index(dim), variant.results()[name]
        last = base.shape[axis] - 1
        others[name] = torch.cat([tensor.narrow(axis, 0, last), base.narrow(axis, last, 1)], axis)
    yield from agree(evidence, others, having, label=f", without the last of {dim}")


@property(applies=small_enough, one_in=5)
def tail_and_padding_invariance(evidence: Evidence) -> Iterator[Finding]:
    """Appending a member along a dim, where the definition allows it, does not change the results for existing members.

    Holds because: the definition, tried in float64 for each dim first, gives the existing members the same outputs. The
    new members' cotangents are 0 where an input is shared or an earlier member enters later ones, so gradients are
    unchanged.
    Catches: tails: results that depend on whether a dim fills its tile, a mask off by one at the end, a grid too
    short, a row read from beyond the end, members that affect each other. vjp_matches_the_oracle sees it at the
    sizes that it meets.
    Cannot catch: tails of dims that are summed over; the properties of each family look at those.
    """
    _require_members_alike(evidence)
    family, case = evidence.oracle.family, evidence.case
    dims = frozenset(d for d in extensible(evidence) if _allowed(evidence, d, case.dims[d] + 1))
    dims = together_extensible(evidence, dims)
    if not dims:
        raise Unavailable("appending a member along any dim changes the results for existing members")
    more = appended(evidence, dims, dims - everywhere(evidence, apart(evidence)), seed=case.seed)
    variant = evidence.variant(
        "members appended",
        lambda sample: replace(
            changed(
                family, sample, more.larger, lambda tensor, own, name: more.larger(tensor, own, f"d{name}", True), True
            ),
            inputs=more.inputs(family, sample.inputs),
        ),
    )
    before: Mapping[str, Tensor] = evidence.results()
    after = {name: more.former(tensor, evidence.axes(name)) for name, tensor in variant.results().items()}
    yield from agree(evidence, after, before)


def _require_members_alike(evidence: Evidence) -> None:
    """Raises Unavailable where a kernel draws random numbers that the definition does not know."""
    random = evidence.oracle.family.random
    if evidence.kernel.revealed or (random is not None and (random.mean or random.rounded)):
        raise Unavailable("random numbers belong to places, so a member at another place has others", Reason.RANDOM)


def _allowed(evidence: Evidence, dim: str, size: int) -> bool:
    """Whether family and kernel take this size of a dim."""
    domains = [evidence.oracle.family.dims.get(dim), evidence.kernel.dims.get(dim)]
    return all(domain is None or size in domain for domain in domains)
