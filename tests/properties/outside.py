"""Kernels in plain PyTorch (examples): checks of them on the CPU, and of copies with a fault."""

from __future__ import annotations

from pathlib import Path

from places import ROOT

from gradoracle.check.run import check
from gradoracle.model.severity import Severity, gravest
from gradoracle.model.verdict import Report, Status
from gradoracle.project.request import Request

EXAMPLES = ROOT / "examples"
DTYPES = ("float32", "bfloat16", "float16")


def checked(family: str, file: Path, name: str, *dtypes: str, **fields: object) -> Report:
    """The report of a file's kernel, by default on 30 cases a dtype by the properties of the forward and the VJP."""
    fields = {"property": "[fv]*_matches_the_oracle", "examples": 30 * len(dtypes), **fields}
    return check(Request(f"{file}:{name}", family, device="cpu", dtypes=dtypes, workers=0, **fields))


def assert_holds(report: Report, *dtypes: str) -> None:
    """Both properties hold in these dtypes."""
    assert report.exit_code == 0
    assert {(v.property_name, v.dtype) for v in report.verdicts if v.status is Status.HOLDS} == {
        (property_name, dtype)
        for property_name in ("forward_matches_the_oracle", "vjp_matches_the_oracle")
        for dtype in dtypes
    }


def assert_violated(report: Report, severity: Severity = Severity.WRONG) -> None:
    """A property is violated; lost precision alone does not count, as these kernels declare no contract."""
    assert report.exit_code == (1 if severity is Severity.WRONG else 0)
    found = [v.severity for v in report.verdicts if v.status is Status.VIOLATED]
    assert gravest(found) is severity


def changed(file: Path, right: str, wrong: str, folder: Path) -> Path:
    """A copy of a file in which the one occurrence of ``right`` is ``wrong``."""
    source = file.read_text()
    assert source.count(right) == 1
    copy = folder / "kernel.py"
    copy.write_text(source.replace(right, wrong))
    return copy
