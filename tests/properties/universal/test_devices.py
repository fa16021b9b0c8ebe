"""Properties of GPUs: what each catches on one, and that without one it is not checked."""

from __future__ import annotations

import pytest
import torch
from gradoracle.properties.universal.devices import non_default_stream_gives_the_same, second_device_gives_the_same

from gradoracle.check.judge_property import judge_property
from gradoracle.model.case import Draw
from gradoracle.model.verdict import Status
from tests.properties.toys import CASE, RIGHT, evidence, judged, kernel, right

PROPERTIES = (non_default_stream_gives_the_same, second_device_gives_the_same)
needs_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def on_gpu(prop, subject, case=CASE):
    return judge_property(prop, evidence(subject, case, device="cuda"))


@pytest.mark.parametrize("prop", PROPERTIES, ids=lambda prop: prop.name)
def test_without_a_gpu_they_are_not_checked_and_say_why(prop):
    found = judged(prop, RIGHT)
    assert (found.status, found.reason, found.findings) == (Status.NOT_CHECKED, "needs a GPU", ())


@needs_a_gpu
def test_a_launch_on_the_default_stream_reads_too_soon():
    side = torch.cuda.Stream()

    def elsewhere(x, y):
        with torch.cuda.stream(side):
            return right(x, y)

    expanded = CASE.with_draws(x=Draw("normal", "expanded"), dp=Draw("normal", "broadcast"))
    assert on_gpu(PROPERTIES[0], RIGHT).status is Status.HOLDS
    assert on_gpu(PROPERTIES[0], RIGHT, expanded).status is Status.HOLDS
    assert on_gpu(PROPERTIES[0], kernel(elsewhere)).status is Status.VIOLATED


@needs_a_gpu
def test_a_second_device_gives_the_same_or_is_missing():
    found = on_gpu(PROPERTIES[1], RIGHT)
    if torch.cuda.device_count() < 2:
        assert (found.status, found.reason) == (Status.NOT_CHECKED, "needs a second GPU")
        return
    assert found.status is Status.HOLDS

    def first_device(x, y):
        p, s = right(x.to("cuda:0"), y.to("cuda:0"))
        return p.to(x.device) * (1.0 if x.device.index == 0 else 1.001), s.to(x.device)

    assert on_gpu(PROPERTIES[1], kernel(first_device)).status is Status.VIOLATED
