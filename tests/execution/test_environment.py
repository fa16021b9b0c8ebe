"""Environment: what a report records, and what doctor finds missing."""

from __future__ import annotations

import getpass
import json
import platform
from pathlib import Path

import pytest

from gradoracle.execution import environment
from gradoracle.execution.environment import describe, facilities
from gradoracle.host import interpreter


def test_the_record_names_versions_and_processor() -> None:
    facts = describe()
    assert facts["python"] == platform.python_version()
    assert facts["torch"].split(".")[0].isdigit() and facts["triton"] and facts["gradoracle"]
    assert "cores" in facts["cpu"]


def test_the_record_names_no_path_host_or_user() -> None:
    text = json.dumps(describe())
    home = str(Path.home())
    assert str(Path(__file__).parent) not in text and not (len(home) > 2 and home in text)
    assert platform.node() not in text
    assert len(getpass.getuser()) < 5 or getpass.getuser() not in text


@pytest.mark.parametrize(
    ("two", "one", "cores"),
    [
        ([], [], 3),
        (["max 100000"], [], 3),
        (["150000 100000"], [], 2),
        (["20000 100000"], [], 1),
        (["800000 100000"], [], 3),
        ([], ["-1", "100000"], 3),
        ([], ["200000", "100000"], 2),
        ([], ["200000"], 3),
        (["nonsense"], [], 3),
    ],
)
def test_cores_are_those_that_this_process_may_use(
    two: list[str], one: list[str], cores: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = (tmp_path / "cpu.max",), (tmp_path / "cfs_quota_us", tmp_path / "cfs_period_us")
    for places, texts in zip(files, (two, one), strict=True):
        for file, text in zip(places, texts, strict=False):
            file.write_text(f"{text}\n")
    monkeypatch.setattr(environment, "_CGROUP_QUOTAS", files)
    monkeypatch.setattr("os.sched_getaffinity", lambda process: {0, 5, 6})
    assert environment.cores() == cores and describe("cpu")["cpu"].endswith(f", {cores} cores")


def test_a_gpu_is_recorded_unless_the_run_is_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "accelerator", lambda used: "H200, CUDA 13.0")
    assert describe()["gpu"] == "H200, CUDA 13.0"
    assert "gpu" not in describe("cpu")


def test_an_installed_package_does_not_record_the_commit_of_the_repository_it_lies_in(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".git").mkdir()
    monkeypatch.setattr(environment, "__file__", str(tmp_path / "gradoracle" / "execution" / "environment.py"))
    assert "commit" not in describe()


def test_processors_are_named_as_the_system_names_them() -> None:
    listed = "processor\t: 0\nmodel name\t: Some  CPU @ 2 GHz\n"
    assert environment._processor(lambda: listed) == "Some CPU @ 2 GHz"

    def fails() -> str:
        raise FileNotFoundError

    assert environment._processor(fails)


def test_everything_required_is_found_here() -> None:
    found = {facility.name: facility for facility in facilities()}
    assert all(facility.found for facility in found.values() if facility.required)
    assert found["python-flint"].purpose and found["CUDA device"].remedy


def test_what_is_missing_has_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "version", lambda package: "" if package in ("mpmath", "numba") else "1.0")
    monkeypatch.setattr(environment, "accelerator", lambda: "")
    why = "Triton 3.6.0 cannot interpret kernels."
    monkeypatch.setattr(interpreter, "explain_unavailable", lambda: why)
    missing = {f.name: f for f in facilities() if not f.found}
    assert missing["mpmath"].required and missing["mpmath"].remedy == 'pip install "mpmath"'
    assert not missing["numba"].required and missing["numba"].remedy == 'pip install "gradoracle[fast]"'
    assert missing["Triton on the CPU"].required and missing["Triton on the CPU"].remedy == why
    monkeypatch.setattr(environment, "accelerator", lambda: "H200")
    assert not {f.name: f for f in facilities()}["Triton on the CPU"].required
