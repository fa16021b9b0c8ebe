"""Completion: what a shell offers for a word of the command line; no kernel and no PyTorch is imported."""

from __future__ import annotations

from collections.abc import Iterable

from gradoracle.model.errors import UsageError
from gradoracle.project import config
from gradoracle.project.shipped_names import family_names, property_names


def targets(incomplete: str) -> list[str]:
    """Kernels of the project, shipped families and ``all``; the shell itself completes files."""
    return _starting([*_project().kernels, *family_names(), "all"], incomplete)


def profiles(incomplete: str) -> list[str]:
    """Profiles of the project, and the built-in one."""
    return _starting({**config.PROFILES, **_project().profiles}, incomplete)


def properties(incomplete: str) -> list[str]:
    """The names of all shipped properties."""
    return _starting(property_names(), incomplete)


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _project() -> config.Config:
    """The project's config; a mistake in it is reported when the command runs."""
    try:
        return config.load()
    except UsageError:
        return config.EMPTY
