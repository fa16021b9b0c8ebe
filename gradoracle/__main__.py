"""``python -m gradoracle`` and the ``gradoracle`` command."""

from __future__ import annotations

import os
import sys

_HERE = os.getcwd()
# ``python -m``: a file of a project must not be taken for a package that is imported here
if sys.path and os.path.abspath(sys.path[0]) == _HERE and not os.path.abspath(__file__).startswith(_HERE + os.sep):
    del sys.path[0]

import signal  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402


def main() -> None:
    """Run the command line and exit with its code.

    SIGTERM, which CI sends, interrupts like SIGINT, so that the results so far are reported. SIGINT itself is set
    because a shell makes what it starts in the background ignore it.
    """
    begun = time.monotonic() - _age()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    from gradoracle.cli.main import run

    sys.exit(run(sys.argv[1:], begun))


def _age() -> float:
    """Seconds since this process began, on Linux; elsewhere 0."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


if __name__ == "__main__":
    main()
