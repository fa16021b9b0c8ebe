"""Outputs that exist only where a bool option asks for them: drawn, judged, saved, shrunk and shown with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from jaxtyping import Float, Float32
from programs import python
from torch import Tensor

import gradoracle
from gradoracle.cases.case_space import case_space
from gradoracle.cases.coverage import Focus, focuses, goals_of, wanted_goals
from gradoracle.cases.sample import build
from gradoracle.cases.shrinking import shrink
from gradoracle.cases.strategy import draw_case
from gradoracle.cases.stream import stream
from gradoracle.check import memory_estimate
from gradoracle.check.run import check, replay
from gradoracle.check.script import reproduce
from gradoracle.model.case import Case, Draw, parse
from gradoracle.model.errors import UsageError
from gradoracle.model.kernel import Kernel
from gradoracle.model.signature import read_signature
from gradoracle.model.verdict import Report, Status
from gradoracle.project.request import Request
from gradoracle.report.catalogue import signature as shown

SIZES = {"B": gradoracle.sizes(1, 6), "N": gradoracle.sizes(1, 24), "D": gradoracle.sizes(1, 8)}
CHOICES = {"outputs": ("o", "state"), "optional_outputs": {"state": "return_state"}}


@gradoracle.family(**CHOICES, dims=SIZES, joint={"large start": {"initial": "normal:30", "dstate": "uniform"}})
def running(
    x: Float[Tensor, "B N D"],
    w: Float[Tensor, "D"],
    *,
    initial: Float32[Tensor, "B D"] | None = None,
    return_state: bool = False,
) -> tuple[Float[Tensor, "B N D"], Float32[Tensor, "B D"]]:
    total = (x * w).cumsum(1)
    if initial is not None:
        total = total + initial[:, None]
    return (total, total[:, -1].clone()) if return_state else total


def sums(x, w, initial):
    wide = torch.promote_types(x.dtype, torch.float32)
    total = (x.to(wide) * w.to(wide)).cumsum(1)
    if initial is not None:
        total = total + initial[:, None]
    return total.to(x.dtype), total[:, -1].clone()


@gradoracle.kernel(running)
def right(x, w, *, initial=None, return_state=False):
    o, state = sums(x, w, initial)
    return (o, state) if return_state else o


@gradoracle.kernel(running)
def wrong_state(x, w, *, initial=None, return_state=False):
    o, state = sums(x, w, initial)
    return (o, state * 1.01) if return_state else o


@gradoracle.kernel(running)
def state_without_gradient(x, w, *, initial=None, return_state=False):
    o, state = sums(x, w, initial)
    return (o, state.detach()) if return_state else o


@gradoracle.kernel(running)
def wrong_output_where_asked(x, w, *, initial=None, return_state=False):
    o, state = sums(x, w, initial)
    return (o * 1.05, state) if return_state else o


@gradoracle.kernel(running)
def always_returns_state(x, w, *, initial=None, return_state=False):
    return sums(x, w, initial)


@gradoracle.kernel(running)
def never_returns_state(x, w, *, initial=None, return_state=False):
    return sums(x, w, initial)[0]


def outside(x, w, *, initial=None):
    return sums(x, w, initial)[0]


def request(kernel: str, **fields: Any) -> Request:
    plain = {"device": "cpu", "examples": 30, "workers": 0, "property": "*_matches_the_oracle"}
    return Request(f"{Path(__file__)}:{kernel}", **{**plain, **fields})


def verdicts(report: Report, status: Status) -> set[tuple[str, str]]:
    return {(verdict.property_name, verdict.dtype) for verdict in report.verdicts if verdict.status is status}


def messages(report: Report) -> set[str]:
    found = [v.counterexample for v in report.verdicts if v.counterexample is not None]
    return {finding.message for each in found for finding in each.findings if finding.message}


CASE = Case("running", {"B": 2, "N": 3, "D": 4}, options={"return_state": True})


def test_a_sample_has_the_cotangents_of_the_outputs_that_are_asked_for() -> None:
    with_state, without = (
        build(CASE, running.signature),
        build(CASE.with_options(return_state=False), running.signature),
    )
    assert [*with_state.cotangents] == ["o", "state"] and [*without.cotangents] == ["o"]
    assert torch.equal(with_state.cotangents["o"], without.cotangents["o"])
    assert [spec.name for spec in running.signature.returned({})] == ["o"]
    drawn = Case("running", CASE.dims, draws={"dstate": Draw("ties")})
    with pytest.raises(ValueError, match=r"draws dstate, but state is returned only with --return_state=true"):
        build(drawn, running.signature)
    assert (
        memory_estimate.demand(CASE, running, 1 << 40).held
        - memory_estimate.demand(Case("running", CASE.dims), running, 1 << 40).held
        == 4 * 8
    )


def test_a_correct_kernel_holds_under_every_property() -> None:
    report = check(request("right", property="*", examples=60))
    assert verdicts(report, Status.VIOLATED) == verdicts(report, Status.CRASHED) == set()
    held = {property_name for property_name, _ in verdicts(report, Status.HOLDS)}
    assert {"hvp_is_symmetric", "vjp_and_jvp_are_adjoint", "vjp_of_a_cotangent_on_each_output_alone"} <= held
    assert {"every_subset_of_requires_grad_gives_the_same_gradients", "tail_and_padding_invariance"} <= held
    assert {"batch_and_head_permutation_equivariance", "any_layout_of_cotangents_is_right_or_refused"} <= held
    assert report.goals["return_state = True"] and report.goals["return_state = False"]


@pytest.mark.parametrize(
    ("kernel", "properties"),
    [
        ("wrong_state", {"forward", "vjp", "jvp"}),
        ("state_without_gradient", {"vjp", "jvp"}),
        ("wrong_output_where_asked", {"forward", "vjp", "jvp"}),
    ],
)
def test_what_is_wrong_only_where_state_is_asked_for_is_violated(kernel: str, properties: set[str]) -> None:
    report = check(request(kernel, property="[fvj]*_matches_the_oracle"))
    assert {property_name.split("_")[0] for property_name, _ in verdicts(report, Status.VIOLATED)} == properties
    for verdict in report.verdicts:
        if verdict.counterexample is not None:
            assert "--return_state=true" in verdict.counterexample.case, "the fault needs the option"


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("always_returns_state", "the kernel returned 2 tensors, expected 1: ('o',)"),
        ("never_returns_state", "the kernel returned 1 tensor, expected 2: ('o', 'state')"),
    ],
)
def test_another_number_of_outputs_than_was_asked_for_is_said(kernel: str, message: str) -> None:
    report = check(request(kernel, property="forward*", dtypes=("float32",)))
    assert messages(report) == {message}


def test_a_callable_without_the_option_is_called_without_it() -> None:
    target = {"family": f"{Path(__file__)}:running"}
    report = check(request("outside", property="*", examples=24, **target))
    assert not verdicts(report, Status.VIOLATED) | verdicts(report, Status.CRASHED)
    assert ("vjp_matches_the_oracle", "float32") in verdicts(report, Status.HOLDS)
    assert "return_state = True" not in report.goals
    (alone,) = [
        v for v in report.verdicts if v.property_name.startswith("vjp_of_a_cotangent_on") and v.dtype == "float32"
    ]
    assert alone.status is Status.NOT_CHECKED and [*alone.reasons] == ["this case has one output"]
    with pytest.raises(UsageError, match="gives option return_state, which outside does not take"):
        replay(CASE.line(f"{Path(__file__)}:outside"), workers=0, **target)
    with pytest.raises(UsageError, match="--arg return_state: outside takes no such argument; it takes x, w, initial"):
        check(request("outside", arguments={"return_state": True}, **target))


def test_a_cotangent_is_drawn_only_where_its_output_is_returned() -> None:
    run = stream(running, right, examples=400)
    drawn = [case for case in run if "dstate" in case.draws]
    assert drawn and all(case.options["return_state"] for case in drawn)
    assert {case.draw("dstate").layout for case in drawn} >= {"transposed", "expanded"}
    assert sum(case.options.get("return_state", False) for case in run) > 100
    expected = wanted_goals(running, right, running.dtypes, 400)
    seen: dict[str, int] = {}
    for case in run:
        build(case, running.signature)
        for name in goals_of(running, right, case):
            seen[name] = seen.get(name, 0) + 1
    assert {"joint large start", "return_state = True", "return_state = False", "cotangent transposed"} <= set(expected)
    assert {name: count for name, count in expected.items() if seen.get(name, 0) < count} == {}


def test_a_focus_that_draws_its_cotangent_sets_the_option() -> None:
    within = case_space(running, right)

    def last(values: Any) -> Any:
        return values[-1] if values and values[-1] == "dstate" else values[0]

    focus = Focus("cotangent transposed", layout=("transposed", True), sizes={"B": (4,), "D": (4,)})
    case = draw_case(last, within, focus)
    assert case.draw("dstate").layout == "transposed" and case.options == {"return_state": True}
    off = Kernel("off", "running", right.call, options={"return_state": (False,)})
    for each in focuses(case_space(running, off)):
        case = draw_case(last, case_space(running, off), each)
        assert "dstate" not in case.draws and not case.options.get("return_state")


def test_shrinking_turns_the_option_off_with_its_cotangent() -> None:
    case = Case(
        "running", {"B": 2, "N": 9, "D": 4}, "float32", {"return_state": True}, {"dstate": Draw("ties")}, seed=7
    )
    smallest, _ = shrink(running, right, case, lambda tried: tried.dims["N"] > 2, seconds=20)
    assert dict(smallest.options) == {} and dict(smallest.draws) == {} and smallest.dims["N"] == 3
    kept, _ = shrink(running, right, case, lambda tried: tried.options.get("return_state", False), seconds=20)
    assert dict(kept.options) == {"return_state": True} and kept.dims["N"] == 1


def test_a_saved_cotangent_asks_for_its_output(tmp_path: Path) -> None:
    path = tmp_path / "saved.pt"
    tensors = {"x": torch.rand(2, 5, 3), "w": torch.rand(3)}
    torch.save(tensors, path)
    assert check(request("wrong_state", inputs=str(path), property="forward*")).exit_code == 0
    torch.save({**tensors, "dstate": torch.rand(2, 3)}, path)
    assert check(request("right", inputs=str(path))).exit_code == 0
    assert check(request("wrong_state", inputs=str(path), property="forward*")).exit_code == 1
    expected = "holds 'dstate', but state is returned only with return_state=true"
    with pytest.raises(UsageError, match=expected):
        check(request("right", inputs=str(path), arguments={"return_state": False}))
    with pytest.raises(UsageError, match=expected):
        check(request("outside", inputs=str(path), family=f"{Path(__file__)}:running"))


def test_a_replayed_line_and_its_script_show_the_state(tmp_path: Path) -> None:
    line = CASE.line(f"{Path(__file__)}:wrong_state")
    assert parse(line)[2] == CASE
    report = replay(line, workers=0, property="forward*")
    assert report.exit_code == 1 and {f.tensor for v in report.verdicts for f in v.counterexample.findings} >= {"state"}
    for kernel, said in (("wrong_state", "state: worst element"), ("never_returns_state", "returned 1 tensors")):
        script = tmp_path / f"{kernel}.py"
        script.write_text(reproduce(CASE.line(f"{Path(__file__)}:{kernel}")))
        done = python(script.read_text())
        assert said in done.stdout + done.stderr and "Traceback" not in done.stderr and done.returncode == 1


def test_the_catalogue_shows_the_option_behind_the_output() -> None:
    text = "(x[B N D], w[D], *, initial[B D]=None, return_state=False) -> o[B N D], state[B D] if return_state"
    assert shown(running.signature) == text


def definition(
    x: Float[Tensor, "N"], *, flag: bool = False, scale: float = 1.0
) -> tuple[Float[Tensor, "N"], Float[Tensor, "N"]]: ...


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"z": "flag"}, "names 'z', which is not an output of it; expected some of o, s"),
        ({"s": "scale"}, "asked for by 'scale', which is not a bool option of it; expected one of flag"),
        ({"s": "flags"}, "asked for by 'flags', which is not a bool option of it; expected one of flag"),
        ({"o": "flag", "s": "flag"}, "names every output; expected at least one"),
    ],
)
def test_an_optional_output_that_does_not_fit_is_refused(asked: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        gradoracle.family(outputs=("o", "s"), optional_outputs=asked)(definition)
    assert "\n" not in str(caught.value)
    assert read_signature(definition, outputs=("o", "s"), optional_outputs={"s": "flag"}).outputs[1].asked_by == "flag"
