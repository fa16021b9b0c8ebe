"""Items of one group are run by one worker: what they share is made once, such as the run of a kernel and dtype."""

from __future__ import annotations

from pathlib import Path

from programs import python

FILE = """
import os
import pytest

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("n", range(8))
def test_where_it_runs(n, request):
    with open(request.path.with_name("workers"), "a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + " ")
"""


def test_a_group_is_run_by_one_worker(tmp_path: Path) -> None:
    (tmp_path / "test_group.py").write_text(FILE)
    program = "import runpy; runpy.run_module('pytest', run_name='__main__', alter_sys=True)"
    done = python(program, "-q", "-p", "no:cacheprovider", "-n", "2", "--dist=loadgroup", "test_group.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    workers = (tmp_path / "workers").read_text().split()
    assert len(workers) == 8 and len(set(workers)) == 1, workers
