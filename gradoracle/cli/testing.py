"""Testing: properties as pytest items, one for each property, kernel and dtype.

A group is one target and dtype: its first item judges all cases by all properties (in a worker process, as
``gradoracle check`` does), the others read their verdict from that run. Under pytest-xdist a group stays on one worker
(``--dist=loadgroup``).
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

import pytest

from gradoracle.check.properties import properties_of
from gradoracle.check.run import check
from gradoracle.model.errors import LostPrecision, UsageError
from gradoracle.model.family import Family
from gradoracle.model.formats import DTYPES
from gradoracle.model.kernel import Kernel
from gradoracle.model.verdict import BROKEN, Report, Status, Verdict
from gradoracle.project.definition import named_family
from gradoracle.project.request import Request
from gradoracle.project.shipped_names import family_names
from gradoracle.report.shown_fault import headline, tell

PROFILES: Mapping[str, int] = MappingProxyType({"dev": 8, "ci": 24, "nightly": 400})  # cases a dtype
_runs: dict[str, Report | Exception] = {}


class JudgeError(Exception):
    """gradoracle itself failed while judging, which says nothing about the kernel."""


class NotRun(Exception):
    """A property that applies has no verdict: the run ended early."""


@dataclass(frozen=True)
class Item:
    """One property on one kernel and dtype, and the run that judges it."""

    request: Request
    kernel: str
    dtype: str
    property_name: str

    def run(self) -> Report:
        """The report of the item's group, whose first item runs all cases.

        Raises:
            NotRun: the property was not judged.
            UsageError: the run failed.
        """
        report = _report(self.request)
        if self._verdict(report) is None and (report.cases_run < report.cases_planned or not report.verdicts):
            raise NotRun(
                f"{self.property_name} has no verdict: {report.cases_run} of {report.cases_planned} cases were judged"
            )
        return report

    def judge(self) -> None:
        """Pass if the property holds, or its violation does not count (``Verdict.counts``) and is a warning.

        Raises:
            pytest.fail.Exception: the property is violated or the kernel crashed; with the text of the terminal report.
            pytest.skip.Exception: refused or not checked, with the reason and the number of cases.
            JudgeError: gradoracle itself failed.
            NotRun, UsageError: as for ``run``.
        """
        report = self.run()
        verdict = self._verdict(report)
        if verdict is None:
            pytest.skip(f"not checked: it applies to none of the {report.cases_run} {self.dtype} cases")
        if verdict.counts(report.fail_on):
            pytest.fail(failure_text(verdict), pytrace=False)
        if verdict.status in BROKEN:
            warnings.warn(failure_text(verdict), LostPrecision, stacklevel=2)
        if verdict.status is Status.ERROR:
            raise JudgeError(failure_text(verdict))
        if verdict.status in (Status.REFUSED, Status.NOT_CHECKED):
            reasons = "; ".join(f"{reason} ({count} cases)" for reason, count in verdict.reasons.items())
            pytest.skip(f"{verdict.status.value}: {reasons or 'no reason is known'}")
        if verdict.undecided:
            undecided = (f"{tensor}: {why}" for tensor, why in verdict.undecided.items())
            pytest.skip(f"not checked: no {self.dtype} case decides {'; '.join(undecided)}")

    def _verdict(self, report: Report) -> Verdict | None:
        own = (self.property_name, self.kernel, self.dtype)
        return next((v for v in report.verdicts if (v.property_name, v.kernel, v.dtype) == own), None)


def failure_text(verdict: Verdict) -> str:
    """A failing verdict as in the terminal report."""
    lines = [headline(verdict), *(f"  {label:<8} {text}" for label, text in tell(verdict))]
    return "\n".join(line.rstrip() for line in lines)


def items(
    target: str,
    family: Family,
    kernels: Sequence[Kernel],
    /,
    *,
    examples: int,
    dtypes: Sequence[str] | None = None,
    **fields: Any,
) -> list[Any]:
    """One ``pytest.param`` an item, each marked with its group, for ``pytest.mark.parametrize("item", ...)``.

    Args:
        target: the TARGET, as on the command line.
        family: gives the properties.
        kernels: the kernels of the target.
        examples: cases for each dtype.
        dtypes: None: those of the family that the kernel supports.
        **fields: further fields of ``Request``.
    """
    found = []
    for kernel in kernels:
        for dtype in dtypes or family.dtypes:
            if kernel.dtypes is not None and dtype not in kernel.dtypes:
                continue
            request = Request(target, dtypes=(dtype,), examples=examples, workers=1, **fields)
            mark = pytest.mark.xdist_group(f"{target} {dtype}")
            for prop in properties_of(family):
                if not request.asks_for(prop):
                    continue
                item = Item(request, kernel.name, dtype, prop.name)
                found.append(pytest.param(item, id=f"{kernel.name}-{dtype}-{prop.name}", marks=mark))
    return found


def testcase(
    kernel: Kernel | Callable[..., Any],
    *,
    family: str | Family | None = None,
    dtypes: Sequence[str] | None = None,
    examples: int = PROFILES["ci"],
    **fields: Any,
) -> Callable[[Item], None]:
    """A test of a kernel by all properties: ``test_gradients = gradoracle.testcase(my_rmsnorm)``.

    Args:
        kernel: declared with ``@gradoracle.kernel``, or any callable (with ``family``); a name of its module.
        family: the family that an outside callable implements: a shipped name, or a Family of its module.
        dtypes: None: those of the family that the kernel supports.
        examples: cases for each dtype.
        **fields: further fields of ``gradoracle.project.request.Request``, such as ``device``, ``seed``, ``dims``
            and ``call_seconds``.

    Raises:
        UsageError: the kernel has no name in its module, its family cannot be found, or a field is unknown.
    """
    unknown = set(fields) - set(Request.__dataclass_fields__)
    if unknown or examples < 1:
        expected = "examples from 1 on" if examples < 1 else "fields of gradoracle.project.request.Request"
        raise UsageError(
            f"testcase was given {', '.join(sorted(unknown)) or f'examples={examples}'}; expected {expected}"
        )
    module, name = _home(kernel)
    judge = _family(kernel, family, module)
    if isinstance(kernel, Kernel):
        own = kernel
    else:
        own = Kernel(name, judge.name, kernel, dtypes=None)
        held = _name_in(module, judge)
        if held is None and not isinstance(family, str):
            raise UsageError(
                f"family {judge.name} is no name of {module.__name__}; expected one of the kernel's module"
            )
        fields["family"] = family if isinstance(family, str) else _place(module, str(held))
    asked = [dtype for dtype in dtypes or judge.dtypes if dtype in DTYPES]
    params = items(_place(module, name), judge, [own], examples=examples, dtypes=asked, **fields)

    @pytest.mark.parametrize("item", params)
    def test(item: Item) -> None:
        item.judge()

    return test


def _report(request: Request) -> Report:
    """The report of a request, which runs once in this process; an exception of the run is raised for every item."""
    key = repr(request)
    if key not in _runs:
        try:
            report = check(request)
        except Exception as error:
            _runs[key] = error
        else:
            if report.interrupted:
                raise KeyboardInterrupt(report.interrupted)
            _runs[key] = report
    run = _runs[key]
    if isinstance(run, Exception):
        raise run.with_traceback(None)
    return run


def _home(kernel: Kernel | Callable[..., Any]) -> tuple[ModuleType, str]:
    """The module that defines a kernel, and its name there."""
    function = kernel.call if isinstance(kernel, Kernel) else kernel
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    if module is not None and (name := _name_in(module, kernel)) is not None:
        return module, name
    label = kernel.name if isinstance(kernel, Kernel) else getattr(kernel, "__name__", repr(kernel))
    raise UsageError(f"testcase was given {label}; expected a kernel that is a name of the module that defines it")


def _place(module: ModuleType, name: str) -> str:
    """``package.module:name`` if other processes can import the module by its name, else ``path/to/file.py:name``."""
    file = getattr(module, "__file__", None)
    try:
        spec = importlib.util.find_spec(module.__name__) if module.__name__ != "__main__" else None
    except (ImportError, ValueError):
        spec = None
    known = getattr(module, "__spec__", None)
    importable = spec is not None and spec is not known and spec.origin == file
    if file is not None and not importable:
        return f"{Path(file).resolve()}:{name}"
    return f"{module.__name__}:{name}"


def _family(kernel: Kernel | Callable[..., Any], family: str | Family | None, module: ModuleType) -> Family:
    """The family that judges a kernel."""
    if isinstance(family, Family):
        return family
    expected = family or (kernel.family if isinstance(kernel, Kernel) else None)
    own = [value for value in vars(module).values() if isinstance(value, Family) and expected in (None, value.name)]
    if own:
        return own[0]
    if expected in (known := family_names()):
        return named_family(str(expected))
    raise UsageError(f"testcase found no family {expected!r}; expected a shipped one ({', '.join(known)}) or a Family")


def _name_in(module: ModuleType, value: Any) -> str | None:
    return next((name for name, each in vars(module).items() if each is value), None)
