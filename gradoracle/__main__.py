"""``python -m gradoracle`` and the ``gradoracle`` command."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line and leave with its exit code; a CI's SIGTERM is an interrupt, which keeps what is known."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    from gradoracle.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
