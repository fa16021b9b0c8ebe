"""Shrinking: from a violating case to a small, readable one that still violates, driven by Hypothesis.

Hypothesis starts from the violating case, which a backend of ours makes: its documented interface for other generators.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, NoReturn

from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, PrimitiveProvider

from gradoracle.cases.case_space import CaseSpace, case_space
from gradoracle.model.case import Case, Draw
from gradoracle.model.dims import Sizes
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel
from gradoracle.model.wording import counted


class Violated(Exception):
    """A case violates: the failure that Hypothesis shrinks."""


class Late(BaseException):
    """Time or calls are used up; not an Exception, so that Hypothesis does not catch it."""


def shrink(
    family: Family,
    kernel: Kernel,
    case: Case,
    violates: Callable[[Case], bool],
    *,
    seconds: float,
    dtypes: Sequence[str] | None = None,
    dims: Mapping[str, Sizes] | None = None,
    calls: int | None = None,
) -> tuple[Case, str]:
    """Shrink a violating case.

    Each part of the result is that of ``case`` or plainer: a smaller size, a plainer dtype, a default option, a plainer
    recipe or layout, seed 0. Hypothesis starts from ``case`` and chooses one number for each part: first among a few
    round sizes, then among all sizes that are left.

    Args:
        family: of the case.
        kernel: narrows sizes, dtypes and options.
        case: violates; it is not judged again.
        violates: whether a case violates; called at most once for a case, and never after the time is up.
        seconds: no further case is judged after this time.
        dtypes: to try in addition to the case's own; the family's by default.
        dims: narrower sizes by dim.
        calls: how many cases may be judged; None: any number.

    Returns:
        (the smallest violating case found, why it may not be the smallest or "").
    """
    within = case_space(family, kernel, dtypes=dtypes, dims=dims)
    search = _Search(case, violates, time.monotonic() + seconds, calls)
    try:
        search.run(_coarse(within, case))
        search.run(_fine(within, search.best))
    except Late as late:
        return search.best, str(late)
    return search.best, ""


BACKEND = "gradoracle"
_scripts: list[Iterator[int]] = []


@contextlib.contextmanager
def drawing(numbers: Sequence[int]) -> Iterator[str]:
    """Yield the name of a backend, for ``settings(backend=...)``, that gives these numbers in turn, then the least."""
    _scripts.append(iter(numbers))
    try:
        yield BACKEND
    finally:
        _scripts.pop()


def _refused(what: str) -> Callable[..., NoReturn]:
    """A method of ``Provider`` that refuses a kind of value."""

    def draw(*arguments: Any, **constraints: Any) -> NoReturn:
        raise NotImplementedError(f"{what} was drawn; expected bounded integers only")

    return draw


class Provider(PrimitiveProvider):
    """Gives bounded integers from the current script, and nothing else."""

    lifetime = "test_function"

    def draw_integer(self, min_value: int | None = None, max_value: int | None = None, **hints: Any) -> int:
        """The next number of the script, brought within both bounds."""
        if min_value is None or max_value is None:
            _refused("an integer without bounds")()
        return min(max(next(_scripts[-1], min_value), min_value), max_value)

    draw_boolean = _refused("a boolean")
    draw_float = _refused("a float")
    draw_string = _refused("a string")
    draw_bytes = _refused("bytes")


AVAILABLE_PROVIDERS[BACKEND] = f"{__name__}.{Provider.__name__}"

Steps = tuple[Any, ...]  # the values of one part of a case, the plainest first, the case's own last
Part = tuple[str, str, Steps]  # field, name, steps


@dataclass(frozen=True)
class _Ladder:
    """A case taken apart: each part has several steps; all parts of a group can become plain together."""

    groups: tuple[tuple[Part, ...], ...]
    case: Case
    within: CaseSpace

    @property
    def parts(self) -> tuple[Part, ...]:
        """The parts of all groups, in order."""
        return tuple(part for group in self.groups for part in group)

    @property
    def top(self) -> tuple[int, ...]:
        """The places of the case itself."""
        return tuple(len(steps) for _, _, steps in self.parts)

    @property
    def script(self) -> list[int]:
        """The numbers from which the strategy makes ``top``."""
        return [*self.top, *(2 for _ in self.groups)]

    def strategy(self) -> st.SearchStrategy[tuple[int, ...]]:
        """A place (from 1 on) for each part, then for each group whether it is plain (1) or as placed (2).

        Hypothesis simplifies the last numbers first, so whole groups become plain before single parts do.
        """
        places = st.tuples(*(st.integers(1, len(steps)) for _, _, steps in self.parts))
        switches = st.tuples(*(st.integers(1, 2) for _ in self.groups))
        return st.tuples(places, switches).map(self._switched)

    def _switched(self, drawn: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[int, ...]:
        places, switches = drawn
        kept = [switch == 2 for group, switch in zip(self.groups, switches, strict=True) for _ in group]
        return tuple(place if keep else 1 for place, keep in zip(places, kept, strict=True))

    def at(self, places: Sequence[int]) -> Case:
        """The case with each part at its place."""
        changed: dict[str, Any] = {name: dict(getattr(self.case, name)) for name in ("dims", "options", "draws")}
        for (where, name, steps), place in zip(self.parts, places, strict=True):
            value = steps[place - 1]
            if not name:
                changed[where] = value
            elif value is _ABSENT:
                changed[where].pop(name, None)
            else:
                changed[where][name] = value
        changed["dims"] = self.within.settled(self.within.ranked(changed["dims"]))
        signature = self.within.signature
        changed["draws"] = signature.constraints.complete(changed["draws"])
        changed["draws"] = signature.without_absent(changed["draws"], changed["options"])
        changed["draws"] = {name: self._allowed(name, draw, changed["dims"]) for name, draw in changed["draws"].items()}
        return replace(self.case, **changed)

    def _allowed(self, name: str, draw: Draw, dims: Mapping[str, int]) -> Draw:
        """The draw, contiguous where integers of a smaller shape would leave their domain in its layout."""
        if name not in self.within.integers:
            return draw
        shape = self.within.integers[name].shape(dims)
        is_allowed = self.within.family.domains[name].allows(draw.layout, shape)
        return draw if is_allowed else replace(draw, layout="contiguous")


class _Search:
    """The cases that were judged, the best so far, and the limits of the search."""

    def __init__(self, case: Case, violates: Callable[[Case], bool], deadline: float, calls: int | None) -> None:
        self.best, self.known = case, {case: True}
        self._violates, self._deadline, self._calls = violates, deadline, calls

    def run(self, ladder: _Ladder) -> None:
        """Let Hypothesis shrink the ladder's case. No case is judged that has a part less plain than the best one's.

        Raises:
            Late: a limit was reached; ``best`` holds the result so far.
        """
        if not ladder.parts:
            return
        lowest = ladder.top
        with drawing(ladder.script) as backend:

            @settings(
                max_examples=3,
                backend=backend,
                phases=[Phase.generate, Phase.shrink],
                database=None,
                derandomize=True,
                deadline=None,
                report_multiple_bugs=False,
                print_blob=False,
                verbosity=Verbosity.quiet,
                suppress_health_check=list(HealthCheck),
            )
            @given(ladder.strategy())
            def find(places: tuple[int, ...]) -> None:
                nonlocal lowest
                case, below = ladder.at(places), all(a <= b for a, b in zip(places, lowest, strict=True))
                if (below or case in self.known) and self._judge(case):
                    if below:
                        lowest, self.best = places, case
                    raise Violated

            with contextlib.suppress(Violated):
                find()

    def _judge(self, case: Case) -> bool:
        if case not in self.known:
            if time.monotonic() > self._deadline:
                raise Late("the time for shrinking was used up")
            if self._calls is not None and len(self.known) > self._calls:
                raise Late(f"shrinking stopped after {counted(self._calls, 'case')}")
            self.known[case] = self._violates(case)
        return self.known[case]


_ABSENT = object()  # a step at which the case does not name the part


def _coarse(within: CaseSpace, case: Case) -> _Ladder:
    """Few steps for each part: round sizes, and plain values of the other parts."""
    spare = {dim for dims in within.spreads.values() for dim in dims}
    dims: list[Part] = [
        ("dims", dim, (*((_ABSENT,) if dim in spare else ()), *_sizes(within, dim, size)))
        for dim, size in case.dims.items()
    ]
    draws: list[Part] = [("draws", name, _draws(within, name, draw)) for name, draw in case.draws.items()]
    unnamed = (name for name in within.integers if name not in case.draws and name not in within.optional)
    draws += [("draws", name, (*_simplest(within, name), _ABSENT)) for name in unnamed]
    options: list[Part] = [("options", n, (_ABSENT, v)) for n, v in case.options.items() if _optional(within, n)]
    known = {*within.floats, *within.integers}
    plainer = within.dtypes[: within.dtypes.index(case.dtype)] if case.dtype in within.dtypes else ()
    groups: list[list[Part]] = [
        [part for part in dims if part[1] not in within.batch],
        [part for part in dims if part[1] in within.batch],
        [part for part in draws if part[1] in known],
        options,
        [part for part in draws if part[1] not in known],
        [("dtype", "", (*plainer, case.dtype)), ("blocks", "", ("", case.blocks)), ("seed", "", (0, case.seed))],
    ]
    several = [tuple(part for part in group if len(set(part[2])) > 1) for group in groups]
    return _Ladder(tuple(group for group in several if group), case, within)


def _fine(within: CaseSpace, case: Case) -> _Ladder:
    """Every size between the case's own and the round size below it."""
    found: list[Part] = []
    for dim, size in case.dims.items():
        below = max((step for step in _sizes(within, dim, size) if step < size), default=size)
        every = (between for between in range(below + 1, size) if between in within.sizes[dim])
        found.append(("dims", dim, (*every, size)))
    parts = tuple(part for part in found if len(part[2]) > 1)
    return _Ladder((parts,) if parts else (), case, within)


def _sizes(within: CaseSpace, dim: str, own: int) -> Steps:
    """Round sizes of the domain below the case's own, each about twice the last, and then its own."""
    sizes = within.sizes[dim]
    allowed = sizes.choices or tuple(
        sorted({sizes.smallest, *(-(-number // sizes.multiple) * sizes.multiple for number in _ROUND)})
    )
    return (*sorted(size for size in allowed if size < own and size in sizes), own)


_ROUND = (1, 2, 3, 4, 8, 16, 17, 32, 33, 64, 65, 128, 129, 256, 257, *(2**power for power in range(9, 18)), 100_001)


def _draws(within: CaseSpace, name: str, own: Draw) -> Steps:
    """The simplest values; not named; then without its recipe, without layout and parameter, without one of them."""
    plain = Draw("index" if name in within.integers else "normal")
    bare = replace(own, recipe=own.recipe.partition(":")[0])
    flat = replace(own, layout="contiguous")
    steps = (replace(own, recipe=plain.recipe), replace(bare, layout="contiguous"), flat, bare, own)
    unnamed = () if within.signature.constraints.others(name) else (_ABSENT,)  # of alternatives the one given stays
    if name in within.optional:  # one that is not named is absent
        order = dict.fromkeys((*unnamed, *_simplest(within, name), plain, *steps))
    else:
        order = dict.fromkeys((*_simplest(within, name), *unnamed, *(step for step in steps if step != plain)))
    return (*takewhile(lambda step: step != own, order), own) if own in order else tuple(order)


def _simplest(within: CaseSpace, name: str) -> Steps:
    """The draw of the simplest values of an integer input; none where these are the default."""
    simplest = within.family.domains[name].simplest if name in within.integers else "index"
    return () if simplest == "index" else (Draw(simplest),)


def _optional(within: CaseSpace, option: str) -> bool:
    """Whether an option may take its default, which one that the user holds fixed may not."""
    defaults = {spec.name: spec.default for spec in within.signature.options}
    return option not in defaults or defaults[option] in within.options.get(option, (defaults[option],))
