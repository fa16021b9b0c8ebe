"""Drawing: the Hypothesis strategy of cases. It draws specs and never numbers, so drawing and shrinking are fast."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

from hypothesis import strategies as st

from gradoracle import layouts, recipes
from gradoracle.case import Case, Draw
from gradoracle.dims import Sizes
from gradoracle.domain import Domain, domain
from gradoracle.family import Family
from gradoracle.kernel import Kernel
from gradoracle.signature import tangent_name
from gradoracle.situations import Focus, focuses

V = TypeVar("V")
Choose = Callable[[Sequence[V]], V]

_MOST_ROWS = 60_000  # product of the dims that cost; ordinary cases are clamped to it
_MOST_ELEMENTS = 1 << 19  # of one tensor
_NARROW, _SHORT = 8, 64  # the other dims of a case with a large one: features, and lengths

# How the values of a case are drawn, and how often: about half of the cases are continuous and plain.
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


def cases(
    family: Family,
    kernel: Kernel,
    *,
    dtypes: Sequence[str] | None = None,
    dims: Mapping[str, Sizes] | None = None,
) -> st.SearchStrategy[Case]:
    """A strategy of the cases that family and kernel allow.

    Sizes favour 1, 2, powers of two and one either side, primes and block edges, and are small in the mean. One case
    in three is drawn towards a situation (a recipe, a layout, a large dim...). Shrinks towards small dims, the first
    dtype, default options, normal and contiguous tensors, seed 0.

    Args:
        family: gives dims, dtypes, options, joint recipes.
        kernel: narrows dims, dtypes and options, and names block configurations.
        dtypes: which to draw; the family's by default.
        dims: narrower sizes by dim.

    Raises:
        ValueError: a dim is unknown or its sizes are empty, or no dtype is supported.
    """
    within = domain(family, kernel, dtypes=dtypes, dims=dims)
    return focused(within, focuses(within), often=3)


def focused(within: Domain, towards: Sequence[Focus], *, often: int = 1) -> st.SearchStrategy[Case]:
    """A strategy of cases of which one in ``often`` is drawn towards one of the situations."""
    turns = (False,) * (often - 1) + (bool(towards),)

    @st.composite
    def cases(draw: st.DrawFn) -> Case:
        def choose(values: Sequence[V]) -> V:
            return values[_place(draw, len(values))]

        return draw_case(choose, within, choose(towards) if choose(turns) else _NO_FOCUS)

    return cases()


def plainest(within: Domain) -> Case:
    """The case that everything shrinks towards."""
    return draw_case(lambda values: values[0], within, _NO_FOCUS)


def draw_case(choose: Choose[Any], within: Domain, focus: Focus) -> Case:
    """One case by choices from sequences, of which the first is the plainest."""
    if focus.large:  # the choices of an ordinary case come first, so that Hypothesis can shrink to it
        return _enlarged(draw_case(choose, within, _NO_FOCUS), within, focus.large, choose(within.large(focus.large)))
    dims = _dims(choose, within, focus)
    dtype = focus.dtype or choose(within.dtypes)
    defaults = {spec.name: spec.default for spec in within.signature.options}
    options = {n: focus.options[n] if n in focus.options else choose(values) for n, values in within.options.items()}
    names = _present(choose, within, focus)
    texts = _recipes(choose, within, focus, names)
    places = _layouts(choose, within, focus, names, dims)
    draws = {}
    for name in names:
        plain = Draw("index" if name in within.integers else "normal")
        found = Draw(texts[name] or plain.recipe, places[name])
        if found != plain or name in within.optional:
            draws[name] = found
    if choose((False,) * 9 + (True,)):
        draws |= _tangents(choose, within, names)
    blocks = focus.blocks or choose(("auto", *within.kernel.blocks))
    return Case(
        within.family.name,
        dims,
        dtype,
        {name: value for name, value in options.items() if value != defaults[name]},
        draws,
        "" if blocks == "auto" else blocks,
        100 * choose(_HUNDRED) + choose(_HUNDRED),
    )


_HUNDRED = tuple(range(100))


def _place(draw: st.DrawFn, count: int) -> int:
    """A number below ``count``; Hypothesis weights ranges beyond 127 in ways of its own, so those take two draws."""
    if count <= _MOST:
        return draw(_index(count)) if count > 1 else 0
    block = _place(draw, -(-count // _MOST))
    return min(block * _MOST + draw(_index(_MOST)), count - 1)


_MOST = 100


@cache
def _index(count: int) -> st.SearchStrategy[int]:
    return st.integers(0, count - 1)


def _dims(choose: Choose[Any], within: Domain, focus: Focus) -> dict[str, int]:
    """Sizes of every dim: favoured ones, sometimes equal in pairs, clamped to what an ordinary case may cost."""
    dims = {}
    for dim in within.signature.dims:
        dims[dim] = choose(focus.sizes.get(dim) or within.favoured(dim))
    fixed = set(focus.sizes)
    for a, b in within.pairs:
        if choose(_RELATIONS) == "equal" and b not in fixed and dims[a] in within.sizes[b]:
            dims[b] = dims[a]
    if focus.less:
        low, high = focus.less
        if dims[low] >= dims[high]:
            dims[low], dims[high] = dims[high], dims[low]
        if dims[low] >= dims[high] or any(dims[dim] not in within.sizes[dim] for dim in focus.less):
            dims[low], dims[high] = within.favoured(low)[0], within.favoured(high)[-1]
        fixed |= {low, high}
    return _clamped(within, dims, fixed)


def _clamped(within: Domain, dims: dict[str, int], fixed: set[str]) -> dict[str, int]:
    """Halve dims, batch dims first, until rows and elements fit; dims that a focus fixed are kept."""
    tensors = (*within.signature.inputs, *within.signature.outputs)
    while True:
        rows = math.prod(dims[dim] for dim in within.rows)
        elements = max(math.prod(spec.shape(dims)) for spec in tensors)
        if rows <= _MOST_ROWS and elements <= _MOST_ELEMENTS:
            return dims
        candidates = [dim for dim in within.signature.dims if dim not in fixed and dims[dim] > within.favoured(dim)[0]]
        if rows > _MOST_ROWS:
            candidates = [dim for dim in candidates if dim in within.rows]
        if not candidates:
            return dims
        dim = max(candidates, key=lambda name: (name in within.batch, dims[name]))
        smaller = [size for size in within.favoured(dim) if size <= dims[dim] // 2]
        dims[dim] = smaller[-1] if smaller else within.favoured(dim)[0]


def _enlarged(case: Case, within: Domain, large: str, size: int) -> Case:
    """A plain case with one large dim; batch dims 1, other lengths at most 64, features at most 8, if allowed."""
    dims = {}
    for dim, drawn in case.dims.items():
        most = 1 if dim in within.batch else _SHORT if dim in within.rows else _NARROW
        fitting = [other for other in within.favoured(dim) if other <= min(most, drawn)]
        dims[dim] = fitting[-1] if fitting else within.favoured(dim)[0]
    options = {name: values[0] for name, values in within.options.items()}
    defaults = {spec.name: spec.default for spec in within.signature.options}
    kept = {name: value for name, value in options.items() if value != defaults[name]}
    return Case(case.family, {**dims, large: size}, case.dtype, kept, seed=case.seed)


def _present(choose: Choose[Any], within: Domain, focus: Focus) -> list[str]:
    """The tensors that a case draws, by the name of the draw; optional inputs are absent, or present."""
    names = [spec.name for spec in within.signature.inputs]
    for name in within.optional:
        forced = focus.given is not None and focus.given[0] == name
        if not (focus.given[1] if forced and focus.given else choose((False, True))):
            names.remove(name)
    return [*names, *(name for name in within.floats if name not in {s.name for s in within.signature.inputs})]


def _recipes(choose: Choose[Any], within: Domain, focus: Focus, names: list[str]) -> dict[str, str]:
    """The recipe of each tensor; "" is the default."""
    floats = [name for name in names if name in within.floats]
    texts = dict.fromkeys(names, "")
    for name in names:
        if name in within.integers:
            texts[name] = choose(("index", "index", *recipes.INDEX_RECIPES))
    mode = choose(_MODES) if focus.recipe is None and not focus.joint else "plain"
    joints = [joint for joint in within.family.joint.values() if set(joint) <= set(names)]
    if mode == "joint" and joints:
        texts.update(choose(joints))
    elif mode == "one special" and floats:
        texts[choose(floats)] = choose(_SPECIAL)
    elif mode in ("scaled", "all special"):
        for name in floats:
            texts[name] = choose(_SCALED if mode == "scaled" else ("normal", *_SPECIAL))
    if focus.joint:
        texts.update(within.family.joint[focus.joint])
    if focus.recipe is not None:
        text, integer = focus.recipe
        fitting = [name for name in names if (name in within.integers) is integer]
        if fitting:
            texts[choose(fitting)] = text
    return texts


def _layouts(
    choose: Choose[Any], within: Domain, focus: Focus, names: list[str], dims: Mapping[str, int]
) -> dict[str, str]:
    """The layout of each tensor, out of those that differ from contiguous at its shape."""
    shapes = {name: (within.floats | within.integers)[name].shape(dims) for name in names}
    fitting = {name: [x for x in _OTHER_LAYOUTS if layouts.LAYOUTS[x].fits(shape)] for name, shape in shapes.items()}
    places = dict.fromkeys(names, "contiguous")
    mode = choose(_LAYOUT_MODES) if focus.layout is None else "contiguous"
    if mode == "one":
        name = choose(names)
        places[name] = choose(fitting[name])
    elif mode == "each":
        for name in names:
            places[name] = choose(("contiguous", *fitting[name]))
    if focus.layout is not None:
        layout, cotangent = focus.layout
        inputs = {spec.name for spec in within.signature.inputs}
        able = [n for n in names if (n not in inputs) is cotangent and layouts.LAYOUTS[layout].fits(shapes[n])]
        if able:
            places[choose(able)] = layout
    return places


def _tangents(choose: Choose[Any], within: Domain, names: list[str]) -> dict[str, Draw]:
    """One layout and one recipe for the tangents of all float inputs."""
    draw = Draw(choose(_SCALED), choose(("contiguous", *_OTHER_LAYOUTS)))
    primals = [spec.name for spec in within.signature.primals if spec.name in names]
    return {tangent_name(name): draw for name in primals} if draw != Draw() else {}
