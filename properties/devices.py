"""Laws of GPUs: streams, devices and large offsets. What this machine cannot run says so and is counted."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from gradoracle.properties.agreement import agree
from gradoracle.properties.applicability import small_enough
from gradoracle.properties.repetition import own_storage
from torch import Tensor

from gradoracle.evidence import Evidence
from gradoracle.finding import Finding
from gradoracle.property import law
from gradoracle.subject import Unavailable

FAR = 1 << 31  # elements


@law(applies=small_enough, one_in=10)
def non_default_stream_gives_the_same(evidence: Evidence) -> Iterator[Finding]:
    """On a stream other than the default the kernel gives the same, without a synchronisation of the device.

    Holds because: the kernel must be launched on the stream that is current; work queued before it there is done first.
    The stream is made to wait for nothing but the inputs, and the inputs are copied on it just before the call.
    Catches: a launch on the default stream, a copy or memset on another stream than the kernel's.
    Cannot catch: anything without a GPU, where it is not checked.
    """
    _require_gpu(evidence)
    exact = evidence.kernel.deterministic
    wanted = evidence.vjp()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # cycles: what does not wait for this stream reads the copies too soon
        copy = evidence.sample.map(own_storage)
        found, _ = evidence.subject.vjp(copy, evidence.blocks)
    stream.synchronize()
    yield from agree(evidence, found, wanted, exact=exact)


@law(applies=small_enough, one_in=10)
def second_device_gives_the_same(evidence: Evidence) -> Iterator[Finding]:
    """On a GPU that is not the current one the kernel runs, and gives the same within rounding.

    Holds because: a kernel belongs on the device of its arguments, whichever is current.
    Catches: a launch on the current device, a workspace allocated on device 0, constants cached for one device.
    Cannot catch: anything without a second GPU, where it is not checked.
    """
    _require_gpu(evidence)
    if torch.cuda.device_count() < 2:
        raise Unavailable("needs a second GPU")
    other = (torch.cuda.current_device() + 1) % torch.cuda.device_count()
    found, _ = evidence.subject.vjp(evidence.sample.to(f"cuda:{other}"), evidence.blocks)
    yield from agree(evidence, {name: tensor.to("cuda") for name, tensor in found.items()}, evidence.vjp())


@law(applies=small_enough, one_in=20)
def offsets_past_2_31_give_the_same(evidence: Evidence) -> Iterator[Finding]:
    """An input or cotangent that reaches past element 2^31 of its storage gives the same.

    Holds because: an address is base plus index times stride in 64 bits; only arithmetic in 32 bits wraps round. One
    tensor, another from case to case, gets a first stride that takes its last member beyond 2^31 elements.
    Catches: a program id or row index multiplied by a stride in 32 bits.
    Cannot catch: anything without a GPU that has the memory, or without a first dim of several members: not checked.
    """
    _require_gpu(evidence)
    groups = {"input": evidence.sample.inputs, "cotangent": evidence.sample.cotangents}
    several = [
        (group, name)
        for group, tensors in groups.items()
        for name, tensor in tensors.items()
        if tensor.dim() > 0 and tensor.shape[0] > 1
    ]
    if not several:
        raise Unavailable("no tensor has a first dim of several members")
    group, name = several[evidence.case.seed // 7 % len(several)]
    far, sample = {name: _far(groups[group][name])}, evidence.sample
    moved = sample.with_inputs(**far) if group == "input" else sample.with_cotangents(**far)
    found, _ = evidence.subject.vjp(moved, evidence.blocks)
    del far, moved
    torch.cuda.empty_cache()  # gigabytes, which the other workers of this GPU want too
    yield from agree(evidence, found, evidence.vjp(), label=f", {group} {name} past 2^31")


def _far(tensor: Tensor) -> Tensor:
    """The tensor with its last member along the first dim beyond element 2^31 of its storage."""
    inner = torch.empty(tensor.shape[1:], device="meta")
    step = 16 * -(-max(FAR // (tensor.shape[0] - 1) + 1, inner.numel()) // 16)
    count = (tensor.shape[0] - 1) * step + inner.numel()
    size, (free, _) = count * tensor.element_size(), torch.cuda.mem_get_info()
    if size > free / 4:  # other workers want memory at the same time
        raise Unavailable(f"needs {size / 2**30:.0f} GiB of free GPU memory")
    storage = torch.empty(count, dtype=tensor.dtype, device=tensor.device)
    return storage.as_strided(tensor.shape, (step, *inner.stride())).copy_(tensor)


def _require_gpu(evidence: Evidence) -> None:
    if next(iter(evidence.sample.inputs.values())).device.type != "cuda":
        raise Unavailable("needs a GPU")
