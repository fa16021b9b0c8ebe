"""Completion: names of kernels, profiles and properties as they are, quickly, and nothing of a broken project."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradoracle.check.properties import universal_properties
from gradoracle.cli import completion
from gradoracle.project.shipped_names import family_names
from gradoracle.project.target import shipped


def test_the_names_are_those_that_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert completion.targets("") == [*family_names(), "all"]
    known = {prop.name for prop in universal_properties()}
    known |= {prop.name for target in shipped().values() for prop in target.family.properties}
    assert set(completion.properties("")) == known
    assert completion.properties("vjp_m") == ["vjp_matches_the_oracle"] and completion.properties("no such") == []


def test_the_projects_kernels_and_profiles_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "pyproject.toml"
    file.write_text("[tool.gradoracle.kernels.softmax]\ntarget='a.py'\n[tool.gradoracle.profiles.fast]\nexamples=3\n")
    assert completion.targets("s") == ["softmax", "sdpa", "semicrf"] and completion.profiles("") == ["fast"]
    file.write_text("[tool.gradoracle]\nnonsense = 3\n")
    assert completion.targets("s") == ["sdpa", "semicrf"] and completion.profiles("") == ["fast"]


def offered(*words: str) -> list[str]:
    """What bash is offered for the last of some words."""
    asked = {"_GRADORACLE_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    command = [sys.executable, "-X", "importtime", "-m", "gradoracle"]
    ran = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True)
    assert "| torch\n" not in ran.stderr and "triton" not in ran.stderr
    return ran.stdout.split()


def test_a_shell_is_offered_them_without_loading_pytorch() -> None:
    assert offered("gradoracle", "ch") == ["check"]
    assert offered("gradoracle", "check", "se") == ["semicrf"]
    assert offered("gradoracle", "explain", "jvp_m") == ["jvp_matches_the_oracle"]
