"""Versions of installed packages."""

from __future__ import annotations

from importlib import metadata


def version(package: str) -> str:
    """The installed version of a package; "" if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def public(version: str) -> str:
    """A version without its local part, in which builds for several devices differ."""
    return version.partition("+")[0]
