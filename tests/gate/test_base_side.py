"""How the base is asked: nothing twice, two cases of a verdict first, and all where these do not decide."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from functools import partial
from typing import Any

from gate.answers import answer, named

from gradoracle.gate.answer import Answer
from gradoracle.gate.compare import asked_of_base, proven
from gradoracle.gate.sides import Base
from gradoracle.model.job import PropertyResult
from gradoracle.model.verdict import Status

_TODAY = datetime.date(2026, 11, 24)
VJP, CAUSAL = "vjp_matches_the_oracle", "causal_prefix"
LINES = [named(number) for number in range(5)]


def told(statuses: dict[str, list[str]]) -> Answer:
    """Of five cases, by property."""
    own = {
        at: [PropertyResult(name, Status(each[at])) for name, each in statuses.items() if each[at]] for at in range(5)
    }
    return answer(own, measured=[VJP])


def statuses(found: Answer, at: int) -> dict[str, str]:
    """What is known of a case."""
    return {each.property_name: each.status.value for each in found.cases[LINES[at]].results}


class Processes:
    """In place of the processes of a base: what each was asked, and what they find."""

    def __init__(self, truth: Answer) -> None:
        self.truth = truth
        self.orders: list[Any] = []

    def begin(self, properties: dict[str, list[str]] | None) -> Callable[[], Answer]:
        self.orders.append(properties)
        return partial(self.wait, properties)

    def wait(self, properties: dict[str, list[str]] | None) -> Answer:
        cases = {}
        for at, line in enumerate(LINES):
            expected = [VJP] if properties is None else properties.get(line, [])
            own = [each for each in self.truth.cases[line].results if each.property_name in expected]
            if own:
                cases[at] = own
        return answer(cases, measured=[VJP])


HOLDS, BREAKS = ["holds"] * 5, ["violated"] * 5


def test_two_cases_of_a_verdict_are_asked_first_and_what_is_measured_is_not() -> None:
    processes = Processes(told({VJP: HOLDS, CAUSAL: HOLDS}))
    base = Base(processes.begin, None)
    head = told({VJP: BREAKS, CAUSAL: BREAKS})
    base.measure()
    base.measure()
    base.ask(asked_of_base(head), [VJP])
    assert processes.orders == [None, {line: [CAUSAL] for line in LINES[:2]}]
    there = base.whole()
    assert statuses(there, 0) == {VJP: "holds", CAUSAL: "holds"} and statuses(there, 4) == {VJP: "holds"}
    base.ask(asked_of_base(head, there), [VJP])
    assert len(processes.orders) == 2 and base.whole() == there and proven(there, head, [], _TODAY)


def test_where_the_base_breaks_it_too_all_cases_are_asked() -> None:
    processes = Processes(told({VJP: HOLDS, CAUSAL: ["violated", "violated", "violated", "violated", "holds"]}))
    base = Base(processes.begin, None)
    head = told({VJP: HOLDS, CAUSAL: BREAKS})
    base.ask(asked_of_base(head), [VJP])
    there = base.whole()
    base.ask(asked_of_base(head, there), [VJP])
    assert processes.orders[-1] == {line: [CAUSAL] for line in LINES[2:]}
    assert statuses(base.whole(), 4)[CAUSAL] == "holds" and proven(base.whole(), head, [], _TODAY)


def test_what_the_base_breaks_on_every_case_is_not_worse() -> None:
    truth = told({VJP: HOLDS, CAUSAL: BREAKS})
    head = told({VJP: HOLDS, CAUSAL: BREAKS})
    assert not proven(truth, head, [], _TODAY)
    some = answer({at: truth.cases[LINES[at]].results for at in range(2)})
    assert not proven(some, head, [], _TODAY)  # the others are not known
    assert proven(None, head, [], _TODAY) and not proven(None, Answer("fast"), [], _TODAY)


def test_what_the_change_does_not_decide_is_asked_until_the_base_decides_it() -> None:
    processes = Processes(told({VJP: HOLDS, CAUSAL: ["refused", "refused", "refused", "holds", "refused"]}))
    base = Base(processes.begin, None)
    head = told({VJP: HOLDS, CAUSAL: ["not checked"] * 5})
    base.ask(asked_of_base(head), [VJP])
    base.ask(asked_of_base(head, base.whole()), [VJP])
    assert statuses(base.whole(), 3)[CAUSAL] == "holds"


def test_what_is_kept_is_not_asked_and_what_is_not_kept_is() -> None:
    truth = told({VJP: HOLDS, CAUSAL: HOLDS})
    processes = Processes(truth)
    base = Base(processes.begin, told({VJP: HOLDS, CAUSAL: ["holds", "", "", "", ""]}))
    base.measure()
    base.ask({line: [VJP, CAUSAL] for line in LINES[:2]}, [VJP])
    assert processes.orders == [{LINES[1]: [CAUSAL]}]
    assert base.is_measured and statuses(base.whole(), 1)[CAUSAL] == "holds"


def test_asked_soon_it_answers_before_it_is_measured() -> None:
    processes = Processes(told({VJP: HOLDS, CAUSAL: HOLDS}))
    base = Base(processes.begin, None)
    base.measure()
    assert base.answers() is None
    base.ask({LINES[3]: [VJP]}, [VJP], soon=True)
    found = base.answers()
    assert found is not None and statuses(found, 3) == {VJP: "holds"} and not base.is_measured


def test_an_error_of_one_process_is_that_of_the_base() -> None:
    base = Base(lambda properties: lambda: Answer("fast", error="killed"), None)
    base.ask({LINES[0]: [CAUSAL]}, [VJP])
    assert base.whole().error == "killed"
