"""Bare Python: an interpreter with PyTorch, numpy and, if asked for, Triton, and with none of what a judge needs."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

# mpmath is there because the sympy of PyTorch needs it
OF_TORCH = ("torch", "sympy", "mpmath", "filelock", "fsspec", "jinja2", "markupsafe", "networkx", "typing-extensions")


def bare_python(folder: Path, *, has_triton: bool) -> str:
    """Make one in a folder, with links to packages of this one: the path of the interpreter."""
    packages = folder / "packages"
    packages.mkdir(parents=True)
    of_cuda = (each.metadata["Name"] for each in importlib.metadata.distributions())
    names = (*OF_TORCH, "numpy", *(["triton"] if has_triton else []), *(n for n in of_cuda if n.startswith("nvidia")))
    for name in names:
        own = importlib.metadata.distribution(name)
        for first in {file.parts[0] for file in own.files or ()} - {"..", "__pycache__"}:
            if not (packages / first).exists():
                (packages / first).symlink_to(Path(str(own.locate_file(first))))
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (site / "packages.pth").write_text(f"{packages}\n")
    return str(folder / "venv" / "bin" / "python")
