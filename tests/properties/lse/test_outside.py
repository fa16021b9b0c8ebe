"""Log-sum-exps in plain PyTorch, examples/torch_lse.py: correct ones hold on the CPU, faults in them are caught."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch
from gradoracle.properties import lse
from sweeps import slow

from gradoracle.model.dims import sizes
from gradoracle.model.kernel import Kernel
from gradoracle.model.verdict import Status
from gradoracle.oracle.truth import Oracle
from tests.properties import outside
from tests.properties.judging import judge
from tests.properties.outside import DTYPES, EXAMPLES, assert_holds, assert_violated, changed

pytestmark = pytest.mark.usefixtures("unshrunk")
FILE = EXAMPLES / "torch_lse.py"
checked = functools.partial(outside.checked, "lse")
NAMES_NO_OPTION = """
import torch

def logsumexp(q, k):
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    return torch.logsumexp(q @ k.mT / q.shape[-1] ** 0.5, -1)
"""


def test_the_plain_one_holds_in_float32() -> None:
    report = checked(FILE, "logsumexp", "float32")
    assert_holds(report, "float32")
    met = {name for name, count in report.goals.items() if count}
    assert met >= {"sinks given", "q_segments given", "kv_segments given", "causal = True", "softcap = 2.0", "H > G"}


def test_the_one_that_upcasts_holds_in_every_dtype() -> None:
    assert_holds(checked(FILE, "upcast", *DTYPES), *DTYPES)


def test_rows_that_see_no_key_hold_too() -> None:
    report = checked(FILE, "logsumexp", "float32", property="rows_*")
    assert report.exit_code == 0
    assert {v.property_name for v in report.verdicts if v.status is Status.HOLDS} == {
        "rows_without_a_term_are_minus_infinity",
        "rows_that_see_no_key_give_the_sink",
    }


def test_one_whose_signature_names_no_option_is_given_none(tmp_path: Path) -> None:
    file = tmp_path / "kernel.py"
    file.write_text(NAMES_NO_OPTION)
    assert_holds(checked(file, "logsumexp", "float32"), "float32")


def logsumexp(q, k, **_):
    return torch.logsumexp(q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT / q.shape[-1] ** 0.5, -1)


def pads_keys(q, k, **_):
    k, keys = k.repeat_interleave(q.shape[1] // k.shape[1], 1), k.shape[2]
    s = q @ torch.nn.functional.pad(k, (0, 0, 0, -keys % 16)).mT / q.shape[-1] ** 0.5  # keys of zeros have a score of 0
    m = s[..., :keys].amax(-1, keepdim=True).detach()
    weights = torch.exp(s - m) * (torch.arange(s.shape[-1]) < keys)
    return (m + torch.log(weights.sum(-1, keepdim=True)))[..., 0]


def test_padded_keys_that_are_masked_after_their_exponential_are_caught_where_all_scores_are_low() -> None:
    """exp(0 - m) is infinite where m is below -88, and 0 times infinity is NaN: a fault of no other case."""
    low = lse.FAMILY.joint["scores far below 0"]
    line = "case:1 lse cpu float32 B=1 H=2 G=1 T=5 M=7 D=16 {} seed=1"
    cases = [line.format(" ".join(f"{name}~{recipe}" for name, recipe in draws.items())) for draws in ({}, low)]
    for call, found in ((logsumexp, Status.HOLDS), (pads_keys, Status.VIOLATED)):
        kernel = Kernel("padded", "lse", call)
        statuses = [judge("forward_matches_the_oracle", case, kernel, Oracle(lse.FAMILY)).status for case in cases]
        assert statuses == [Status.HOLDS, found]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("seen.tril(keys - queries)", "seen.tril(0)"),
        ("s = softcap * torch.tanh(s / softcap)", "s = torch.clamp(s, -softcap, softcap)"),
        slow("sinks[:, None, None]", "sinks.flip(0)[:, None, None]"),
        slow("k.repeat_interleave(q.shape[1] // k.shape[1], 1)", "k.repeat(1, q.shape[1] // k.shape[1], 1, 1)"),
        slow("q_segments[:, None, :, None] == kv_segments", "q_segments[:, None, :, None] >= kv_segments"),
        ("1 / math.sqrt(q.shape[-1]) if", "q.shape[-1] ** -0.499 if"),
    ],
)
def test_a_fault_is_caught_on_the_same_cases(right: str, wrong: str, tmp_path: Path) -> None:
    assert_violated(checked(changed(FILE, right, wrong, tmp_path), "logsumexp", "float32"))


def test_a_tangent_of_nan_in_rows_without_a_key_is_caught(tmp_path: Path) -> None:
    right = "torch.where(some, torch.logsumexp(torch.where(some[..., None], s, 0.0), -1), -torch.inf)"
    file = changed(FILE, right, "torch.logsumexp(s, -1)", tmp_path)
    fields = {"property": "jvp_matches_the_oracle", "arguments": {"causal": True}}
    fields["dims"] = {"T": sizes(8, 40), "M": sizes(1, 6)}  # most queries see no key
    assert checked(FILE, "logsumexp", "float32", **fields).exit_code == 0
    report = checked(file, "logsumexp", "float32", **fields)
    assert report.exit_code == 1 and "NaN" in str(report.verdicts[0].counterexample)


def test_16_bit_without_upcasting_is_told_by_its_dtype() -> None:
    report = checked(FILE, "logsumexp", "bfloat16", property="forward_matches_the_oracle")
    assert report.exit_code == 1
    (verdict,) = report.verdicts
    assert "bfloat16" in str(verdict.counterexample) and "float32" in str(verdict.counterexample)


RAISING = """

class Raising(torch.autograd.Function):
    @staticmethod
    def forward(ctx, lse):
        return lse.clone()

    @staticmethod
    def backward(ctx, g):
        raise RuntimeError("no kernel image for bfloat16")


def raises_in_bfloat16(q, k, **options):
    lse = upcast(q, k, **options)
    return Raising.apply(lse) if q.dtype == torch.bfloat16 else lse


raises_in_bfloat16.__signature__ = __import__("inspect").signature(upcast)
"""


def test_a_backward_that_raises_is_refused_by_the_properties_of_exact_zeros_too(tmp_path: Path) -> None:
    """They pass over derivatives that a kernel lacks; one that lacks all of them gave them nothing to check."""
    file = tmp_path / "raising.py"
    file.write_text(FILE.read_text() + RAISING)
    report = checked(file, "raises_in_bfloat16", "float32", "bfloat16", property="*_no_*gradient")
    found = {(v.property_name, v.dtype): v for v in report.verdicts}
    refused = found["keys_of_another_segment_have_no_gradient", "bfloat16"]
    assert refused.status is Status.REFUSED and "no kernel image for bfloat16" in str(refused.reasons)
    assert found["keys_of_another_segment_have_no_gradient", "float32"].status is Status.HOLDS
    assert not report.errors
