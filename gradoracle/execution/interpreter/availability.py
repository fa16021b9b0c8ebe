"""Whether this Triton and this numpy can interpret kernels together."""

from __future__ import annotations

from importlib import metadata

OLDEST_TRITON, NEWEST_TRITON = "3.6.0", "3.9.0"  # a newer one is refused only if it lacks a part
TESTED_TRITON, TESTED_NUMPY = "3.7.1", "2.4.6"  # the pair that the tests run with
_failure: str | None = None


def explain_unavailable() -> str | None:
    """Why Triton kernels cannot be interpreted here and what to install, in one sentence; None if they can.

    It imports neither Triton nor numpy, but reads their versions, and remembers why `activate` failed in this process.
    """
    if _failure is not None:
        return _failure
    for name in ("triton", "numpy"):
        version = installed(name)
        if version is None:
            return f"{name} is not installed and interpreting Triton kernels needs it: install {name}."
        if name == "triton" and _number(version) < _number(OLDEST_TRITON):
            return (
                f"Triton {version} was found and interpreting kernels needs {OLDEST_TRITON} or later: "
                f"install triton>={TESTED_TRITON}."
            )
    return None


def installed(name: str) -> str | None:
    """The version of an installed distribution; None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def remember(failure: str) -> None:
    """Keeps why activation failed, for `explain_unavailable`."""
    global _failure
    _failure = failure


def _number(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)
