"""Catalogue: families, kernels, laws and presets as text, for ``gradoracle list`` and ``gradoracle explain``."""

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


def listing(
    targets: Iterable[Target], universal: Sequence[Property], presets: Mapping[str, Contract], width: int = _WIDTH
) -> str:
    """What is shipped: each family with its signature, kernels and own laws, the universal laws, the presets."""
    lines: list[str] = ["families"]
    targets = list(targets)
    for target in targets:
        lines.append(f"  {target.family.name}{signature(target.family.signature)}")
        lines.append(f"      kernels: {', '.join(kernel.name for kernel in target.kernels)}")
        lines.append(f"      dtypes: {', '.join(target.family.dtypes)}")
    lines += ["", f"laws of every family ({len(universal)})", *_laws(universal, width)]
    for target in targets:
        own = target.family.properties
        lines += ["", f"laws of {target.family.name} ({len(own)})", *_laws(own, width)]
    lines += ["", "precision contracts (--contract DTYPE=PRESET)"]
    lines += [f"  {name:<12} for {preset.dtype}" for name, preset in presets.items()]
    return "\n".join(lines) + "\n"


def explanation(law: Property, families: Sequence[str], width: int = _WIDTH) -> str:
    """A law's contract: statement, why it holds, what it catches, what it cannot, what it needs, whose it is."""
    needs = ", ".join(need.value for need in law.needs) or "nothing beyond the forward"
    often = "" if law.one_in == 1 else f", judged on one case in {law.one_in}"
    often = ", judged once for each kernel and dtype" if law.scope == "kernel" else often
    parts = {
        "Holds because": law.because,
        "Catches": law.catches,
        "Cannot catch": law.cannot_catch,
        "Needs": needs + often,
        "Law of": ", ".join(families),
    }
    lines = [law.name, *_wrapped(law.statement, "  ", "  ", width)]
    for title, text in parts.items():
        lines += _wrapped(text, f"  {title + ':':<15}", " " * 17, width)
    return "\n".join(lines) + "\n"


def signature(read: Signature) -> str:
    """``(q[B H T D], *, causal=False) -> o[B H T Dv]``; an optional output stands with its option, ``s[B] if wide``."""
    positional = [" or ".join(_tensor(spec) for spec in place) for place in read.places]
    keyword = [f"{_tensor(spec)}=None" for spec in read.inputs if spec.keyword]
    keyword += [f"{option.name}={option.default!r}" for option in read.options]
    star = ["*"] if keyword else []
    outputs = ", ".join(f"{_tensor(s)}{f' if {s.asked_by}' if s.asked_by else ''}" for s in read.outputs)
    return f"({', '.join([*positional, *star, *keyword])}) -> {outputs}"


def _tensor(spec: TensorSpec) -> str:
    return f"{spec.name}[{' '.join(spec.dims)}]{' int' if spec.kind == 'int' else ''}"


def _laws(laws: Sequence[Property], width: int) -> list[str]:
    lines = []
    for law in laws:
        lines.append(f"  {law.name}")
        whose = "" if law.families.words == "every family" else f" A law of {law.families.words}."
        lines += _wrapped(f"{law.statement}{whose}", "      ", "      ", width)
    return lines or ["  none"]


def _wrapped(text: str, first: str, later: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=later, break_long_words=False) or [first]
