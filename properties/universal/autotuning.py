"""Properties of autotuned kernels: results are correct whichever configuration is chosen, and during the choice."""

from __future__ import annotations

from collections.abc import Iterator

from gradoracle.properties.applicability import all_of, small_enough

from gradoracle.check.evidence import Evidence
from gradoracle.model.call_errors import Refused
from gradoracle.model.case import Case
from gradoracle.model.derivative import Derivative
from gradoracle.model.finding import Finding
from gradoracle.model.kernel import Kernel
from gradoracle.model.property import PropertyKind, property
from gradoracle.model.severity import Severity


def _is_autotuned(case: Case, kernel: Kernel) -> str | None:
    return None if kernel.autotuners else "the kernel's module has no autotuned Triton kernel"


@property(
    needs=(Derivative.FORWARD, Derivative.VJP),
    applies=all_of(small_enough, _is_autotuned),
    one_in=2,
    kind=PropertyKind.ORACLE,
)
def every_autotuned_configuration_matches_the_oracle(evidence: Evidence) -> Iterator[Finding]:
    """Outputs and gradients are correct under each configuration of the kernel's autotuners, forced in turn.

    Holds because: a configuration decides the order of sums and nothing else. Which one is forced, for each autotuner
    of the module at its own place in its list, changes from case to case, so that a run meets all of them.
    Catches: a fault of a configuration that this machine's timings never choose: a mask that full tiles hide, a
    bound by the wrong block. every_block_configuration_agrees does the same for declared configurations.
    Cannot catch: autotuners in modules other than the kernel's own.
    """
    turn = evidence.case.seed // 11
    chosen = {name: turn % count for name, count in evidence.kernel.autotuners.items()}
    shown = ", ".join(f"{name} {number}" for name, number in chosen.items())
    forced = evidence.variant(f"configurations {shown}", lambda sample: sample).made(configurations=chosen)
    try:
        found = forced.vjp()
    except Refused as refusal:
        raise Refused(f"with configurations {shown}: {refusal}") from None
    yield from evidence.compare(Derivative.FORWARD, found)
    yield from evidence.compare(Derivative.VJP, found)


@property(
    needs=(Derivative.FORWARD, Derivative.VJP),
    applies=all_of(small_enough, _is_autotuned),
    one_in=2,
    kind=PropertyKind.MEMORY,
    severity=Severity.WRONG,
)
def trials_of_an_autotuner_leave_nothing_behind(evidence: Evidence) -> Iterator[Finding]:
    """Outputs and gradients are correct in the call in which the kernel's autotuners try their configurations.

    Holds because: a trial runs on the caller's tensors, many times, before the run that counts. So what a kernel writes
    must not depend on what was there, or be cleared (`reset_to_zero`) or put back (`restore_value`) at each trial. In
    the interpreter each configuration is tried once.
    Catches: sums of atomics that hold those of all trials, a cache or an input that each trial updates in place.
    Cannot catch: memory that is cleared in trials alone, which nothing_is_loaded_before_it_is_written sees; autotuners
    in modules other than the kernel's own.
    """
    tried = evidence.variant("trials", lambda sample: sample).made(trials=True)
    found = tried.vjp()
    yield from evidence.compare(Derivative.FORWARD, found)
    yield from evidence.compare(Derivative.VJP, found)
