"""Strategy: how one case is generated: its plain values, never the numbers in its tensors, so it is fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gradoracle.cases.case_space import CaseSpace
from gradoracle.cases.coverage import Focus
from gradoracle.model import layouts, recipes
from gradoracle.model.case import Case, Draw
from gradoracle.model.dims import dim_names
from gradoracle.model.signature import cotangent_name, tangent_name

V = TypeVar("V")
Choose = Callable[[Sequence[V]], V]

_MOST_ROWS = 60_000  # product of ``CaseSpace.rows``; ordinary cases are clamped to it
_MOST_ELEMENTS = 1 << 19  # of one tensor
_NARROW, _SHORT = 8, 17  # the other dims of a case with a large one: features, and lengths

# What the values of a case are, and how often: about half of the cases are continuous and plain.
_MODES = ("plain",) * 9 + ("scaled",) * 4 + ("one special",) * 4 + ("joint",) * 1 + ("all special",) * 2
_SCALED = (
    "normal", "normal", "normal:3", "normal:0.1", "normal:10", "normal:0.001", "uniform", "positive", "alternating",
    "ramp", "wide", "outlier",
)  # fmt: skip
_SPECIAL = (
    *(name for name in recipes.RECIPES if name != "normal"),
    "largemean:1000",
    "ties:2",
    "constant:1",
    "normal:30",
)
_LAYOUT_MODES = ("contiguous",) * 5 + ("one",) * 3 + ("each",) * 2
_OTHER_LAYOUTS = tuple(name for name in layouts.LAYOUTS if name != "contiguous")
_RELATIONS = ("free",) * 3 + ("equal",)
_NO_FOCUS = Focus()


def drawn(index: Callable[[int], int], within: CaseSpace, towards: Sequence[Focus], *, often: int = 1) -> Case:
    """One case, sizes small in the mean: 1, 2, powers of two and one either side, primes and block edges.

    Args:
        index: the source of random numbers: ``index(n)`` is one of 0 .. n - 1, for n up to 100.
        within: what is allowed.
        towards: coverage goals.
        often: one case in this many is generated towards one of the goals.
    """
    turns = (False,) * (often - 1) + (bool(towards),)

    def choose(values: Sequence[V]) -> V:
        return values[_place(index, len(values))]

    return draw_case(choose, within, choose(towards) if choose(turns) else _NO_FOCUS)


def plainest(within: CaseSpace) -> Case:
    """The case of first choices: small dims, the first dtype, default options, normal contiguous tensors, seed 0."""
    return draw_case(lambda values: values[0], within, _NO_FOCUS)


def draw_case(choose: Choose[Any], within: CaseSpace, focus: Focus) -> Case:
    """One case by choices from sequences, the plainest value first in each; a focus then changes what it asks for."""
    dims = _dims(choose, within)
    dtype = choose(within.dtypes)
    options = {name: choose(values) for name, values in within.options.items()}
    names = _present(choose, within, options)
    texts = _recipes(choose, within, names)
    places = _layouts(choose, names)
    draws = {name: Draw(texts[name], places[name]) for name in names}
    if choose((False,) * 9 + (True,)):
        draws |= _tangents(choose, within, names)
    blocks = choose(("auto", *within.kernel.blocks))
    seed = 100 * choose(_HUNDRED) + choose(_HUNDRED)
    if focus.large:
        dims, blocks = _enlarged(choose, within, dims, focus), "auto"
        draws = {name: _plain(within, name) for group in within.alternatives for name in group if name in draws}
        asked = {name: recipe for name, recipe in within.family.beside_large.items() if isinstance(recipe, str)}
        draws |= {name: Draw(recipe) for name, recipe in asked.items()}
        options = {name: values[0] for name, values in within.options.items()}
    elif focus.goal:
        dims = _focused_dims(choose, within, dims, focus)
        dtype, blocks, options = focus.dtype or dtype, focus.blocks or blocks, options | dict(focus.options)
        draws, options = _focused_draws(choose, within, dims, draws, options, focus)
    fits = within.kernel.fits
    if blocks != "auto" and fits is not None and blocks not in fits(dtype, dims):
        blocks = "auto"
    for name, draw in draws.items():
        if not _fits(within, name, draw.layout, dims):
            draws[name] = replace(draw, layout="contiguous")
    defaults = {spec.name: spec.default for spec in within.signature.options}
    return Case(
        within.family.name,
        dims,
        dtype,
        {name: value for name, value in options.items() if value != defaults[name]},
        {name: draw for name, draw in draws.items() if draw != _plain(within, name) or name in within.optional},
        "" if blocks == "auto" else blocks,
        seed,
    )


_HUNDRED = tuple(range(100))
_MOST = 100


def _place(index: Callable[[int], int], count: int) -> int:
    """A number below ``count``; beyond 100 it takes two numbers, which the stream of every seed depends on."""
    if count <= _MOST:
        return index(count) if count > 1 else 0
    block = _place(index, -(-count // _MOST))
    return min(block * _MOST + index(_MOST), count - 1)


def _plain(within: CaseSpace, name: str) -> Draw:
    """The default draw of a tensor."""
    return Draw("index") if name in within.integers else Draw()


def _dims(choose: Choose[Any], within: CaseSpace) -> dict[str, int]:
    """A size for every dim: favoured ones, sometimes equal in pairs, clamped to the cost of an ordinary case."""
    dims = {dim: choose(within.favoured(dim)) for dim in within.dims}
    for a, b in within.pairs:
        if choose(_RELATIONS) == "equal" and dims[a] in within.sizes[b]:
            dims[b] = dims[a]
    ranks = {starred: choose(within.counts(starred)) for starred in within.spreads}
    return _clamped(within, within.ranked(dims, ranks), set())


def _focused_dims(choose: Choose[Any], within: CaseSpace, dims: dict[str, int], focus: Focus) -> dict[str, int]:
    """The sizes, changed as a focus asks."""
    dims = dims | {dim: choose(fitting) for dim, fitting in focus.sizes.items()}
    if focus.less:
        low, high = focus.less
        if dims[low] >= dims[high]:
            dims[low], dims[high] = dims[high], dims[low]
        if dims[low] >= dims[high] or any(dims[dim] not in within.sizes[dim] for dim in focus.less):
            dims[low], dims[high] = within.favoured(low)[0], within.favoured(high)[-1]
    dims = within.ranked(within.filled(dims), focus.ranks)
    return _clamped(within, dims, {*focus.sizes, *(focus.less or ())})


def _clamped(within: CaseSpace, dims: dict[str, int], fixed: set[str]) -> dict[str, int]:
    """Halve dims, batch dims first, until rows and elements fit; ``fixed`` dims are kept."""
    tensors = (*within.signature.inputs, *within.signature.outputs)
    while True:
        rows = math.prod(dims[dim] for dim in within.rows if dim in dims)
        elements = max(math.prod(spec.shape(dims)) for spec in tensors)
        if rows <= _MOST_ROWS and elements <= _MOST_ELEMENTS:
            return within.settled(dims, fixed)
        candidates = [dim for dim in dims if dim not in fixed and dims[dim] > within.favoured(dim)[0]]
        if rows > _MOST_ROWS:
            candidates = [dim for dim in candidates if dim in within.rows]
        if not candidates:
            return within.settled(dims, fixed)
        dim = max(candidates, key=lambda name: (name in within.batch, dims[name]))
        smaller = [size for size in within.favoured(dim) if size <= dims[dim] // 2]
        dims[dim] = smaller[-1] if smaller else within.favoured(dim)[0]


def _enlarged(choose: Choose[Any], within: CaseSpace, dims: dict[str, int], focus: Focus) -> dict[str, int]:
    """One large dim; dims that repeat it are 1, lengths at most 17, features at most 8, or as the family asks."""
    large, small = focus.large, {}
    repeated = set(within.batch)
    for spec in within.signature.at().inputs:
        places = [place for place, dim in enumerate(spec.dims) if large in dim_names(dim)]
        repeated.update(spec.dims[: places[0]] if places else ())
    for dim, size in dims.items():
        most = 1 if dim in repeated else _SHORT if dim in within.rows else _NARROW
        least = within.family.beside_large.get(dim, 0)
        assert isinstance(least, int)  # of a tensor it is a recipe
        fitting = [other for other in within.favoured(dim) if other <= max(min(most, size), least)]
        small[dim] = fitting[-1] if fitting else within.favoured(dim)[0]
    asked = within.ranked(within.filled({**small, large: choose(focus.sizes[large])}))
    return within.settled(asked, {large})


def _present(choose: Choose[Any], within: CaseSpace, options: Mapping[str, Any]) -> list[str]:
    """Names of the draws of a case: each optional input is absent or present."""
    alternatives = within.alternatives
    free = [name for name in within.optional if not any(name in group for group in alternatives)]
    absent = {name for name in free if not choose((False, True))}
    for group in alternatives:
        given = choose(group)
        absent |= {name for name in group if name != given}
    absent |= {other for name in absent for other in within.signature.constraints.companions(name)} | within.absent
    names = [spec.name for spec in within.signature.inputs]
    floats = within.signature.without_absent(within.floats, options)
    return [name for name in dict.fromkeys((*names, *floats)) if name not in absent]


def _recipes(choose: Choose[Any], within: CaseSpace, names: list[str]) -> dict[str, str]:
    """The recipe of each tensor."""
    floats = [name for name in names if name in within.floats]
    texts = {name: _plain(within, name).recipe for name in names}
    for name in names:
        if name in within.integers:
            texts[name] = choose(("index", "index", *within.family.domains[name].recipes))
    mode = choose(_MODES)
    joints = [joint for joint in within.joint.values() if set(joint) <= set(names)]
    if mode == "joint" and joints:
        texts.update(choose(joints))
    elif mode == "one special" and floats:
        texts[choose(floats)] = choose(_SPECIAL)
    elif mode in ("scaled", "all special"):
        for name in floats:
            texts[name] = choose(_SCALED if mode == "scaled" else ("normal", *_SPECIAL))
    return texts


def _layouts(choose: Choose[Any], names: list[str]) -> dict[str, str]:
    """The layout of each tensor."""
    places = dict.fromkeys(names, "contiguous")
    mode = choose(_LAYOUT_MODES)
    for name in [choose(names)] if mode == "one" else names if mode == "each" else []:
        places[name] = choose(_OTHER_LAYOUTS if mode == "one" else tuple(layouts.LAYOUTS))
    return places


def _fits(within: CaseSpace, name: str, layout: str, dims: Mapping[str, int]) -> bool:
    tensor = within.floats.get(name) or within.integers.get(name)
    if name in within.integers and not within.family.domains[name].allows(layout, within.integers[name].shape(dims)):
        return False
    return tensor is None or layouts.LAYOUTS[layout].fits(tensor.shape(dims))


def _focused_draws(
    choose: Choose[Any],
    within: CaseSpace,
    dims: Mapping[str, int],
    draws: dict[str, Draw],
    options: dict[str, Any],
    focus: Focus,
) -> tuple[dict[str, Draw], dict[str, Any]]:
    """The draws, changed as a focus asks, and the options that they need; with a recipe, other tensors are normal."""
    signature = within.signature
    inputs = {spec.name for spec in signature.inputs}
    optional = {cotangent_name(s.name): s.asked_by for s in within.outputs if s.kind == "float" and s.asked_by}
    there = signature.without_absent(draws, options)
    draws = there | {name: Draw() for name in optional if name not in there}
    if focus.given:
        name, present = focus.given
        moved = signature.constraints.companions(name)
        others = _without(draws, moved)
        if instead := [other for other in signature.constraints.others(name) if other in within.optional]:
            others = _without(others, instead)
            others |= {} if present else {choose(instead): _plain(within, name)}
        draws = others | ({each: draws.get(each, _plain(within, each)) for each in moved} if present else {})
    if focus.recipe or focus.joint:
        texts = within.joint.get(focus.joint, {})
        needed = [each for name in texts if name in within.optional for each in signature.constraints.companions(name)]
        for each in needed:
            draws = _without(draws, signature.constraints.others(each))
        draws = {each: _plain(within, each) for each in needed} | draws
        if focus.recipe:
            able = [name for name in draws if focus.recipe[0] in within.recipes(name, integers=focus.recipe[1])]
            texts = {choose(able): focus.recipe[0]} if able else {}
        plain = {name: _plain(within, name).recipe for name in draws}
        draws = {name: replace(draw, recipe=texts.get(name, plain[name])) for name, draw in draws.items()}
    if focus.layout:
        layout, cotangent = focus.layout
        known = [name for name in draws if name in within.floats or name in within.integers]
        able = [name for name in known if (name not in inputs) is cotangent and _fits(within, name, layout, dims)]
        if able:
            chosen = choose(able)
            draws = draws | {chosen: replace(draws[chosen], layout=layout)}
    asked = {option: True for name, option in optional.items() if draws[name] != Draw()}
    options = {**options, **asked, **focus.options}
    return signature.without_absent(draws, options), options


def _without(draws: Mapping[str, Draw], names: Sequence[str]) -> dict[str, Draw]:
    """The draws without those of some inputs and their tangents."""
    gone = {*names, *map(tangent_name, names)}
    return {name: draw for name, draw in draws.items() if name not in gone}


def _tangents(choose: Choose[Any], within: CaseSpace, names: list[str]) -> dict[str, Draw]:
    """One recipe and layout for the tangents of all float inputs."""
    draw = Draw(choose(_SCALED), choose(("contiguous", *_OTHER_LAYOUTS)))
    primals = [spec.name for spec in within.signature.primals if spec.name in names]
    return {tangent_name(name): draw for name in primals} if draw != Draw() else {}
