"""Host: runs the kernels of one target. It knows their arguments and how they are called, and no truth.

Around each call: new memory is poisoned, accesses of interpreted programs are recorded or fenced, a GPU may be claimed,
every float may be float64 (widened). What a kernel raises is sorted; what it returns is replied as it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from gradoracle.host.autotuned import anew
from gradoracle.host.claimed_cuda import cuda_claimed
from gradoracle.host.compiling import Compiling
from gradoracle.host.derivatives import ENTRIES, Bound
from gradoracle.host.guard_memory import Memory, fenced, filled, inside_tensors, poisoned, recorded
from gradoracle.host.interpreter import interprets_all, intervention, is_active
from gradoracle.host.interpreter.autotuner import trials
from gradoracle.host.interpreter.launch_hooks import CalledFunctions, dots_in_ieee
from gradoracle.host.interpreter.values import CannotInterpret, CannotWiden
from gradoracle.host.raised import raise_if_lost, told_by_triton
from gradoracle.host.saved import watching_saved
from gradoracle.host.widened import narrowed, place_of, renamed, widening
from gradoracle.model import layouts
from gradoracle.model.call import Accesses, Call, Entry, Facts, Held, RaisedError, Reply, derivative_of
from gradoracle.model.call_errors import (
    REFUSALS,
    Crashed,
    DeviceLost,
    NoDerivative,
    Refused,
    Unavailable,
    Wrong,
    end_of,
)
from gradoracle.model.case import Case
from gradoracle.model.description import HostedTarget, described
from gradoracle.model.errors import first_line, named, out_of_memory
from gradoracle.model.job import Phase
from gradoracle.model.kernel import Kernel
from gradoracle.model.reason import Reason
from gradoracle.model.serialize import from_plain
from gradoracle.model.tensor_bits import addresses, is_sparse

_SLEEP = 20_000_000  # cycles of a GPU: what does not wait for its stream reads its arguments too soon


class Host:
    """The kernels of one target.

    Args:
        kernels: by name.
        target: what it says of them.
        device: "cpu" or "cuda".
        called_in: a folder: which of its functions calls run is noted; "": of none.
        announce: called with each call that compiles, and without it once it has: that is not its own time.
        is_alone: whether it has its process to itself, where an interrupt comes from the kernel and not from the user.
    """

    def __init__(
        self,
        kernels: Mapping[str, Kernel],
        *,
        target: HostedTarget | None = None,
        device: str = "cpu",
        called_in: str = "",
        announce: Phase = lambda name, limit: None,
        is_alone: bool = False,
    ) -> None:
        self._target = target
        self._kernels, self._device, self._is_alone, self._announce = dict(kernels), device, is_alone, announce
        self._compiling = Compiling()
        self._called = CalledFunctions(called_in) if called_in else None
        if device != "cpu":
            self._compiling.watch()

    @property
    def interprets(self) -> bool:
        """Whether each Triton program of this process is interpreted; so, too, where none can run."""
        return self._device == "cpu" and interprets_all()

    @property
    def devices(self) -> int:
        """The number of GPUs that PyTorch sees."""
        return torch.cuda.device_count() if self._device != "cpu" else 0

    def describe(self) -> HostedTarget:
        """What it has."""
        return self._target or HostedTarget(tuple(map(described, self._kernels.values())))

    def ask(self, kernel: str, what: str, arguments: Sequence[Any]) -> Any:
        """A declaration of a kernel that is a function, or another function among its extras, on plain values.

        Raises:
            LookupError: there is none.
        """
        own = self._kernels[kernel]
        function = own.extras[what.removeprefix("extra ")] if what.startswith("extra ") else getattr(own, what)
        if what == "compiled_for":
            return function(from_plain(Case, arguments[0]))
        found = function(*arguments)
        return sorted(found) if isinstance(found, (set, frozenset)) else found

    def call(self, call: Call) -> Reply:
        """Make a call, on its own tensors: what the kernel writes to them is in the reply.

        Raises:
            KeyboardInterrupt: the user interrupts.
        """
        before, self._compiling.longest = self._compiling.seconds, 0.0
        self._compiling.begin(f"{call.how.label}{call.how.name}", 0.0, self._announce)
        try:
            with nullcontext() if self._called is None else self._called.watching():
                reply = self._answered(call)
        finally:
            self._compiling.end()
        own = self._compiling
        ran = () if self._called is None else self._called.take()
        taken = own.seconds - before
        facts = replace(reply.facts, compiling=taken, longest_compilation=own.longest, called=ran)
        return replace(reply, facts=facts)

    def _answered(self, call: Call) -> Reply:
        """The reply to a call."""
        kernel, seen = self._kernels[call.kernel], _Seen()
        try:
            bound = _bound(kernel, call)
        except Unavailable as error:
            return Reply.ended(call, end_of(error))
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            return Reply.ended(call, end_of(Unavailable(f"memory: {first_line(error)}", Reason.MEMORY)))
        returned: Any = {}
        end = None
        try:
            with self._around(bound, seen):
                returned = self._entered(bound, seen)
        except (Refused, Unavailable, Crashed, Wrong) as error:
            end = end_of(error)
        except KeyboardInterrupt:
            if not self._is_alone:
                raise
            end = end_of(Crashed(f"{call.how.name} raised KeyboardInterrupt", call=call.how.name))
        if end is not None and end.kind == DeviceLost.__name__:  # nothing can be read from it any more
            return Reply.ended(call, end)
        parts = {} if end is not None else {part: _given(own) for part, own in returned.items()}
        reply = Reply(parts, seen.facts(), end, _after(bound))
        if call.how.device != "cpu" and any(map(is_sparse, reply.after.values())):
            del bound, returned
            torch.cuda.empty_cache()  # gigabytes, which other workers of this GPU want too
        return reply

    def _entered(self, bound: Bound, seen: _Seen) -> Mapping[str, Any]:
        """What an entry gives."""
        call, kernel = bound.asked, bound.kernel
        if call.entry == Entry.RAISED.value:
            with torch.no_grad():
                seen.raised = _raised(bound)
            return {}
        derived = ENTRIES.get(call.entry)
        if derived is None:
            with torch.no_grad():
                own = tuple(_taken(each, call.how.device) for each in call.arguments)
                blocks = kernel.blocks[call.blocks] if call.blocks else None
                return {"returned": kernel.extras[call.entry](bound.inputs, *own, dict(call.options), blocks)}
        with watching_saved(bound.state) if call.how.saved else nullcontext() as saved:
            found = dict(derived(bound))
        if saved is not None:
            found |= saved.parts()
        return found

    def _around(self, bound: Bound, seen: _Seen) -> AbstractContextManager[None]:
        return _running_wide(bound, seen) if bound.asked.how.wide is not None else _running(bound, seen)


class _Seen:
    """What is seen of a call while it runs."""

    def __init__(self) -> None:
        self.memory = Memory()
        self.bands: tuple[str, ...] = ()
        self.raised: RaisedError | None = None
        self.noted: Any = None

    def facts(self) -> Facts:
        """All of it."""
        own = self.memory
        return Facts(
            own.launches,
            own.faults,
            own.outside,
            self.bands,
            tuple(getattr(self.noted, "places", ())),
            tuple(getattr(self.noted, "sites", ())),
            bool(getattr(self.noted, "overflowed", False)),
            self.raised,
        )


def _bound(kernel: Kernel, call: Call) -> Bound:
    """The kernel with the arguments as it is given them: on their device, or widened."""
    how = call.how
    tensors = call.tensors()
    if how.device != "cpu":
        tensors = {n: t if t.is_meta else _moved(t, how.device) for n, t in tensors.items()}
    if how.wide is not None:
        tensors = {n: renamed(t, getattr(torch, how.wide[n])) if n in how.wide else t for n, t in tensors.items()}
    return Bound(kernel, call.with_tensors(tensors))


def _after(bound: Bound) -> dict[str, Tensor]:
    """The arguments after a call."""
    found = {name: narrowed(tensor) for name, tensor in bound.asked.tensors().items()}
    return {name: _moved(tensor, "cpu") if tensor.is_cuda else tensor for name, tensor in found.items()}


def _moved(tensor: Tensor, device: str) -> Tensor:
    """A tensor on another device with its layout; of one that is mostly gaps the elements.

    Raises:
        Unavailable: a GPU has no room for the gaps.
    """
    if not is_sparse(tensor):
        return layouts.moved(tensor, device)
    size = tensor.untyped_storage().nbytes()
    count = size // tensor.element_size()
    if device == "cpu":
        storage = addresses(count, tensor.dtype)
    elif size > torch.cuda.mem_get_info()[0] / 4:  # other workers want memory at the same time
        raise Unavailable(f"needs {math.ceil(size / 2**30)} GiB of free GPU memory")
    else:
        storage = torch.empty(count, dtype=tensor.dtype, device=device)
    return storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(tensor)


def _given(value: Any) -> Any:
    """What is returned, as plain tensors on the CPU."""
    if isinstance(value, Tensor):
        return narrowed(value.detach()).cpu()
    if isinstance(value, Mapping):
        return {str(name): _given(each) for name, each in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(map(_given, value))
    return value if value is None or isinstance(value, (bool, int, float, str)) else type(value).__name__


def _taken(value: Any, device: str) -> Any:
    """An argument of a further entry point as the kernel takes it."""
    if isinstance(value, Held):
        return renamed(value.tensor, getattr(torch, value.dtype))
    if isinstance(value, Tensor):
        return layouts.moved(value, device) if device != "cpu" else value
    return tuple(_taken(each, device) for each in value) if isinstance(value, tuple) else value


def _raised(bound: Bound) -> RaisedError | None:
    """What the kernel raises on its arguments; None where it returns."""
    try:
        bound.returned(list(bound.inputs.values()))
    except Wrong:
        return None
    except Exception as error:
        return RaisedError(tuple(each.__name__ for each in type(error).__mro__), str(error))
    return None


def _refuses(bound: Bound) -> bool:
    """Whether Triton refuses the forward alone, so that the case has no derivative of any kind."""
    try:
        with torch.no_grad(), fenced(Memory()), cuda_claimed(bound.kernel.needs_cuda):
            bound.returned(list(bound.inputs.values()))
    except Exception as error:
        return bool(told_by_triton(error))
    return False


@contextmanager
def _running(bound: Bound, seen: _Seen) -> Iterator[None]:
    """Poison what a call allocates, see what it accesses, and sort what it raises."""
    call, kernel = bound.asked, bound.kernel
    how, name = call.how, call.how.name
    try:
        with ExitStack() as around:
            if how.configurations or how.trials:
                around.enter_context(anew(kernel, how.configurations))
            if how.trials:
                around.enter_context(trials())
            if how.fill:
                around.enter_context(filled(how.fill))
                around.enter_context(inside_tensors())
            seen.memory = around.enter_context(poisoned())
            around.enter_context(_watched(seen.memory, how.accesses))
            around.enter_context(cuda_claimed(kernel.needs_cuda))
            around.enter_context(dots_in_ieee(kernel.ieee_dots))
            if how.stream:
                around.enter_context(_on_a_stream(bound))
            yield
        if how.accesses is Accesses.RECORDED:
            seen.bands = tuple(seen.memory.overwritten())
        if how.device != "cpu":
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
        raise_if_lost(error, f"{how.label}{name}")
        if name == "forward" or isinstance(error, NotImplementedError) or name.startswith("vjp"):
            raise Refused(named(error)) from None
        raise Unavailable(f"{name} raised {named(error)}", Reason.RAISED) from None
    except SystemExit as error:
        raise Crashed(f"{name} called exit with code {error.code}", call=name) from None
    except BaseException as error:
        said = told_by_triton(error)
        if said and (name == "forward" or name.startswith("vjp")):
            raise Refused(said) from None
        if said and _refuses(bound):
            raise Unavailable(f"{name} raised {said}", Reason.RAISED) from None
        text, about = f"{name} raised {said or named(error)}", derivative_of(name)
        if about is not None and about not in how.claims:
            raise NoDerivative(text) from error
        raise Crashed(text, call=name) from error


def _watched(memory: Memory, accesses: Accesses) -> AbstractContextManager[None]:
    does: dict[Accesses, Callable[[Memory], AbstractContextManager[None]]] = {
        Accesses.RECORDED: recorded,
        Accesses.FENCED: fenced,
        Accesses.UNREPORTED: lambda _: fenced(Memory()),
        Accesses.FREE: lambda _: nullcontext(),
    }
    return does[accesses](memory)


@contextmanager
def _on_a_stream(bound: Bound) -> Iterator[None]:
    """On a stream that has work queued; the arguments are copied on it just before the call."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(_SLEEP)
        for group in (bound.inputs, bound.tangents, bound.cotangents):
            group.update({name: layouts.pointwise(tensor, Tensor.clone) for name, tensor in group.items()})
        yield
    stream.synchronize()


def _intervening(does: Any) -> AbstractContextManager[None]:
    if not is_active():  # then no program of Triton's runs here
        return intervention.intervening(does)
    from gradoracle.host.interpreter import builder_results

    return builder_results.intervening(does)


@contextmanager
def _running_wide(bound: Bound, seen: _Seen) -> Iterator[None]:
    """Run a call widened; its programs access no memory outside their tensors.

    Raises:
        Unavailable: whatever it raises that it does not raise as written.
    """
    how, kernel = bound.asked.how, bound.kernel
    try:
        seen.noted = None if how.intervention is None else intervention.made(how.intervention)
        does = nullcontext() if seen.noted is None else _intervening(seen.noted)
        with does, inside_tensors(), widening(), cuda_claimed(kernel.needs_cuda):
            yield
    except (Wrong, Unavailable, DeviceLost):
        raise
    except MemoryError:
        raise Unavailable("not enough memory on this machine", Reason.MEMORY) from None
    except Exception as error:
        told = isinstance(error, (Crashed, CannotWiden))
        why = str(error) if told else f"{how.name.removeprefix('widened ')} raised {named(error)}"
        where = "" if isinstance(error, Crashed) else place_of(error.__traceback__)
        at = f", at {where}" if where else ""
        raise Unavailable(f"cannot be widened: {why}{at}", Reason.NOT_WIDENED) from None
