"""Where the command `holdfast` begins: outside of the package `holdfast`, which another program may have hidden."""

import json
import sys

from holdfast_queue import NameTakenError, refuse_namesake

_EXIT_CODE = 3  # as problems.ExitCode.MISSING_EXTRA, which may be hidden


def main() -> int:
    try:
        refuse_namesake()
    except NameTakenError as taken:
        # As any other problem of a command is told.
        error = {"reason": "NAME_TAKEN", "message": str(taken), "hint": "", "field": "", "retry_after_ms": 0}
        problem = {"error": error, "exit_code": _EXIT_CODE}
        line = json.dumps(problem, separators=(",", ":")) if "--json" in sys.argv else f"error: {taken}"
        sys.stderr.write(f"{line}\n")
        return _EXIT_CODE

    from holdfast.cli.main import main as run

    return run()
