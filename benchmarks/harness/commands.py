"""How a run was started, as its report says."""

import shlex
from collections.abc import Sequence

DATE_FORMAT = "%Y-%m-%d %H:%M UTC"
_REPORT = "--json"  # where a report goes has nothing to do with what is in it


def as_typed(target: str, argv: Sequence[str]) -> str:
    """The command of make that measures the same."""
    words: list[str] = []
    arguments = iter(argv)
    for word in arguments:
        if word == _REPORT:
            next(arguments, None)
        elif not word.startswith(f"{_REPORT}="):
            words.append(word)
    return f"make {target}" + (f' ARGS="{shlex.join(words)}"' if words else "")
