"""Checks of single fields: each refuses with the field and the limit. Pure."""

import re
from functools import lru_cache

from holdfast.serving.refusals import (
    BATCH_TOO_LARGE,
    INVALID_FIELD,
    MISSING_FIELD,
    OUT_OF_RANGE,
    TOO_LARGE,
    RefusedError,
)

ID_BYTES_MAX = 256

QUEUE_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def number(value: int, field: str, low: int, high: int) -> int:
    if not low <= value <= high:
        fraction(value, field, low, high)  # refuses
    return value


def fraction(value: float, field: str, low: float, high: float) -> None:
    """What is no number at all is not between any two."""
    if not low <= value <= high:
        raise RefusedError(
            OUT_OF_RANGE, f"Expected {{field}} from {low} to {high}, but got {value}.", field, f"{low}..{high}"
        )


def size(value: int, field: str, size_max: int, unit: str = "bytes") -> None:
    if value > size_max:
        raise RefusedError(
            TOO_LARGE, f"Expected {{field}} of at most {size_max} {unit}, but got {value}.", field, str(size_max)
        )


def text(value: str, field: str, bytes_max: int = ID_BYTES_MAX) -> bytes:
    """A text that may be empty; control characters would break logs, keys and terminals."""
    encoded = value.encode()
    if len(encoded) > bytes_max:
        size(len(encoded), field, bytes_max)  # refuses
    if _CONTROL.search(value):
        raise RefusedError(INVALID_FIELD, "Expected {field} without control characters, but it has some.", field)
    return encoded


name = lru_cache(maxsize=4096)(text)  # of what many tasks have in common


def batch(count: int, field: str, count_max: int) -> None:
    if not count:
        raise RefusedError(MISSING_FIELD, "Expected at least one item in {field}, but got none.", field)
    if count > count_max:
        raise RefusedError(
            BATCH_TOO_LARGE, f"Expected at most {count_max} items in {{field}}, but got {count}.", field, str(count_max)
        )
