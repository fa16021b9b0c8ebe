"""A change may not edit its own judge: definition, domain, properties, contracts and settings are the base's until
somebody answers for others."""

from __future__ import annotations

import re

import pytest
from gate.project import CONFIG, HELPER, KERNEL, Project

ENTRY = re.compile(r'\[\[change\]\] piece = "(.*?)" change = "(\w+)"')
FASTER_EPS = (KERNEL, ("+ 1e-6) * w\n", "+ 1e-5) * w\n"), ("root(x32, 1e-6)", "root(x32, 1e-5)"))


def acknowledge(clone: Project, out: str) -> list[str]:
    """Answer for every change that a gate named; returns the pieces."""
    entries = ENTRY.findall(" ".join(out.split()))
    text = "".join(
        f'[[change]]\npiece = "{piece}"\nchange = "{change}"\nreason = "as the paper"\nauthor = "Ann"\n'
        for piece, change in entries
    )
    (clone.folder / "gradoracle-acknowledged.toml").write_text(text)
    return [piece for piece, _ in entries]


def test_another_definition_is_red_and_does_not_judge(clone: Project) -> None:
    clone.edit(*FASTER_EPS)
    code, out, _ = clone.gate("--base", "main")
    assert code == 1 and "the definition of rmsnorm: changed" in out
    assert "forward_matches_the_oracle held in the base and is violated" in out
    assert acknowledge(clone, out) == ["the definition of rmsnorm"]
    code, out, _ = clone.gate("--base", "main")
    assert code == 0 and "acknowledged by Ann: as the paper" in out


def test_an_acknowledgement_is_of_one_change_alone(clone: Project) -> None:
    clone.edit(*FASTER_EPS)
    acknowledge(clone, clone.gate("--base", "main")[1])
    clone.edit(KERNEL, ("+ 1e-5) * w\n", "+ 1e-4) * w\n"), ("root(x32, 1e-5)", "root(x32, 1e-4)"))
    code, out, _ = clone.gate("--base", "main")
    assert code == 1 and "the definition of rmsnorm: changed. A change may not" in out


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
    code, out, _ = clone.gate("--base", "main")
    assert code == 1 and piece in out and ": changed. A change may not edit its own judge" in out
    assert "60 expected" not in out and "on 15 cases" in out


def test_a_definition_that_calls_a_helper_changes_with_it(clone: Project) -> None:
    clone.edit(KERNEL, ("torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)", "root(x, 1e-6)"))
    clone.commit("a definition that calls the kernel's own helper")
    clone.edit(HELPER, ("+ eps)", "+ 2 * eps)"))
    code, out, _ = clone.gate("--base", "HEAD")
    assert code == 1 and "the definition of rmsnorm: changed" in out
    assert "forward_matches_the_oracle held in the base and is violated" in out  # by the base's helper


def test_comments_and_layout_of_what_judges_are_no_change(clone: Project) -> None:
    clone.edit(KERNEL, ('-> Float[Tensor, "B N"]:\n', '-> Float[Tensor, "B N"]:\n    # a comment\n\n'))
    code, out, _ = clone.gate("--base", "main")
    assert code == 0 and "may not edit" not in out


def test_a_file_of_acknowledgements_that_lacks_a_key_is_a_mistake(clone: Project) -> None:
    (clone.folder / "gradoracle-acknowledged.toml").write_text('[[change]]\npiece = "x"\n')
    code, _, err = clone.gate("--base", "main")
    assert (
        code == 2
        and "gradoracle-acknowledged.toml, change 1: expected exactly the keys piece, change, reason, author" in err
    )
