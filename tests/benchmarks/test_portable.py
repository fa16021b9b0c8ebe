"""The golden digests of the interpreter, and what `make portable` says of bits and verdicts that differ."""

from __future__ import annotations

import json
import sys

import interpreted
import portable
import pytest
from pages import line_with

from gradoracle.host import interpreter
from gradoracle.model.derivative import Derivative
from gradoracle.project.target import shipped

pytestmark = [pytest.mark.xdist_group("interpreter"), interpreted.NEEDED]
GOLDEN = portable.golden()
CASES = sorted({key[:2] for key in GOLDEN})
FAMILIES = ("gated_delta", "lightning", "lse", "sdpa", "semicrf")


def claimed(name: str) -> list[str]:
    """The derivatives that a family's kernel claims, and of which there are digests."""
    interpreter.activate()  # before the kernels are imported
    (kernel,) = shipped()[name].kernels
    return [each.value for each in Derivative if kernel.is_claimed(each)]


def family(line: str) -> str:
    return line.split()[1]


def first(name: str) -> list[tuple[str, str]]:
    """The smallest case of a family in each dtype, and those of its other precisions."""
    return [(line, words) for line, words in CASES if family(line) == name and line.endswith("seed=1")]


def test_each_family_and_dtype_has_cases() -> None:
    words = {(family(line), line.split()[3]) for line, _ in CASES}
    assert words == {(name, dtype) for name in FAMILIES for dtype in ("float32", "bfloat16", "float16")}
    for case in CASES:
        derivatives = {f"{wide}{each}" for wide in ("", "widened ") for each in claimed(family(case[0]))}
        assert {key[2] for key in GOLDEN if key[:2] == case} == derivatives


@pytest.mark.parametrize("name", FAMILIES)
def test_the_interpreter_computes_the_golden_bits(name: str) -> None:
    found = dict(portable.digests(first(name)))
    assert found == {key: GOLDEN[key] for key in found} and len(found) >= 3 * 2 * len(claimed(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_the_interpreter_computes_the_golden_bits_of_larger_cases(name: str) -> None:
    found = dict(portable.digests([case for case in CASES if family(case[0]) == name and case not in first(name)]))
    assert found == {key: GOLDEN[key] for key in found}


def test_other_bits_and_other_verdicts_are_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    key = next(iter(GOLDEN))

    def child(setting: str, task: str) -> object:
        apart = setting == "without numba"
        if task == "digests":
            return [[*each, "0" * 16 if apart and each == key else found] for each, found in GOLDEN.items()]
        return {"exit code": "0", "vjp_matches_the_oracle float32": "violated" if apart else "holds"}

    monkeypatch.setattr(portable, "child", child)
    words = ["portable.py", "sdpa", "--setting", "as it is", "--setting", "without numba"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit) as ended:
        portable.main()
    said = capsys.readouterr().out
    assert ended.value.code == 1
    assert f"is {'0' * 16}, expected {GOLDEN[key]}" in said
    apart = line_with(said, "vjp_matches_the_oracle float32")
    assert apart.split()[0] == "sdpa" and apart.endswith(": violated, expected holds")
    monkeypatch.setattr(sys, "argv", words[:4])
    with pytest.raises(SystemExit) as ended:
        portable.main()
    assert ended.value.code == 0


def test_verdicts_are_those_of_a_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable, "EXAMPLES", 3)
    found = portable.verdicts("lse")
    assert found.pop("exit code") == "0" and found["vjp_matches_the_oracle float32"] == "holds" and len(found) > 30
    assert portable.verdicts("lsee")["exit code"].startswith("2: ")


def test_a_child_runs_under_its_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADORACLE_FORKSERVER", "inherited")
    found = portable.environment("OPENBLAS_CORETYPE=Haswell")
    assert found["OPENBLAS_CORETYPE"] == "Haswell" and "GRADORACLE_FORKSERVER" not in found
    assert portable.environment("without numba")["NUMBA_DISABLE_JIT"] == "1"
    assert json.dumps(portable.environment("NPY_DISABLE_CPU_FEATURES=all"))
