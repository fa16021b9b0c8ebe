"""Properties of GPUs: streams and devices. What this machine cannot run is not checked."""

from __future__ import annotations

from collections.abc import Iterator

from gradoracle.properties.agreement import agree
from gradoracle.properties.applicability import small_enough

from gradoracle.check.evidence import Evidence
from gradoracle.model.call_errors import Unavailable
from gradoracle.model.finding import Finding
from gradoracle.model.property import property


@property(applies=small_enough, one_in=10)
def non_default_stream_gives_the_same(evidence: Evidence) -> Iterator[Finding]:
    """On a non-default stream the kernel returns the same results, without a synchronisation of the device.

    Holds because: the kernel must be launched on the stream that is current; work queued before it there is done first.
    The stream is made to wait for nothing but the inputs, and the inputs are copied on it just before the call.
    Catches: a launch on the default stream, a copy or memset on another stream than the kernel's.
    Cannot catch: anything without a GPU, where it is not checked.
    """
    _require_gpu(evidence)
    exact = evidence.kernel.deterministic
    expected = evidence.vjp()
    found, _ = evidence.subject.made(stream=True).vjp(evidence.sample, evidence.blocks)
    yield from agree(evidence, found, expected, exact=exact)


@property(applies=small_enough, one_in=10)
def second_device_gives_the_same(evidence: Evidence) -> Iterator[Finding]:
    """On a GPU that is not the current one the kernel runs, and returns the same results within rounding.

    Holds because: a kernel belongs on the device of its arguments, whichever is current.
    Catches: a launch on the current device, a workspace allocated on device 0, constants cached for one device.
    Cannot catch: anything without a second GPU, where it is not checked.
    """
    _require_gpu(evidence)
    if evidence.subject.host.devices < 2:
        raise Unavailable("needs a second GPU")
    found, _ = evidence.subject.on("cuda:1").vjp(evidence.sample, evidence.blocks)
    yield from agree(evidence, found, evidence.vjp())


def _require_gpu(evidence: Evidence) -> None:
    if evidence.subject.device == "cpu":
        raise Unavailable("needs a GPU")
