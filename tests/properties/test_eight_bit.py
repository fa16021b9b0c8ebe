"""examples/eight_bit: on the same few cases each right kernel passes, and each planted bug fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import ROOT
from programs import gradoracle
from sweeps import slow

FOLDER = ROOT / "examples" / "eight_bit"
WRONG = {  # the tensor that is wrong, and what the line of verdicts says
    "block_dgrad": ("grad_x", "forward ✗ wrong"),
    "block_scales": ("out", "forward ✗ wrong"),
    "dgrad": ("grad_w", "forward ✗ wrong"),
    "fp8_linear": ("dx", "forward ✓  VJP ✗ wrong"),
    "int4_groups": ("out", "forward ✗ wrong  VJP ✓"),
    "int8_weights": ("dx", "forward ✓  VJP ✗ wrong"),
    "mx_quantise": ("q", "forward ✗ wrong"),
    "mxfp8": ("out", "forward ✗ wrong"),
    "quantise": ("q", "forward ✗ wrong"),
    "row_scales": ("out", "forward ✗ wrong"),
}
PLANTED = {  # further mistakes: file, what is written there, what is written instead
    "tail of K not masked": ("row_scales", "(m < M)[:, None] & (k < K), 0.0)", "(m < M)[:, None], 0.0)"),
    "sums in bfloat16": ("row_scales", "tl.dot(x, w, total)", "(total + tl.dot(x, w)).to(tl.bfloat16).to(tl.float32)"),
    "sums in 8 bits": ("row_scales", "tl.dot(x, w, total)", "(total + tl.dot(x, w)).to(tl.float8e4nv).to(tl.float32)"),
    "scales transposed": ("block_scales", "n // 128 * (K // 128) +", "n // 128 + (N // 128) *"),
    "the zero point after the scale": (
        "int4_groups",
        "(nibble - zero) * tl.load(S + group, inside, 0.0)",
        "nibble * tl.load(S + group, inside, 0.0) - zero",
    ),
    "the zero point of another group": ("int4_groups", "tl.load(Z + group,", "tl.load(Z + group - group % 2,"),
    "unsigned weights": ("int8_weights", "w.to(a.dtype)", "w.to(tl.uint8, bitcast=True).to(a.dtype)"),
    "wgrad with the scale of w": ("fp8_linear", "_multiplied(g.T, x8.T, one, sx,", "_multiplied(g.T, x8.T, one, sw,"),
    "gradients of the copies without their scale": ("fp8_linear", "sx if ctx.bug else sw,", "one,"),
    "the exponent of a scale without its bias": ("mx_quantise", "(0), (e + 127)", "(0), (e + 128)"),
    "no cut at the largest number": ("quantise", "1e-12) / LARGEST", "1e-12) / (LARGEST + 32)"),
    "e4m3 read as e5m2": ("mxfp8", 'dot_scaled(x, sx, "e4m3"', 'dot_scaled(x.to(tl.uint8, bitcast=True), sx, "e5m2"'),
}


def checked(target: str, examples: int, *words: str) -> tuple[int, str]:
    """Exit code and output of a check."""
    done = gradoracle(
        "check", target, "--device", "cpu", "--examples", str(examples), "--workers", "0", *words, cwd=ROOT
    )
    return done.returncode, done.stdout + done.stderr


def test_each_example_is_tested() -> None:
    assert {file.stem for file in FOLDER.glob("*.py")} == set(WRONG)


@pytest.mark.parametrize("name", WRONG)
def test_the_right_kernel_passes_and_the_wrong_one_fails(name: str) -> None:
    tensor, verdicts = WRONG[name]
    code, output = checked(f"examples/eight_bit/{name}.py:right", 12)
    assert code == 0 and "  forward ✓" in output and "every checked property holds" in output, output
    code, output = checked(f"examples/eight_bit/{name}.py:wrong", 12)
    assert code == 1 and f"  {verdicts}" in output and f"\n  {tensor} " in output, output


@pytest.mark.parametrize("name", [slow(name) for name in WRONG])
def test_right_kernels_hold_on_many_cases(name: str) -> None:
    code, output = checked(f"examples/eight_bit/{name}.py:right", 150)
    assert code == 0, output


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_wrong(mistake: str, tmp_path: Path) -> None:
    name, written, instead = PLANTED[mistake]
    source = (FOLDER / f"{name}.py").read_text()
    assert source.count(written) == 1, source
    (tmp_path / f"{name}.py").write_text(source.replace(written, instead))
    code, output = checked(f"{tmp_path / name}.py:right", 16)
    assert code == 1 and "✗" in output, output
