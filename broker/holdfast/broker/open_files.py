"""How many files this process may have open: RocksDB has up to 512 of each shard, and every connection is one."""

import resource

OPEN_FILES_WANTED = 65_536


def allow_many_files() -> int:
    """Raises the limit as far as the system lets everybody do, and returns it.

    The usual 1,024 protect programs that wait with `select`, which this one does not. Without descriptors a state can
    neither be read nor written, and the node has to stop.
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
