"""Reproductions: from a case line to a script that shows the same fault."""

from __future__ import annotations

import contextlib
import io
import runpy
import textwrap
from pathlib import Path

import pytest

from gradoracle.check.script import reproduce
from gradoracle.model.errors import UsageError

FILE = """
    import torch
    from torch import Tensor
    from jaxtyping import Float
    from gradoracle import family, kernel

    @family
    def halved(x: Float[Tensor, "B N"], *, negate: bool = False) -> Float[Tensor, "B N"]:
        return x.square() * (-0.5 if negate else 0.5)

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.square() * 0.5
        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return 2 * g * x

    @kernel(halved)
    def right(x, *, negate=False):
        return x.square() * (-0.5 if negate else 0.5)

    @kernel(halved, name="the wrong one")
    def wrong(x):
        return Wrong.apply(x)
"""
CASE = "case:1 mine.py:{} cpu float32 family=halved B=2 N=3{} seed=5"


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(textwrap.dedent(FILE))


def run(text: str, wrong: bool = False) -> list[str]:
    """What a script prints; it exits with 1 where the kernel is ``wrong``."""
    Path("script.py").write_text(text)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), pytest.raises(SystemExit) as ended:
        runpy.run_path("script.py")
    assert ended.value.code == int(wrong)
    return printed.getvalue().splitlines()


def test_a_wrong_gradient_shows_after_a_correct_forward() -> None:
    out, dx = run(reproduce(CASE.format("wrong", "")), wrong=True)
    assert "; 0 of 6 elements" in out and "; 6 of 6 elements" in dx


@pytest.mark.parametrize(
    ("property_name", "names"),
    [("vjp_matches_the_oracle", ["out", "dx"]), ("jvp_matches*", ["jvp.out"]), ("hvp_matches*", ["hvp.x"])],
)
def test_the_property_says_which_derivative_is_shown(property_name: str, names: list[str]) -> None:
    lines = run(reproduce(CASE.format("right", " --negate=true"), property=property_name))
    assert [line.partition(":")[0] for line in lines] == names
    assert all("; 0 of 6 elements" in line for line in lines)


def test_an_outside_callable_is_found_by_its_family_in_the_line() -> None:
    Path("plain.py").write_text("import torch\nf = torch.nn.functional.scaled_dot_product_attention\n")
    line = "case:1 plain.py:f cpu float32 family=sdpa B=1 H=1 T=2 M=3 D=4 Dv=4 seed=0"
    assert [text.split(":")[0] for text in run(reproduce(line))] == ["o", "dq", "dk", "dv"]


@pytest.mark.parametrize(
    ("line", "property_name", "says"),
    [
        (
            "case:1 mine.py cpu float32 family=halved B=2 N=3 seed=5",
            "*",
            "mine.py has the kernels right, the wrong one",
        ),
        (CASE.format("right", ""), "never_*", "no property of halved matches 'never_*'; see gradoracle list"),
        ("case:1 mine.py:right cpu", "*", "ends too soon"),
        (CASE.format("left", ""), "*", "mine.py has no callable named 'left'"),
        (CASE.format("right", "").replace("N=3", "N=400000"), "*", "fit into a script"),
    ],
)
def test_each_mistake_is_one_sentence(line: str, property_name: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        reproduce(line, property=property_name)
    assert says in str(caught.value) and "\n" not in str(caught.value)
