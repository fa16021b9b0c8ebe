"""[tool.gradoracle] of a pyproject.toml: what is more special wins, and each mistake is one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gradoracle.cli import main
from gradoracle.model.errors import UsageError
from gradoracle.project import config

PROJECT = """
[tool.gradoracle]
examples = 200
dtype = ["float32", "bfloat16"]
contract = { float32 = "tf32", bfloat16 = "bf16" }
dim = { T = "1:64" }
known-failures = "known/failures.toml"

[tool.gradoracle.profiles.fast]
examples = 30
require = ["vjp_*"]

[tool.gradoracle.kernels.attention]
target = "own/attention.py:flash"
family = "sdpa"
examples = 100
contract = { float32 = "ieee32" }
arg = { causal = true, mode = "it's" }
dim = { D = [64, 128], M = 7 }

[tool.gradoracle.kernels.sdpa]
seed = 3
"""


def project(folder: Path, text: str = PROJECT) -> config.Config:
    (folder / "pyproject.toml").write_text(text)
    return config.load(folder)


def test_it_is_the_nearest_file_and_may_say_nothing(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert project(tmp_path, "[project]\nname = 'x'\n") == config.EMPTY
    project(tmp_path)
    found = config.load(inner)
    assert found.file == tmp_path / "pyproject.toml" and list(found.kernels) == ["attention", "sdpa"]
    assert found.known_failures == tmp_path / "known" / "failures.toml"
    (inner / "pyproject.toml").write_text("[tool.other]\n")
    assert config.load(inner) == config.EMPTY


def test_a_kernels_file_is_relative_to_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    project(tmp_path)
    names = {name: entry.target for name, entry in config.load().kernels.items()}
    assert names == {"attention": "../own/attention.py:flash", "sdpa": "sdpa"}


def test_the_command_line_wins_over_the_profile_the_kernel_and_the_project(tmp_path: Path) -> None:
    made = project(tmp_path)
    own = made.kernels["attention"].settings
    layers: list[config.Settings] = [made.settings, own]
    found = config.fields(config.together(layers))
    assert found["examples"] == 100 and found["dtypes"] == ("float32", "bfloat16") and found["family"] == "sdpa"
    assert found["contracts"] == {"float32": "ieee32", "bfloat16": "bf16"}
    assert found["arguments"] == {"causal": True, "mode": "it's"} and set(found["dims"]) == {"T", "D", "M"}
    layers.append(made.profile("fast"))
    found = config.fields(config.together(layers))
    assert found["examples"] == 30 and found["require"] == ("vjp_*",)
    layers.append({"examples": "7", "contract": ["bfloat16=bf16"], "dim": ["T=5"]})
    found = config.fields(config.together(layers))
    assert found["examples"] == 7 and found["contracts"] == {"float32": "ieee32", "bfloat16": "bf16"}
    assert set(found["dims"]) == {"T", "D", "M"}


def test_targets_are_kernels_of_the_project_or_what_they_were(tmp_path: Path) -> None:
    made = project(tmp_path)
    assert [entry.name for entry in made.chosen([])] == ["attention", "sdpa"]
    assert [entry.target for entry in made.chosen(["lse", "sdpa", "lse"])] == ["lse", "sdpa"]
    with pytest.raises(UsageError, match="no TARGET was given; expected a shipped family"):
        config.EMPTY.chosen([])
    with pytest.raises(UsageError, match="--profile 'slow' is unknown; expected one of fast"):
        made.profile("slow")
    with pytest.raises(UsageError, match="--profile 'slow' is unknown; expected one of fast"):
        config.EMPTY.profile("slow")
    assert config.EMPTY.profile("fast") == {"examples": "30"} != made.profile("fast")


MISTAKES: dict[str, tuple[str, str]] = {
    "no TOML": ("[tool.gradoracle", "is not valid TOML: "),
    "unknown key": ("[tool.gradoracle]\nexample = 3", "'example' is unknown: did you mean examples?"),
    "unknown key of a kernel": ("[tool.gradoracle.kernels.a]\ntraget = 'a'", "kernels.a]: 'traget' is unknown"),
    "unknown key of a profile": ("[tool.gradoracle.profiles.a]\nfamily = 'a'", "profiles.a]: 'family' is unknown"),
    "a key of one run": ("[tool.gradoracle]\nshard = '1/2'", "'shard' is unknown"),
    "a value": ("[tool.gradoracle]\ndevice = 'tpu'", "[tool.gradoracle]: --device 'tpu' is unknown"),
    "a number": ("[tool.gradoracle]\nexamples = 'many'", "--examples 'many' is invalid"),
    "a range": ("[tool.gradoracle]\nexamples = 0", "--examples must be at least 1, got 0"),
    "seconds": ("[tool.gradoracle]\nseconds = 'long'", "--seconds 'long' is invalid"),
    "a contract": ("[tool.gradoracle]\ncontract = { float32 = 'bf16' }", "--contract float32=bf16"),
    "no table": ("[tool.gradoracle]\ndim = 'T=3'", "dim is 'T=3'; expected a table, such as { T ="),
    "no list": ("[tool.gradoracle]\nrequire = 'x'", "require is 'x'; expected a list of properties"),
    "a flag": ("[tool.gradoracle]\ndevice = true", "device is True; expected a value such as"),
    "a table for a kernel": ("[tool.gradoracle.kernels]\na = 3", "[tool.gradoracle.kernels.a] is 3; expected a table"),
    "kernels": ("[tool.gradoracle]\nkernels = 3", "kernels is 3; expected tables, [tool.gradoracle.kernels.NAME]"),
    "target": ("[tool.gradoracle.kernels.a]\ntarget = 3", "target is 3; expected path/to/file.py[:callable]"),
    "known failures": ("[tool.gradoracle]\nknown-failures = 3", "known-failures is 3; expected the path"),
    "the whole": ("[tool]\ngradoracle = 3", "[tool.gradoracle] is 3; expected a table"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_sentence_that_names_its_place(name: str, tmp_path: Path) -> None:
    text, says = MISTAKES[name]
    with pytest.raises(UsageError) as raised:
        project(tmp_path, text)
    told = str(raised.value)
    assert says in told and "pyproject.toml" in told and "\n" not in told.strip()


KERNELS = """
import torch
from jaxtyping import Float
from torch import Tensor
import gradoracle


@gradoracle.family
def half(x: Float[Tensor, "N"]) -> Float[Tensor, "N"]:
    return x / 2


@gradoracle.kernel(half)
def right(x):
    return x / 2


@gradoracle.kernel(half)
def wrong(x):
    return x / 2.001
"""


def checked(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[int, Any]:
    monkeypatch.chdir(folder)
    out = folder / "report.json"
    code = main.run(["check", *words, "--format", "json", "--output", str(out)])
    return code, json.loads(out.read_text()) if out.exists() else None


def test_check_takes_the_projects_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "halves.py").write_text(KERNELS)
    text = "[tool.gradoracle]\nexamples = 4\nworkers = 0\ndevice = 'cpu'\nproperty = 'forward_matches_the_oracle'\n"
    text += "dtype = 'float32'\n[tool.gradoracle.profiles.two]\nexamples = 2\n"
    for name in ("right", "wrong"):
        text += f"[tool.gradoracle.kernels.{name}]\ntarget = 'halves.py:{name}'\n"
    (tmp_path / "pyproject.toml").write_text(text)
    code, document = checked([], tmp_path, monkeypatch)
    assert code == 1
    assert [(r["target"], r["exit_code"], r["cases_run"]) for r in document["reports"]] == [
        ("halves.py:right", 0, 4), ("halves.py:wrong", 1, 4),
    ]  # fmt: skip
    _, document = checked(["right", "--profile", "two"], tmp_path, monkeypatch)
    assert [(r["target"], r["cases_run"]) for r in document["reports"]] == [("halves.py:right", 2)]
    _, document = checked(["right", "--profile", "two", "--examples", "3"], tmp_path, monkeypatch)
    assert document["reports"][0]["cases_run"] == 3


def test_a_mistake_in_the_file_ends_with_code_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.gradoracle]\nexmaples = 4\n")
    assert checked(["sdpa"], tmp_path, monkeypatch)[0] == 2
    said = capsys.readouterr().err
    assert said.startswith("gradoracle: pyproject.toml") and "[tool.gradoracle]" in said
    assert "'exmaples'" in said and "did you mean examples" in said
