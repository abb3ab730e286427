"""Reads the values of a mapping with their types, within bounds, and says which one is wrong."""

from collections.abc import Mapping
from typing import Any


class AccessPolicyError(ValueError):
    """A policy that cannot be used. `field` is where in it, `limit` what is allowed there."""

    def __init__(self, field: str, limit: str, problem: str = "") -> None:
        where = f"{field} of the access rules" if field else "the access rules"
        super().__init__(f"Expected {where} to be {limit}{problem and f', but {problem}'}.")
        self.field = field
        self.limit = limit


def table(value: object, field: str, items_max: int) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise AccessPolicyError(field, "a table")
    if len(value) > items_max:
        raise AccessPolicyError(field, f"a table with at most {items_max} entries", f"it has {len(value)}")
    return value


def text(value: object, field: str, chars_max: int) -> str:
    if not isinstance(value, str) or not value or len(value) > chars_max:
        raise AccessPolicyError(field, f"a text of 1 to {chars_max} characters")
    return value


def texts(value: object, field: str, items_max: int, chars_max: int) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or len(value) > items_max:
        raise AccessPolicyError(field, f"a list of at most {items_max} texts")
    return tuple(text(item, f"{field}[{index}]", chars_max) for index, item in enumerate(value))


def whole(value: object, field: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise AccessPolicyError(field, f"a whole number from {low} to {high}")
    return value


def no_others(values: Mapping[str, Any], known: tuple[str, ...], within: str = "") -> None:
    """What is not known may be meant to forbid something: it is refused, not passed over."""
    for key in values:
        if key not in known:
            field = f"{within}.{key}" if within else key
            raise AccessPolicyError(field, f"one of {', '.join(known)}", "there is no such key")
