"""--fail-fast ends a gate at what is proven to be worse, and at nothing that the base breaks too."""

from __future__ import annotations

from gate.project import CONFIG, KERNEL, Project

from gradoracle.model.comparison import Kind, Weight

SECOND = """
[tool.gradoracle.kernels.second]
target = "my_kernels/second.py"
property = "*_matches_the_oracle"
"""
WRONG = ("dx = r * gw", "dx = (1 + 2**-8) * r * gw")
WORSE = ("(x32 * root(x32, 1e-6) * w32)", "((1 + 2**-6) * x32 * root(x32, 1e-6) * w32)")


def _two(clone: Project) -> None:
    """A second kernel like the first."""
    text = (clone.folder / KERNEL).read_text().replace("my_rmsnorm", "second_rmsnorm")
    (clone.folder / "my_kernels/second.py").write_text(text)
    (clone.folder / CONFIG).write_text((clone.folder / CONFIG).read_text() + SECOND)
    clone.commit("a second kernel")


def test_it_stops_at_the_first_regression_and_says_what_it_did_not_check(clone: Project) -> None:
    _two(clone)
    clone.edit(KERNEL, WRONG)
    clone.edit("my_kernels/second.py", ("gw", "weighted"))
    found = clone.answer("--base", "HEAD", "--fail-fast", "--examples", "600")
    worse, second = found.reports
    assert found.code == 1 and found.regressed() == {("vjp_matches_the_oracle", "float32")}
    assert "first regression" in worse.interrupted and worse.cases_run < worse.cases_planned
    assert "no further case is judged" in found.err
    assert (second.target, second.verdicts) == ("second", []) and "rmsnorm" in found.says(Kind.BASE, Weight.OPEN)
    code, out, _ = clone.gate("--base", "HEAD")
    assert code == 1 and "stopped at" not in out and "second: no worse than" in out


def test_what_the_base_breaks_too_stops_nothing(clone: Project) -> None:
    clone.edit(KERNEL, WRONG)
    clone.commit("a fault")
    clone.edit(KERNEL, ("gw", "weighted"))
    found = clone.answer("--base", "HEAD", "--fail-fast")
    assert found.code == 0 and found.report.interrupted == ""
    assert [line.property_name for line in found.lines(Kind.VIOLATED, Weight.NOTE)] == ["vjp_matches_the_oracle"]
    clone.edit(KERNEL, WORSE)
    found = clone.answer("--base", "HEAD", "--fail-fast", "--examples", "600")
    assert found.code == 1 and "first regression" in found.report.interrupted


def test_a_green_gate_is_the_same(clone: Project) -> None:
    clone.edit(KERNEL, ("gw", "weighted"))
    code, out, _ = clone.gate("--base", "HEAD", "--fail-fast")
    assert code == 0 and "15 cases" in out
