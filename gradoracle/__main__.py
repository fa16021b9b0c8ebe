"""``python -m gradoracle`` and the ``gradoracle`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    from gradoracle.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
