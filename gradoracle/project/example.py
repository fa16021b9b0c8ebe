"""Example: a family made of a reference and one example of a kernel's arguments, where nothing is annotated.

Sizes that are equal in the example are one dim; dtypes and the ranges of integers are those of the example. The
parameter names of the kernel name the tensors.
"""

from __future__ import annotations

import functools
import inspect
import random
import string
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gradoracle.model.dims import Sizes, dim_names, size, solved
from gradoracle.model.domains import (
    DOMAINS,
    Bits,
    Domain,
    IndexDomain,
    Neighbours,
    Offsets,
    Segments,
    at_most_of,
    declared_domains,
)
from gradoracle.model.domains.domain import product
from gradoracle.model.domains.seen import CHANCE, Guess, Seen, guesses
from gradoracle.model.domains.written import is_written
from gradoracle.model.domains.written import read as read_domain
from gradoracle.model.errors import TargetError, UsageError, first_line, named
from gradoracle.model.family import Family, integers_apart, of_floats, ordinary_sizes
from gradoracle.model.formats import DTYPES
from gradoracle.model.kernel import Kernel
from gradoracle.model.modules import call_with, input_names
from gradoracle.model.signature import Constraints, Signature, TensorSpec, cotangent_name, tangent_name

_ASKED = 1 << 24  # the largest size that may be asked for
_MOST_FACTOR = 8
_WIDEST = 1 << 31  # numbers in a range of integers
_ALONE = "expected tensors as arguments of their own, passed on by a function that takes them one by one"


@dataclass(frozen=True)
class Example:
    """The arguments of one call, by name: those that are tensors become inputs, all others are passed through.

    Attributes:
        positional: names and values in the order of the call.
        keyword: names and values.
    """

    positional: tuple[tuple[str, Any], ...]
    keyword: Mapping[str, Any]

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name, in the order of the call."""
        return {n: t for n, t in (*self.positional, *self.keyword.items()) if isinstance(t, Tensor)}

    def with_tensors(self, given: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Positional and keyword arguments with some tensors replaced."""
        positional = [given.get(name, value) for name, value in self.positional]
        return positional, {name: given.get(name, value) for name, value in self.keyword.items()}


@dataclass(frozen=True)
class Derived:
    """The family and the kernel of an example, and the tensors of the example by the names of the family."""

    family: Family
    kernel: Kernel
    tensors: Mapping[str, Tensor]


@dataclass(frozen=True)
class Corrections:
    """What a user says of an example's dims.

    Attributes:
        dims: the dims of a tensor, by its name, such as ``("B", "2*D")``.
        bounds: the dim or number below which the integers of a tensor lie, by its name.
        option: its name in messages.
        domains: the domain of a tensor of integers, by its name.
    """

    dims: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    bounds: Mapping[str, str] = field(default_factory=dict)
    option: str = "--dim"
    domains: Mapping[str, Domain] = field(default_factory=dict)


def corrections(words: Iterable[str], option: str = "--dim") -> Corrections:
    """``x=B,2*D``, ``index<V`` and ``order=Permutation(T)`` as Corrections.

    Raises:
        UsageError: a word is none of these.
    """
    dims: dict[str, tuple[str, ...]] = {}
    bounds: dict[str, str] = {}
    domains: dict[str, Domain] = {}
    for word in words:
        own, _, text = word.partition("=")
        if "<" not in word and own.strip().isidentifier() and is_written(text):
            try:
                domains[own.strip()] = read_domain(text, DOMAINS)
            except ValueError as error:
                raise UsageError(f"{option} {word!r} is invalid: {error}") from None
            continue
        name, mark, rest = word.partition("<") if "<" in word else word.partition("=")
        parts = tuple(part.strip() for part in rest.split(",")) if rest.strip() else ()
        try:
            valid = mark and name.strip().isidentifier() and all(dim_names(part) is not None for part in parts)
        except ValueError:
            valid = False
        if not valid or (mark == "<" and len(parts) != 1):
            raise UsageError(
                f"{option} {word!r} is invalid; expected TENSOR=DIM,DIM of names, numbers and expressions such as 2*D, "
                "or for integers TENSOR<DIM or a domain, such as TENSOR=Permutation(DIM)"
            )
        if mark == "<":
            bounds[name.strip()] = parts[0]
        else:
            dims[name.strip()] = parts
    return Corrections(dims, bounds, option, domains)


class Shapes:
    """The dims of an example's tensors.

    Attributes:
        dims: the dims of each tensor.
        at_most: pairs of dims, or expressions of dims, of which the first is never larger.
        notes: sentences about what was assumed.
    """

    def __init__(self, corrections: Corrections) -> None:
        self._corrections = corrections
        self._sizes: dict[str, int] = {}
        self._least: dict[str, int] = {}
        self.dims: dict[str, tuple[str, ...]] = {}
        self.at_most: list[tuple[str, str]] = []
        self.notes: list[str] = []

    def read(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Name the dims of the inputs: equal sizes are one dim, and a size of 1 is that number.

        A name that only an expression of a correction has, such as N of ``offsets=N+1``, has the size that fits.

        Raises:
            UsageError: a correction does not fit the shape, or gives a dim two sizes.
        """
        own = {name: dims for name, dims in self._corrections.dims.items() if name in shapes}
        for name, dims in own.items():
            shape = shapes[name]
            if len(dims) != len(shape):
                raise UsageError(
                    f"{self._said(name, dims)} names {len(dims)} dims, but {name} has shape {shape} in the example"
                )
            for dim, found in zip(dims, shape, strict=True):
                if dim.isidentifier() and self._sizes.setdefault(dim, found) != found:
                    raise UsageError(
                        f"{self._said(name, dims)} gives {dim} the size {found}, but it is {self._sizes[dim]} "
                        "elsewhere in the example; expected one size of each dim"
                    )
        for name, dims in own.items():
            for dim, found in zip(dims, shapes[name], strict=True):
                unknown = [each for each in dim_names(dim) if each not in self._sizes]
                if len(unknown) != 1:
                    continue
                if (fitting := solved(dim, found, self._sizes)) is None:
                    raise UsageError(
                        f"{self._said(name, dims)} has no size of {unknown[0]} with which {dim} is {found}, as in the "
                        "example"
                    )
                self._sizes[unknown[0]] = fitting[1]
        for name, dims in own.items():
            self._require(name, dims, shapes[name])
        for name, shape in shapes.items():
            self.dims[name] = own[name] if name in own else tuple(self._named(each) for each in shape)

    def result(self, name: str, shape: tuple[int, ...]) -> tuple[str, ...]:
        """The dims of an output, made of those of the inputs; sizes that none explains are numbers.

        Raises:
            UsageError: a correction does not fit the shape.
        """
        dims = self._corrections.dims.get(name)
        if dims is None:
            return tuple(self._explained(each) for each in shape)
        if len(dims) != len(shape):
            raise UsageError(
                f"{self._said(name, dims)} names {len(dims)} dims, but the reference returns shape {shape}"
            )
        self._require(name, dims, shape)
        return dims

    def domains(self, inputs: Mapping[str, Tensor], results: Collection[int] = ()) -> dict[str, Domain]:
        """The domains of the integer inputs: what is said, what the values show, else the range of the example.

        Args:
            inputs: the tensors of the example, of floats too.
            results: the sizes of the outputs' dims.

        Raises:
            UsageError: a value in the example lies outside the domain that was declared, or that domain does not fit.
        """
        whole = {name: tensor for name, tensor in inputs.items() if not tensor.is_floating_point()}
        floats = [name for name in inputs if name not in whole]
        found: dict[str, Domain] = {}
        for name in sorted(whole, key=lambda name: not self._is_read(name, whole[name], results)):
            beside = Neighbours(found, {each: whole[each] for each in found})
            dims = tuple(self.dims[each] for each in floats)
            found[name] = self._domain(name, whole[name], results, dims, beside)
        self._require_domains(whole, found)
        return {name: found[name] for name in whole}

    def _is_read(self, name: str, tensor: Tensor, results: Collection[int]) -> bool:
        """Whether other domains may read this input: offsets, or what is said and reads none itself."""
        if name in self._corrections.domains:
            return not self._corrections.domains[name].reads
        return name not in self._corrections.bounds and self._is_of_offsets(name, tensor, results)

    def _is_of_offsets(self, name: str, tensor: Tensor, results: Collection[int]) -> bool:
        """Whether integers are offsets: they rise from 0, and to the size of a dim, or the shape says so.

        It does where a correction gives them one more than a dim, or where an output has one less and no input has.
        """
        if tensor.dim() != 1 or tensor.dtype is torch.bool or len(tensor) < 2:
            return False
        values = tensor.long()
        high, gaps = int(values.max()), len(values) - 1
        composed = any(dim_names(dim) and not dim.isidentifier() for dim in self._corrections.dims.get(name, ()))
        of_a_result = gaps in results and gaps not in self._sizes.values()
        rises = int(values[0]) == 0 and bool((values.diff() >= 0).all())
        return rises and high > 1 and (high in self._sizes.values() or composed or of_a_result)

    def _domain(
        self,
        name: str,
        tensor: Tensor,
        results: Collection[int],
        floats: tuple[tuple[str, ...], ...],
        beside: Neighbours,
    ) -> Domain:
        """The domain of one integer input; ``floats``: the dims of each float input."""
        if tensor.dtype is torch.bool and name not in self._corrections.domains:
            return IndexDomain(2)
        if (said := self._corrections.domains.get(name)) is not None:
            if said.is_read_as("offsets") and isinstance(said, Offsets) and said.leading and tensor.dim() == 1:
                self._own_dim(name)
            return said
        values = tensor.long()
        low, high = int(values.min()), int(values.max())
        negative = values[values < 0].unique()
        ignored = int(negative[0]) if len(negative) == 1 and high >= 0 else None
        if (bound := self._corrections.bounds.get(name)) is not None:
            low = int(values[values >= 0].min()) if ignored is not None else low
            said_bound = f"{self._corrections.option} {name}<{bound}"
            if high >= (limit := self._size(bound, said_bound)) or low < 0:
                raise UsageError(f"{said_bound} allows 0 to {limit - 1}, but {name} holds {low} to {high}")
            return IndexDomain(_bound(bound), ignore=ignored)
        found = guesses(Seen(tensor, self.dims[name], self._sizes, floats, beside))
        is_of_offsets = self._is_of_offsets(name, tensor, results)
        told = next((each for each in found if each.chance < CHANCE), None)
        if told is not None and not (is_of_offsets and not isinstance(told.domain, Segments)):
            return self._told(name, told, high)
        if is_of_offsets:
            self._own_dim(name)
            return Offsets(self._of_size(high) or self._as_in_the_example(name, high, high))
        if found:
            may = " or ".join(each.domain.words for each in found)
            self.notes.append(f"{name} may hold {may}; if so, say {self._hint(name, found[0].domain)}")
        return self._range(name, values, ignored)

    def _told(self, name: str, told: Guess, high: int) -> Domain:
        """What the values show, with a note; dims that may bound them, too, stay large enough."""
        text = f"{name} is taken as {told.domain.words}"
        if told.beyond:
            tokens = product(self.dims[name])
            self.at_most += [(tokens, dim) for dim in told.beyond]
            text += f", and {tokens} is at most {' and '.join(told.beyond)}, which may be the rows of a table"
        self.notes.append(f"{text}; say another domain with {self._hint(name, None)}")
        if told.numbered:
            self._as_in_the_example(name, 0, high)
        return told.domain

    def _range(self, name: str, values: Tensor, ignored: int | None) -> Domain:
        """Integers below a dim where only one can bound them, else in the range of the example."""
        own = values[values >= 0] if ignored is not None else values
        low, high = int(own.min()), int(values.max())
        fitting = [dim for dim, known in self._sizes.items() if known >= high]
        if low >= 0 and len(fitting) == 1:
            (dim,) = fitting
            kind = "length" if self._sizes[dim] == high else "index"
            return IndexDomain(dim, kind=kind, ignore=ignored)
        if high - low >= _WIDEST:
            raise UsageError(
                f"{name} holds {low} to {high}, a range of more than 2^31 numbers; expected its domain with "
                f"{self._hint(name, Bits(64))}"
            )
        self._as_in_the_example(name, low, high)
        return IndexDomain(high + 1, minimum=low, ignore=ignored)

    def _hint(self, name: str, domain: Domain | None) -> str:
        """How a user says the domain of a tensor."""
        said = "<DIM" if domain is None else "=" + domain.source.removeprefix("gradoracle.").replace('"', "")
        text = f"{name}{said}".replace(" ", "")
        return f"--dim '{text}'" if self._corrections.option == "--dim" else f"{self._corrections.option}: {text}"

    def _require_domains(self, inputs: Mapping[str, Tensor], domains: Mapping[str, Domain]) -> None:
        """Check what a user says of domains against the example.

        Raises:
            UsageError: one sentence.
        """
        option = self._corrections.option
        said = {name: domain for name, domain in self._corrections.domains.items() if name in domains}
        if floats := [name for name in self._corrections.domains if name in self.dims and name not in domains]:
            raise UsageError(
                f"{option} says what integers {floats[0]} holds, which holds floats; expected an integer input"
            )
        if not said:
            return
        specs = tuple(spec_of(name, self.dims[name], tensor, "") for name, tensor in inputs.items())
        known = tuple(TensorSpec(dim, (dim,)) for dim in self._sizes)  # dims that inputs of floats have, too
        try:
            declared_domains(option, Signature((*specs, *known), (), ()), domains)
        except ValueError as error:
            raise UsageError(str(error)) from None
        for name, domain in said.items():
            if fault := domain.fault(inputs[name], self._sizes, Neighbours(domains, inputs)):
                raise UsageError(f"{option} {name} is {domain.words}, but in the example {name} {fault}")

    def _as_in_the_example(self, name: str, low: int, high: int) -> int:
        """Keep the dims that may bound integers as large as these need; the largest of these."""
        fitting = [dim for dim, known in self._sizes.items() if known >= high]
        for dim in fitting:
            self._least[dim] = max(self._least.get(dim, 1), high + 1 if self._sizes[dim] > high else high)
        if fitting:
            self.notes.append(
                f"{name} holds {low} to {high} as in the example, and {', '.join(fitting)} stay above; say which dim "
                f"bounds it with --dim '{name}<{fitting[-1]}'"
            )
        return high

    def sizes(self, signature: Signature) -> dict[str, Sizes]:
        """The sizes that each dim may take: from 1 on, larger ones than ordinary where they are asked for."""
        found = {dim: ordinary_sizes(dim, signature, self._least.get(dim, 1)) for dim in signature.dims}
        return {dim: replace(sizes, asked=_ASKED) for dim, sizes in found.items()}

    def require_used(self, tensors: Iterable[str]) -> None:
        """Check that every correction names a tensor.

        Raises:
            UsageError: one does not.
        """
        known = tuple(tensors)
        for name in (*self._corrections.dims, *self._corrections.bounds, *self._corrections.domains):
            if name not in known:
                option = self._corrections.option
                raise UsageError(f"{option} names the tensor {name!r}, which is none of {', '.join(known)}")

    def _named(self, found: int) -> str:
        return "1" if found == 1 else self._of_size(found) or self._new(found)

    def _of_size(self, found: int) -> str:
        return next((dim for dim, known in self._sizes.items() if known == found), "")

    def _new(self, found: int) -> str:
        letters = (f"{letter}{n or ''}" for n in range(100) for letter in string.ascii_uppercase)
        dim = next(letter for letter in letters if letter not in self._sizes)
        self._sizes[dim] = found
        return dim

    def _own_dim(self, name: str) -> None:
        """Give offsets a dim of their own, one for each sequence and one more, unless a user has named it."""
        if name not in self._corrections.dims:
            old = self.dims[name][0]
            others = (dims for other, dims in self.dims.items() if other != name)
            found = size(old, self._sizes)
            if old in self._sizes and old not in {n for dims in others for dim in dims for n in dim_names(dim)}:
                del self._sizes[old]
            own = self._of_size(found - 1) if found > 2 else ""  # 1 is no dim
            self.dims[name] = (f"{own or self._new(found - 1)}+1",)

    def _explained(self, found: int) -> str:
        """A dim, or a product, multiple, fraction or neighbour of dims, of that size."""
        if found == 1 or (dim := self._of_size(found)):
            return "1" if found == 1 else dim
        dims = list(self._sizes.items())
        for one, first in dims:
            for other, second in dims:
                if first * second == found:
                    return f"{one}*{other}"
        for factor in range(2, _MOST_FACTOR + 1):
            for one, first in dims:
                if factor * first == found:
                    return f"{factor}*{one}"
                if first // factor == found:
                    return f"{one}//{factor}"
        for one, first in dims:
            for other, second in [*dims, ("1", 1)]:
                if first + second == found:
                    return f"{one}+{other}"
        return str(found)

    def _size(self, dim: str, said: str) -> int:
        unknown = [n for n in dim_names(dim) if n not in self._sizes]
        if unknown:
            raise UsageError(f"{said} names the dim {unknown[0]!r}, which no tensor has; dims are {self._list()}")
        return size(dim, self._sizes)

    def _require(self, name: str, dims: tuple[str, ...], shape: tuple[int, ...]) -> None:
        said = self._said(name, dims)
        for dim, found in zip(dims, shape, strict=True):
            if (expected := self._size(dim, said)) != found:
                raise UsageError(f"{said} gives {dim} the size {expected}, but {name} has shape {shape} in the example")

    def _said(self, name: str, dims: tuple[str, ...]) -> str:
        return f"{self._corrections.option} {name}={','.join(dims)}"

    def _list(self) -> str:
        return ", ".join(f"{dim}={known}" for dim, known in self._sizes.items()) or "none"


def called(given: Any, text: str) -> Any:
    """An example: a value, or what a function of no arguments returns.

    Raises:
        TargetError: the function raises.
    """
    if not callable(given):
        return given
    try:
        return given()
    except Exception as error:
        raise TargetError(
            f"--like {text} raises {named(error)}; expected a function without arguments that returns an example of "
            "the kernel's arguments"
        ) from None


@contextmanager
def seeded() -> Iterator[None]:
    """Fix the seeds of torch, numpy and random, so that an example with random values is the same in every process."""
    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        random.seed(0)
        np.random.seed(0)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def derive(
    kernel: Callable[..., Any],
    reference: Callable[..., Any],
    example: Any,
    *,
    names: tuple[str, str],
    corrections: Corrections | None = None,
    marked: bool = False,
) -> Derived:
    """Make the family of a reference, and the kernel that is checked against it, from one example of the arguments.

    Args:
        kernel: a function, or an nn.Module instance, whose parameters become inputs.
        reference: takes the same arguments; parameters of a module by keyword where it is a function.
        example: a tensor, a tuple or list of positional arguments, or a dict of arguments by name.
        names: the names of the kernel and the reference, for reports.
        corrections: dims and ranges that the example alone gets wrong.
        marked: whether float tensors that do not require grad are passed through, and at least one must; else all are
            inputs, and those that are not marked, where others are, may have no gradient.

    Raises:
        UsageError: one sentence: the example is no arguments of the kernel or holds no tensor to differentiate, the
            reference raises or returns no tensor that depends on them, sizes conflict.
    """
    label, own = names
    _require_callee(kernel, label)
    _require_callee(reference, own)
    given_as = bound(kernel, example, label)
    weights = input_names(kernel)
    tensors = given_as.tensors | {name: tensor for name, (_, tensor) in weights.items()}
    require_tensors(tensors, label)
    grads = [name for name, t in tensors.items() if t.requires_grad]
    floats = [name for name, t in tensors.items() if t.is_floating_point()]
    if not floats:
        raise UsageError(f"the inputs of {label} hold no float tensor; expected at least one to differentiate")
    if marked and not grads:
        raise UsageError(
            f"none of the inputs of {label} requires grad; expected requires_grad=True on those to differentiate"
        )
    inputs = {n: t for n, t in tensors.items() if not t.is_floating_point() or n in grads or not marked}
    through = {n: t for n, t in given_as.tensors.items() if n not in inputs}
    takes = _reference_weights(reference, weights, own, label)
    wanted = [n for n in floats if n in inputs and (n in grads or not grads)]

    def refer(given: Mapping[str, Tensor], wide: bool) -> Any:
        """The reference on tensors by name; those that are passed through are float64 where ``wide``."""
        other = {n: t.detach().double() if wide else t.detach() for n, t in through.items()}
        positional, keyword = given_as.with_tensors(other | dict(given))
        return call_with(reference, {n: given[n] for n in takes if n in given}, positional, keyword, wide=wide)

    outputs, notes = _outputs(refer, inputs, wanted, own)
    case_dtype = min((dtype_of(inputs[n]) for n in floats if n in inputs), key=list(DTYPES).index)
    shapes = Shapes(corrections or Corrections())
    shapes.read({n: tuple(t.shape) for n, t in inputs.items()})
    sizes = {size for tensor in outputs.values() for size in tensor.shape}
    domains = shapes.domains(inputs, sizes)
    specs = [spec_of(n, shapes.dims[n], t, case_dtype) for n, t in inputs.items()]
    called = _names_of_outputs(outputs, specs)
    by_name = zip(called, outputs.values(), strict=True)
    results = [spec_of(n, shapes.result(n, tuple(t.shape)), t, case_dtype) for n, t in by_name]
    shapes.require_used((*inputs, *called))
    order, kept = list(inputs), {n: tensor.requires_grad for n, tensor in outputs.items()}
    constant = [s.name for s, tensor in zip(results, outputs.values(), strict=True)
                if s.kind == "float" and not tensor.requires_grad]  # fmt: skip
    if constant:
        notes.append(f"compared by value alone, as the reference gives no gradient: {', '.join(constant)}")

    @functools.wraps(_function(reference))
    def definition(*given: Tensor) -> Any:
        return _chosen(refer(dict(zip(order, given, strict=True)), True), kept)

    @functools.wraps(_function(kernel))
    def call(*given: Tensor) -> Any:
        named = dict(zip(order, given, strict=True))
        positional, keyword = given_as.with_tensors({n: t.detach() for n, t in through.items()} | named)
        returned = call_with(kernel, {n: named[n] for n in weights if n in named}, positional, keyword)
        return _chosen(returned, kept)

    signature = integers_apart(_name(own), Signature(tuple(specs), tuple(results), ()))
    constraints = Constraints(at_most=(*at_most_of(signature, domains), *shapes.at_most))
    signature = replace(signature, constraints=constraints)
    family = Family(
        _name(own), of_floats(definition, signature), signature, shapes.sizes(signature), (case_dtype,), domains,
        everything=definition,
    )  # fmt: skip
    unmarked = tuple(n for n in floats if n in inputs and n not in wanted)
    said = (f"from the example: {_written(specs, results)}", *shapes.notes, *notes)
    subject = Kernel(
        label.rpartition(":")[2], family.name, call, no_gradient=unmarked, outside=True, notes=() if marked else said
    )
    return Derived(family, subject, {n: t.detach() for n, t in inputs.items()})


def _require_callee(given: Any, label: str) -> None:
    if isinstance(given, type):
        raise UsageError(f"{label} is a class; expected a function of tensors, or an instance of it")
    if not callable(given):
        raise UsageError(f"{label} is of type {type(given).__name__} and not callable; expected a function of tensors")


def bound(kernel: Callable[..., Any], example: Any, label: str) -> Example:
    """The example bound to the parameters of the kernel.

    Raises:
        UsageError: it is no arguments of the kernel.
    """
    if isinstance(example, Tensor):
        example = (example,)
    by_name = isinstance(example, Mapping)
    if not by_name and not isinstance(example, (tuple, list)):
        raise UsageError(
            f"the inputs of {label} are of type {type(example).__name__}; expected a tensor, a tuple of arguments, "
            "or a dict of arguments by name"
        )
    positional, keyword = ((), dict(example)) if by_name else (tuple(example), {})
    try:
        signature = inspect.signature(kernel.forward if isinstance(kernel, nn.Module) else kernel)
    except (TypeError, ValueError):
        found = Example(tuple((f"input{n}", value) for n, value in enumerate(positional)), keyword)
    else:
        try:
            arguments = signature.bind(*positional, **keyword).arguments
        except TypeError as error:
            raise UsageError(f"{label}{signature} cannot be called with these inputs: {error}") from None
        found = _named(signature, arguments)
    for name, value in (*found.positional, *found.keyword.items()):
        if isinstance(value, (tuple, list, Mapping)) and _holds_tensors(value):
            raise UsageError(f"argument {name!r} of {label} is a {type(value).__name__} of tensors; {_ALONE}")
    return found


def _named(signature: inspect.Signature, arguments: Mapping[str, Any]) -> Example:
    positional: list[tuple[str, Any]] = []
    keyword: dict[str, Any] = {}
    for name, value in arguments.items():
        kind = signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            positional += [(f"{name}{n}", each) for n, each in enumerate(value)]
        elif kind is inspect.Parameter.VAR_KEYWORD:
            keyword |= value
        elif kind is inspect.Parameter.KEYWORD_ONLY or len(positional) < list(signature.parameters).index(name):
            keyword[name] = value
        else:
            positional.append((name, value))
    return Example(tuple(positional), keyword)


def _holds_tensors(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_holds_tensors, value.values()))
    return isinstance(value, Tensor) or (isinstance(value, (tuple, list)) and any(map(_holds_tensors, value)))


def require_tensors(tensors: Mapping[str, Tensor], label: str) -> None:
    """Check that there are tensors, of shapes, dtypes and names that a family can have; raises UsageError."""
    if not tensors:
        raise UsageError(f"the inputs of {label} hold no tensor; expected at least one float tensor to differentiate")
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided:
            raise UsageError(f"input {name!r} of {label} has layout {tensor.layout}; expected a dense tensor")
        fits = not tensor.is_floating_point() and not tensor.is_complex()
        if not fits and dtype_of(tensor) not in DTYPES:
            raise UsageError(
                f"input {name!r} of {label} has dtype {dtype_of(tensor)}; expected one of {', '.join(DTYPES)}, "
                "integers or bool"
            )
        if 0 in tensor.shape:
            raise UsageError(
                f"input {name!r} of {label} has shape {tuple(tensor.shape)}; expected at least one element"
            )
        if f"t{name}" in tensors or f"dout{name}" in tensors:
            clash = f"t{name}" if f"t{name}" in tensors else f"dout{name}"
            raise UsageError(f"{label} has inputs {name!r} and {clash!r}, which is the name of a tangent; rename one")


def _reference_weights(
    reference: Callable[..., Any], weights: Mapping[str, tuple[str, Tensor]], own: str, label: str
) -> tuple[str, ...]:
    """The parameters of the kernel's module that the reference takes."""
    if isinstance(reference, nn.Module):
        theirs = set(input_names(reference))
        if theirs != set(weights):
            raise UsageError(
                f"the reference {own} has the parameters {_listed(theirs)}, the kernel {label} has {_listed(weights)}; "
                "expected the same names"
            )
        return tuple(weights)
    try:
        parameters = inspect.signature(reference).parameters
    except (TypeError, ValueError):
        return tuple(weights)
    missing = [n for n in weights if n not in parameters]
    if missing and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise UsageError(
            f"the reference {own} does not take {_listed(missing)}, parameters of the module {label}; expected it to "
            "take them by keyword"
        )
    return tuple(weights)


def _outputs(
    refer: Callable[[Mapping[str, Tensor], bool], Any], inputs: Mapping[str, Tensor], wanted: Sequence[str], own: str
) -> tuple[dict[int, Tensor], list[str]]:
    """The outputs of the reference, by their place, and a sentence about those that cannot be compared.

    Those that require grad depend on a differentiated input.
    """
    leaves = {n: t.detach().requires_grad_(n in wanted) for n, t in inputs.items()}
    shown = ", ".join(f"{name} {list(t.shape)}" for name, t in inputs.items())
    try:
        with torch.enable_grad():
            returned = refer(leaves, False)
    except Exception as error:
        raise UsageError(f"the reference {own} raises {type(error).__name__} on {shown}: {first_line(error)}") from None
    parts = parts_of(returned)
    wrong = [type(part).__name__ for part in parts if not (isinstance(part, Tensor) or part is None)]
    if wrong:
        raise UsageError(f"the reference {own} returns {', '.join(wrong)}; expected a tensor or a tuple of tensors")
    found = {n: part for n, part in enumerate(parts) if isinstance(part, Tensor) and _is_compared(part)}
    if not any(part.requires_grad for part in found.values()):
        raise UsageError(
            f"the reference {own} returns no tensor that depends on {_listed(wanted)}; expected one that has a gradient"
        )
    others = [
        f"{n + 1} of {len(parts)} ({dtype_of(part)} {list(part.shape)})"
        for n, part in enumerate(parts)
        if isinstance(part, Tensor) and n not in found
    ]
    return found, [f"outputs not compared: number {', number '.join(others)}"] if others else []


def _is_compared(output: Tensor) -> bool:
    """Whether an output has elements, of a dtype that a case may have, integers or bool."""
    known = dtype_of(output) in DTYPES if output.is_floating_point() else not output.is_complex()
    return output.numel() > 0 and (known or output.requires_grad)


def parts_of(returned: Any) -> Sequence[Any]:
    """What a function returned, one value or several, as a sequence."""
    return returned if isinstance(returned, (tuple, list)) else (returned,)


def _chosen(returned: Any, kept: Mapping[int, bool]) -> Any:
    """The outputs at some places, with or without their gradient; all that was returned where it lacks these places."""
    parts = parts_of(returned)
    if max(kept) >= len(parts):
        return returned
    chosen = ((parts[n], with_gradient) for n, with_gradient in kept.items())
    return tuple(p if keeps or not isinstance(p, Tensor) else p.detach() for p, keeps in chosen)


def _names_of_outputs(outputs: Mapping[int, Tensor], specs: Sequence[TensorSpec]) -> list[str]:
    taken = {s.name for s in specs} | {tangent_name(s.name) for s in specs}
    stem = next(stem for stem in ("out", "output", "result", "returned") if not {stem, cotangent_name(stem)} & taken)
    return [stem] if len(outputs) == 1 else [f"{stem}{n}" for n in outputs]


def _function(callee: Callable[..., Any]) -> Callable[..., Any]:
    return type(callee).forward if isinstance(callee, nn.Module) else callee


def _name(own: str) -> str:
    name = own.rpartition(":")[2].rpartition(".")[2]
    return name if name.isidentifier() else "reference"


def spec_of(name: str, dims: tuple[str, ...], tensor: Tensor, case_dtype: str) -> TensorSpec:
    """What a family says of a tensor of the example; its dtype where that is not the case's."""
    kind, dtype = "float" if tensor.is_floating_point() else "int", dtype_of(tensor)
    return TensorSpec(name, dims, kind, dtype="" if dtype == case_dtype else dtype)


def dtype_of(tensor: Tensor) -> str:
    """The name of a tensor's dtype, such as ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")


def _written(inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> str:
    first, second = (
        ", ".join(f"{s.name}[{' '.join(s.dims)}]{f' {s.dtype}' if s.kind == 'int' else ''}" for s in group)
        for group in (inputs, outputs)
    )
    return f"{first} -> {second}; correct a dim with --dim NAME=DIM,DIM"


def _listed(names: Any) -> str:
    return ", ".join(sorted(map(repr, names))) or "none"


def _bound(text: str) -> int | str:
    return int(text) if text.isdigit() else text
