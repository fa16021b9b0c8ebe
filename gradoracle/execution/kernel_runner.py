"""Kernel runner: asks the host of a kernel for each derivative on a sample, and checks what it replies.

This is the judge's side: it keeps the sample, compares it with what the kernel's copy of it has become, and takes of
the reply what has the names, shapes and dtypes of the definition.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.execution.own_host import OwnHost
from gradoracle.model.call import (
    WITH_COTANGENTS,
    WITH_TANGENTS,
    Accesses,
    Call,
    Entry,
    Facts,
    Held,
    How,
    KernelHost,
    RaisedError,
    Reply,
    Spot,
)
from gradoracle.model.call_errors import Crashed, error_of, wrong
from gradoracle.model.derivative import Derivative
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel
from gradoracle.model.reason import Reason
from gradoracle.model.signature import cotangent_name, hvp_name, tangent_name
from gradoracle.model.tensor_bits import Change, changes
from gradoracle.model.wording import counted, printable
from gradoracle.model.wrong_accesses import WrongAccess
from gradoracle.oracle.exact.definition import gradients as own_gradients
from gradoracle.oracle.truth import names, tensor_of

Tensors = dict[str, Tensor]
Guard = Callable[[str], AbstractContextManager[None]]
Shapes = Mapping[str, Sequence[int]]
_EXPLICIT = (Derivative.VJP, Derivative.JVP, Derivative.HVP)


class Totals:
    """What all calls of a kernel together took and ran.

    Attributes:
        compiling: seconds spent compiling.
        longest: seconds of the longest compilation.
        called: functions that ran.
    """

    def __init__(self) -> None:
        self.compiling = self.longest = 0.0
        self.called: set[str] = set()

    def add(self, facts: Facts) -> None:
        """One call."""
        self.compiling += facts.compiling
        self.longest = max(self.longest, facts.longest_compilation)
        self.called.update(facts.called)


class _Parts(dict[str, Any]):
    """What a call returned, by part; one that its host left out is a crash of the call."""

    def __init__(self, call: str, parts: Mapping[str, Any]) -> None:
        super().__init__(parts)
        self._call = call

    def __missing__(self, part: str) -> Any:
        raise Crashed(f"{self._call}: gave an answer without {part}", Reason.ENDED, self._call)


class KernelRunner:
    """One kernel of one family, on samples.

    Whatever a call writes to the kernel's copy of the sample's tensors is noted in ``Sample.changes``.

    Args:
        family: whose definition it implements.
        kernel: what it declares.
        guard: is entered for each call, with its name.
        host: where it runs; None: in this process.
        wide: the dtype that samples are in as written, where they are given in float64 and the kernel runs widened; "":
            as written.
        device: where it runs there: "cpu" or "cuda".
        records: whether its accesses are recorded, or fenced.
    """

    def __init__(
        self,
        family: Family,
        kernel: Kernel,
        guard: Guard = lambda name: nullcontext(),
        *,
        host: KernelHost | None = None,
        wide: str = "",
        device: str = "cpu",
        records: bool = True,
    ) -> None:
        self.family, self.kernel, self.guard, self.wide, self.device = family, kernel, guard, wide, device
        self.host = OwnHost({kernel.name: kernel}) if host is None else host
        self.records, self.recorded, self.label = records, True, ""
        self.totals = Totals()
        self.known: set[Spot] = set()  # where accesses outside of tensors have been reported
        self._explicit = tuple(each for each in _EXPLICIT if getattr(kernel, each.value) is not None)
        self._is_optional = False  # whether outputs without a gradient are no error
        self._how: dict[str, Any] = {}

    @property
    def interprets(self) -> bool:
        """Whether Triton is interpreted where the kernel runs, so that accesses are recorded and it can be widened."""
        return self.host.interprets

    def labelled(self, key: str, recorded: bool = False) -> KernelRunner:
        """The same kernel, whose calls are named after what is done to the sample, and recorded only if asked."""
        made = copy.copy(self)
        made.label, made.recorded = f"{self.label}{key}: ", recorded
        return made

    def declared(self, kernel: Kernel) -> KernelRunner:
        """The same kernel, with other declarations."""
        made = copy.copy(self)
        made.kernel, made.label, made.recorded, made.known = kernel, "", True, set()
        return made

    def widened(self, dtype: str, kernel: Kernel) -> KernelRunner:
        """The same kernel widened, with other declarations, on samples of a dtype that are given in float64."""
        made = copy.copy(self)
        made.wide, made.kernel = dtype, kernel
        return made

    def by_autograd(self, *derivatives: Derivative) -> KernelRunner:
        """The same kernel, with derivatives (all, or some) by autograd; one with an explicit VJP may have none."""
        made = copy.copy(self)
        made._is_optional = not derivatives and Derivative.VJP in self._explicit
        made._explicit = tuple(each for each in self._explicit if derivatives and each not in derivatives)
        return made

    def on(self, device: str) -> KernelRunner:
        """The same kernel on another device."""
        made = copy.copy(self)
        made.device = device
        return made

    def made(self, **how: Any) -> KernelRunner:
        """The same kernel, whose calls are made otherwise (``model.call.How``)."""
        made = copy.copy(self)
        made._how = {**self._how, **how}
        return made

    def forward(self, sample: Sample, blocks: str = "") -> tuple[Tensors, Facts]:
        """The outputs by name, and what was seen of the call."""
        reply = self._reply(Entry.FORWARD, sample, blocks)
        return self._named(Derivative.FORWARD, sample, reply.returned["outputs"]), reply.facts

    def vjp(
        self,
        sample: Sample,
        blocks: str = "",
        expected: Sequence[str] | None = None,
        upstream: Sequence[str] | None = None,
    ) -> tuple[Tensors, Facts]:
        """Outputs and gradients by name, from one forward and one backward.

        Args:
            sample: the kernel's arguments.
            blocks: the name of a block configuration to force.
            expected: the inputs that require grad; None: all.
            upstream: the outputs that have a cotangent; None: all.
        """
        reply = self._reply(Entry.VJP, sample, blocks, expected=_tuple(expected), upstream=_tuple(upstream))
        return self._outputs_and_gradients(sample, reply, expected), reply.facts

    def vjp_twice(self, sample: Sample, blocks: str = "") -> tuple[Tensors, Tensors]:
        """The gradients of two backward passes over one retained graph."""
        reply = self._reply(Entry.VJP_TWICE, sample, blocks)
        self._named(Derivative.FORWARD, sample, reply.returned["outputs"])
        keys = [cotangent_name(name) for name in self.primals(sample)]
        first, second = (self._gradients(sample, keys, reply.returned[part]) for part in ("first", "second"))
        return first, second

    def vjp_in_the_same_memory(
        self, sample: Sample, later: Mapping[str, Tensor], blocks: str = ""
    ) -> tuple[Tensors, Tensors, Tensors]:
        """Outputs and gradients; those of a second call, with other inputs in the same memory; the first after it."""
        reply = self._reply(Entry.VJP_IN_THE_SAME_MEMORY, sample, blocks, later=later)
        found = []
        for suffix in (" at once", " later", ""):
            own = {part: reply.returned.get(f"{part}{suffix}", ()) for part in ("outputs", "gradients")}
            found.append(self._outputs_and_gradients(sample, replace(reply, returned=own), None))
        return found[0], found[1], found[2]

    def saved(self, sample: Sample, blocks: str, expected: Sequence[str]) -> list[tuple[Tensor, Tensor | None, Tensor]]:
        """The tensors that a VJP saves for its backward: when saved, when first unpacked (None: never), in the end."""
        reply = self.made(saved=True)._reply(Entry.VJP, sample, blocks, expected=tuple(expected))
        self._outputs_and_gradients(sample, reply, expected)
        first, unpacked, last = (reply.returned[part] for part in ("saved", "unpacked", "saved in the end"))
        if not len(first) == len(unpacked) == len(last) or any(each is None for each in (*first, *last)):
            raise Crashed("vjp: gave an answer without some of the saved tensors", Reason.ENDED, "vjp")
        for index, (own, *later) in enumerate(zip(first, unpacked, last, strict=True)):
            for each in later:
                if each is not None and _form(each) != _form(own):
                    raise wrong(f"saved tensor {index}", f"saved tensor {index} was {_form(own)}, and is {_form(each)}")
        return list(zip(first, unpacked, last, strict=True))

    def jvp(self, sample: Sample, blocks: str = "", along: Sequence[str] | None = None) -> tuple[Tensors, Facts]:
        """The outputs' tangents by name, by forward mode along ``along`` only; with an explicit JVP the outputs too."""
        reply = self._reply(Entry.JVP, sample, blocks, along=_tuple(along))
        outputs = reply.returned.get("outputs")
        found = {} if outputs is None else self._named(Derivative.FORWARD, sample, outputs)
        return found | self._named(Derivative.JVP, sample, reply.returned["tangents"]), reply.facts

    def hvp(self, sample: Sample, blocks: str = "") -> tuple[Tensors, Facts]:
        """The Hessian of <cotangent, f> times the tangents, by name of the primal."""
        reply = self._reply(Entry.HVP, sample, blocks)
        if "outputs" in reply.returned:
            self._named(Derivative.FORWARD, sample, reply.returned["outputs"])
        return self._named(Derivative.HVP, sample, reply.returned["products"]), reply.facts

    def reverse_over_forward(self, sample: Sample, blocks: str = "") -> tuple[Tensors, Tensors]:
        """The gradients of <cotangents, J t>: in the inputs, which are the HVPs, and in the tangents: the VJP."""
        reply = self._reply(Entry.REVERSE_OVER_FORWARD, sample, blocks)
        products, gradients = reply.returned["products"], reply.returned["gradients"]
        return self._named(Derivative.HVP, sample, products), self._named(Derivative.VJP, sample, gradients)

    def forward_over_reverse(self, sample: Sample, blocks: str = "") -> Tensors:
        """The tangents of the gradients, which are the HVPs."""
        reply = self._reply(Entry.FORWARD_OVER_REVERSE, sample, blocks)
        return self._named(Derivative.HVP, sample, reply.returned["products"])

    def hvp_of_some_inputs(self, sample: Sample, blocks: str, expected: Sequence[str]) -> Tensors:
        """The HVPs by double backward if only some inputs require grad, along their tangents."""
        reply = self._reply(Entry.HVP_OF_SOME_INPUTS, sample, blocks, expected=tuple(expected))
        like = [sample.inputs[name] for name in expected]
        return self._fitting(list(map(hvp_name, expected)), like, reply.returned["products"])

    def jvp_by_cotangents(self, sample: Sample, blocks: str = "") -> Tensors:
        """The gradient of <J^T g, t> in the cotangents g, which is J t."""
        reply = self._reply(Entry.JVP_BY_COTANGENTS, sample, blocks)
        return self._named(Derivative.JVP, sample, reply.returned["tangents"])

    def integers(self, sample: Sample, blocks: str = "") -> Tensors:
        """The integer outputs by name."""
        reply = self._reply(Entry.INTEGERS, sample, blocks)
        present = set(self.family.signature.all_returned(sample.options))
        whole = [spec.name for spec in self.family.signature.whole if spec.name in present]
        tensors = reply.returned["integers"]
        _require_count("the kernel", "integer output", whole, tensors)
        for name, tensor in zip(whole, tensors, strict=True):
            if tensor is None or tensor.is_meta:
                raise wrong(name, f"{name} is {_form(tensor)}, expected integers")
            if tensor.dtype.is_floating_point or tensor.dtype.is_complex:
                raise wrong(name, f"{name} has dtype {str(tensor.dtype)[6:]}, expected integers")
        return dict(zip(whole, tensors, strict=True))

    def raised(self, key: str, sample: Sample, inputs: Mapping[str, Tensor], blocks: str = "") -> RaisedError | None:
        """What the kernel raises on other inputs, which it may not take; None where it returns."""
        given = replace(sample, inputs=dict(inputs), changes={})
        found = self._reply(Entry.RAISED, given, blocks, name=key, records=False).facts.raised
        for name, noted in given.changes.items():
            if given.tensors()[name] is sample.tensors()[name]:
                sample.changes.setdefault(name, noted)
        return found

    def entry(
        self, name: str, sample: Sample, blocks: str, shapes: Shapes, arguments: Sequence[Any], key: str
    ) -> tuple[Tensors, Facts]:
        """What a further entry point of the kernel gives: ``extras[name](inputs, *arguments, options, blocks)``.

        Args:
            name: of the entry point.
            sample: the inputs.
            blocks: the name of a block configuration to force.
            shapes: by name, in order: those of the tensors that it gives, as a mapping, a tuple or alone.
            arguments: tensors, plain values, and tuples of these.
            key: names the call in reports.
        """
        own = tuple(self._held(each, sample) for each in arguments) if self.wide else tuple(arguments)
        reply = self._reply(name, sample, blocks, arguments=own, name=key, records=True)
        return _of_shapes(name, shapes, reply.returned["returned"]), reply.facts

    def _held(self, value: Any, sample: Sample) -> Any:
        """An argument of a widened entry point: a tensor of the sample names its dtype, another one the case's."""
        if isinstance(value, tuple):
            return tuple(self._held(each, sample) for each in value)
        if not isinstance(value, Tensor) or value.dtype != torch.float64:
            return value
        named = self._names(sample)
        own = (named.get(name, "float64") for name, tensor in sample.tensors().items() if tensor is value)
        return Held(value, next(own, self.wide))

    def shapes(self, derivative: Derivative, sample: Sample) -> Shapes:
        """Those of the tensors of a derivative, by name."""
        own = self._like(derivative, sample)
        return {n: tuple(each.shape) for n, each in zip(names(self.family, derivative, sample), own, strict=True)}

    def primals(self, sample: Sample) -> list[str]:
        """The names of the float inputs that a sample has."""
        return [spec.name for spec in self.family.signature.primals if spec.name in sample.inputs]

    def options(self, sample: Sample) -> dict[str, Any]:
        """Those options of a sample that the kernel takes, and the keywords that are held fixed."""
        barred = {name for name, values in self.kernel.options.items() if not values}
        return {n: value for n, value in sample.options.items() if n not in barred} | dict(self.kernel.arguments)

    def _reply(
        self, entry: str, sample: Sample, blocks: str, name: str = "", records: bool | None = None, **asked: Any
    ) -> Reply:
        """What the host replies.

        Args:
            entry: what is asked for.
            sample: the tensors of the call.
            blocks: the block configuration.
            name: of the call; "": the entry's.
            records: recording of its accesses; None: the derivatives of the case itself are recorded, and nothing else.
            asked: fields of the call.

        Raises:
            Refused, Unavailable, Crashed, Wrong: how it ended, if it returned nothing.
        """
        own = entry.value if isinstance(entry, Entry) else entry
        name = name or ("hvp" if entry is Entry.HVP_OF_SOME_INPUTS else own)
        call = self._call(own, sample, blocks, name, records, asked)
        with self.guard(call.how.label + call.how.name):
            reply = self.host.call(call)
            self.totals.add(reply.facts)
            for key, change in _changes(call, reply.after).items():
                if key not in self.kernel.mutates:
                    sample.changes.setdefault(key, (call.how.label + call.how.name, change))
            if reply.end is not None:
                raise error_of(reply.end)
            self._require_inside(call, reply)
        return replace(reply, returned=_Parts(call.how.label + call.how.name, reply.returned))

    def _call(
        self, entry: str, sample: Sample, blocks: str, name: str, records: bool | None, asked: Mapping[str, Any]
    ) -> Call:
        signature = self.family.signature
        shown = {spec.name: f"{spec.name}[{' '.join(spec.dims)}]" for spec in signature.returned(sample.options)}
        how = How(
            f"widened {name}" if self.wide else name,
            self.label,
            self.device,
            self._names(sample) if self.wide else None,
            accesses=self._accesses(name, records),
            claims=tuple(each for each in Derivative if self.kernel.is_claimed(each)),
            needs_gradients=self.kernel.must_have_gradients and not self._is_optional,
            **self._how,
        )
        return Call(
            self.kernel.name,
            entry,
            dict(sample.inputs),
            dict(sample.tangents) if entry in WITH_TANGENTS else {},
            dict(sample.cotangents) if entry in WITH_COTANGENTS else {},
            self.options(sample),
            tuple(spec.name for spec in signature.inputs if spec.keyword),
            {each: shown.get(each, each) for each in signature.all_returned(sample.options)},
            tuple(spec.name for spec in signature.whole),
            blocks,
            self._explicit,
            how,
            **asked,
        )

    def _names(self, sample: Sample) -> dict[str, str]:
        """The dtypes that float64 tensors of a widened sample name."""
        signature = self.family.signature
        held = {spec.name: spec.held(self.wide) for spec in signature.inputs}
        named = {name: held[name] for name in sample.inputs} | {tangent_name(n): held[n] for n in sample.tangents}
        outputs = {spec.name: spec.held(self.wide) for spec in signature.outputs}
        named |= {cotangent_name(name): outputs[name] for name in sample.cotangents}
        own = sample.tensors()
        return {n: dtype for n, dtype in named.items() if own[n].dtype == torch.float64 and dtype != "float64"}

    def _accesses(self, name: str, records: bool | None) -> Accesses:
        if not self.records:
            return Accesses.FREE
        is_recorded = name in tuple(each.value for each in Derivative) if records is None else records
        if self.recorded and is_recorded:
            return Accesses.RECORDED
        return Accesses.UNREPORTED if records is False else Accesses.FENCED

    def _require_inside(self, call: Call, reply: Reply) -> None:
        """Check that a call made no access outside of its tensors that has not been reported.

        Raises:
            Crashed: it made one, which was not performed; says where.
        """
        found = [fault for fault in reply.facts.outside if _spot(fault) not in self.known]
        self.known.update(map(_spot, (*reply.facts.faults, *found)))
        if found:
            more = f"; and {len(found) - 1} more" if len(found) > 1 else ""
            raise Crashed(f"{found[0]}{more}; it was not performed", Reason.ACCESS, call.how.name)

    def _outputs_and_gradients(self, sample: Sample, reply: Reply, expected: Sequence[str] | None) -> Tensors:
        found = self._named(Derivative.FORWARD, sample, reply.returned["outputs"])
        keys = [cotangent_name(n) for n in self.primals(sample) if expected is None or n in expected]
        return found | self._gradients(sample, keys, reply.returned["gradients"])

    def _named(self, derivative: Derivative, sample: Sample, tensors: Sequence[Any]) -> Tensors:
        """The tensors of a derivative by name, each checked for shape and dtype."""
        return self._fitting(names(self.family, derivative, sample), self._like(derivative, sample), tensors)

    def _like(self, derivative: Derivative, sample: Sample) -> list[Tensor]:
        """Tensors of the shapes and dtypes that those of a derivative have."""
        if derivative in (Derivative.FORWARD, Derivative.JVP):
            return [sample.cotangents[spec.name] for spec in self.family.signature.returned(sample.options)]
        return [sample.inputs[name] for name in self.primals(sample)]

    def _fitting(self, keys: Sequence[str], like: Sequence[Tensor], tensors: Sequence[Any]) -> Tensors:
        """Tensors by name, each of the shape and dtype of another, without products of what has no gradient."""
        _require_count("the kernel", "tensor", keys, tensors)
        found = {}
        for key, tensor, own in zip(keys, tensors, like, strict=True):
            if key in map(hvp_name, self.kernel.no_gradient):
                continue
            if not isinstance(tensor, Tensor):
                raise wrong(key, f"{key} is {tensor!r}, expected a tensor of shape {tuple(own.shape)}")
            self._require_fit(key, tensor, own)
            found[key] = tensor
        return found

    def _gradients(self, sample: Sample, keys: Sequence[str], gradients: Sequence[Any]) -> Tensors:
        _require_count("the kernel", "gradient", keys, gradients)
        found = {}
        for key, gradient in zip(keys, gradients, strict=True):
            name = key[1:]
            if gradient is None:
                if name in self.kernel.no_gradient:
                    continue
                if own_gradients(self.family, sample)[name] is not None:
                    raise wrong(key, f"{key} is None: {name} takes part in the definition, so it has a gradient")
                gradient = torch.zeros_like(sample.inputs[name])  # at these sizes autograd gives none of the definition
            self._require_fit(key, gradient, sample.inputs[name])
            found[key] = gradient
        return found

    def _require_fit(self, key: str, tensor: Tensor, like: Tensor) -> None:
        """Check a tensor's shape and dtype, and that it has elements.

        Raises:
            Wrong: one of them is another.
        """
        if tuple(tensor.shape) != tuple(like.shape):
            raise wrong(key, f"{key} has shape {tuple(tensor.shape)}, expected {tuple(like.shape)}")
        expected = getattr(torch, tensor_of(self.family, key).held(self.wide)) if self.wide else like.dtype
        if tensor.dtype != expected and not (self.wide and tensor.dtype == torch.float64):
            raise wrong(key, f"{key} has dtype {str(tensor.dtype)[6:]}, expected {str(expected)[6:]}")
        if tensor.is_meta:
            raise wrong(key, f"{key} is {_form(tensor)}, expected one with elements")


def _of_shapes(entry: str, shapes: Shapes, given: Any) -> Tensors:
    """The tensors that an entry point gives, by name.

    Raises:
        Wrong: there are others, or one of them is no float tensor of its shape.
    """
    found = given
    if not isinstance(given, Mapping):
        parts = given if isinstance(given, tuple) else (given,)
        _require_count(entry, "value", tuple(shapes), parts)
        found = dict(zip(shapes, parts, strict=True))
    if found.keys() != shapes.keys():
        raise wrong(next(iter(shapes)), f"{entry} returned {_form(tuple(found))}, expected {tuple(shapes)}")
    for key, shape in shapes.items():
        tensor = found[key]
        if not isinstance(tensor, Tensor) or tensor.is_meta or not tensor.is_floating_point():
            raise wrong(key, f"{key} of {entry} is {_form(tensor)}, expected floats of shape {tuple(shape)}")
        if tuple(tensor.shape) != tuple(shape):
            raise wrong(key, f"{key} of {entry} has shape {tuple(tensor.shape)}, expected {tuple(shape)}")
    return {key: found[key] for key in shapes}


def _require_count(who: str, what: str, keys: Sequence[str], found: Sequence[Any]) -> None:
    """Check that there are as many things of a kind as names.

    Raises:
        Wrong: there are more, or fewer.
    """
    if len(found) != len(keys):
        text = f"{who} returned {counted(len(found), what)}, expected {len(keys)}"
        raise wrong(keys[0] if keys else what, f"{text}: {tuple(keys)}" if keys else text)


def _form(value: Any) -> str:
    """A value in words: of a tensor the dtype and shape."""
    if not isinstance(value, Tensor):
        return " ".join(printable(repr(value), 100).split())
    text = f"a tensor of {str(value.dtype)[6:]} of shape {tuple(value.shape)}"
    return f"{text} without elements" if value.is_meta else text


def _changes(call: Call, after: Mapping[str, Tensor]) -> dict[str, Change]:
    """What the kernel wrote to the arguments of a call: they hold neither what it was given nor what came later."""
    found = changes(call.tensors(), after)
    allowed = changes(call.later, {name: after[name] for name in call.later})
    return {name: change for name, change in found.items() if name not in call.later or name in allowed}


def _tuple(names: Sequence[str] | None) -> tuple[str, ...] | None:
    return None if names is None else tuple(names)


def _spot(fault: WrongAccess) -> Spot:
    """Kernel, file, line and tensor of a wrong access."""
    return fault.kernel, fault.place.file, fault.place.line, fault.tensor
