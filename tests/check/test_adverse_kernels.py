"""Kernels that try to end, confuse or edit what judges them: a verdict or one clear sentence, and never exit code 0."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from places import TESTS

from gradoracle.check import plan as planning
from gradoracle.cli import main

CALLS = TESTS / "check" / "adverse" / "calls.py"
FEW = ["--examples", "4", "--call-seconds", "1.5", "--workers", "1", "--property", "*_matches_the_oracle"]
RED = [
    *("exits_with_0", "exits_at_the_end", "exits_from_a_thread", "leaves", "interrupts", "ends_itself"),
    *("raises_what_cannot_be_printed", "raises_a_megabyte", "patches_torch", "patches_numpy_and_builtins"),
    *("patches_the_judge", "patches_the_definition", "looks_for_the_truth", "writes_to_every_descriptor"),
    *("gives_another_dtype", "gives_a_nan_with_a_payload", "gives_its_input", "gives_a_billion_elements"),
    *("reads_its_input", "hangs", "sleeps"),
]
GREEN = ["prints", "gives_a_subclass"]
HEAD = """
import os, sys, time
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

import gradoracle

{}


@gradoracle.family
def normalised(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


@gradoracle.kernel(normalised)
def mine(x):
    return {}
"""
WRONG = "1.0 * x"


def checked(target: str, capfd: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """The exit code of a check, and what it wrote."""
    code = main.run(["check", target, *(words or FEW), "--format", "json"])
    return code, *capfd.readouterr()


def mine(folder: Path, at_import: str, returned: str = WRONG) -> str:
    """A file with the definition and a kernel, by default a wrong one."""
    file = folder / "mine.py"
    file.write_text(HEAD.format(at_import, returned))
    return str(file)


def sentence(target: str, capfd: pytest.CaptureFixture[str], *words: str) -> str:
    """What a check says that ends with exit code 2, which is one line."""
    code, _, err = checked(target, capfd, *words)
    assert code == 2 and len(err.strip().splitlines()) == 1 and "Traceback" not in err, (code, err)
    return err


@pytest.mark.parametrize("name", RED)
def test_what_a_call_does_is_a_verdict(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = checked(f"{CALLS}:{name}", capfd)
    assert code == 1, (code, err[-2000:])
    (report,) = json.loads(out)["reports"]
    assert report["cases_run"] == 4 and len(out) < 200_000


@pytest.mark.parametrize("name", GREEN)
def test_what_does_no_harm_holds_and_prints_nothing(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = checked(f"{CALLS}:{name}", capfd)
    assert code == 0 and json.loads(out) and "descriptor" not in out + err


ENTRY = """
from dataclasses import replace

import torch
from gradoracle.properties.lse.kernels import KERNELS

mine = replace(KERNELS[0], name="mine", extras={{"backward": lambda inputs, g, which, options, blocks: {}}})
"""


@pytest.mark.parametrize(
    "answer", ["None", "'abc'", "(g, g)", "{'dq': g}", "{'dq': g, 'dk': g}", "{'dq': 'dq', 'dk': object()}"]
)
def test_a_wrong_answer_of_an_entry_point_is_a_verdict(
    answer: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(ENTRY.format(answer))
    code, out, err = checked(str(file), capfd, "--dtype", "float32", *FEW[:-1], "fused_equals_separate")
    assert code == 1, err[-2000:]
    (verdict,) = json.loads(out)["reports"][0]["verdicts"]
    (finding,) = verdict["counterexample"]["findings"]
    assert verdict["status"] == "violated" and "backward" in finding["message"]


def test_what_a_kernel_leaves_running_dies_with_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADVERSE_PIDS", str(tmp_path / "pids"))
    assert checked(f"{CALLS}:leaves_a_daemon", capfd)[0] == 0
    left = (tmp_path / "pids").read_text().split()
    deadline = time.monotonic() + 10
    while any(map(runs, left)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left and not any(map(runs, left))


def runs(pid: str) -> bool:
    """Whether a process is there, and no zombie that nobody has waited for."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "at_import",
    [
        "torch.rsqrt = torch.ones_like",
        "Tensor.mean = lambda self, *a, **k: torch.ones_like(self)",
        "np.isfinite = lambda x: True",
        "import builtins; builtins.max = builtins.min = lambda *a, **k: 0",
        "import gradoracle.check.acceptance as a; a.judge = None",
        "import gradoracle.model.family as f; f.Family.__call__ = lambda *a, **k: a[1]",
        "time.monotonic = lambda: 0.0",
        "import gradoracle.host.derivatives as d; d.ENTRIES.update(dict.fromkeys(d.ENTRIES, lambda bound: {}))",
        "import gradoracle.host.derivatives as d; d.ENTRIES.update(dict.fromkeys(d.ENTRIES, lambda b: {'outputs': 3}))",
        "import pickle; pickle.dumps = lambda *a, **k: b''",
    ],
)
def test_what_a_module_patches_when_it_is_imported_changes_no_verdict(
    at_import: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    few = [*FEW[:-1], "forward_matches_the_oracle"]
    assert checked(mine(tmp_path, at_import), capfd, *few)[0] in (1, 2)  # 2: its own module cannot be read any more
    right = "x * (x.square().mean(-1, keepdim=True) + 1e-6) ** -0.5"
    assert checked(mine(tmp_path, "", right), capfd, *few)[0] == 0


@pytest.mark.parametrize(
    ("at_import", "said"),
    [
        ("os._exit(0)", "exited with code 0"),
        ("sys.exit(0)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import signal; os.kill(os.getpid(), signal.SIGKILL)", "killed"),
        ("os.write(3, b'forged'); os.write(4, b'forged'); os._exit(0)", ""),
    ],
)
def test_a_module_that_ends_its_process_is_named_in_one_sentence(
    at_import: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert said in sentence(mine(tmp_path, at_import), capfd)


def test_a_module_that_hangs_ends_with_the_time_of_the_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "IMPORT_GRACE", 3.0)
    begun = time.monotonic()
    err = sentence(mine(tmp_path, "time.sleep(1000)"), capfd, *FEW, "--seconds", "1")
    assert "importing the kernel: exceeded its time limit of " in err and time.monotonic() - begun < 30


def test_a_module_that_rewrites_its_definition_on_disk_is_found_out(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    easier = "text.replace('torch.rsqrt(x', '1.0 or (x')"
    rewrite = f"text = open(__file__).read(); open(__file__, 'w').write({easier})"
    code, _, err = checked(mine(tmp_path, rewrite), capfd)
    assert code == 2 and "mine.py changed while" in err


EASIER = """
import torch
from jaxtyping import Float
from torch import Tensor
import gradoracle

@gradoracle.family
def normalised(x: Float[Tensor, "B N"]) -> Float[Tensor, "B N"]:
    return 1.0 * x
"""


@pytest.mark.parametrize("target", ["mine.py", "mine", "mine:mine"])
def test_a_module_does_not_choose_the_file_of_its_definition(
    target: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "easier.py").write_text(EASIER)
    mine(tmp_path, "__file__ = os.path.abspath('easier.py')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if "pytest-of" not in entry])
    assert "expected" in sentence(target, capfd)


SAID = """
from dataclasses import replace
from gradoracle.execution import hosted
stock = hosted.described_target

def described_target(*args):
    own = stock(*args)
    return replace(own, {})

hosted.described_target = described_target
"""


@pytest.mark.parametrize(
    "said",
    [
        "kernels=()",
        "kernels=own.kernels * 2",
        "kernels=(replace(own.kernels[0], name='a\\n\\x1b[31mRED'),)",
        "kernels=(replace(own.kernels[0], asked=('nonfield',)),)",
        "kernels=(replace(own.kernels[0], imported=('os',)),)",
        "kernels=(replace(own.kernels[0], call=replace(own.kernels[0].call, parameters="
        "replace(own.kernels[0].call.parameters, names=('a b',)))),)",
        "parameters={'x': ('load', (3,))}",
        "parameters={'training': ('float32', (1 << 39, 1 << 39))}",
        "parameters={'a b': ('float32', (3,))}",
        "families={'normalised': 'os'}",
        "families={'normalised': 'mine'}",
        "file='/etc/passwd'",
    ],
)
def test_a_description_is_read_as_input_from_a_stranger(
    said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert checked(mine(tmp_path, SAID.format("file=own.file")), capfd)[0] == 1, "it says what is so"
    assert "\x1b" not in sentence(mine(tmp_path, SAID.format(said)), capfd)


def test_a_name_does_not_reach_the_terminal_as_it_is(capfd: pytest.CaptureFixture[str]) -> None:
    code = main.run(["check", f"{CALLS}:ANSI", *FEW])
    out, err = capfd.readouterr()
    assert code == 1 and "\x1b[31m" not in out + err


def test_a_user_can_still_interrupt(tmp_path: Path) -> None:
    run = [str(TESTS.parent / ".venv/bin/gradoracle")]
    if not Path(run[0]).exists():
        pytest.skip("there is no installed program")
    process = subprocess.Popen([*run, "check", f"{CALLS}:sleeps", "--call-seconds", "60"], stderr=subprocess.DEVNULL)
    time.sleep(6)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) != 0
