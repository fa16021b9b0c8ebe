"""Modern kernels as their authors write them, examples/modern: the right one holds, its planted bug is reported."""

from __future__ import annotations

import interpreted
import pytest
from places import ROOT
from sweeps import slow

from gradoracle.check.run import check
from gradoracle.model.severity import Severity
from gradoracle.model.verdict import Report, Status
from gradoracle.project.request import Request

pytestmark = interpreted.NEEDED
FOLDER = ROOT / "examples" / "modern"
EIGHT_BITS = ("fp8_gemm",)
FORWARD = {"fp8_gemm", "paged_decode"}  # these have no gradient
LOSE = {"ctc", "window_attention"}  # what they save, logarithms of sums, is large where the scores are
BUGS = {
    "bags": "dtable",
    "batch_norm": "next_var",
    "cache_write": "dx",
    "causal_conv1d": "dx",
    "compiled": "dx",
    "complex_recurrence": "dx",
    "ctc": "dx",
    "ctypes_kernel": "dx",
    "custom_op": "dx",
    "dropout": "dx",
    "fft_convolution": "dx",
    "fp8_gemm": "out",
    "gated_delta_rule": "dk",
    "grouped_gemm": "dw",
    "int4_matmul": "dx",
    "jvp_function": "jvp.out",
    "linear_cross_entropy": "dx",
    "mamba": "ddelta",
    "module_with_buffers": "next_power",
    "numpy_function": "dx",
    "paged_decode": "out",
    "rope": "dx",
    "router": "dlogits",
    "ssd": "out",
    "varlen_attention": "dq",
    "window_attention": "dk",
}
"""By file: a tensor of which the wrong kernel is wrong."""
QUICK = {"bags", "custom_op", "fft_convolution", "fp8_gemm", "jvp_function", "module_with_buffers", "rope"}


def checked(name: str, kernel: str) -> Report:
    """The report of ``gradoracle check examples/modern/NAME.py:KERNEL --examples 6``, in one dtype."""
    dtypes = ("float8_e4m3fn",) if name in EIGHT_BITS else ("float32",)
    return check(Request(f"{FOLDER / name}.py:{kernel}", None, device="cpu", dtypes=dtypes, examples=6, workers=1))


def test_every_file_is_tested() -> None:
    assert {file.stem for file in FOLDER.glob("*.py")} == set(BUGS)


@pytest.mark.parametrize("name", [name if name in QUICK else slow(name) for name in BUGS])
def test_right_holds_and_wrong_is_wrong(name: str) -> None:
    right, wrong = checked(name, "right"), checked(name, "wrong")
    assert right.exit_code == 0 and wrong.exit_code == 1
    derivative = "jvp" if BUGS[name].startswith("jvp") else "forward" if FORWARD & {name} else "vjp"
    (compared,) = [v for v in right.verdicts if v.property_name == f"{derivative}_matches_the_oracle"]
    assert compared.status is Status.HOLDS or (name in LOSE and compared.severity is Severity.PRECISION)
    assert BUGS[name] in {tensor for fault in wrong.faults for tensor in fault.tensors}
