"""Who uses this library, for records of what was done by whom."""

import getpass
import os
import socket

_BYTES_MAX = 256


def whoever_this_is() -> str:
    """user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name, as in some containers
        user = f"uid-{os.getuid()}" if hasattr(os, "getuid") else "somebody"
    name = f"{user}@{socket.gethostname()}"
    return name.encode(errors="replace")[:_BYTES_MAX].decode(errors="ignore")
