"""Plant: the mutants of a source, one mistake each, and a sample of them that favours no operator and no function."""

from __future__ import annotations

import ast
import hashlib
import itertools
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from gradoracle.mutation.mutant import Mutant

if TYPE_CHECKING:
    from gradoracle.mutation import sources
    from gradoracle.mutation.operators import Fault, Operator, Place, Source

T = TypeVar("T")
_LAYOUT = str.maketrans("", "", "(),")


def mutants_of(source: sources.Source, operators: Sequence[Operator] | None = None) -> list[Mutant]:
    """Return the mutants of a source of a target, in those of its functions that the target uses."""
    found = mutants(source.text, source.shown, operators)
    return [each for each in found if source.functions is None or each.function in source.functions]


def mutants(source: str, module: str, operators: Sequence[Operator] | None = None) -> list[Mutant]:
    """Return every mutant that an operator can plant in a source, in the order of the source, then of the operators.

    Each compiles, differs from the original as code, and from all others. A source without a site has none.

    Args:
        source: of a Python module; `operators.source` says which of its functions are mutated.
        module: its name, or its file as given.
        operators: that plant; by default all.

    Raises:
        UsageError: libcst is not installed, or the source is not Python.
    """
    from gradoracle.mutation.operators import OPERATORS, Source

    parsed = Source(source, module)
    by_node: dict[type, list[Operator]] = defaultdict(list)
    for operator in OPERATORS if operators is None else operators:
        for kind in operator.nodes:
            by_node[kind].append(operator)
    found: list[Mutant] = []
    seen = {source}
    occurrences: Counter[tuple[str, ...]] = Counter()
    for place in parsed.places:
        for node in place.nodes:
            for operator in by_node.get(type(node), ()):
                if operator.kernels if place.kernel else operator.wrappers:
                    for fault in operator.propose(node, place):
                        mutant = _planted(parsed, module, place, operator, fault, occurrences)
                        if mutant is not None and mutant.source not in seen:
                            seen.add(mutant.source)
                            found.append(mutant)
    return found


def _planted(
    parsed: Source, module: str, place: Place, operator: Operator, fault: Fault, occurrences: Counter[tuple[str, ...]]
) -> Mutant | None:
    """Return the mutant with one mistake; None where the code is the same, or does not compile."""
    from gradoracle.mutation.operators.syntax import one_line

    start, end = parsed.span(fault.node, fault.until)
    before = parsed.piece(start, end)
    code = _fitting(fault, place)
    if not _differs(before, code) or not _compiles(parsed.statement(fault.node, place, start, end, code)):
        return None
    piece = (operator.name, place.name, one_line(before), fault.code)
    occurrences[piece] += 1
    return Mutant(
        module=module,
        operator=operator.name,
        function=place.name,
        line=parsed.line(start),
        before=piece[2],
        after=fault.code,
        occurrence=occurrences[piece] - 1,
        original=parsed.text,
        source=parsed.replaced(start, end, code),
        cause=operator.cause if fault.cause is None else fault.cause,
    )


def _fitting(fault: Fault, place: Place) -> str:
    """Return the code as it goes into the source: in parentheses where it needs them."""
    import libcst as cst

    from gradoracle.mutation.operators.syntax import parenthesised, rank

    node = fault.node
    if not fault.code:
        return "pass"
    whole = isinstance(node, cst.BaseExpression) and not isinstance(node, cst.BaseElement) and fault.until is None
    if not whole or parenthesised(node):
        return fault.code
    new = cst.parse_expression(fault.code)
    above = place.parent(node)
    alone = isinstance(above, (cst.Assign, cst.AugAssign, cst.AnnAssign, cst.Return, cst.Index, cst.If, cst.Element))
    if alone or (isinstance(above, cst.Arg) and not above.star) or parenthesised(new) or rank(new) >= rank(node):
        return fault.code
    return f"({fault.code})"


def _differs(before: str, after: str) -> bool:
    """Say whether two pieces, both statements or both parts of expressions or of arguments, differ as code."""
    return _bare(before) != _bare(after) or _parsed(before) != _parsed(after)


def _bare(piece: str) -> str:
    return "".join(piece.translate(_LAYOUT).split())


def _parsed(piece: str) -> str:
    try:
        return ast.dump(ast.parse(f"_(\n{piece}\n)"))
    except SyntaxError:
        return ast.dump(ast.parse(piece))


def _compiles(source: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns about some mutants
            compile(source, "<mutant>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def choose(mutants: Iterable[Mutant], count: int, seed: int) -> list[Mutant]:
    """Return `count` of the mutants, all where there are fewer, in an order that depends on the seed alone.

    Operators take turns, within an operator modules, within a module functions; a function's own mutants come in the
    order of a hash of their keys. So the first 50 of 100 are what 50 would be, and where a site is added to the source
    the others keep their order.
    """

    def turns(held: Sequence[Mutant], levels: Sequence[str], scope: str) -> Iterator[Mutant]:
        if not levels:
            return iter(sorted(held, key=lambda each: _hash(scope, each.module, each.key, str(seed))))
        groups: dict[str, list[Mutant]] = defaultdict(list)
        for each in held:
            groups[getattr(each, levels[0])].append(each)
        names = sorted(groups, key=lambda name: _hash(scope, name, str(seed)))
        return _in_turn([turns(groups[name], levels[1:], f"{scope}\0{name}") for name in names])

    order = turns(tuple(mutants), ("operator", "module", "function"), "")
    return list(itertools.islice(order, max(count, 0)))


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _in_turn(streams: Iterable[Iterator[T]]) -> Iterator[T]:
    """Yield one of each stream, then another of each, as long as there are any."""
    for each in itertools.zip_longest(*streams):
        yield from (item for item in each if item is not None)
