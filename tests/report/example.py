"""Reports by hand, for the tests of their views: one of each kind of verdict, and strings that are awkward."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import torch
from grouping import with_faults

from gradoracle.check.faults import diagnosed, grouped
from gradoracle.check.severity import leave_open
from gradoracle.model.claims import OFFERED
from gradoracle.model.comparison import Comparison, Kind, Line, Weight
from gradoracle.model.derivative import Derivative
from gradoracle.model.error_map import errormap
from gradoracle.model.explanation import PrecisionLoss, Statement, WrongConstant
from gradoracle.model.finding import NOWHERE, EditedDefinition, Extent, Finding, Outcome, Region, Span, Worst
from gradoracle.model.location import Location
from gradoracle.model.property import PropertyKind
from gradoracle.model.severity import Severity
from gradoracle.model.statistics import BINS, Convergence, Growth, Measurements
from gradoracle.model.verdict import Counterexample, Report, Status, Verdict

CASE = "gradoracle-case/1 sdpa cpu float32 B=1 H=1 T=65 M=1 D=1 q=normal:1"


def holding(property_name: str = "forward_matches_the_oracle", dtype: str = "float32") -> Verdict:
    return Verdict(
        property_name,
        "triton_sdpa",
        dtype,
        Status.HOLDS,
        cases_held=42,
        worst_error=0.4,
        worst_in_sigma=3.14,
        sensitivity=2.1e-6,
    )


def wrong(tensor: str = "dq", pattern: str = "only T >= 64 (of 65)", place: str | None = None) -> Finding:
    """A finding whose region is what its place says in words; a tensor that is no plain name is a relation."""
    worst = Worst((0, 0, 64, 0), 0.5, 0.25, 34.125)
    message = "1 of 65 elements exceeds its budget"
    shown = pattern if place is None else place
    return Finding(
        tensor, Outcome.VIOLATED, "local", 4.25, 34.125, 1e-6, message, worst, pattern, elements=65, place=shown,
        region=region(shown), **about(tensor)
    )  # fmt: skip


def region(place: str) -> Region:
    """The region of which ``place`` is the sentence; nowhere for other words."""
    if place == "every element":
        return Region(whole=True)
    if found := re.fullmatch(r"only ([\w ]+) >= (\d+) \(of (\d+)\)", place):
        first, size = int(found[2]), int(found[3])
        return Region(spans=(Span(found[1], Extent.TAIL, first, size - 1, size - first, size),))
    if found := re.fullmatch(r"only ([\w ]+) = (\d+)( \(the last\))?", place):
        index, extent = int(found[2]), Extent.TAIL if found[3] else Extent.ONE
        return Region(spans=(Span(found[1], extent, index, index, 1, index + 1 + (not found[3])),))
    return NOWHERE


def about(tensor: str) -> dict[str, Any]:
    """What a finding of a property says of the tensors of a kernel that it names, as the engine would fill it in."""
    names = re.findall(r"\b(?:jvp|hvp)\.\w+|\bd[qkv]\b|\bo\b", tensor)
    order = [1 if n.startswith("d") else 2 if n.startswith("jvp") else 3 if n.startswith("hvp") else 0 for n in names]
    derivative = tuple(Derivative)[max(order)] if order else None
    return {"among": () if names == [tensor] else tuple(names), "derivative": derivative}


def violated(
    property_name: str = "vjp_matches_the_oracle", dtype: str = "float32", rank: int = 5, *findings: Finding
) -> Verdict:
    return Verdict(
        property_name,
        "triton_sdpa",
        dtype,
        Status.VIOLATED,
        cases_held=39,
        cases_violated=3,
        worst_error=4.25,
        worst_in_sigma=34.125,
        sensitivity=1e-6,
        counterexample=Counterexample(
            CASE, findings or (wrong(),), CASE.replace("T=65", "T=777"), message="holds under tf32"
        ),
        statement="Each gradient agrees with the definition's VJP.",
        rank=rank,
    )


def crashed() -> Verdict:
    return Verdict(
        "hvp_matches_the_oracle",
        "triton_sdpa",
        "bfloat16",
        Status.CRASHED,
        cases_crashed=2,
        cases_held=40,
        counterexample=Counterexample(CASE, (), message="hvp: killed by signal 11 (segmentation fault)"),
    )


def refused() -> Verdict:
    return Verdict(
        "forward_matches_the_oracle",
        "triton_sdpa",
        "float16",
        Status.REFUSED,
        cases_refused=42,
        reasons={"D must be a multiple of 16, got 7 [see docs]": 42},
    )


def not_checked() -> Verdict:
    reasons = {"needs a GPU": 30, "budget too wide": 12}
    return Verdict("second_device", "triton_sdpa", "float32", Status.NOT_CHECKED, cases_not_checked=42, reasons=reasons)


def report(*verdicts: Verdict, **fields: object) -> Report:
    made = Report(
        "sdpa",
        "sdpa",
        ["triton_sdpa"],
        "cpu",
        7,
        {"float32": "ieee32", "bfloat16": "bf16"},
        {"python": "3.11.7", "cpu": "a processor, 2 cores"},
        list(verdicts),
        {"T < M": 12, "a tail in T": 9},
        {"T < M": 3},
        126,
        126,
        93.25,
    )
    for name, value in fields.items():
        assert hasattr(made, name)
        setattr(made, name, value)
    return with_faults(made)


def everything() -> Report:
    """One of each, with values that JSON and XML lack and text that is markup somewhere."""
    exact = Finding(
        "dk",
        Outcome.VIOLATED,
        "exact",
        math.inf,
        math.inf,
        None,
        "[bold]is not finite[/bold] & <NaN> \x00\x1b[31m \ud800",
        Worst((0,), math.nan, -math.inf, math.inf),
    )
    made = report(
        holding(),
        violated(),
        violated("adjoint_identity", "float32", 2, wrong("<g, J t> - <J^T g, t>", "")),
        violated("vjp_is_linear", "bfloat16", 1, wrong(pattern="only T >= 128 (of 129)"), exact),
        crashed(),
        refused(),
        not_checked(),
    )
    made.verdicts[0].notes.append("less accurate than 'definition': o on 3 cases")
    made.goals_wanted["T > 100 000"] = 1
    made.refusals = {"D must be a multiple of 16, got 7 [see docs]": {"dtype=float16": 42, "D=7": 3}}
    made.notes = ["the signature of f cannot be read"]
    made.unmet = ["dq could not be decided on any float16 case"]
    made.interrupted = "interrupted after 100 of 126 cases"
    made.cases_run = 100
    return made


def compared(*lines: Line, **fields: object) -> Report:
    """What a gate reports of a kernel: a fault that is new, one that the base has too, and some lines."""
    other = replace(violated("adjoint_identity", "float16", 2, wrong("dv", "")), kind=PropertyKind.ORACLE)
    made = report(holding(), violated(), other, **fields)
    new = Line(
        Kind.VIOLATED, Weight.RED, "it held in the base", "triton_sdpa", "vjp_matches_the_oracle", "float32", CASE
    )
    made.comparison = Comparison("1a2b3c4 (main)", [new, *lines], ["kernels/a.py"])
    return made


def unchanged() -> Report:
    """What a gate reports of a kernel that is the base's."""
    return Report("lse", "", [], "", 0, {}, {}, comparison=Comparison("1a2b3c4 (main)", unchanged=True))


def pictured(seed: int = 0) -> Report:
    """A wrong tail with the map of its errors, and what a run measured."""
    truth = torch.randn(2, 65, 40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    got = truth.clone()
    got[:, 64:] *= 3
    got[1, 64, 39] = math.nan
    seen = errormap((got - truth).abs() * 1e3, torch.ones_like(truth, dtype=torch.bool), "HTD", got, truth)
    assert seen is not None
    found = replace(wrong(), map=replace(seen, tiles=(64, 0)))
    facts = replace(wrong("dk"), rule="exact", map=errormap(torch.where(got.isnan(), math.inf, 0.0), axes="HTD"))
    spread = {"float32": [0] * (BINS - 5) + [3, 9, 2, 0, 1], "bfloat16": [1] * BINS}
    measured = Measurements("T", spread, differences=7)
    measured.growth = [Growth("triton_sdpa", "float32", size, 1.5 + size % 3, 4) for size in (1, 16, 300, 131072)]
    measured.growth.append(Growth("triton_sdpa", "bfloat16", 65, 3e5))
    measured.convergence = [Convergence("triton_sdpa", "order of dq", ((0.01, 1e-8), (0.02, 4e-8), (0.04, 1.6e-7)))]
    verdict = replace(violated("vjp_matches_the_oracle", "float32", 5, found, facts), kind=PropertyKind.ORACLE)
    return report(holding(), verdict, measurements=measured)


def whole() -> list[Report]:
    """One run with every kind of content: a report of two kernels, one of a gate, and one that a gate left out.

    All values are exact in float64 and the maps are small, so that the views of it are the same bytes anywhere.
    """
    made = everything()
    made.kernels.append("other_sdpa")
    made.verdicts += [_explained(), _compiling(), _imprecise(), _open(), _accepting(), _pooled(), _erring()]
    faults = grouped(made.verdicts)
    leave_open(made.verdicts, None)
    made.faults = diagnosed(faults, made.verdicts)
    made.claims = {"triton_sdpa": {each.value: OFFERED for each in Derivative}}
    made.locations = {"triton_sdpa": Location("kernels/my attention.py", 12)}
    made.narrowed = {"other_sdpa": "D in multiples of 16"}
    made.planned, made.judged = {"triton_sdpa in float32": 42}, {"triton_sdpa in float32": 3}
    made.stopped = {"triton_sdpa: vjp": 12.0}
    made.seconds_compiling, made.longest_compilation = 30.5, 4.25
    made.measurements = _measurements()
    lines = (
        Line(Kind.ACCURACY, Weight.RED, "accuracy fell", "triton_sdpa", "vjp_matches_the_oracle", "float16"),
        Line(Kind.UNCHECKED, Weight.RED, "dq is not checked any more", "triton_sdpa", "vjp_matches_the_oracle"),
        Line(Kind.BASE, Weight.OPEN, "the base cannot be checked"),
        Line(Kind.JUDGE, Weight.NOTE, "acknowledged by Ann"),
        Line(Kind.KNOWN, Weight.NOTE, "it still fails", "triton_sdpa", "adjoint_identity", "float16"),
    )
    return [made, compared(*lines), unchanged()]


def _explained() -> Verdict:
    """A wrong gradient with all that explains it: pictures, an edited definition, a constant, another first case."""
    seen = errormap(torch.tensor([[0.5, 3.0, math.inf], [0.0, 1.5, 40.0]]), None, ("T", "D"))
    assert seen is not None
    shown = replace(wrong("dv"), map=replace(seen, tiles=(1, 0), pairs=((0.25, 0.5), (1.0, 3.0))))
    others = tuple(wrong(f"hvp.{letter}") for letter in "qkvg")
    constant = WrongConstant("kernels/a.py", 9, "k", "scale", 0.5, 0.25, 1e-9, name="1 / sqrt(D)")
    found = Counterexample(
        CASE, (shown, *others), CASE.replace("T=65", "T=777"), "shrinking was interrupted",
        first_findings=(wrong("dv", "every element"),),
        edited_definition=EditedDefinition("with the sign of k changed", "sign"), constant=constant,
        severity=Severity.WRONG,
    )  # fmt: skip
    return replace(
        violated("vjp_of_each_input", "float64", 6), kind=PropertyKind.ORACLE, severity=Severity.WRONG,
        severity_note="no preset of float64 explains it", counterexample=found,
    )  # fmt: skip


def _compiling() -> Verdict:
    """What says more than that numbers are wrong."""
    found = Finding(
        "vjp on sm_120", Outcome.VIOLATED, "exact", math.inf, message="k.py:7 needs 300 KiB of shared memory",
        pattern="one block configuration of 8", among=("dv",), derivative=Derivative.VJP,
    )  # fmt: skip
    made = violated("every_architecture_compiles", "float64", 8, found)
    return replace(made, kind=PropertyKind.COMPILATION, severity=Severity.WRONG)


def _imprecise() -> Verdict:
    """Lost precision by a kernel that declares no contract, and the statements that lose it."""
    at = Statement("kernels/other.py", 88, "k", 9.0)
    loss = PrecisionLoss(at, "s = tl.dot(q, k)", (replace(at, line=90), replace(at, line=91)))
    found = Counterexample(
        CASE, (replace(wrong("o"), left=1e-9),), message="holds under bf16", preset="bf16",
        severity=Severity.PRECISION, loss=loss,
    )  # fmt: skip
    return replace(
        violated("forward_matches_the_oracle", "float16", 5), kernel="other_sdpa", kind=PropertyKind.ORACLE,
        severity=Severity.PRECISION, declared=False, contract="fp16", keeps="bf16", counterexample=found,
    )  # fmt: skip


def _open() -> Verdict:
    """A violation that is wrong or lost precision, and nobody knows which."""
    return replace(
        violated("vjp_matches_the_oracle", "bfloat16", 4, wrong("dq", "")), kernel="other_sdpa",
        kind=PropertyKind.ORACLE, severity=Severity.UNDECIDED, declared=False, severity_note="it cannot be widened",
    )  # fmt: skip


def _accepting() -> Verdict:
    """An invalid argument that is accepted."""
    accepted = Finding("a cotangent of another shape", Outcome.VIOLATED, "exact", math.inf, message="nothing raises")
    made = violated("bad_arguments_are_refused", "float32", 0, accepted)
    return replace(made, kernel="other_sdpa", kind=PropertyKind.ARGUMENTS, severity=Severity.ROBUSTNESS)


def _pooled() -> Verdict:
    """What all cases show together, and none alone."""
    bias = Finding("hvp.v", Outcome.VIOLATED, "bias", 1.5, message="the error is +1e-3 of the truth throughout")
    found = Counterexample(CASE, (bias,), message="over 84 tensors", command="gradoracle check sdpa", pooled=True)
    return replace(
        violated("hvp_is_symmetric", "float32", 3), cases_violated=0, kernel="other_sdpa", counterexample=found,
        severity=Severity.WRONG,
    )  # fmt: skip


def _erring() -> Verdict:
    """An error of gradoracle's own."""
    found = Counterexample(CASE, (), message="IndexError: list index out of range", trace="Traceback: a line of ours")
    return Verdict("vjp_is_linear", "other_sdpa", "float32", Status.ERROR, cases_error=1, counterexample=found)


def _measurements() -> Measurements:
    """What a run measured, with a point that no picture holds."""
    made = Measurements("T", {"float32": [0] * (BINS - 5) + [3, 9, 2, 0, 1]}, differences=7)
    made.growth = [Growth("triton_sdpa", "float32", 16, 1.5, 4), Growth("triton_sdpa", "float32", 300, math.inf)]
    made.convergence = [Convergence("triton_sdpa", "order of dq", ((0.01, 1e-8), (0.02, 4e-8), (0.04, 1.6e-7)))]
    return made
