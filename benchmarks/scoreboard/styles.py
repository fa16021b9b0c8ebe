"""Styles of input: inputs like those of peers' own tests, and cases of ``gradoracle check``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from gradoracle.cases.case_space import CaseSpace
from gradoracle.cases.strategy import plainest
from gradoracle.model.case import Case, parse
from gradoracle.model.dims import Sizes
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel

PEERS, OURS = "peers' own inputs", "our cases"
STYLES = (PEERS, OURS)

LONGEST, LARGEST = 300, 3_000_000
"""The largest dim, and the largest product of all dims, of our cases that are used."""

POOL, MOST, MOST_OF_A_BUG = 126, 40, 16
"""How many of our cases are prepared for a family, and on how many of these a mutant or a bug is tried at most."""

ENTRIES = 60
"""How many entries of float inputs gradcheck is given at most: it calls the kernel twice for each."""

SMALL = 4
"""The size of dims for differences, in families for which no peer's test is listed."""

LOW, HIGH = ("float16", "bfloat16"), ("float32",)
CHECK_GRADS = "JAX check_grads"
_JAX = "differences: arrays of a few entries"


@dataclass(frozen=True)
class Listed:
    """A shape of a peer's test, scaled down: a case line without its first words, dtypes, and the test it resembles."""

    line: str
    dtypes: tuple[str, ...]
    like: str
    only: str = ""  # the only rule judged on it

    def cases(self, family: str) -> Iterator[Case]:
        """One case for each dtype, with normal, contiguous tensors and a fixed seed."""
        for dtype in self.dtypes:
            yield parse(f"case:1 {family} cpu {dtype} {self.line} seed=42")[2]


LISTED: Mapping[str, tuple[Listed, ...]] = {
    "sdpa": (
        Listed(
            "B=1 H=2 T=113 M=203 D=32 Dv=32 --causal=true",
            LOW,
            "flash-attention 2: more members and heads, T to 2048, D to 256",
        ),
        Listed("B=1 H=2 T=108 M=256 D=64 Dv=64", LOW, "flash-attention 2: more members and heads, T to 2048, D to 256"),
        Listed(
            "B=1 H=2 T=128 M=128 D=64 Dv=64 --causal=true q~normal:0.5 k~normal:0.5 v~normal:0.5",
            ("float16", *HIGH),
            "Triton tutorial: 4 members, 48 heads, T = M to 4096",
        ),
        Listed("B=1 H=2 T=64 M=64 D=64 Dv=64", HIGH, "KernelBench: 32 members, 32 heads, T = M = 512, D = 1024"),
        Listed("B=1 H=1 T=5 M=4 D=3 Dv=3 --causal=true", HIGH, _JAX, CHECK_GRADS),
        Listed("B=1 H=1 T=4 M=5 D=3 Dv=3", HIGH, _JAX, CHECK_GRADS),
    ),
    "lse": (
        Listed("B=1 H=1 G=1 T=128 M=256 D=64", (*HIGH, *LOW), "ml-cross-entropy: 256 tokens, 512 words, D = 512"),
        Listed(
            "B=1 H=1 G=1 T=126 M=253 D=61 --softcap=20.0",
            (*HIGH, *LOW),
            "ml-cross-entropy: 252 tokens, 507 words, D = 497, soft cap 20",
        ),
        Listed("B=1 H=2 G=1 T=113 M=203 D=64 --causal=true sinks~normal", LOW, "flash-attention 4, with sinks"),
        Listed("B=1 H=1 G=1 T=5 M=4 D=3", HIGH, _JAX, CHECK_GRADS),
        Listed("B=1 H=2 G=1 T=4 M=5 D=3 --causal=true sinks~normal", HIGH, _JAX, CHECK_GRADS),
    ),
    "lightning": (
        Listed("B=1 H=2 N=64 D=64 Dv=64", ("float16", *HIGH), "flash-linear-attention, its one lightning shape"),
        Listed(
            "B=2 H=2 N=128 D=60 Dv=60 --return_state=true initial_state~normal",
            ("float16", *HIGH),
            "flash-linear-attention, linear attention: T to 2048, D = 60",
        ),
        Listed("B=1 H=2 N=256 D=64 Dv=64 --return_state=true", ("bfloat16",), "flash-linear-attention, T to 2048"),
        Listed("B=1 H=1 N=5 D=3 Dv=3", HIGH, _JAX, CHECK_GRADS),
        Listed("B=1 H=1 N=4 D=3 Dv=2 --return_state=true initial_state~normal", HIGH, _JAX, CHECK_GRADS),
    ),
    "semicrf": (
        Listed("B=2 T=7 K=3 C=2 transition~normal", HIGH, "torch-struct: small batches, few labels and durations"),
        Listed("B=2 T=32 K=4 C=3 transition~normal", (*HIGH, *LOW), "as torch-struct, longer"),
        Listed("B=1 T=128 K=8 C=4 transition_by_duration~normal", HIGH, "as torch-struct, longer"),
        Listed("B=2 T=4 K=2 C=2 transition~normal", HIGH, _JAX, CHECK_GRADS),
    ),
}
"""Shapes of the peers' tests of such kernels, scaled so that the interpreter takes at most seconds for each."""

DTYPES: Mapping[str, tuple[str, ...]] = {
    "flash-attention 2": LOW,
    "flash-attention 4": LOW,
    "Triton tutorial": ("float16",),
    CHECK_GRADS: HIGH,
}
"""Dtypes of a peer's tests, if fewer than all; only for peers' own inputs."""

TINY: Mapping[str, tuple[str, ...]] = {
    "sdpa": ("B=1 H=1 T=3 M=4 D=2 Dv=2 --causal=true", "B=1 H=1 T=3 M=3 D=2 Dv=2"),
    "lse": ("B=1 H=1 G=1 T=3 M=4 D=2",),
    "lightning": ("B=1 H=1 N=4 D=2 Dv=2",),
    "semicrf": ("B=1 T=4 K=2 C=2 transition~normal",),
}
"""Inputs of gradcheck, in float64."""


def alone(style: str, case: Case) -> str:
    """The only rule judged on a case, "" for all: among peers' own inputs, small ones are for differences."""
    if style != PEERS:
        return ""
    listed = [each for each in LISTED.get(case.family, ()) if case in each.cases(case.family)]
    if listed:
        return listed[0].only
    return CHECK_GRADS if max(case.dims.values(), default=1) <= SMALL else ""


def fits(case: Case, family: Family, kernel: Kernel) -> bool:
    """Whether a kernel declares that it accepts a case."""
    if kernel.dtypes is not None and case.dtype not in kernel.dtypes:
        return False
    if any(kernel.options.get(name) == () for name in (*case.options, *case.draws)):
        return False
    if any(name in kernel.options and value not in kernel.options[name] for name, value in case.options.items()):
        return False
    dims = {**family.dims, **kernel.dims}
    return all(size in dims[name] for name, size in case.dims.items())


def peers_cases(family: Family, kernel: Kernel) -> list[Case]:
    """Inputs like those of peers' tests: those listed for the family that the kernel accepts, or else similar ones."""
    found = [case for each in LISTED.get(family.name, ()) for case in each.cases(family.name)]
    taken = [case for case in found if fits(case, family, kernel)]
    return taken or _alike(family, kernel)


def tiny_cases(family: Family, kernel: Kernel) -> list[Case]:
    """Inputs of gradcheck for a family, in float64, that fit the kernel in all but the dtype."""
    lines = TINY.get(family.name, ())
    found = [parse(f"case:1 {family.name} cpu float64 {line} seed=42")[2] for line in lines]
    if found:
        return [case for case in found if fits(case, family, replace(kernel, dtypes=None))]
    return [replace(_plain(family, kernel, "float64", 4), dtype="float64")]


def our_cases(cases: Sequence[Case], most: int = POOL) -> list[Case]:
    """The first cases of a stream that are small enough."""
    small = [c for c in cases if max(c.dims.values(), default=1) <= LONGEST and prod(c.dims.values()) <= LARGEST]
    return small[:most]


def _alike(family: Family, kernel: Kernel) -> list[Case]:
    """Cases with powers of two, for a family for which no peer's test is listed."""
    dtypes = [d for d in (*HIGH, *LOW) if d in family.dtypes and (kernel.dtypes is None or d in kernel.dtypes)]
    found = [_plain(family, kernel, dtype, size) for size in (64, 32) for dtype in dtypes]
    return list(dict.fromkeys([*found, _plain(family, kernel, dtypes[0], SMALL)]))


def _plain(family: Family, kernel: Kernel, dtype: str, size: int) -> Case:
    """A case of normal, contiguous tensors whose dims are the largest allowed power of two up to ``size``."""
    dims = {name: _allowed(sizes, kernel.dims.get(name)) for name, sizes in family.dims.items()}
    within = CaseSpace(family, kernel, (dtype,), dims)
    case = plainest(within)
    expected = {name: _power(sizes, 2 if name in within.batch else size) for name, sizes in dims.items()}
    return replace(case, dims=within.settled(expected), blocks="", seed=42)


def _allowed(sizes: Sizes, own: Sizes | None) -> Sizes:
    return sizes if own is None else sizes.intersect(own)


def _power(sizes: Sizes, most: int) -> int:
    """The largest power of two up to ``most`` among some sizes; if there is none, the smallest size."""
    powers = [1 << n for n in range(most.bit_length()) if 1 << n <= most and 1 << n in sizes]
    return max(powers, default=sizes.smallest)
