"""Scripts: run on their own they show the kernel against the truth, and import nothing of gradoracle."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
from pathlib import Path

import pytest
import torch
from programs import python
from torch import Tensor

from gradoracle.check.script import reproduction

KERNELS = """
import torch

def right(x, w, *, scale=1.0):
    return scale * x.sin() * w

class Wrong(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x.sin() * w
    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        dx = g * x.cos() * w
        dx[-1] *= 2
        return dx, None

def wrong(x, w, *, scale=1.0):
    return Wrong.apply(x, w) * scale

def strides(x, w, *, scale=1.0):
    print("strides", x.stride(), x.storage_offset(), w.stride())
    return scale * x.sin() * w
"""


def sample(rows: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """x [rows, 3], transposed with an offset; w [rows, 3], expanded; a cotangent and the tangents."""
    made = torch.Generator().manual_seed(0)
    x = torch.randn(2 + 3 * rows, generator=made).to(dtype)[2:].view(3, rows).t()
    w = torch.randn(1, 3, generator=made).to(dtype).expand(rows, 3)
    g, tx, tw = (torch.randn(rows, 3, generator=made).to(dtype) for _ in range(3))
    return x, w, g, tx, tw


def truths(x: Tensor, w: Tensor, g: Tensor, tx: Tensor, tw: Tensor) -> dict[str, dict[str, Tensor]]:
    x, w, g, tx, tw = (t.double() for t in (x, w, g, tx, tw))
    return {
        "forward": {"o": 2 * x.sin() * w},
        "vjp": {"o": 2 * x.sin() * w, "dx": 2 * g * x.cos() * w, "dw": 2 * g * x.sin()},
        "jvp": {"jvp.o": 2 * (x.cos() * w * tx + x.sin() * tw)},
        "hvp": {"hvp.x": 2 * g * (-x.sin() * w * tx + x.cos() * tw), "hvp.w": 2 * g * x.cos() * tx},
    }


def script(
    folder: Path, name: str, derivative: str, rows: int = 5, dtype: torch.dtype = torch.float32, **more: object
) -> str:
    (folder / "mine.py").write_text(KERNELS)
    x, w, g, tx, tw = sample(rows, dtype)
    true = truths(x, w, g, tx, tw)[derivative]
    unit = {torch.float32: 2.0**-24, torch.bfloat16: 2.0**-8, torch.float64: 2.0**-53}[dtype]
    text = reproduction(
        title='Each "VJP" agrees \\ with the oracle',
        case="gradoracle-case/1 mine.py cpu",
        place=("mine.py", name),
        inputs={"x": x, "w": w},
        cotangents={"o": g},
        tangents={"x": tx, "w": tw},
        options={"scale": 2.0},
        outputs=["o"],
        derivative=derivative,
        names={"forward": [], "vjp": ["dx", "dw"], "jvp": ["jvp.o"], "hvp": ["hvp.x", "hvp.w"]}[derivative],
        truths=true,
        sigmas={key: 4 * unit * (value.abs() + 1) for key, value in true.items()},
        **more,  # type: ignore[arg-type]
    )
    assert "gradoracle" not in [line.split()[1] for line in text.splitlines() if line.startswith(("import", "from"))]
    return text


def run(folder: Path, *case: object, wrong: bool = False, **more: object) -> list[str]:
    """What the script prints; run in this process. It exits with 1 where the kernel is ``wrong``, and else with 0."""
    (folder / "replay.py").write_text(script(folder, *case, **more))  # type: ignore[arg-type]
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as ended:
            runpy.run_path("replay.py", run_name="__main__")
    assert ended.value.code == int(wrong)
    return printed.getvalue().splitlines()


def test_a_script_runs_on_its_own_without_gradoracle(tmp_path: Path) -> None:
    text = "import sys; sys.modules['gradoracle'] = None\n" + script(tmp_path, "right", "vjp", interpret=True)
    done = python(text, cwd=tmp_path)
    assert (done.returncode, len(done.stdout.splitlines())) == (0, 3), done.stderr


@pytest.mark.parametrize("derivative", ["forward", "vjp", "jvp", "hvp"])
@pytest.mark.parametrize(("rows", "dtype"), [(5, torch.float32), (5, torch.bfloat16), (900, torch.float32)])
def test_a_correct_kernel_agrees_with_the_embedded_truth(
    tmp_path: Path, derivative: str, rows: int, dtype: torch.dtype
) -> None:
    lines = run(tmp_path, "right", derivative, rows, dtype)
    assert len(lines) == {"forward": 1, "vjp": 3, "jvp": 1, "hvp": 2}[derivative]
    assert all(f"; 0 of {3 * rows} elements are beyond 8 sigma" in line for line in lines)


def test_a_wrong_kernel_is_shown_with_its_worst_element(tmp_path: Path) -> None:
    forward, dx, dw = run(tmp_path, "wrong", "vjp", dtype=torch.float64, wrong=True)
    assert "; 0 of 15" in forward
    assert dx.startswith("dx: worst element [4, ") and "; 3 of 15 elements" in dx
    assert dw == "dw: the kernel returned None"


def test_strides_and_offsets_are_those_of_the_case(tmp_path: Path) -> None:
    assert run(tmp_path, "strides", "forward")[0] == "strides (1, 5) 2 (0, 1)"


def test_tensors_that_go_by_keyword_do(tmp_path: Path) -> None:
    assert len(run(tmp_path, "right", "vjp", keyword=("w",))) == 3


def test_what_does_not_fit_is_refused_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at most 8388608 fit into a script"):
        run(tmp_path, "right", "vjp", rows=1 << 20)
    common = {
        "title": "",
        "case": "",
        "place": ("m", "f"),
        "cotangents": {},
        "tangents": {},
        "outputs": [],
        "names": [],
    }
    with pytest.raises(ValueError, match=r"option mode is \[1\], which a script cannot contain"):
        reproduction(
            **common,
            inputs={},
            options={"mode": [1]},
            derivative="forward",
            truths={},
            sigmas={},  # type: ignore[arg-type]
        )
