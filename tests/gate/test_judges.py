"""A change may not edit its own judge: definition, domain, properties, contracts and settings are the base's until
somebody answers for others."""

from __future__ import annotations

import re

import pytest
from gate.project import CONFIG, HELPER, KERNEL, Answer, Project

from gradoracle.model.comparison import Kind, Weight

ENTRY = re.compile(r'\[\[change\]\] piece = "(.*?)" change = "(\w+)"')
FASTER_EPS = (KERNEL, ("+ 1e-6) * w\n", "+ 1e-5) * w\n"), ("root(x32, 1e-6)", "root(x32, 1e-5)"))


def acknowledge(clone: Project, answer: Answer) -> list[str]:
    """Answer for every change that a gate named; returns the pieces."""
    entries = ENTRY.findall(answer.says(Kind.JUDGE, Weight.RED))
    text = "".join(
        f'[[change]]\npiece = "{piece}"\nchange = "{change}"\nreason = "as the paper"\nauthor = "Ann"\n'
        for piece, change in entries
    )
    (clone.folder / "gradoracle-acknowledged.toml").write_text(text)
    return [piece for piece, _ in entries]


def test_another_definition_is_red_and_does_not_judge(clone: Project) -> None:
    clone.edit(*FASTER_EPS)
    found = clone.answer("--base", "main")
    assert found.code == 1 and found.edited_judges() == {"the definition of rmsnorm": "changed"}
    assert found.regressed() == {("forward_matches_the_oracle", "float32")}
    assert acknowledge(clone, found) == ["the definition of rmsnorm"]
    found = clone.answer("--base", "main")
    (note,) = found.lines(Kind.JUDGE)
    assert found.code == 0 and note.weight is Weight.NOTE and "Ann: as the paper" in note.text


def test_an_acknowledgement_is_of_one_change_alone(clone: Project) -> None:
    clone.edit(*FASTER_EPS)
    acknowledge(clone, clone.answer("--base", "main"))
    clone.edit(KERNEL, ("+ 1e-5) * w\n", "+ 1e-4) * w\n"), ("root(x32, 1e-5)", "root(x32, 1e-4)"))
    found = clone.answer("--base", "main")
    assert found.code == 1 and found.edited_judges() == {"the definition of rmsnorm": "changed"}


@pytest.mark.parametrize(
    ("file", "pair", "piece"),
    [
        (KERNEL, ("WIDEST = 64", "WIDEST = 16"), "the domain of rmsnorm"),
        (
            KERNEL,
            ("@gradoracle.kernel(rmsnorm)", "@gradoracle.kernel(rmsnorm, dtypes=('float32',))"),
            "dtypes of kernel",
        ),
        (KERNEL, ("@gradoracle.kernel(rmsnorm)", "@gradoracle.kernel(rmsnorm, mutates=('x',))"), "mutates of kernel"),
        (CONFIG, ("examples = 15", "examples = 3"), "the settings of rmsnorm"),
        (CONFIG, ('property = "*_matches', 'property = "vjp_matches'), "the settings of rmsnorm"),
    ],
)
def test_what_narrows_the_check_is_a_regression(clone: Project, file: str, pair: tuple[str, str], piece: str) -> None:
    clone.edit(file, pair)
    found = clone.answer("--base", "main")
    (edited,) = found.edited_judges()
    assert found.code == 1 and edited.startswith(piece)
    assert found.report.cases_run == 15 and found.report.inconclusive(lines=False) == []


def test_a_definition_that_calls_a_helper_changes_with_it(clone: Project) -> None:
    clone.edit(KERNEL, ("torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)", "root(x, 1e-6)"))
    clone.commit("a definition that calls the kernel's own helper")
    clone.edit(HELPER, ("+ eps)", "+ 2 * eps)"))
    found = clone.answer("--base", "HEAD")
    assert found.code == 1 and found.edited_judges() == {"the definition of rmsnorm": "changed"}
    assert found.regressed() == {("forward_matches_the_oracle", "float32")}  # by the base's helper


def test_comments_and_layout_of_what_judges_are_no_change(clone: Project) -> None:
    clone.edit(KERNEL, ('-> Float[Tensor, "B N"]:\n', '-> Float[Tensor, "B N"]:\n    # a comment\n\n'))
    code, out, _ = clone.gate("--base", "main")
    assert code == 0 and "may not edit" not in out


def test_a_file_of_acknowledgements_that_lacks_a_key_is_a_mistake(clone: Project) -> None:
    (clone.folder / "gradoracle-acknowledged.toml").write_text('[[change]]\npiece = "x"\n')
    code, _, err = clone.gate("--base", "main")
    assert code == 2 and "gradoracle-acknowledged.toml, change 1" in err and "piece, change, reason, author" in err
