"""Gradcheck: a kernel and a reference on the very tensors given, called as ``torch.autograd.gradcheck`` is."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.gradcheck import GradcheckError as TorchGradcheckError  # type: ignore[attr-defined]

from gradoracle.cases.saved_tensors import Given
from gradoracle.check.plan import Subjects, plan, setup_of
from gradoracle.check.properties import properties_of
from gradoracle.check.run import Run
from gradoracle.check.worker import ENTRY_OF_ONE_PROCESS, examiner
from gradoracle.execution import device as devices
from gradoracle.execution.in_process import InProcess
from gradoracle.execution.own_host import OwnHost
from gradoracle.model.contract import contract as preset_of
from gradoracle.model.domains import Domain
from gradoracle.model.errors import LostPrecision, UsageError
from gradoracle.model.exit_codes import ERROR, HOLDS
from gradoracle.model.kernel import Kernel, claims_of
from gradoracle.model.property import PropertyKind
from gradoracle.model.reason import Reason
from gradoracle.model.verdict import BROKEN
from gradoracle.project.example import corrections, derive
from gradoracle.project.request import Progress, Request
from gradoracle.report.terminal import render

if TYPE_CHECKING:
    from gradoracle.model.verdict import Report

_KINDS = (PropertyKind.ORACLE, PropertyKind.DEFINITION, PropertyKind.MEMORY)  # what is judged on one sample as it is


class GradcheckError(AssertionError, TorchGradcheckError):
    """A kernel whose derivatives are wrong, or could not be decided; the message is the terminal report.

    It is an ``AssertionError``, as a failing test raises, and the ``GradcheckError`` of ``torch.autograd.gradcheck``,
    so that code written for that one keeps working.

    Attributes:
        report: the Report.
    """

    def __init__(self, text: str, report: Report) -> None:
        self.report = report
        super().__init__(text)


def gradcheck(
    kernel: Callable[..., Any],
    inputs: Any,
    *,
    reference: Callable[..., Any],
    contract: str | None = None,
    claims: Iterable[str] | None = None,
    dims: Mapping[str, str] | None = None,
    domains: Mapping[str, Domain] | None = None,
    raise_exception: bool = True,
    seed: int = 0,
) -> bool:
    """Check a kernel's derivatives against those of a reference on these inputs, with no tolerance.

    The reference is differentiated in float64, and budgets of rounding follow from the dtypes: float16, bfloat16,
    float32 and float64 all do. Judged are the outputs, the gradients, forward mode and double backward where the kernel
    has them, the formula with every float in float64, and on the CPU every access of Triton kernels. Cotangents come
    from ``seed``.

    Args:
        kernel: a function of tensors, an nn.Module instance, whose parameters are differentiated too, or what
            ``gradoracle.kernel`` gives, with its contracts and claims.
        inputs: a tensor, a tuple of arguments, or a dict of arguments by name; ``requires_grad`` marks the tensors that
            are differentiated. Integers, bools and other arguments are passed on as they are.
        reference: a PyTorch function of the same arguments, the mathematics, with the same outputs: integers and bools
            are compared exactly, floats that do not require grad by their values. The parameters of a module are passed
            to it by keyword, or it is a module with the same ones.
        contract: the preset of roundings that the kernel may make, such as "tf32" (``gradoracle list``). If it is not
            given, lost precision is a warning, ``LostPrecision``.
        claims: the derivatives that are judged, such as ("forward", "vjp"). By default all that the kernel offers are;
            an error in a double backward that nobody claims is a warning, too.
        dims: the dims of a tensor by its name, if equal sizes are not one dim: ``{"x": "B,2*D", "offsets": "N+1"}``.
        domains: what an input of integers holds, by its name, if its values do not show it:
            ``{"order": gradoracle.Permutation("T")}``.
        raise_exception: whether to raise where the check fails.
        seed: the seed of the cotangents and tangents.

    Returns:
        True; False where the check fails and ``raise_exception`` is False.

    Raises:
        GradcheckError: a derivative is wrong, the kernel raises, no output requires grad although an input does, or
            something that should be decided could not be.
        UsageError: inputs, reference, contract, claims, dims or domains cannot be used.
        RuntimeError: gradoracle itself failed.
    """
    report = report_of(kernel, inputs, reference, contract, seed, dims or {}, claims, domains or {})
    if report.exit_code == ERROR:
        raise RuntimeError(render([report]))
    refusals = (reason for verdict in report.verdicts for reason in verdict.reasons)
    if device_of(inputs) == "cpu" and any("active driver" in each or "cpu tensor" in each for each in refusals):
        raise UsageError(
            "the Triton kernel was imported for a GPU, and the inputs are on the CPU; expected inputs on cuda, or "
            "TRITON_INTERPRET=1 in the environment before triton is imported"
        )
    is_detached = any(verdict.why is Reason.DETACHED for verdict in report.verdicts)
    if report.exit_code != HOLDS or is_detached:
        if raise_exception:
            cause = "  because  an input requires grad, and no output does\n" if is_detached else ""
            raise GradcheckError(f"\n{render([report])}{cause}", report)
        return False
    if any(verdict.status in BROKEN for verdict in report.verdicts):
        warnings.warn(LostPrecision("\n" + render([report])), stacklevel=2)
    return True


def report_of(
    kernel: Callable[..., Any],
    inputs: Any,
    reference: Callable[..., Any],
    preset: str | None,
    seed: int,
    dims: Mapping[str, str],
    claims: Iterable[str] | None = None,
    domains: Mapping[str, Domain] | None = None,
) -> Report:
    """The report of one call of ``gradcheck``; raises UsageError as it does."""
    started = time.monotonic()
    declared = kernel if isinstance(kernel, Kernel) else None
    kernel = kernel if declared is None else declared.call
    names = _label(kernel, "kernel"), _label(reference, "reference")
    device = device_of(inputs)
    devices.prepare(device)
    corrected = corrections((f"{name}={own}" for name, own in dims.items()), "dims")
    corrected = replace(corrected, domains={**corrected.domains, **(domains or {})})
    found = derive(kernel, reference, inputs, names=names, corrections=corrected, marked=True)
    given = Given("this call", found.tensors)
    (dtype,) = found.family.dtypes
    subject = found.kernel
    if declared is not None:
        subject = replace(subject, contracts=declared.contracts, claims=declared.claims)
    if preset is not None:
        try:
            subject = replace(subject, contracts={dtype: preset_of(preset, dtype)})
        except ValueError as error:
            raise UsageError(f"contract {preset!r}: {error}") from None
    if claims is not None:
        try:
            subject = replace(subject, claims=claims_of(claims))
        except ValueError as error:
            raise UsageError(f"claims: {error}") from None
    request = Request(names[0], device=device, inputs=given, seed=seed, workers=0, shrink_seconds=0.0)
    properties = {prop.name: prop for prop in properties_of(found.family) if prop.kind in _KINDS}
    setup = setup_of(request, device)
    kernels = {subject.name: subject}
    functions = (found.family.definition, subject.call)
    subjects = Subjects(request, device, setup, found.family, kernels, properties, functions)
    host = OwnHost(kernels, device=device)
    work = examiner(setup, found.family, kernels, properties, host)
    threads = torch.get_num_threads()
    try:
        run = Run(subjects, InProcess(ENTRY_OF_ONE_PROCESS, setup, work), Progress(), started)
        run.over(plan(subjects, with_severity=True))
        return run.report()
    finally:
        torch.set_num_threads(threads)


def _label(callee: Any, otherwise: str) -> str:
    name = getattr(callee, "__name__", None) or type(callee).__name__
    return name if name.isidentifier() else otherwise


def device_of(inputs: Any) -> str:
    """The device of the tensors: cpu or cuda."""
    parts: Any = inputs.values() if isinstance(inputs, Mapping) else inputs
    parts = [parts] if isinstance(parts, torch.Tensor) or not isinstance(parts, Iterable) else parts
    kinds = {part.device.type for part in parts if isinstance(part, torch.Tensor)}
    if len(kinds) > 1 or not kinds <= {"cpu", "cuda"}:
        raise UsageError(f"the inputs are on {' and '.join(sorted(kinds))}; expected all of them on cpu or all on cuda")
    return kinds.pop() if kinds else "cpu"
