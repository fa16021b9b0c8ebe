"""How the base is asked: nothing twice, two cases of a verdict first, and all where these do not decide."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import partial
from typing import Any

from gradoracle.gate.compare import asked_of_base, proven
from gradoracle.gate.sides import Base
from gradoracle.gate.snapshot import OnCase, Snapshot
from gradoracle.model.verdict import Status

_TODAY = datetime.date(2026, 11, 24)
VJP, CAUSAL = "vjp_matches_the_oracle", "causal_prefix"
LINES = [f"case {number}" for number in range(5)]


def snapshot(statuses: dict[str, list[str]]) -> Snapshot:
    """Of five cases, by property."""
    cases = {
        line: OnCase(
            "fast", "float32", {property_name: Status(own[at]) for property_name, own in statuses.items() if own[at]}
        )
        for at, line in enumerate(LINES)
    }
    return Snapshot("fast", cases=cases, is_whole=True)


class Processes:
    """In place of the processes of a base: what each was asked, and what they find."""

    def __init__(self, truth: Snapshot) -> None:
        self.truth = truth
        self.orders: list[Any] = []

    def begin(self, properties: dict[str, list[str]] | None) -> Callable[[], Snapshot]:
        self.orders.append(properties)
        return partial(self.wait, properties)

    def wait(self, properties: dict[str, list[str]] | None) -> Snapshot:
        cases = {}
        for line, case in self.truth.cases.items():
            expected = [VJP] if properties is None else properties.get(line, [])
            own = {
                property_name: case.properties[property_name]
                for property_name in expected
                if property_name in case.properties
            }
            if own:
                cases[line] = OnCase("fast", "float32", own)
        return Snapshot("fast", cases=cases, is_whole=True)


HOLDS, BREAKS = ["holds"] * 5, ["violated"] * 5


def test_two_cases_of_a_verdict_are_asked_first_and_what_is_measured_is_not() -> None:
    processes = Processes(snapshot({VJP: HOLDS, CAUSAL: HOLDS}))
    base = Base(processes.begin, None)
    head = snapshot({VJP: BREAKS, CAUSAL: BREAKS})
    base.measure()
    base.measure()
    base.ask(asked_of_base(head), [VJP])
    assert processes.orders == [None, {line: [CAUSAL] for line in LINES[:2]}]
    there = base.snapshot()
    assert there.cases["case 0"].properties == {VJP: "holds", CAUSAL: "holds"} and there.cases["case 4"].properties == {
        VJP: "holds"
    }
    base.ask(asked_of_base(head, there), [VJP])
    assert len(processes.orders) == 2 and base.snapshot() == there and proven(there, head, [], _TODAY)


def test_where_the_base_breaks_it_too_all_cases_are_asked() -> None:
    processes = Processes(snapshot({VJP: HOLDS, CAUSAL: ["violated", "violated", "violated", "violated", "holds"]}))
    base = Base(processes.begin, None)
    head = snapshot({VJP: HOLDS, CAUSAL: BREAKS})
    base.ask(asked_of_base(head), [VJP])
    there = base.snapshot()
    base.ask(asked_of_base(head, there), [VJP])
    assert processes.orders[-1] == {line: [CAUSAL] for line in LINES[2:]}
    assert base.snapshot().cases["case 4"].properties[CAUSAL] == "holds" and proven(base.snapshot(), head, [], _TODAY)


def test_what_the_base_breaks_on_every_case_is_not_worse() -> None:
    truth = snapshot({VJP: HOLDS, CAUSAL: BREAKS})
    head = snapshot({VJP: HOLDS, CAUSAL: BREAKS})
    assert not proven(truth, head, [], _TODAY)
    some = Snapshot("fast", cases={line: truth.cases[line] for line in LINES[:2]})
    assert not proven(some, head, [], _TODAY)  # the others are not known
    assert proven(None, head, [], _TODAY) and not proven(None, Snapshot("fast"), [], _TODAY)


def test_what_the_change_does_not_decide_is_asked_until_the_base_decides_it() -> None:
    processes = Processes(snapshot({VJP: HOLDS, CAUSAL: ["refused", "refused", "refused", "holds", "refused"]}))
    base = Base(processes.begin, None)
    head = snapshot({VJP: HOLDS, CAUSAL: ["not checked"] * 5})
    base.ask(asked_of_base(head), [VJP])
    base.ask(asked_of_base(head, base.snapshot()), [VJP])
    assert base.snapshot().cases["case 3"].properties[CAUSAL] == "holds"


def test_what_is_kept_is_not_asked_and_what_is_not_kept_is() -> None:
    truth = snapshot({VJP: HOLDS, CAUSAL: HOLDS})
    processes = Processes(truth)
    base = Base(processes.begin, snapshot({VJP: HOLDS, CAUSAL: ["holds", "", "", "", ""]}))
    base.measure()
    base.ask({line: [VJP, CAUSAL] for line in LINES[:2]}, [VJP])
    assert processes.orders == [{"case 1": [CAUSAL]}]
    assert base.is_measured and base.snapshot().cases["case 1"].properties[CAUSAL] == "holds"


def test_asked_soon_it_answers_before_it_is_measured() -> None:
    processes = Processes(snapshot({VJP: HOLDS, CAUSAL: HOLDS}))
    base = Base(processes.begin, None)
    base.measure()
    assert base.answers() is None
    base.ask({"case 3": [VJP]}, [VJP], soon=True)
    found = base.answers()
    assert found is not None and found.cases["case 3"].properties == {VJP: "holds"} and not base.is_measured


def test_an_error_of_one_process_is_that_of_the_base() -> None:
    base = Base(lambda properties: lambda: Snapshot("fast", error="killed"), None)
    base.ask({"case 0": [CAUSAL]}, [VJP])
    assert base.snapshot().error == "killed"
