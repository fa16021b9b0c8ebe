"""Stream: the ordered list of distinct cases of one run, the same on every machine for a seed and a version."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heapreplace

from gradoracle.cases.case_space import CaseSpace, case_space
from gradoracle.cases.coverage import Focus, focuses, goals_of, wanted_goals
from gradoracle.cases.strategy import drawn, plainest
from gradoracle.model import hashing
from gradoracle.model.case import Case
from gradoracle.model.dims import Sizes
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel

_ROUNDS = 8  # of drawing towards goals that are still missed
_OF_A_KIND = 5  # cases that share their compilations, where these are to be few
_WIDER = 3  # the pool that they are chosen from


class Hashed:
    """A source of numbers: hashes of a seed, a name and a counter, each below the asked number as likely."""

    def __init__(self, seed: int, name: str) -> None:
        self._key, self.count = hashing.key(seed, name), 0

    def below(self, number: int) -> int:
        """One of 0 .. number - 1."""
        self.count += 1
        return hashing.mix(self._key + self.count * 0x9E3779B97F4A7C15) * number // 2**64


def stream(
    family: Family,
    kernel: Kernel,
    *,
    dtypes: Sequence[str] | None = None,
    dims: Mapping[str, Sizes] | None = None,
    examples: int,
    seed: int = 0,
    few_compilations: bool = False,
) -> list[Case]:
    """The cases of one run, in order.

    For each dtype a pool is generated, the plainest case included, and then more cases towards goals that the pool
    is short of. The stream begins with the cases that meet the most goals, so that a run that is cut short has covered
    much; dtypes take turns throughout.

    Args:
        family: gives dims, dtypes, options and joint recipes.
        kernel: narrows dims, dtypes and options, and names block configurations.
        dtypes: of the cases; the family's by default.
        dims: narrower sizes by dim.
        examples: the number of cases.
        seed: another seed gives other cases.
        few_compilations: prefer cases of a few kinds (``Kernel.compiled_for``), once the goals are met.

    Raises:
        ValueError: no case is allowed, or ``examples`` distinct ones cannot be found.
    """
    if examples < 1:
        raise ValueError(f"{examples} cases were asked for; expected at least 1")
    within = case_space(family, kernel, dtypes=dtypes, dims=dims)
    expected = Counter(wanted_goals(family, kernel, within.dtypes, examples, dims))
    kind = kernel.compiled_for if few_compilations else None
    pool, extra = _pool(within, expected, examples if kind is None else _WIDER * examples, seed)
    first = _covering({**pool, **extra}, expected, examples)
    left = list(pool) if kind is None else _of_few_kinds(pool, first, kind, len(within.dtypes), examples)
    chosen = first + _remaining(left, set(first), _shares(within.dtypes, first, examples))
    if len(chosen) < examples:
        raise ValueError(f"{examples} distinct cases of {kernel.name} were asked for; only {len(chosen)} can be found")
    return _in_turns(chosen, within.dtypes)


Found = dict[Case, frozenset[str]]  # distinct cases in order, with the goals that each meets


def _pool(within: CaseSpace, expected: Mapping[str, int], examples: int, seed: int) -> tuple[Found, Found]:
    """A share of cases of every dtype, and extra ones for goals that these miss."""
    found: Found = {}
    extra: Found = {}
    every = focuses(within)
    ordinary = [focus for focus in every if not focus.large]  # large dims are slow: only as many cases as expected
    share = -(-examples // len(within.dtypes))
    for dtype in within.dtypes:
        narrow = replace(within, dtypes=(dtype,))
        smallest = plainest(narrow)
        found[smallest] = goals_of(within.family, within.kernel, smallest)
        _add(found, narrow, ordinary, 3, share, Hashed(seed, f"stream {dtype}"))
    for attempt in range(_ROUNDS):
        counts = Counter(name for names in (*found.values(), *extra.values()) for name in names)
        missing = [focus for focus in every if counts[focus.goal] < expected.get(focus.goal, 0)]
        if not missing:
            break
        short = sum(expected[focus.goal] - counts[focus.goal] for focus in missing)
        _add(extra, within, missing, 1, 2 * short + 4, Hashed(seed, f"stream focus {attempt}"))
    for attempt in range(_ROUNDS):
        counts = Counter(case.dtype for case in found)
        for dtype in within.dtypes:
            if counts[dtype] < share:
                narrow = replace(within, dtypes=(dtype,))
                source = Hashed(seed, f"stream {dtype} {attempt}")
                _add(found, narrow, ordinary, 3, share - counts[dtype] + 2, source)
    return found, {case: names for case, names in extra.items() if case not in found}


def _add(found: Found, within: CaseSpace, towards: Sequence[Focus], often: int, count: int, source: Hashed) -> None:
    """Generate ``count`` cases, one in ``often`` towards a goal, and keep those that are new."""
    for _ in range(count):
        case = drawn(source.below, within, towards, often=often)
        if case not in found:
            found[case] = goals_of(within.family, within.kernel, case)


def _covering(pool: Found, expected: Mapping[str, int], examples: int) -> list[Case]:
    """Cases that meet the goals, each the first one that meets the most of those still open."""
    open_ = {name: count for name, count in expected.items() if count > 0}
    left = [(-len(names & open_.keys()), place, case) for place, (case, names) in enumerate(pool.items())]
    heapify(left)  # by how many a case met when last looked at, never fewer than it meets now
    chosen: list[Case] = []
    while open_ and left and len(chosen) < examples:
        known, place, case = left[0]
        fills = pool[case] & open_.keys()
        if -len(fills) > known:
            heapreplace(left, (-len(fills), place, case))
            continue
        if not fills:
            break
        for name in fills:
            open_[name] -= 1
            if open_[name] == 0:
                del open_[name]
        chosen.append(case)
        heappop(left)
    return chosen


def _shares(dtypes: Sequence[str], first: Iterable[Case], examples: int) -> dict[str, int]:
    """How many more cases of each dtype give equal shares, as far as ``first`` allows."""
    shares = dict.fromkeys(dtypes, 0)
    counts = Counter(case.dtype for case in first)
    for _ in range(examples - counts.total()):
        fewest = min(dtypes, key=lambda dtype: counts[dtype])
        shares[fewest] += 1
        counts[fewest] += 1
    return shares


def _remaining(pool: Iterable[Case], taken: set[Case], shares: dict[str, int]) -> list[Case]:
    """The first cases of the pool that are not taken, as many of each dtype as its share."""
    chosen = []
    for case in pool:
        if case not in taken and shares[case.dtype] > 0:
            shares[case.dtype] -= 1
            chosen.append(case)
    return chosen


def _of_few_kinds(
    pool: Sequence[Case] | Found, first: Sequence[Case], kind: Callable[[Case], Hashable], dtypes: int, examples: int
) -> list[Case]:
    """The pool with what is of one of a few kinds in front: those of the first cases, and as many of each dtype."""
    kinds = {dtype: {kind(case) for case in first if case.dtype == dtype} for dtype in {case.dtype for case in pool}}
    most = -(-examples // (_OF_A_KIND * dtypes))
    known: list[Case] = []
    others: list[Case] = []
    for case in pool:
        own = kinds[case.dtype]
        if len(own) < most:
            own.add(kind(case))
        (known if kind(case) in own else others).append(case)
    return known + others


def _in_turns(cases: Iterable[Case], dtypes: Sequence[str]) -> list[Case]:
    """The cases with dtypes taking turns, each dtype's in their own order."""
    queues = {dtype: [case for case in cases if case.dtype == dtype] for dtype in dtypes}
    longest = max(len(queue) for queue in queues.values())
    return [queue[place] for place in range(longest) for queue in queues.values() if place < len(queue)]
