"""The fork server: its children are as an interpreter of their own is, and it leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import programs
import pytest

from gradoracle.execution import fork_server

IMPORTED = "import sys; print('torch' in sys.modules, 'gradoracle' in sys.modules)"


def test_a_child_has_the_packages_and_nothing_of_gradoracle() -> None:
    assert programs.python(IMPORTED).stdout == "True False\n"


def test_one_of_the_engine_has_gradoracle_too_but_no_kernel() -> None:
    """Whether a kernel is interpreted is decided when it is imported."""
    program = "import sys; print(*(f'gradoracle.{name}' in sys.modules for name in ('check', 'gate.side', 'kernels')))"
    assert programs.python(program, has_engine=True).stdout == "True True False\n"


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('a sentence')", 1, "a sentence\n"),
        ("import os; os._exit(7)", 7, ""),
        ("1 / 0", 1, "ZeroDivisionError: division by zero\n"),
        ("def", 1, "SyntaxError: invalid syntax\n"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -signal.SIGSEGV, ""),
        ("raise KeyboardInterrupt", -signal.SIGINT, "KeyboardInterrupt\n"),
        ("import atexit, sys; atexit.register(print, 'last', file=sys.stderr)", 0, "last\n"),
        ("import threading, time, sys; threading.Thread(target=lambda: (time.sleep(0.2), print('a', file=sys.stderr)))"
         ".start()", 0, "a\n"),
    ],
)  # fmt: skip
def test_a_program_ends_as_in_an_interpreter_of_its_own(program: str, code: int, said: str) -> None:
    done = programs.python(program)
    own = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == own.returncode == code
    assert done.stderr.endswith(said) and own.stderr.endswith(said)


def test_a_child_has_the_folder_environment_arguments_path_and_main_that_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("SIZE = 5\n")
    facts = "[os.getcwd(), sorted(os.environ)[:1], sys.argv, mine.SIZE, __name__]"
    program = f"import json, os, sys, mine; print(json.dumps({facts}))"
    with (tmp_path / "out").open("w+b") as out:
        child = fork_server.run(
            program, ["a b", "c"], path=[str(tmp_path), *sys.path], env={"AAA": "1"}, folder=str(tmp_path), stdout=out
        )
        assert child.wait(60) == 0
    found = json.loads((tmp_path / "out").read_text())
    assert found == [str(tmp_path), ["AAA"], ["-c", "a b", "c"], 5, "__main__"]


def test_it_inherits_descriptors_and_reads_its_input(tmp_path: Path) -> None:
    ours, theirs = os.pipe()
    program = "import os, sys; os.write(int(sys.argv[1]), sys.stdin.buffer.read()[::-1])"
    child = fork_server.run(program, stdin=subprocess.PIPE, descriptors=[theirs])
    os.close(theirs)
    assert child.stdin is not None
    child.stdin.write(b"abc")
    child.stdin.close()
    assert child.wait(60) == 0 and os.read(ours, 10) == b"cba" and os.read(ours, 10) == b""
    os.close(ours)


def test_a_child_takes_an_interrupt_though_what_started_it_does_not() -> None:
    """A shell starts what runs in the background with SIGINT ignored, and so does nohup."""
    program = (
        "import signal, sys; from gradoracle.execution import fork_server as f; sys.exit(f.run(sys.argv[1]).wait(60))"
    )
    inner = "import signal, sys; sys.exit(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    own = {name: value for name, value in os.environ.items() if name != fork_server.VARIABLE}
    command = ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", program, inner]
    assert subprocess.run(command, env=own).returncode == 1


def test_it_is_killed_and_waited_for() -> None:
    child = fork_server.run("import time; time.sleep(60)")
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.1)
    assert child.poll() is None and child.pid
    child.kill()
    assert child.wait(60) == -signal.SIGKILL and child.poll() == -signal.SIGKILL
    child.kill()  # does nothing


def test_many_at_once() -> None:
    children = [fork_server.run(f"import sys, time; time.sleep(0.1); sys.exit({code})") for code in range(20)]
    assert [child.wait(60) for child in children] == list(range(20))


def test_an_interpreter_that_begins_otherwise_is_one_of_its_own(tmp_path: Path) -> None:
    """PYTHONPATH may hold a sitecustomize, which has to run."""
    (tmp_path / "sitecustomize.py").write_text("import builtins; builtins.MINE = 1\n")
    done = programs.python("print(MINE)", env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


def test_without_a_server_a_program_is_run_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(fork_server.VARIABLE, "off")
    assert isinstance(child := fork_server.run("import sys; sys.exit(5)"), subprocess.Popen) and child.wait(60) == 5
    assert fork_server.variables() == {fork_server.VARIABLE: "off"}


ENDED = """
import os, sys, time
from gradoracle.execution import fork_server
fork_server.PACKAGES = fork_server.ENGINE = ("json",)
fork_server.run("pass").wait(60)
fork_server.run("pass", has_engine=True).wait(60)
child = fork_server.run("import os; print(os.getppid(), flush=True)")
child.wait(60)
if sys.argv[1] == "kill":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_server_ends_with_the_process_that_started_it(how: str) -> None:
    own = {name: value for name, value in os.environ.items() if name != fork_server.VARIABLE}
    done = subprocess.run([sys.executable, "-c", ENDED, how], env=own, stdout=subprocess.PIPE, text=True)
    assert done.returncode == (0 if how == "exit" else -9)
    assert programs.until(lambda: not Path(f"/proc/{done.stdout.strip()}").exists())


LOST = """
import os, sys, signal, time
from gradoracle.execution import fork_server
fork_server.PACKAGES = ("json",)
child = fork_server.run("import os, time; print(os.getppid(), flush=True); time.sleep(600)")
with open(f"/proc/{child.pid}/stat") as file:
    server = int(file.read().rpartition(")")[2].split()[1])
os.kill(server, signal.SIGKILL)
assert child.wait(60) == 255
child.kill()
time.sleep(0.2)
again = fork_server.run("import sys; sys.exit(4)")
print(again.wait(60))
os.kill(child.pid, signal.SIGKILL)
"""


def test_where_the_server_is_killed_its_children_are_lost_and_the_next_are_not() -> None:
    own = {name: value for name, value in os.environ.items() if name != fork_server.VARIABLE}
    done = subprocess.run([sys.executable, "-c", LOST], env=own, capture_output=True, text=True)
    assert done.stdout.split()[-1:] == ["4"], done.stderr


def test_a_server_has_no_gpu_open() -> None:
    """A CUDA context cannot be used in a fork."""
    program = (
        "import contextlib, os\n"
        "for number in os.listdir('/proc/self/fd'):\n"
        "    with contextlib.suppress(OSError): print(os.readlink(f'/proc/self/fd/{number}'))\n"
    )
    said = programs.python(program).stdout
    assert "/dev/null" in said and "nvidia" not in said
