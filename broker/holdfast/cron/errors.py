"""What is wrong with a timetable that somebody wrote."""

from typing import Literal

Field = Literal["expression", "zone"]

_GIVEN_CHARS_MAX = 40


class CronError(ValueError):
    """A sentence for whoever wrote it, and which of the two arguments it is about."""

    def __init__(self, sentence: str, field: Field = "expression") -> None:
        super().__init__(sentence)
        self.field = field


def quoted(given: str) -> str:
    """What was given, as it goes into a sentence: on one line, and not the whole of a long one."""
    return repr(given if len(given) <= _GIVEN_CHARS_MAX else given[: _GIVEN_CHARS_MAX - 1] + "…")
