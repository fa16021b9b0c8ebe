"""A clone for each test."""

from __future__ import annotations

from pathlib import Path

import pytest
from gate.project import Project, project


@pytest.fixture
def clone(tmp_path: Path) -> Project:
    """A kernel repository with one commit."""
    return project(tmp_path / "clone")
