"""Source: a parsed module, and the functions of it in which mistakes are planted.

Mistakes are planted in

1. every function with a decorator whose last name is ``jit``: ``@triton.jit``, ``@triton.jit(...)``, ``@jit``,
   whatever its other decorators;
2. every method of a class one of whose bases has a name that ends in ``Function``;
3. every other function or method that launches: that calls a subscript, ``kernel[grid](...)``; or ``.apply`` of
   anything; or passes a jitted function, or a name that ends in ``_kernel``, to a call; or calls something named
   ``launch`` or ``run``, or beginning so (``launch_far``, ``output.run``); or calls a function of the file, or a
   method of ``self``, that launches.

Not in magic methods, in functions that only raise, nor in those named for a check (``check``, ``refuse``), a test
(``test``), a benchmark (``bench``) or ``main``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper

from gradoracle.model.errors import UsageError
from gradoracle.mutation.operators.place import Place, only_raises
from gradoracle.mutation.operators.syntax import children, dotted, last_name, qualified, within

_OTHER_PURPOSES = ("check", "refuse", "test", "bench", "main")


class Source:
    """A module.

    Attributes:
        text: as given.
        places: the functions in which mistakes are planted, in the order of the text.

    Raises:
        UsageError: where the text is not Python.
    """

    def __init__(self, text: str, module: str) -> None:
        try:
            parsed = cst.parse_module(text)
        except cst.ParserSyntaxError as error:
            raise UsageError(
                f"{module} cannot be parsed, at line {error.raw_line}: expected a file of Python"
            ) from None
        wrapper = MetadataWrapper(parsed, unsafe_skip_copy=True)
        self.text = text
        self._bytes = text.encode()
        self._spans = wrapper.resolve(ByteSpanPositionProvider)
        self._imported: set[str] = set()
        self._languages = {"tl"}
        functions = list(self._functions(parsed.body, ""))
        self.jitted = frozenset(name for name, function, _ in functions if _is_jitted(function))
        own = frozenset(name.partition(".")[0] for name, _, _ in functions) | self._imported
        launching = self._launching([(name, each) for name, each, _ in functions if name not in self.jitted])
        self.places = tuple(
            Place(name, function, name in self.jitted, frozenset(self._languages), own)
            for name, function, differentiable in functions
            if name in self.jitted or ((differentiable or name in launching) and _is_wanted(function))
        )

    def span(self, node: cst.CSTNode, until: cst.CSTNode | None = None) -> tuple[int, int]:
        """Return the byte offsets of the code from one node to another, without their own parentheses."""
        first, last = self._spans[node], self._spans[until or node]
        return first.start, last.start + last.length

    def line(self, start: int) -> int:
        """Return the line, from 1, of a byte offset."""
        return self._bytes.count(b"\n", 0, start) + 1

    def piece(self, start: int, end: int) -> str:
        """Return the code between two byte offsets."""
        return self._bytes[start:end].decode()

    def replaced(self, start: int, end: int, code: str) -> str:
        """Return the whole text with other code between two byte offsets."""
        return (self._bytes[:start] + code.encode() + self._bytes[end:]).decode()

    def statement(self, node: cst.CSTNode, place: Place, start: int, end: int, code: str) -> str:
        """Return a small module with the statement around a node, with other code between two byte offsets.

        It compiles if the whole text does, which takes far longer. The whole text where there is no such statement.
        """
        around: cst.CSTNode | None = node
        while around is not None and not isinstance(place.parent(around), cst.IndentedBlock):
            around = place.parent(around)
        if around is None:
            return self.replaced(start, end, code)
        first, last = self.span(around)
        indent = self._bytes[self._bytes.rfind(b"\n", 0, first) + 1 : first]
        if not indent or indent.strip():
            return self.replaced(start, end, code)
        parts = (b"def _():\n", indent, self._bytes[first:start], code.encode(), self._bytes[end:last], b"\n")
        return b"".join(parts).decode()

    def _functions(
        self, statements: Sequence[cst.CSTNode], owner: str, differentiable: bool = False
    ) -> Iterator[tuple[str, cst.FunctionDef, bool]]:
        """Yield (name, definition, whether a method of an autograd function); also record imports."""
        for each in statements:
            if isinstance(each, cst.FunctionDef):
                yield f"{owner}{each.name.value}", each, differentiable
            elif isinstance(each, cst.ClassDef):
                bases = any(last_name(base.value).endswith("Function") for base in each.bases)
                yield from self._functions(each.body.body, f"{owner}{each.name.value}.", bases)
            elif isinstance(each, cst.SimpleStatementLine):
                for small in each.body:
                    if isinstance(small, (cst.Import, cst.ImportFrom)):
                        self._note(small)
            else:  # of an if or a try every branch
                inner = [part for part in children(each) if not isinstance(part, cst.BaseExpression)]
                yield from self._functions(inner, owner, differentiable)

    def _note(self, node: cst.Import | cst.ImportFrom) -> None:
        if isinstance(node.names, cst.ImportStar):
            return
        relative = isinstance(node, cst.ImportFrom) and bool(node.relative)
        origin = dotted(node.module) if isinstance(node, cst.ImportFrom) and node.module is not None else ""
        for alias in node.names:
            full = f"{origin}.{dotted(alias.name)}".lstrip(".")
            bound = alias.asname.name.value if alias.asname is not None else full.rpartition(".")[2]  # type: ignore[union-attr]
            if relative:
                self._imported.add(bound)
            elif full == "triton.language":
                self._languages |= {bound} if alias.asname is not None or origin else {"triton"}

    def _launching(self, functions: Sequence[tuple[str, cst.FunctionDef]]) -> set[str]:
        calls = {name: [n for n in within(each.body) if isinstance(n, cst.Call)] for name, each in functions}
        found = {name for name, made in calls.items() if any(self._launches(call) for call in made)}
        while True:
            local = {name.rpartition(".")[2] for name in found}
            more = {name for name, made in calls.items() if any(_called(call) in local for call in made)}
            if more <= found:
                return found
            found |= more

    def _launches(self, call: cst.Call) -> bool:
        if isinstance(call.func, cst.Subscript):
            return True
        name = last_name(call.func)
        if name in ("apply", "launch", "run") or name.startswith(("launch_", "run_")):
            return True
        passed = (qualified(each.value)[1] for each in call.args)
        return any(each in self.jitted or each.endswith("_kernel") for each in passed)


def _is_jitted(function: cst.FunctionDef) -> bool:
    return any(last_name(each.decorator) == "jit" for each in function.decorators)


def _called(call: cst.Call) -> str:
    return dotted(call.func).removeprefix("self.")


def _is_wanted(function: cst.FunctionDef) -> bool:
    name = function.name.value
    if name.startswith("__") or name.lstrip("_").startswith(_OTHER_PURPOSES):
        return False
    body = function.body
    statements = body.body if isinstance(body, cst.IndentedBlock) else ()
    return not only_raises(statements[1:] if statements and _is_docstring(statements[0]) else statements)


def _is_docstring(statement: cst.CSTNode) -> bool:
    small = statement.body if isinstance(statement, cst.SimpleStatementLine) else ()
    return len(small) == 1 and isinstance(small[0], cst.Expr) and isinstance(small[0].value, cst.SimpleString)
