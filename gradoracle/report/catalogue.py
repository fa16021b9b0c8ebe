"""Catalogue: families, kernels, properties and presets as text, for ``gradoracle list`` and ``explain``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradoracle.model.contract import Contract
    from gradoracle.model.property import Property
    from gradoracle.model.signature import Signature, TensorSpec
    from gradoracle.project.target import Target

_WIDTH = 110


def listing(targets: Iterable[Target], universal: Sequence[Property], presets: Mapping[str, Contract]) -> str:
    """Each shipped family with its signature, kernels and own properties; the universal properties; the presets."""
    lines: list[str] = ["families"]
    targets = list(targets)
    for target in targets:
        lines.append(f"  {target.family.name}{signature(target.family.signature)}")
        domains = target.family.domains.items()
        if domains:
            lines.append(f"      integers: {'; '.join(f'{name} {domain.words}' for name, domain in domains)}")
        lines.append(f"      kernels: {', '.join(kernel.name for kernel in target.kernels)}")
        lines.append(f"      dtypes: {', '.join(target.family.dtypes)}")
    lines += ["", properties(targets, universal).rstrip("\n")]
    if presets:
        lines += ["", "precision contracts (--contract DTYPE=PRESET)"]
        lines += [f"  {name:<12} for {preset.dtype}" for name, preset in presets.items()]
    return "\n".join(lines) + "\n"


def properties(targets: Iterable[Target], universal: Sequence[Property]) -> str:
    """The universal properties and those of each family; no universal ones are left out of the text."""
    lines = [f"properties of every family ({len(universal)})", *_properties(universal)] if universal else []
    for target in targets:
        own = target.family.properties
        lines += [*([""] if lines else []), f"properties of {target.family.name} ({len(own)})", *_properties(own)]
    return "\n".join(lines) + "\n"


def explanation(prop: Property, families: Sequence[str]) -> str:
    """A property in full: its statement, why it holds, what it catches and cannot, what it needs, its families."""
    needs = ", ".join(need.value for need in prop.needs) or "forward"
    often = "" if prop.one_in == 1 else f", judged on one case in {prop.one_in}"
    often = ", judged once for each kernel and dtype" if prop.scope == "kernel" else often
    often += " by gradoracle gate, and by check where --property names it" if prop.kind.value == "compilation" else ""
    parts = {
        "Holds because": prop.because,
        "Catches": prop.catches,
        "Cannot catch": prop.cannot_catch,
        "Needs": needs + often,
        "Families": ", ".join(families),
    }
    lines = [prop.name, *_wrapped(prop.statement, "  ", "  ")]
    for title, text in parts.items():
        lines += _wrapped(text, f"  {title + ':':<15}", " " * 17)
    return "\n".join(lines) + "\n"


def signature(read: Signature) -> str:
    """``(q[B H T D], *, causal=False) -> o[B H T Dv]``; an optional output with its option: ``s[B] if wide``."""
    positional = [" or ".join(_tensor(spec) for spec in place) for place in read.places]
    keyword = [f"{_tensor(spec)}=None" for spec in read.inputs if spec.keyword]
    keyword += [f"{option.name}={option.default!r}" for option in read.options]
    star = ["*"] if keyword else []
    outputs = ", ".join(f"{_tensor(s)}{f' if {s.asked_by}' if s.asked_by else ''}" for s in read.outputs)
    return f"({', '.join([*positional, *star, *keyword])}) -> {outputs}"


def _tensor(spec: TensorSpec) -> str:
    return f"{spec.name}[{' '.join(spec.dims)}]{' int' if spec.kind == 'int' else ''}"


def _properties(properties: Sequence[Property]) -> list[str]:
    lines = []
    for each in properties:
        lines.append(f"  {each.name}")
        whose = "" if each.families.words == "every family" else f" (For {each.families.words}.)"
        lines += _wrapped(f"{each.statement}{whose}", "      ", "      ")
    return lines or ["  none"]


def _wrapped(text: str, first: str, later: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=later, break_long_words=False) or [first]
