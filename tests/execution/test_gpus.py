"""Several GPUs: each is used, and the report says so. Without one here their number is made up."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from places import TESTS

from gradoracle.check import execute
from gradoracle.check.run import check
from gradoracle.execution import device, environment
from gradoracle.execution.environment import accelerator, describe
from gradoracle.execution.in_process import InProcess
from gradoracle.execution.local_pool import LocalPool
from gradoracle.project.request import Request

FILE = TESTS / "scaled.py"


@pytest.fixture
def pools(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How worker pools are asked for; they are made without processes. Kernels run on the CPU all the same."""
    asked: list[dict[str, Any]] = []

    class Pool(InProcess):
        def __init__(self, entry: str, setup: Any, *, count: int, env: Any, **more: Any) -> None:
            asked.append({"count": count, "env": env, **more})
            super().__init__(entry, setup)
            self._count, self._envs = count, env

        environment = LocalPool.environment

    monkeypatch.setattr(execute, "LocalPool", Pool)
    monkeypatch.setattr(device, "each", lambda device, python=None: [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in "012"])
    return asked


@pytest.mark.parametrize(("cores", "asked", "count", "used"), [(2, None, 3, 3), (16, None, 16, 3), (16, 2, 2, 2)])
def test_each_gpu_has_a_worker(
    monkeypatch: pytest.MonkeyPatch, pools: list[Any], cores: int, asked: int | None, count: int, used: int
) -> None:
    monkeypatch.setattr(environment, "cores", lambda: cores)
    told: list[int] = []
    monkeypatch.setattr(environment, "describe", lambda device, gpus: told.append(gpus) or {"gpu": f"{gpus} x GPU"})
    request = Request(f"{FILE}:right", device="cpu", property="forward_matches_the_oracle", examples=2, workers=asked)
    report = check(request)
    assert report.exit_code == 0 and report.environment == {"gpu": f"{used} x GPU"} and told == [used]
    assert pools[0]["count"] == count
    assert [each["CUDA_VISIBLE_DEVICES"] for each in pools[0]["env"]] == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("names", "used", "told"),
    [
        (["NVIDIA H200"], 1, "NVIDIA H200"),
        (["NVIDIA H200"] * 2, 2, "2 x NVIDIA H200"),
        (["NVIDIA H200"] * 8, 2, "2 x NVIDIA H200 (2 of 8)"),
        (["NVIDIA H200"] * 2, 1, "NVIDIA H200 (1 of 2)"),
        (["NVIDIA A100", "NVIDIA H200", "NVIDIA A100"], 3, "2 x NVIDIA A100, NVIDIA H200"),
    ],
)
def test_the_gpus_that_ran_are_named(monkeypatch: pytest.MonkeyPatch, names: list[str], used: int, told: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(names))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: names[index])
    assert accelerator(used) == f"{told}, CUDA {torch.version.cuda}"
    assert describe(gpus=used)["gpu"] == accelerator(used)
