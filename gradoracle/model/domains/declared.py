"""Declared domains: those of all integer inputs of a family, checked against its signature and one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gradoracle.model.domains.domain import Domain
from gradoracle.model.domains.index_domain import IndexDomain
from gradoracle.model.signature import Signature


def declared_domains(
    owner: str, signature: Signature, domains: Mapping[str, Domain], together: Sequence[Sequence[str]] = ()
) -> dict[str, Domain]:
    """The domain of each integer input; that of bools need not be declared.

    Args:
        owner: whose they are, for messages.
        signature: names the inputs and their dims.
        domains: those that are declared, by input.
        together: groups of optional inputs that are given together or not at all.

    Raises:
        ValueError: an integer input has none, one is of no integer input or cannot be that input's, a bound names no
            dim, or an input that another one reads has no sequences or may be absent where the other is given.
    """
    specs = {spec.name: spec for spec in signature.inputs if spec.kind == "int"}
    found: dict[str, Domain] = {name: IndexDomain(2) for name, spec in specs.items() if spec.dtype == "bool"}
    found |= domains
    if missing := [name for name in specs if name not in found]:
        raise ValueError(
            f"{owner}: integer inputs {missing} need a domain, such as "
            f"domains={{{missing[0]!r}: gradoracle.IndexDomain(...)}}"
        )
    for name, domain in found.items():
        if name not in specs:
            known = f"expected some of {', '.join(specs)}" if specs else "it has none"
            raise ValueError(f"{owner}: domains names {name!r}, which is no integer input; {known}")
        if not isinstance(domain, Domain):
            raise ValueError(
                f"{owner}: the domain of {name} is {domain!r}; expected one such as gradoracle.IndexDomain"
            )
        if misfit := domain.misfit(specs[name]):
            raise ValueError(f"{owner}: {name} {misfit}")
        if unknown := [dim for dim in domain.dims if dim not in signature.dims]:
            raise ValueError(
                f"{owner}: the domain of {name} names {unknown[0]}, which is no dim; expected some of "
                f"{', '.join(signature.dims)}"
            )
        for read in domain.reads:
            _require_read(owner, name, read, found, signature, together)
    return found


def _require_read(
    owner: str,
    name: str,
    read: str,
    domains: Mapping[str, Domain],
    signature: Signature,
    together: Sequence[Sequence[str]],
) -> None:
    """Check that an input may be read by the domain of another; raises as ``declared_domains`` does."""
    wanted = domains[name].wanted
    if read not in domains or not domains[read].is_read_as(wanted):
        known = [each for each, domain in domains.items() if domain.is_read_as(wanted)]
        expected = (
            f"expected one of {', '.join(known)}" if known else f"expected an input of {wanted}, which it has not"
        )
        raise ValueError(f"{owner}: the domain of {name} reads {read!r}; {expected}")
    same = any({name, read} <= set(group) for group in together)
    if signature.input(read).optional and not same:
        raise ValueError(
            f"{owner}: the domain of {name} reads {read}, which may be absent; expected both in a group of together"
        )


def at_most_of(signature: Signature, domains: Mapping[str, Domain]) -> tuple[tuple[str, str], ...]:
    """Pairs of dims, or expressions of dims, of which the first is never larger: see ``Domain.at_most``."""
    dims = {spec.name: spec.dims for spec in signature.inputs}
    return tuple(pair for name, domain in domains.items() for pair in domain.at_most(dims[name]))


def in_reading_order(domains: Mapping[str, Domain], names: Sequence[str]) -> list[str]:
    """The names with those that others read in front."""
    return sorted(names, key=lambda name: len(domains[name].reads) if name in domains else 0)
