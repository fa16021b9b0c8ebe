"""Coverage goals: which a case meets, and how many cases of a run must meet each.

A run in which a goal stays below its minimum is inconclusive.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gradoracle.cases.case_space import LARGE, TAIL, TILE, VERY_LARGE, CaseSpace, batch_dims, case_space, pairs
from gradoracle.model import layouts, recipes
from gradoracle.model.case import Case, Draw
from gradoracle.model.dims import Sizes
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel
from gradoracle.model.signature import TensorSpec, cotangent_name
from gradoracle.model.wording import counted

FULL_RUN = 100  # cases from which every goal is expected to be met


@dataclass(frozen=True)
class Focus:
    """What a case must have to meet one goal; everything else is as usual.

    Attributes:
        goal: the name of the goal; "" for none.
        sizes: the sizes that a dim may have.
        ranks: the number of dims that each ``*NAME`` must stand for.
        less: two dims; the first must be smaller.
        large: the dim above ``LARGE``, with its sizes in ``sizes``; the rest of the case is plain and small.
        dtype: the dtype of the case.
        options: the options that are fixed.
        recipe: the recipe of one tensor, and whether it gives integers.
        layout: the layout of one tensor, and whether it is a cotangent.
        joint: a joint recipe of the family.
        given: an optional input, and whether it is given.
        blocks: the block configuration, "auto" for none.
    """

    goal: str = ""
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)
    less: tuple[str, str] | None = None
    large: str = ""
    dtype: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    recipe: tuple[str, bool] | None = None
    layout: tuple[str, bool] | None = None
    joint: str = ""
    given: tuple[str, bool] | None = None
    blocks: str = ""


def goals_of(family: Family, kernel: Kernel, case: Case) -> frozenset[str]:
    """The names of the goals that a case meets."""
    return frozenset(_goals_of(family, kernel, case))


def wanted_goals(
    family: Family,
    kernel: Kernel,
    dtypes: Sequence[str],
    examples: int,
    dims: Mapping[str, Sizes] | None = None,
) -> dict[str, int]:
    """How many cases of a run must meet each goal that kernel, dtypes and dims make possible.

    From ``FULL_RUN`` cases on: every goal, one case and one more per 250 (per 2 500 for dims above 100 000). A shorter
    run with at least as many cases as dtypes: one case of each dtype.
    """
    within = case_space(family, kernel, dtypes=dtypes, dims=dims)
    if examples < FULL_RUN:
        return {f"dtype {dtype}": 1 for dtype in within.dtypes} if examples >= len(within.dtypes) else {}
    return {focus.goal: 1 + examples // (2_500 if focus.large else 250) for focus in focuses(within)}


def focuses(within: CaseSpace) -> tuple[Focus, ...]:
    """A focus for every goal that the domain makes possible, the rarest first."""
    return tuple(_focuses(within))


def _goals_of(family: Family, kernel: Kernel, case: Case) -> Iterator[str]:
    signature = family.signature.at(case.dims)
    for starred, count in family.signature.ranks(case.dims).items():
        yield _of_rank(starred, count)
    for dim, size in case.dims.items():
        yield from (name.format(dim) for name, holds in _SIZE_GOALS.items() if holds(size))
    for a, b in pairs(signature):
        if case.dims[a] != case.dims[b]:
            yield f"{a} < {b}" if case.dims[a] < case.dims[b] else f"{a} > {b}"
    yield f"dtype {case.dtype}"
    for spec in signature.options:
        if kernel.options.get(spec.name, (spec.default,)):
            yield f"{spec.name} = {case.options.get(spec.name, spec.default)}"
    if kernel.blocks:
        yield f"blocks {case.blocks or 'auto'}"
        least = _of_many_programs(kernel, case.dtype, case.dims, case.blocks, batch_dims(signature))
        if least and all(case.dims[dim] >= size for dim, size in least.items()):
            yield _MANY_PROGRAMS.format(case.blocks)
    for tensor in signature.inputs:
        present = not tensor.optional or tensor.name in case.draws
        if tensor.optional and kernel.options.get(tensor.name) != ():
            yield f"{tensor.name} {'given' if present else 'absent'}"
        if present:
            default = Draw() if tensor.kind == "float" else Draw("index")
            yield from _drawn(case, case.draws.get(tensor.name, default), tensor, "input")
    for tensor in signature.returned(case.options):
        if tensor.kind == "float":
            yield from _drawn(case, case.draw(cotangent_name(tensor.name)), tensor, "cotangent")
    for name, joint in family.joint.items():
        there = (spec for spec in signature.inputs if not spec.optional or spec.name in case.draws)
        names = {spec.name for spec in there} | {cotangent_name(s.name) for s in signature.returned(case.options)}
        same = (case.draw(tensor).recipe == recipes.canonical(text) for tensor, text in joint.items())
        if set(joint) <= names and all(same):
            yield f"joint {name}"


def _drawn(case: Case, draw: Draw, tensor: TensorSpec, role: str) -> Iterator[str]:
    name, _, parameter = draw.recipe.partition(":")
    yield f"recipe {name}:p" if parameter and name == "normal" else f"recipe {name}"
    if layouts.LAYOUTS[draw.layout].fits(tensor.shape(case.dims)):
        yield f"{role} {draw.layout}"


def _of_rank(starred: str, count: int) -> str:
    return f"{starred} is {counted(count, 'dim')}"


_MANY_PROGRAMS = "blocks {}, several batch members and tiles"
_SIZE_GOALS: Mapping[str, Callable[[int], bool]] = {
    "{} = 1": lambda size: size == 1,
    "{} has a tail": lambda size: size % TAIL != 0,
    "{} has 3 tiles": lambda size: size > 2 * TILE,
    "{} > 100 000": lambda size: size > LARGE,
    "{} > 1 000 000": lambda size: size > VERY_LARGE,
}


def _focuses(within: CaseSpace) -> Iterator[Focus]:
    for starred in within.spreads:
        for count in within.counts(starred):
            yield Focus(_of_rank(starred, count), ranks={starred: count})
    for dim in within.dims:
        for above, name in ((LARGE, f"{dim} > 100 000"), (VERY_LARGE, f"{dim} > 1 000 000")):
            if found := within.large(dim, above):
                yield Focus(name, large=dim, sizes={dim: found})
    for joint in within.joint:
        yield Focus(f"joint {joint}", joint=joint)
    for text in (*recipes.RECIPES, "normal:p"):
        yield Focus(f"recipe {text}", recipe=("normal:3" if text == "normal:p" else text, False))
    for text in dict.fromkeys(text for name in within.integers for text in within.recipes(name, integers=True)):
        yield Focus(f"recipe {text}", recipe=(text, True))
    yield from _layout_focuses(within)
    for dim in within.dims:
        for name, holds in list(_SIZE_GOALS.items())[:3]:
            fitting = tuple(size for size in dict.fromkeys(within.favoured(dim)) if holds(size))
            if fitting:
                yield Focus(name.format(dim), sizes={dim: fitting})
    for a, b in within.pairs:
        for low, high, name in ((a, b, f"{a} < {b}"), (b, a, f"{a} > {b}")):
            possible = within.signature.constraints.comparable(low, high)
            if possible and within.favoured(low)[0] < within.favoured(high)[-1]:
                yield Focus(name, less=(low, high))
    for option, values in within.options.items():
        for value in values:
            yield Focus(f"{option} = {value}", options={option: value})
    for tensor in within.optional:
        yield Focus(f"{tensor} given", given=(tensor, True))
        if (tensor,) not in within.alternatives:  # an only alternative is always given
            yield Focus(f"{tensor} absent", given=(tensor, False))
    if within.kernel.blocks:
        for blocks in ("auto", *within.kernel.blocks):
            yield Focus(f"blocks {blocks}", blocks=blocks)
        yield from _block_focuses(within)
    for dtype in within.dtypes:
        yield Focus(f"dtype {dtype}", dtype=dtype)


def _of_many_programs(
    kernel: Kernel, dtype: str, dims: Mapping[str, int], blocks: str, batch: Collection[str]
) -> dict[str, int]:
    """The least sizes at which a named block configuration has several batch members and three tiles of each dim.

    Only then is every term of a program's index above 0, and every carry between tiles. Empty: it cuts no dim.
    """
    found = kernel.tiles_of(dtype, dims, blocks, 1) if blocks else {}
    tiles = {dim: tile for dim, tile in found.items() if dim in dims}
    return dict.fromkeys(batch, 2) | {dim: 2 * tile + 1 for dim, tile in tiles.items()} if tiles else {}


def _block_focuses(within: CaseSpace) -> Iterator[Focus]:
    most = {dim: within.favoured(dim)[-1] for dim in within.dims}
    kernel = within.kernel
    for blocks in kernel.blocks:
        able = (dtype for dtype in within.dtypes if kernel.fits is None or blocks in kernel.fits(dtype, most))
        for dtype in able:
            least = _of_many_programs(kernel, dtype, most, blocks, within.batch)
            fitting = {dim: _from(within, dim, size) for dim, size in least.items()}
            if least and all(fitting.values()):
                yield Focus(_MANY_PROGRAMS.format(blocks), sizes=fitting, dtype=dtype, blocks=blocks)
                break


def _from(within: CaseSpace, dim: str, least: int) -> tuple[int, ...]:
    """The two smallest of the favoured sizes from one on."""
    return tuple(size for size in dict.fromkeys(within.favoured(dim)) if size >= least)[:2]


def _layout_focuses(within: CaseSpace) -> Iterator[Focus]:
    """Layouts that some input, or some cotangent, can have at favoured sizes."""
    roles = (("input", within.signature.inputs), ("cotangent", within.outputs))
    for role, tensors in roles:
        for layout in layouts.LAYOUTS.values():
            for spec in tensors:
                most = spec.shape({dim: within.favoured(dim)[-1] for dim in within.dims})
                if (spec.kind == "float") and layout.fits(most):
                    yield Focus(f"{role} {layout.name}", layout=(layout.name, role == "cotangent"))
                    break
