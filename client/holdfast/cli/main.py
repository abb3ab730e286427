"""Where the command line begins. What it needs is loaded inside, so that Ctrl-C is no traceback even during that."""

import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    try:
        from holdfast.cli.runner import run

        return run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return 130  # as problems.ExitCode, which may not be there yet
