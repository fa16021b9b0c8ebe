"""Ways around a gate: what a module is made of, where it is imported from, and what judges it, hidden or moved."""

from __future__ import annotations

from dataclasses import replace

import pytest
from gate.project import CONFIG, HELPER, KERNEL, Project
from gate.test_baseline import FILE, rewrite, save

from gradoracle.model.comparison import Kind, Weight

THRICE = ("return torch", "return 3 * torch")
FORWARD = {("forward_matches_the_oracle", "float32")}
DEFINITION = "torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)"


def test_a_package_that_hides_a_module_is_a_change(clone: Project) -> None:
    text = (clone.folder / HELPER).read_text()
    (clone.folder / "my_kernels/scaling").mkdir()
    (clone.folder / "my_kernels/scaling/__init__.py").write_text(text.replace(*THRICE))
    found = clone.answer("--base", "main")
    assert found.code == 1 and found.regressed() == FORWARD


def test_a_source_of_another_language_next_to_a_module_is_a_change(clone: Project) -> None:
    (clone.folder / "my_kernels/norm.cu").write_text("// one\n")
    _, _, err = clone.gate("--base", "main")
    assert "1 of 1 kernels to check" in err


def test_a_project_below_the_top_of_its_clone(clone: Project) -> None:
    (clone.folder / "sub").mkdir()
    for name in (CONFIG, "my_kernels"):
        (clone.folder / name).rename(clone.folder / "sub" / name)
    clone.commit("below")
    below = Project(clone.folder / "sub")
    below.edit(HELPER, THRICE)
    found = below.answer("--base", "HEAD")
    assert found.code == 1 and found.regressed() == FORWARD
    (below.folder / "my_kernels" / CONFIG).write_text((below.folder / CONFIG).read_text().replace("my_kernels/", ""))
    assert Project(below.folder / "my_kernels").gate("--base", "HEAD")[0] == 1


def test_a_package_without_init_brings_its_own_modules(clone: Project) -> None:
    (clone.folder / "my_kernels/__init__.py").unlink()
    clone.edit(
        KERNEL, ("from my_kernels.scaling import root", "from my_kernels import scaling"), ("root(", "scaling.root(")
    )
    clone.commit("a namespace package")
    clone.edit(HELPER, THRICE)
    found = clone.answer("--base", "HEAD")
    assert found.code == 1 and found.regressed() == FORWARD


def test_a_family_in_a_file_of_its_own_is_part_of_the_judge(clone: Project) -> None:
    text = (clone.folder / KERNEL).read_text()
    family = text[text.index("@gradoracle.family") : text.index("class _Norm")]
    head = "import torch\nimport gradoracle\nfrom jaxtyping import Float\nfrom torch import Tensor\n\nWIDEST = 64\n\n\n"
    (clone.folder / "definitions.py").write_text(head + family)
    kernel = text.replace(family, "").replace("@gradoracle.kernel(rmsnorm)\n", "")
    (clone.folder / KERNEL).write_text(kernel)
    clone.edit(CONFIG, ('rmsnorm.py"', 'rmsnorm.py:my_rmsnorm"\nfamily = "definitions.py:rmsnorm"'))
    clone.commit("a definition apart")
    clone.edit("definitions.py", ("return x", "return 3 * x"))
    found = clone.answer("--base", "HEAD")
    assert found.code == 1 and "the definition of rmsnorm" in found.edited_judges()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "    return x * torch",
            "    from my_kernels import scaling\n    return x * scaling.of_squares(x) + 0 * torch",
        ),
        ("    return x * torch", "    return x * _cached()(x) + 0 * torch"),
    ],
    ids=["imported inside", "cached"],
)
def test_a_helper_of_the_definition_is_part_of_the_judge(clone: Project, before: str, after: str) -> None:
    cached = (
        f"import functools\n\n\n@functools.lru_cache\ndef _cached():\n    return lambda x: {DEFINITION}\n\n\nWIDEST"
    )
    helper = f"import torch\n\n\ndef of_squares(x):\n    return {DEFINITION}"
    clone.edit(KERNEL, (before, after), ("WIDEST =", f"{cached} ="))
    clone.edit(HELPER, ("import torch", helper))
    clone.commit("a helper")
    clone.edit(HELPER if "scaling" in after else KERNEL, ("keepdim=True) + 1e-6)\n", "keepdim=True) + 1e-1)\n"))
    found = clone.answer("--base", "HEAD")
    assert found.code == 1 and "the definition of rmsnorm" in found.edited_judges()


def test_an_explicit_derivative_hides_no_backward(clone: Project) -> None:
    explicit = (
        "def _vjp(inputs, cotangents, options, blocks):\n"
        "    x, w, g = (t.float() for t in (*inputs.values(), *cotangents.values()))\n"
        "    r = root(x, 1e-6)\n"
        "    dx = r * g * w - x * r**3 * (g * w * x).mean(-1, keepdim=True)\n"
        "    return dx.to(inputs['x'].dtype), (g * x * r).sum(0).to(inputs['w'].dtype)\n\n\n"
    )
    clone.edit(KERNEL, ("@gradoracle.kernel(rmsnorm)", f"{explicit}@gradoracle.kernel(rmsnorm, vjp=_vjp)"))
    clone.edit(KERNEL, ("return dx.to(x.dtype)", "return 0 * dx.to(x.dtype)"))
    found = clone.answer("--base", "main")
    ((piece, edit),) = found.edited_judges().items()
    assert found.code == 1 and "entry points" in piece and "my_rmsnorm" in piece and edit == "changed"
    assert found.regressed() == {("vjp_matches_the_oracle", "float32")}


def test_an_import_hook_that_serves_the_change_to_the_base_is_an_open_question(clone: Project) -> None:
    clone.edit(HELPER, THRICE)
    site = clone.folder.parent / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(
        "import importlib.util, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name == 'my_kernels.scaling':\n"
        f"            return importlib.util.spec_from_file_location(name, {str(clone.folder / HELPER)!r})\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    found = clone.answer("--base", "main", environment={"PYTHONPATH": str(site)})
    assert found.code in (1, 4) and "which is not the base's" in found.says(Kind.BASE, Weight.OPEN)
    assert found.lines(Kind.VIOLATED, Weight.NOTE) == [], "nothing is excused as the base's own fault"


def test_what_the_base_breaks_may_not_get_worse(clone: Project) -> None:
    clone.edit(KERNEL, ("dx = r * gw", "dx = (1 + 2**-8) * r * gw"))
    clone.commit("a base that is wrong")
    clone.edit(KERNEL, ("2**-8", "2**-4"))
    found = clone.answer("--base", "HEAD", "--examples", "180")
    assert found.code == 1 and "largest error of dx" in found.says(Kind.ACCURACY, Weight.RED)


def test_a_device_or_a_limit_that_the_change_sets_is_a_change_of_the_judge(clone: Project) -> None:
    clone.edit(CONFIG, ("examples = 15", 'examples = 15\ndevice = "cpu"\ncall-seconds = 600'))
    found = clone.answer("--base", "main")
    assert found.code == 1 and found.edited_judges() == {"the settings of rmsnorm": "changed"}


def test_a_second_kernel_in_the_file_is_new_and_moves_no_case_of_the_first(clone: Project) -> None:
    text = (clone.folder / KERNEL).read_text()
    (clone.folder / KERNEL).write_text(
        f"{text}\n\n@gradoracle.kernel(rmsnorm)\ndef other(x, w):\n    return rmsnorm(x, w)\n"
    )
    code, out, _ = clone.gate("--base", "main")
    assert "may not edit" not in out and "no such case" not in out and "in common" not in out
    assert "other" in out and code in (0, 1, 4)


def test_an_acknowledged_domain_is_judged_by_its_own(clone: Project) -> None:
    from gate.test_judges import acknowledge

    clone.edit(KERNEL, ("WIDEST = 64", "WIDEST = 128"))
    acknowledge(clone, clone.answer("--base", "main"))
    found = clone.answer("--base", "main")
    assert found.code == 0 and "acknowledged by Ann" in found.says(Kind.JUDGE, Weight.NOTE)


def test_an_old_baseline_is_not_green_where_nothing_changed(clone: Project) -> None:
    save(clone)
    rewrite(clone, lambda header: replace(header, environment={**header.environment, "gradoracle": "0.0.1"}))
    code, out, _ = clone.gate("--baseline", FILE)
    assert code == 4 and "was saved by gradoracle 0.0.1" in out


def test_a_kernel_that_registers_an_operator_is_judged_beside_its_base(clone: Project) -> None:
    """Both could not be imported into one process."""
    clone.edit(KERNEL, ("WIDEST =", 'LIBRARY = torch.library.Library("my_norms", "DEF")\nWIDEST ='))
    clone.commit("an operator")
    clone.edit(HELPER, ("eps", "small"))
    found = clone.answer("--base", "HEAD")
    assert found.code == 0 and not found.says(Kind.BASE, Weight.OPEN)
