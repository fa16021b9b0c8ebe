"""Autotuned kernels on the CPU: one configuration runs, the first that pruning leaves, and nothing else is touched."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import interpreted
from places import ROOT

from gradoracle.execution import device

PROGRAM = """
import json
from gradoracle.host import interpreter
import gradoracle.host.interpreter.autotuner
interpreter.activate()
from tests.host.interpreter import autotuned_kernels as k

found = {
    "first": [k.stored(k.tagged), k.tagged.best_config.kwargs["TAG"], len(k.tagged.cache), list(k.hooked)],
    "pruned": [k.stored(k.pruned), k.pruned.best_config.kwargs["TAG"]],
    "sums": [k.summed(start=7.0), k.summed(start=7.0)],
}
with interpreter.autotuner.trials():
    found["tried"] = [k.summed(n=24, start=7.0), k.summed(n=24, start=7.0)]
    found["known"] = [len(k.added.cache), "do_bench" in vars(k.added)]
    k.hooked.clear()
    k.tagged.cache.clear()
    found["hooks"] = [k.stored(k.tagged), list(k.hooked)]
k.tagged.configs = k.tagged.configs[1:]
found["forced"] = k.stored(k.tagged)
k.tagged.configs = k.CONFIGS
try:
    k.tagged[(1,)](None, 3, TAG=3)
except ValueError as error:
    found["both"] = str(error)
print(json.dumps(found))
"""


def tags(tag: int) -> list[int]:
    return [10 * i + tag for i in range(20)]


@interpreted.NEEDED
def test_the_first_configuration_that_pruning_leaves_is_taken_without_a_run_that_only_measures():
    # in a process of its own, since TRITON_INTERPRET decides at import
    environment = {**os.environ, **device.variables("cpu")}
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr[-2000:]
    found = json.loads(ran.stdout)
    assert found["first"] == [tags(1), 1, 1, [True]], "one hook, Triton's own, before the one run that counts"
    assert found["pruned"] == [tags(2), 2]
    assert found["forced"] == tags(2)
    assert found["sums"] == [210.0, 217.0], "reset once a key and not again, as on a GPU"
    assert found["tried"] == [300.0, 307.0], "trials add up too, and are reset"
    assert found["known"] == [2, False]
    assert found["hooks"] == [tags(1), [False, False, True]], "in each of two trials, then for the run that counts"
    assert found["both"].startswith("TAG was given at launch ")
