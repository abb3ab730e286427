"""How a server that does not start says why, and the codes with which its process ends."""

import json
import sys
from typing import Final

from holdfast.serving.settings import ConfigError

EXIT_OK: Final = 0
EXIT_FAILED: Final = 1
EXIT_REFUSED: Final = 2


def refuse(reason: str, message: str, exit_code: int, *, as_json: bool) -> int:
    """Says why it does not run; for programs in the form in which every command tells what went wrong."""
    if as_json:
        error = {"reason": reason, "message": message, "hint": "", "field": "", "retry_after_ms": 0}
        message = json.dumps({"error": error, "exit_code": exit_code}, separators=(",", ":"))
    sys.stderr.write(message + "\n")
    sys.stderr.flush()
    return exit_code


def refuse_configuration(error: ConfigError, *, as_json: bool) -> int:
    message = f"The configuration was refused: {'; '.join(error.problems)}" if as_json else str(error)
    return refuse("CONFIGURATION_REFUSED", message, EXIT_REFUSED, as_json=as_json)
