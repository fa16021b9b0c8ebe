"""Whether this Triton and this numpy can interpret kernels together."""

from __future__ import annotations

from importlib import metadata

_OLDEST_TRITON = (3, 6)
_SQUEEZES_INDICES = (3, 7)
_REFUSES_ARRAYS_AS_INDICES = (2, 4)


def explain_unavailable() -> str | None:
    """One sentence saying why Triton kernels cannot be interpreted here and what to install; None where they can be.

    Reads versions only and imports neither Triton nor numpy.
    """
    versions = {}
    for name in ("triton", "numpy"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            return f"{name} is not installed and interpreting Triton kernels needs it: install {name}."
    triton, numpy = _number(versions["triton"]), _number(versions["numpy"])
    if triton < _OLDEST_TRITON:
        return (
            f"Triton {versions['triton']} is installed and interpreting kernels needs Triton 3.6 or later: "
            "install triton>=3.7.1."
        )
    if triton < _SQUEEZES_INDICES and numpy >= _REFUSES_ARRAYS_AS_INDICES:
        return (
            f"Triton {versions['triton']} cannot interpret kernels with numpy {versions['numpy']}: "
            'install "numpy<2.4" or "triton>=3.7.1".'
        )
    return None


def _number(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int("".join(c for c in minor if c.isdigit()) or 0)
