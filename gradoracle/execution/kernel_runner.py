"""Kernel runner: calls a kernel for each derivative on a sample, and sorts what happens if it returns no tensors."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor

from gradoracle.cases.sample import Sample
from gradoracle.execution.autograd import accumulated, dense, or_zeros, pulled_back, pushed_forward
from gradoracle.execution.call_errors import (
    REFUSALS,
    Crashed,
    Detached,
    DeviceLost,
    NoDerivative,
    Refused,
    Severed,
    Unavailable,
    Wrong,
    needing,
    raise_if_lost,
    told_by_triton,
)
from gradoracle.execution.claimed_cuda import cuda_claimed
from gradoracle.execution.guard_memory import Memory, Originals, Spot, inside_tensors, poisoned, watched
from gradoracle.execution.interpreter.launch_hooks import dots_in_ieee
from gradoracle.execution.interpreter.values import CannotInterpret, CannotWiden
from gradoracle.execution.returned import detached, floats_of, integers_of, owned, require_count, require_fit, wrong
from gradoracle.execution.widened import narrowed, place_of, widening
from gradoracle.model.derivative import Derivative, as_tuple
from gradoracle.model.errors import first_line, named, out_of_memory
from gradoracle.model.family import Family
from gradoracle.model.kernel import Kernel
from gradoracle.model.reason import Reason
from gradoracle.model.signature import cotangent_name, hvp_name
from gradoracle.model.wording import counted
from gradoracle.oracle.truth import names

Tensors = dict[str, Tensor]
Guard = Callable[[str], AbstractContextManager[None]]
_DERIVATIVES = frozenset(derivative.value for derivative in Derivative)
_OF_CALLS = {  # what else a call is named that evaluates a derivative
    "vjp twice": Derivative.VJP,
    "reverse over forward": Derivative.HVP,
    "forward over reverse": Derivative.HVP,
    "double backward in the cotangents": Derivative.HVP,
}


def derivative_of(call: str) -> Derivative | None:
    """The derivative that a call evaluates, by its name, as "vjp", "widened hvp" or "scaled: vjp twice"; else None."""
    name = call.rpartition(": ")[2].removeprefix("widened ")
    return Derivative(name) if name in _DERIVATIVES else _OF_CALLS.get(name)


@contextmanager
def unguarded(name: str) -> Iterator[None]:
    """A guard that watches nothing, for calls in one's own process."""
    yield


class KernelRunner:
    """One kernel of one family, called as its users call it, under a guard that limits the time of each call.

    Whatever a call writes to the sample's tensors is noted in ``Sample.changes`` and undone. A ``wide`` subject runs
    widened, on a sample of ``Wide`` tensors, and returns float64.
    """

    def __init__(
        self,
        family: Family,
        kernel: Kernel,
        guard: Guard = unguarded,
        label: str = "",
        records: bool = True,
        wide: bool = False,
    ) -> None:
        self.family, self.kernel, self.guard, self.label, self.records = family, kernel, guard, label, records
        self.wide, self.recorded = wide, not label
        self.is_optional = False  # whether outputs without a gradient are no error
        self.known: set[Spot] = set()  # where accesses outside of tensors have been reported

    def labelled(self, key: str, recorded: bool = False) -> KernelRunner:
        """The same kernel, whose calls are named after what is done to the sample, and recorded only if asked."""
        made = copy.copy(self)
        made.label, made.recorded = f"{self.label}{key}: ", recorded
        return made

    def by_autograd(self) -> KernelRunner:
        """The same kernel, whose derivatives are those of autograd; a kernel with an explicit VJP may have none."""
        made = copy.copy(self)
        made.is_optional = self.kernel.vjp is not None
        made.kernel = replace(self.kernel, vjp=None, jvp=None, hvp=None)
        return made

    def forward(self, sample: Sample, blocks: str = "") -> tuple[Tensors, Memory]:
        """The outputs by name, and the memory allocated for them."""
        with self.running("forward", sample) as memory, torch.no_grad():
            outputs = self._outputs(sample, list(sample.inputs.values()), blocks)
            found = self._named(Derivative.FORWARD, sample, outputs)
        return found, memory

    def vjp(
        self,
        sample: Sample,
        blocks: str = "",
        expected: Sequence[str] | None = None,
        upstream: Sequence[str] | None = None,
    ) -> tuple[Tensors, Memory]:
        """Outputs and gradients by name, from one forward and one backward.

        Args:
            sample: the kernel's arguments.
            blocks: the name of a block configuration to force.
            expected: the inputs that require grad; None: all.
            upstream: the outputs that have a cotangent; None: all.
        """
        with self.running("vjp", sample) as memory:
            gradients: Sequence[Tensor | None]
            if self.kernel.vjp is not None and expected is None and upstream is None:
                tensors = dict(sample.inputs), dict(sample.cotangents)
                with torch.no_grad():
                    outputs = self._outputs(sample, list(sample.inputs.values()), blocks)
                    gradients = as_tuple(self.kernel.vjp(*tensors, self.options(sample), self._blocks(blocks)))
                found = self._named(Derivative.FORWARD, sample, outputs)
            else:
                leaves = self._leaves(sample, expected)
                outputs = self._outputs(sample, list(leaves.values()), blocks)
                found = self._named(Derivative.FORWARD, sample, outputs)  # a backward of the wrong shape says less
                gradients = self._backward(sample, outputs, leaves, upstream)
            keys = [cotangent_name(n) for n in self.primals(sample) if expected is None or n in expected]
            found.update(self._gradients(sample, keys, gradients))
        return found, memory

    def vjp_twice(self, sample: Sample, blocks: str = "") -> tuple[Tensors, Tensors]:
        """The gradients of two backward passes over one retained graph."""
        with self.running("vjp twice", sample):
            leaves = self._leaves(sample, None)
            outputs = self._outputs(sample, list(leaves.values()), blocks)
            self._named(Derivative.FORWARD, sample, outputs)
            given = self._backward(sample, outputs, leaves, None, retain_graph=True)
            first = [None if g is None else g.clone() for g in given]  # the second may write into what was returned
            second = self._backward(sample, outputs, leaves, None, retain_graph=True)
            keys = [cotangent_name(n) for n in self.primals(sample)]
            return self._gradients(sample, keys, first), self._gradients(sample, keys, second)

    def jvp(self, sample: Sample, blocks: str = "", along: Sequence[str] | None = None) -> tuple[Tensors, Memory]:
        """The outputs' tangents by name, by forward mode along ``along`` only; with an explicit JVP the outputs too."""
        outputs: Sequence[Tensor] | None = None
        with self.running("jvp", sample) as memory:
            if self.kernel.jvp is not None:
                with torch.no_grad():
                    given = dict(sample.inputs), dict(sample.tangents)
                    outputs, tangents = self.kernel.jvp(*given, self.options(sample), self._blocks(blocks))
            else:
                tangents = self._forward_mode(sample, along or self.primals(sample), blocks)
            found = {} if outputs is None else self._named(Derivative.FORWARD, sample, as_tuple(outputs))
            found |= self._named(Derivative.JVP, sample, as_tuple(tangents))
        return found, memory

    def hvp(self, sample: Sample, blocks: str = "") -> tuple[Tensors, Memory]:
        """The Hessian of <cotangent, f> times the tangents, by name of the primal."""
        with self.running("hvp", sample) as memory:
            if self.kernel.hvp is not None:
                with torch.no_grad():
                    given = dict(sample.inputs), dict(sample.tangents), dict(sample.cotangents)
                    products = self.kernel.hvp(*given, self.options(sample), self._blocks(blocks))
            else:
                products = self._double_backward(sample, blocks)
            return self._named(Derivative.HVP, sample, as_tuple(products)), memory

    def outputs(self, sample: Sample, given: Mapping[str, Tensor], blocks: str = "") -> tuple[Tensor, ...]:
        """What the kernel returns with some inputs of a sample replaced; to be called within ``running``."""
        return self._outputs(sample, list((dict(sample.inputs) | dict(given)).values()), blocks)

    def of_primals(self, sample: Sample, primals: Sequence[str], blocks: str) -> Callable[..., tuple[Tensor, ...]]:
        """The kernel as a function of some inputs; the others are those of the sample."""
        return lambda *values: self.outputs(sample, dict(zip(primals, values, strict=True)), blocks)

    def primals(self, sample: Sample) -> list[str]:
        """The names of the float inputs that a sample has."""
        return [spec.name for spec in self.family.signature.primals if spec.name in sample.inputs]

    def options(self, sample: Sample) -> dict[str, object]:
        """Those options of a sample that the kernel takes, and the keywords that are held fixed."""
        barred = {name for name, values in self.kernel.options.items() if not values}
        return {n: value for n, value in sample.options.items() if n not in barred} | dict(self.kernel.arguments)

    def _blocks(self, blocks: str) -> object:
        return self.kernel.blocks[blocks] if blocks else None

    def integers(self, sample: Sample, blocks: str = "") -> Tensors:
        """The integer outputs by name."""
        with self.running("integer outputs", sample), torch.no_grad():
            returned = self._returned(sample, list(sample.inputs.values()), blocks)
            return integers_of(self.family.signature, sample, returned)

    def _outputs(self, sample: Sample, inputs: Sequence[Tensor], blocks: str) -> tuple[Tensor, ...]:
        """The float outputs."""
        return floats_of(self.family.signature, sample, self._returned(sample, inputs, blocks))

    def _returned(self, sample: Sample, inputs: Sequence[Tensor], blocks: str) -> tuple[Tensor, ...]:
        options = self.options(sample)
        if blocks:
            options["blocks"] = self._blocks(blocks)
        named = dict(zip(sample.inputs, inputs, strict=True))
        named |= {name: named[name].clone() for name in self.kernel.mutates if name in named}  # the sample stays
        keyword = {spec.name for spec in self.family.signature.inputs if spec.keyword}
        positional = [t for n, t in named.items() if n not in keyword]
        returned = self.kernel.call(*positional, **{n: t for n, t in named.items() if n in keyword}, **options)
        found = returned if isinstance(returned, (tuple, list)) else (returned,)
        tensors = tuple(t for t in found if isinstance(t, Tensor))
        if len(tensors) < len(found):
            others = [type(t).__name__ for t in found if not isinstance(t, Tensor)]
            specs = self.family.signature.returned(sample.options)
            expected = ", ".join(f"{s.name}[{' '.join(s.dims)}]" for s in specs)
            raise wrong("output", f"the kernel returned {', '.join(others)}, expected {expected}")
        return tensors

    def _leaves(self, sample: Sample, expected: Sequence[str] | None) -> Tensors:
        """Inputs that require grad, with their own layout (a detached view keeps strides and storage)."""
        return {
            name: tensor.detach().requires_grad_()
            if tensor.is_floating_point() and (expected is None or name in expected)
            else tensor.detach()
            for name, tensor in sample.inputs.items()
        }

    def _backward(
        self,
        sample: Sample,
        outputs: Sequence[Tensor],
        leaves: Mapping[str, Tensor],
        upstream: Sequence[str] | None,
        **how: bool,
    ) -> Sequence[Tensor | None]:
        targets = [leaf for leaf in leaves.values() if leaf.requires_grad]
        pairs = zip(outputs, sample.cotangents.items(), strict=True)
        given = [(o, g) for o, (name, g) in pairs if upstream is None or name in upstream]
        gradients = pulled_back([o for o, _ in given], [g for _, g in given], targets, **how)
        if gradients is None and not any(output.requires_grad for output in outputs):
            text = detached(", ".join(sample.cotangents))
            needed = self.kernel.must_have_gradients and not self.is_optional
            raise wrong("gradient", text) if needed else Detached(text)
        if upstream is None and gradients is not None:
            return gradients
        # an input that these outputs do not depend on, or outputs marked non-differentiable, have none: that is 0
        return or_zeros(gradients or [None] * len(targets), targets)

    def _forward_mode(self, sample: Sample, primals: Sequence[str], blocks: str) -> tuple[Tensor, ...]:
        values = tuple(dense(sample.inputs[n]) for n in primals)
        tangents = tuple(sample.tangents[n] for n in primals)
        with needing("forward mode", f"{self.label}jvp"):
            function = self.of_primals(sample, primals, blocks)
            return pushed_forward(function, values, tangents, duals=self.kernel.vjp is None)

    def _double_backward(self, sample: Sample, blocks: str) -> Sequence[Tensor]:
        """By a backward whose cotangents need no gradient; where that has no graph, by one whose cotangents do.

        Raises:
            NoDerivative: one of them raises.
            Severed: neither has a graph.
        """
        for through in (False, True):
            leaves = self._leaves(sample, None)
            targets = [leaf for leaf in leaves.values() if leaf.requires_grad]
            cotangents = [g.detach().requires_grad_(through) for g in sample.cotangents.values()]
            with needing("double backward", f"{self.label}hvp"):
                outputs = self._outputs(sample, list(leaves.values()), blocks)
            self._named(Derivative.FORWARD, sample, outputs)
            if not any(output.requires_grad for output in outputs):
                raise Detached(detached(", ".join(sample.cotangents)))
            with needing("double backward", f"{self.label}hvp", (Exception,)):  # the backward, run to be differentiated
                firsts = pulled_back(outputs, cotangents, targets, create_graph=True) or ()
            along = [sample.tangents[n] for n in self.primals(sample)][: len(firsts)]
            with needing("double backward", f"{self.label}hvp"):
                seconds = accumulated(firsts, along, targets)
            if seconds is not None:
                zeros = [torch.zeros_like(t, memory_format=torch.contiguous_format) for t in targets]
                return [zero if s is None else s for s, zero in zip(seconds, zeros, strict=True)]
        raise Severed("no double backward: the gradients do not require grad, even where a cotangent does")

    @contextmanager
    def running(self, name: str, sample: Sample, records: bool | None = None) -> Iterator[Memory]:
        """Guard a call: poison what it allocates, undo what it writes to the sample, sort what it raises.

        Args:
            name: the call.
            sample: the tensors of the call.
            records: recording of its accesses; None: the derivatives of the case itself are recorded, and nothing else.
        """
        if self.wide:
            with self._running_wide(name, sample):
                yield Memory()
            return
        try:
            with self._restored(sample, name), self.guard(self.label + name), poisoned() as memory:
                asked = self.recorded and (name in _DERIVATIVES if records is None else records)
                guarded = watched(memory, asked, records is not False, self.known) if self.records else nullcontext()
                with guarded, cuda_claimed(self.kernel.needs_cuda), dots_in_ieee(self.kernel.ieee_dots):
                    yield memory
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
        except Crashed as crash:
            crash.call = crash.call or name
            raise
        except (Wrong, Refused, Unavailable, KeyboardInterrupt):
            raise
        except MemoryError:
            raise Unavailable("not enough memory on this machine", Reason.MEMORY) from None
        except CannotInterpret as error:
            raise Unavailable(str(error)) from None
        except REFUSALS as error:
            if out_of_memory(error):
                raise Unavailable(f"memory: {first_line(error)}", Reason.MEMORY) from None
            raise_if_lost(error, f"{self.label}{name}")
            if name == "forward" or isinstance(error, NotImplementedError) or name.startswith("vjp"):
                raise Refused(named(error)) from None
            raise Unavailable(f"{name} raised {named(error)}", Reason.RAISED) from None
        except SystemExit as error:
            raise Crashed(f"{name} called exit with code {error.code}", call=name) from None
        except BaseException as error:
            if (said := told_by_triton(error)) and (name == "forward" or name.startswith("vjp")):
                raise Refused(said) from None
            text, about = f"{name} raised {said or named(error)}", derivative_of(name)
            if about is not None and not self.kernel.is_claimed(about):
                raise NoDerivative(text) from error
            raise Crashed(text, call=name) from error

    @contextmanager
    def _running_wide(self, name: str, sample: Sample) -> Iterator[None]:
        """Guard a widened call and undo what it writes; its programs access no memory outside their tensors.

        Raises:
            Unavailable: whatever it raises that it does not raise as written.
        """
        try:
            wide, claim = f"widened {name}", cuda_claimed(self.kernel.needs_cuda)
            with self._restored(sample, wide), self.guard(self.label + wide), inside_tensors(), widening(), claim:
                yield
        except (Wrong, Unavailable, DeviceLost):
            raise
        except MemoryError:
            raise Unavailable("not enough memory on this machine", Reason.MEMORY) from None
        except Exception as error:
            told = isinstance(error, (Crashed, CannotWiden))
            why = str(error) if told else f"{name} raised {named(error)}"
            where = "" if isinstance(error, Crashed) else place_of(error.__traceback__)
            at = f", at {where}" if where else ""
            raise Unavailable(f"cannot be widened: {why}{at}", Reason.NOT_WIDENED) from None

    @contextmanager
    def _restored(self, sample: Sample, name: str) -> Iterator[None]:
        """Note changes to the sample's tensors and undo them, however the call ends.

        Raises:
            Unavailable: an earlier call or this one wrote to tensors too large for a copy to be kept.
        """
        _require_whole(sample)
        originals = Originals({key: narrowed(tensor) for key, tensor in sample.tensors().items()})
        try:
            yield
        finally:
            for key, change in originals.undo().items():
                if key not in self.kernel.mutates or not change.undone:
                    sample.changes.setdefault(key, (self.label + name, change))
        _require_whole(sample)

    def _named(self, derivative: Derivative, sample: Sample, tensors: Sequence[Tensor | None]) -> Tensors:
        """The tensors by name, each checked for shape and dtype, without products of what has no gradient."""
        own = names(self.family, derivative, sample)
        require_count(own, tensors)
        shapes, found = self._shapes(derivative, sample), {}
        for key, tensor, shape in zip(own, tensors, shapes, strict=True):
            if key in map(hvp_name, self.kernel.no_gradient):
                continue
            if not isinstance(tensor, Tensor):
                raise wrong(key, f"{key} is {tensor!r}, expected a tensor of shape {shape}")
            require_fit(key, tensor, shape, self._dtype(key, sample))
            found[key] = owned(tensor, sample)
        return found

    def _gradients(self, sample: Sample, keys: Sequence[str], gradients: Sequence[Tensor | None]) -> Tensors:
        found = {}
        if len(gradients) != len(keys):
            raise wrong(keys[0], f"the kernel returned {counted(len(gradients), 'gradient')}, expected {len(keys)}")
        for key, gradient in zip(keys, gradients, strict=True):
            name = key[1:]
            if gradient is None:
                if name in self.kernel.no_gradient:
                    continue
                raise wrong(key, f"{key} is None: {name} takes part in the definition, so it has a gradient")
            require_fit(key, gradient, tuple(sample.inputs[name].shape), sample.inputs[name].dtype)
            found[key] = owned(gradient, sample)
        return found

    def _shapes(self, derivative: Derivative, sample: Sample) -> list[tuple[int, ...]]:
        if derivative in (Derivative.FORWARD, Derivative.JVP):
            return [tuple(sample.cotangents[s.name].shape) for s in self.family.signature.returned(sample.options)]
        return [tuple(sample.inputs[name].shape) for name in self.primals(sample)]

    def _dtype(self, key: str, sample: Sample) -> torch.dtype:
        own = key.split(".")[-1]
        return sample.inputs[own].dtype if own in sample.inputs else sample.cotangents[own].dtype


def _require_whole(sample: Sample) -> None:
    """Check that everything that calls have written to the sample could be undone."""
    for key, (call, change) in sample.changes.items():
        if not change.undone:
            raise Unavailable(f"{call} wrote to {key}, which is too large to be restored from a copy")
