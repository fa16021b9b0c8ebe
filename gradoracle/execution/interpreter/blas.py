"""One thread for numpy's BLAS: tiles are small, and synchronising threads costs more than they save.

Measured on two busy cores, one 128x128x64 attention forward and backward: 580 ms with OpenBLAS's own choice of
threads, 35 ms with one (145 and 8 ms of processor time).
"""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

_SETTERS = ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads")


def use_one_thread() -> bool:
    """Restrict every OpenBLAS loaded in this process to one thread; whether there was one."""
    import numpy  # noqa: F401  (loads its BLAS)

    maps = Path("/proc/self/maps")
    if not maps.exists():
        return False
    found = False
    for library in sorted(set(re.findall(r"/\S*openblas\S*", maps.read_text()))):
        loaded = ctypes.CDLL(library)
        for name in _SETTERS:
            setter = getattr(loaded, name, None)
            if setter is not None:
                setter(1)
                found = True
                break
    return found
