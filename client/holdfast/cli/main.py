"""Where the command line begins. What it needs is loaded inside, so that Ctrl-C is no traceback even during that."""

import os
import sys
from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code."""
    # gRPC's own remarks on standard error would mix with ours, which say more; those of a server, with a line for each
    # handshake that a stranger spoils, with its log. Heeded only if gRPC is imported after this.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        from holdfast.cli.runner import run

        return run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        return 130  # as problems.ExitCode, which may not be there yet
