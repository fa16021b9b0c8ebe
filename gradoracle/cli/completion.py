"""Completion: what a shell may offer for a word of the command line, found without importing a kernel or PyTorch."""

from __future__ import annotations

from collections.abc import Iterable

from gradoracle.model.errors import UsageError
from gradoracle.project import config
from gradoracle.project.shipped import family_names, law_names


def targets(incomplete: str) -> list[str]:
    """Kernels of the project, shipped families and ``all``; of files the shell itself knows."""
    return _starting([*_project().kernels, *family_names(), "all"], incomplete)


def profiles(incomplete: str) -> list[str]:
    """Profiles of the project, and the one that is there anyway."""
    return _starting({**config.PROFILES, **_project().profiles}, incomplete)


def laws(incomplete: str) -> list[str]:
    """The names of all shipped laws."""
    return _starting(law_names(), incomplete)


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]


def _project() -> config.Config:
    """The project's config; a mistake in it is said when it is used."""
    try:
        return config.load()
    except UsageError:
        return config.EMPTY
