"""``python -m gradoracle`` and the ``gradoracle`` command."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line and leave with its exit code.

    A CI's SIGTERM is an interrupt, which keeps what is known; and so is SIGINT where a shell, which starts what it runs
    in the background so, had it ignored.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    from gradoracle.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
