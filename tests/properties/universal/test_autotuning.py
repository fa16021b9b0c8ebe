"""Properties of autotuned kernels find the one wrong configuration and what trials leave, and change no autotuner."""

from __future__ import annotations

import json
import os

import pytest
from gradoracle.properties.universal.autotuning import every_autotuned_configuration_matches_the_oracle as prop
from gradoracle.properties.universal.autotuning import trials_of_an_autotuner_leave_nothing_behind
from places import ROOT
from programs import python

from gradoracle.execution import device
from gradoracle.host import interpreter
from tests.properties.toys import CASE, RIGHT

PROGRAM = """
import json
from gradoracle.execution import device
device.prepare("cpu")
from gradoracle.model.case import Case
from gradoracle.model.kernel import Kernel
from dataclasses import replace
from gradoracle.host.autotuned import autotuners
from gradoracle.properties.universal.autotuning import every_autotuned_configuration_matches_the_oracle as property
from gradoracle.properties.universal.autotuning import trials_of_an_autotuner_leave_nothing_behind as tried
from tests.properties.universal import autotuned
from tests.properties.toys import judged

def declared(call):
    kernel = Kernel("halve", "halve", call, outside=True)
    return replace(kernel, autotuners={name: len(each.configs) for name, each in autotuners(kernel).items()})

kernel = declared(autotuned.call)
found = {}
for seed in (0, 11):
    found[seed] = judged(property, kernel, Case("halve", {"N": 40}, seed=seed), autotuned.halve).status.value
tuner = autotuned.product
trials = {}
for name, call in (("right", autotuned.call), ("added", autotuned.added_up)):
    kernel = declared(call)
    trials[name] = judged(tried, kernel, Case("halve", {"N": 40}), autotuned.halve).status.value
left = [len(tuner.configs), len(tuner.cache), "do_bench" in vars(tuner)]
print(json.dumps([found[0], found[11], sorted(autotuners(kernel)), left, trials]))
"""


def test_a_kernel_without_autotuners_is_not_concerned():
    assert prop.applies(CASE, RIGHT) is not None
    assert trials_of_an_autotuner_leave_nothing_behind.applies(CASE, RIGHT) is not None


@pytest.mark.skipif(interpreter.explain_unavailable() is not None, reason="needs Triton's interpreter")
def test_the_wrong_configuration_is_found_and_the_autotuner_left_as_it_was():
    # in a process of its own, since TRITON_INTERPRET decides at import
    environment = {**os.environ, **device.variables("cpu")}
    ran = python(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{PROGRAM}", env=environment, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr[-2000:]
    first, second, tuners, left, trials = json.loads(ran.stdout)
    assert (first, second, tuners, left) == ("holds", "violated", ["product", "sums"], [2, 0, False])
    assert trials == {"right": "holds", "added": "violated"}
