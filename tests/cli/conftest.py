"""What tests of commands share: the command line in this process."""

from __future__ import annotations

import pytest
from programs import Run

from gradoracle.cli import main


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command line."""

    def call(*words: str) -> tuple[int, str, str]:
        code = main.run(words)
        return (code, *capsys.readouterr())

    return call
