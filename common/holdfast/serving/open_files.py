"""How many files this process may have open, and how many of them may be connections.

Whoever reaches a port can open connections until there is no descriptor left. Then a state can neither be read nor
written, and the node has to stop. So every listener has a bound, and together they leave enough for what is on disk.
"""

import resource

OPEN_FILES_WANTED = 65_536
OTHER_FILES = 256  # logs, the connections of operators, other nodes and etcd: each bounded by itself
CONNECTIONS_MIN = 32
STATE_FILES_MIN = 32
STATE_FILES_MAX = 512


def allow_many_files() -> int:
    """Raises the limit as far as the system lets everybody do, and returns it.

    The usual 1,024 protect programs that wait with `select`, which this one does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return soft if soft != resource.RLIM_INFINITY else OPEN_FILES_WANTED
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):  # some systems have a lower limit than they say
        return soft
    return wanted


def connections_allowed(wanted: int, open_files: int, *, with_states: bool, ports: int = 1) -> int:
    """How many callers may be connected to each of so many ports: half of what is left belongs to the states, if there
    are any."""
    left = open_files - OTHER_FILES
    return max(CONNECTIONS_MIN, min(wanted, (left // 2 if with_states else left) // ports))


def files_per_state(states: int, open_files: int) -> int:
    """How many files each of so many states may keep open; it opens others again as it needs them."""
    share = (open_files - OTHER_FILES) // 2 // max(1, states)
    return max(STATE_FILES_MIN, min(STATE_FILES_MAX, share))
