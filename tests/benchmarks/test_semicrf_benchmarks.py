"""The semi-CRF's benchmark rows: what the peer computes is correct, and the oracles' rows run and say their radius."""

from __future__ import annotations

import pytest
import torch
from sweeps import slow

from gradoracle.execution import device
from gradoracle.execution.bench import measure, module_of

device.prepare("cpu")
from gradoracle.properties.semicrf.readings import recursion as recursion  # noqa: E402

benchmarks = module_of("semicrf")


def test_the_peer_gives_the_same_log_z() -> None:
    given = benchmarks._inputs(2, 12, 5, 3, "cpu")
    named = dict(zip(("cum_scores", "transition", "duration_bias", "lengths"), given, strict=True))
    cum, transition, bias, lengths = given
    found = benchmarks._loop(cum.double(), transition.double(), bias.double(), lengths)
    assert torch.allclose(found, recursion.log_z(named), rtol=1e-12)


@pytest.mark.parametrize("shorter", [30, slow(1)])
def test_the_rows_of_oracles_and_record_run_and_say_what_they_found(
    shorter: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("READ", "CERTIFIED"):
        batch, positions, *sizes = getattr(benchmarks, name)
        monkeypatch.setattr(benchmarks, name, (batch, positions // shorter, *sizes))
    monkeypatch.setitem(benchmarks.RECORDED, "T", 1 + 512 // min(shorter, 4))
    float64, certified, recorded = (measure(row, "cpu") for row in benchmarks.rows("cpu"))
    assert not float64.missing and not certified.missing
    assert float64.milliseconds["gradoracle"] > 0
    radius = float(certified.notes["gradoracle"].rpartition(" ")[2])
    assert 0 < radius < 1e-6
    assert len(recorded.milliseconds) == 2
    assert "launches, 0 faults" in recorded.notes["interpreter with the record of accesses"]
