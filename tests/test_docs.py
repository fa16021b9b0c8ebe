"""README and the pages of docs/: every command is run, every output is real, and no name is missing or made up."""

from __future__ import annotations

import ast
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml
from places import ROOT
from programs import gradoracle, python

import gradoracle as package
from gradoracle.model.contract import PRESETS
from gradoracle.project.options import OPTIONS

DOCS = ROOT / "docs"
TUTORIAL = [
    DOCS / "start" / f"{name}.md" for name in ("check", "your-first-family", "own-kernel", "failure", "pytest", "ci")
]
HOW_TO = sorted((DOCS / "how-to").glob("*.md"))
PAGES = [ROOT / "README.md", *TUTORIAL, *HOW_TO]
RUN = ("gradoracle", "pytest", "python")
NOT_RUN = 10  # blocks with a reason not to be; a further one is seen here
FENCE = re.compile(r"((?:^<!--[^\n]*-->\n)?)^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w./-]+\.(?:py|toml|yml|yaml))\n")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")
REDIRECTED = re.compile(r"(.*[^>])> ?(\S+)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page and the comment right before it."""

    page: Path
    kind: str
    text: str
    comment: str

    @property
    def reason(self) -> str:
        """Why it is not run; empty where it is."""
        found = re.search(r"not run: (.+)", self.comment)
        return found[1] if found else ""

    @property
    def is_slow(self) -> bool:
        return bool(re.search(r"\bslow\b", self.comment)) and not self.reason

    @property
    def code(self) -> int:
        """The exit code that its last command is said to have."""
        found = re.search(r"exits with (\d)", self.comment)
        return int(found[1]) if found else 0

    @property
    def commands(self) -> list[str]:
        """Lines to type: of a console those after its prompt."""
        lines = self.text.replace("\\\n", " ").splitlines()
        if self.kind == "console":
            lines = [line[2:] for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.startswith("#")]

    @property
    def output(self) -> list[str]:
        """What a console shows after the command."""
        shown = self.text.splitlines() if self.kind == "console" else []
        return [line for line in shown if not line.startswith("$ ")]


def blocks(page: Path) -> list[Block]:
    found = FENCE.findall(page.read_text())
    return [Block(page, kind, text, comment.strip().strip("<>!- ")) for comment, kind, text in found]


def to_run(page: Path) -> list[Block]:
    return [block for block in blocks(page) if block.kind in ("sh", "console")]


def files(page: Path) -> dict[str, str]:
    """The files that a page shows, by their names, which their first lines say."""
    shown = [block.text for block in blocks(page) if block.kind in ("python", "toml", "yaml")]
    return {found[1]: text for text in shown if (found := FILE.match(text))}


def write(folder: Path, *pages: Path) -> None:
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    for page in pages:
        for name, text in files(page).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)


def run(command: str, folder: Path) -> tuple[int, str]:
    """Exit code and output of a command line; what it sends into a file is written there."""
    words = shlex.split(command, comments=True)
    sent = REDIRECTED.fullmatch(command)
    if sent and words[0] in RUN:
        words = shlex.split(sent[1])
    if words[0] == "gradoracle":
        done = gradoracle(*words[1:], cwd=folder)
    elif words[0] == "pytest":
        program = "import sys, pytest; sys.path.insert(0, ''); sys.exit(pytest.main(sys.argv[1:]))"
        done = python(program, "-W", "ignore", "-p", "no:cacheprovider", *words[1:], cwd=folder, has_engine=True)
    elif words[0] == "python":
        program = "import runpy, sys; sys.argv = sys.argv[1:]; sys.path.insert(0, ''); "
        program += "runpy.run_path(sys.argv[0], run_name='__main__')"
        done = python(program, *words[1:], cwd=folder)
    else:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {**os.environ, "PATH": path}
        done = subprocess.run(["bash", "-ec", command], cwd=folder, env=own, capture_output=True, text=True)
    if sent and words[0] in RUN:
        (folder / sent[2]).write_text(done.stdout)
        return done.returncode, done.stderr
    return done.returncode, done.stdout + done.stderr


def shape(line: str) -> str:
    """A line without its numbers, which differ between machines, and its widths."""
    return " ".join(NUMBER.sub("#", line).split())


def missing(shown: list[str], output: str) -> list[str]:
    """Lines that a page shows and the program does not print after those before; ``...`` stands for any."""
    lines, lost = iter([shape(line) for line in output.splitlines()]), []
    for line in shown:
        if line.strip() and shape(line) != "..." and shape(line) not in lines:
            lost.append(line)
            break
    return lost


def runs(is_slow: bool) -> Iterator[object]:
    """Each page with blocks that are run, as a parameter."""
    for page in PAGES:
        if any(block.is_slow is is_slow and not block.reason for block in to_run(page)):
            marks = [pytest.mark.slow] if is_slow else []
            name = page.relative_to(ROOT).with_suffix("").as_posix() + (" (slow)" if is_slow else "")
            yield pytest.param(page, is_slow, id=name, marks=marks)


@pytest.mark.parametrize("page, is_slow", [*runs(False), *runs(True)])
def test_the_commands_of_a_page_do_what_it_shows(page: Path, is_slow: bool, tmp_path: Path) -> None:
    """One folder a page, with the files that it shows; the pages of the tutorial stand in one."""
    write(tmp_path, *(TUTORIAL if page in TUTORIAL else [page]))
    for block in to_run(page):
        if block.reason or block.is_slow is not is_slow:
            continue
        for command in block.commands:
            code, output = run(command, tmp_path)
            expected = block.code if command == block.commands[-1] else 0
            assert code == expected, f"{command}\n{output}"
        assert not missing(block.output, output), f"{block.commands[-1]}\n{output}"


def test_a_block_is_run_or_says_why_not() -> None:
    found = [block for page in PAGES for block in to_run(page)]
    skipped = [block for block in found if block.reason]
    assert len(skipped) == NOT_RUN, [(block.page.name, block.commands) for block in skipped]
    assert all(len(block.reason.split()) >= 2 for block in skipped)
    assert len(found) - len(skipped) > 2 * len(skipped)
    assert all(block.commands for block in found) and all(to_run(page) for page in TUTORIAL)
    for page in PAGES:
        text = page.read_text()
        assert text.count("```") == 2 * len(blocks(page)), f"{page.name}: a fence that is indented"
        assert not re.search(r"^<!-- not run: .*-->\n(?!```(?:sh|console)\n)", text, re.MULTILINE)


def test_the_figures_of_readme_are_those_of_the_scoreboard() -> None:
    readme, board = (ROOT / "README.md").read_text(), (DOCS / "background" / "scoreboard.md").read_text()
    for figures, sentence in (
        (r"(\d+) of (\d+) \[mutants\]", "Of {1} mutants gradoracle's properties catch {0} "),
        (
            r"(\d+) of (\d+) \[bugs of released kernels\]",
            "Of {1} real bugs of released kernels gradoracle's properties catch {0} ",
        ),
    ):
        found = re.search(figures, readme)
        assert found is not None and sentence.format(*found.groups()) in board


def test_what_differs_from_the_output_is_found() -> None:
    printed = "property\nforward  ✓ 12  1.5σ\n\n3 properties checked in 9.1 s\n"
    assert missing(["property", "...", "2 properties checked in 6 s"], printed) == []
    assert missing(["forward ✗ 12"], printed) == ["forward ✗ 12"]
    assert missing(["3 properties checked in 9.1 s", "property"], printed) == ["property"]


def section(page: str, title: str) -> str:
    """The part of a page under a heading of the second order."""
    return re.split(r"^## ", page.split(f"\n## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def test_the_page_of_commands_has_each_command_with_each_option() -> None:
    page = (DOCS / "reference" / "cli.md").read_text()
    said = set(re.findall(r"^  ([a-z]+) ", gradoracle("--help").stdout.split("Commands:")[1], re.MULTILINE))
    commands = sorted(said - {"baseline"} | {"baseline save"})
    assert re.findall(r"^## gradoracle ([a-z ]+)$", page, re.MULTILINE) == sorted(commands)
    for command in commands:
        shown = gradoracle(*command.split(), "--help").stdout.split("Options:")[1]
        own = set(re.findall(r"^  (?:-\w, )?(--[a-z-]+)", shown, re.MULTILINE))
        listed = re.findall(r"^\| `(--[a-z-]+)", section(page, f"gradoracle {command}"), re.MULTILINE)
        assert set(listed) == own - {"--help"} and len(listed) == len(set(listed)), command


def test_the_page_of_the_config_has_each_key() -> None:
    page = (DOCS / "reference" / "configuration.md").read_text()
    keys = re.findall(r"^\| (`.+?) \|", page, re.MULTILINE)
    named = {name for row in keys for name in re.findall(r"`([\w-]+)`", row)}
    assert named == {option.name for option in OPTIONS.values() if option.in_file} | {"target", "known-failures"}


def test_the_page_of_contracts_has_each_preset_and_its_formats() -> None:
    page = (DOCS / "reference" / "contracts.md").read_text()
    rows = [re.findall(r"[\w.-]+", line) for line in re.findall(r"^\| `.+$", page, re.MULTILINE)]
    fields = ("name", "dtype", "operand", "accumulate", "elementwise", "output", "residuals")
    assert rows == [[getattr(contract, field) for field in fields] for contract in PRESETS.values()]


def test_the_page_of_the_python_interface_has_each_public_name() -> None:
    page = (DOCS / "reference" / "api.md").read_text()
    places = re.findall(r"^::: (gradoracle[\w.]+)$", page, re.MULTILINE)
    own = [place.rpartition(".")[2] for place in places]
    assert sorted(own) == sorted(package.__all__)


def test_pages_for_users_and_examples_import_public_names_alone() -> None:
    pages = [ROOT / "README.md", *(DOCS / "start").glob("*.md"), *(DOCS / "how-to").glob("*.md")]
    for file in [*pages, *(ROOT / "examples").rglob("*.py")]:
        internal = re.findall(
            r"^\s*(?:from|import) gradoracle\.(?!kernels|properties)[\w.]+.*", file.read_text(), re.MULTILINE
        )
        assert not internal, f"{file.name}: {internal[0].strip()}"


def test_every_page_is_in_the_navigation_and_every_link_leads_somewhere() -> None:
    def leaves(node: object) -> Iterator[str]:
        if isinstance(node, str):
            yield node
        elif isinstance(node, (list, dict)):
            for each in node.values() if isinstance(node, dict) else node:
                yield from leaves(each)

    nav = list(leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    pages = sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))
    assert sorted(nav) == pages
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", page.read_text())):
            place = link.partition("#")[0]
            assert not place or "://" in place or (page.parent / place).exists(), f"{page.name}: {link}"


AVOIDED = ("*right kernel*", "*red line*", "*situations*met*", "*made smaller*", "*properties broken*")


def test_no_word_that_the_house_avoids() -> None:
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        found = [(word, line) for line in prose.splitlines() for word in AVOIDED if fnmatchcase(line.lower(), word)]
        assert not found, page.name


@pytest.mark.parametrize("folder", ["gradoracle", "kernels", "properties", "examples"])
def test_no_word_that_the_house_avoids_is_printed_or_in_a_docstring(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        constants = (node.value for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Constant))
        texts = [" ".join(text.lower().split()) for text in constants if isinstance(text, str)]
        found = [(word, text) for text in texts for word in (*AVOIDED, "* wanted *") if fnmatchcase(text, word)]
        assert not found, path.name


@pytest.mark.skipif(shutil.which("mkdocs", path=str(Path(sys.executable).parent)) is None, reason="mkdocs: make docs")
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    words = ["-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "start" / "check" / "index.html").exists()
