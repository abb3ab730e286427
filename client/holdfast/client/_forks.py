"""What a fork leaves of gRPC: nothing that works, if it was in use at that moment.

A child has none of its parent's threads. gRPC's asyncio side has one thread that fetches all results; in a child
that inherits it as a mere memory, every call, also of a new client, would wait for ever. Here it is an error instead.
"""

import glob
import os
import threading
import time
from pathlib import Path

from holdfast.client.errors import ClientForked

# gRPC's own handlers of forks do not know its asyncio side: now and then they crash the child, whatever it does.
# Heeded only if gRPC is imported after this.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

# Longer only if the program has other uses for gRPC, and then in vain.
_SETTLE_S_MAX = 0.25
_GRPC_THREADS = ("grpc", "event_engine", "lifeguard")

# When the present process was forked, or one that it descends from.
_broken = False
_in_use_at_fork = False


def check() -> None:
    """Raises `ClientForked` in a process in which gRPC cannot work any more."""
    if _broken:
        raise ClientForked


def in_use() -> bool:
    """Whether a fork now would leave the child with a gRPC that does not work."""
    # gRPC does not tell, but its thread has the name of the method that it runs.
    return any("_poll_wrapper" in thread.name for thread in threading.enumerate())


def settle() -> None:
    """To be called once no channel is left: gRPC then ends its threads by and by, and a fork before that is harmful."""
    ends_s = time.monotonic() + _SETTLE_S_MAX
    while _grpc_has_threads() and time.monotonic() < ends_s:
        time.sleep(0.001)  # they are not Python's, and tell nobody when they end


def _grpc_has_threads() -> bool:
    names = []
    for path in glob.glob("/proc/self/task/*/comm"):
        try:
            names.append(Path(path).read_text())
        except OSError:
            pass  # it has just ended
    return any(name.startswith(_GRPC_THREADS) for name in names)


def _before() -> None:
    global _in_use_at_fork
    _in_use_at_fork = in_use()


def _after_in_child() -> None:
    global _broken
    _broken = _broken or _in_use_at_fork


# Hooks before a fork run in reverse order: this one has the last word, because all others import this file.
os.register_at_fork(before=_before, after_in_child=_after_in_child)
