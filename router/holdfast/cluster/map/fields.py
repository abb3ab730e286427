"""Reads the fields of a JSON object with their types, and says which one is wrong."""

import json
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import TypeVar

T = TypeVar("T")

_INT_MAX = 2**64 - 1


class RecordError(Exception):
    """A record that cannot be read. `field` is empty if it is no JSON object at all."""

    def __init__(self, key: str, field: str, problem: str) -> None:
        where = f"{field} of the record {key}" if field else f"the record {key}"
        super().__init__(f"Expected {where} to be {problem}, but it is not.")
        self.key = key
        self.field = field


class Fields:
    """One JSON object. Fields that nobody asks for are passed over: a newer version may have written them."""

    def __init__(self, key: str, values: object, within: str = "") -> None:
        if not isinstance(values, dict):
            raise RecordError(key, within.rstrip("."), "a JSON object")
        self.key = key
        self._values: Mapping[str, object] = values
        self._within = within

    @classmethod
    def parse(cls, key: str, value: bytes) -> "Fields":
        try:
            return cls(key, json.loads(value))
        except (ValueError, RecursionError):
            raise RecordError(key, "", "a JSON object") from None

    def wrong(self, name: str, expected: str) -> RecordError:
        return RecordError(self.key, self._within + name, expected)

    def has(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str, default: str | None = None) -> str:
        value = self._values.get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, "a text")
        return value

    def flag(self, name: str) -> bool:
        value = self._values.get(name)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def whole(self, name: str, low: int = 0, high: int = _INT_MAX, default: int | None = None) -> int:
        return self._whole(self._values.get(name, default), name, low, high)

    def number(self, name: str) -> float:
        value = self._values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
            raise self.wrong(name, "a number")
        return float(value)

    def texts(self, name: str) -> tuple[str, ...]:
        found = self._list(name)
        for text in found:
            if not isinstance(text, str):
                raise self.wrong(name, "a list of texts")
        return tuple(found)  # type: ignore[arg-type]  # checked above

    def wholes(self, name: str, low: int = 0, high: int = _INT_MAX) -> tuple[int, ...]:
        return tuple(self._whole(number, name, low, high) for number in self._list(name))

    def inner(self, name: str) -> "Fields":
        return Fields(self.key, self._values.get(name), f"{self._within}{name}.")

    def inners(self, name: str) -> list["Fields"]:
        return [Fields(self.key, inner, f"{self._within}{name}.") for inner in self._list(name)]

    def pairs(self, name: str, make: Callable[["Fields", object, object], T]) -> tuple[T, ...]:
        """A list of lists of two."""
        found = []
        for pair in self._list(name):
            if not isinstance(pair, list) or len(pair) != 2:
                raise self.wrong(name, "a list of pairs")
            found.append(make(self, *pair))
        return tuple(found)

    def triples(self, name: str) -> Iterator[tuple[str, int, str]]:
        """A list of lists of a text, a number and a text."""
        for triple in self._list(name):
            if isinstance(triple, list) and len(triple) == 3:
                first, number, last = triple
                if isinstance(first, str) and isinstance(number, int) and isinstance(last, str):
                    yield first, number, last
                    continue
            raise self.wrong(name, "a list of a text, a number and a text each")

    def names(self) -> list[str]:
        return list(self._values)

    def _list(self, name: str) -> list[object]:
        value = self._values.get(name)
        if not isinstance(value, list):
            raise self.wrong(name, "a list")
        return value

    def _whole(self, value: object, name: str, low: int, high: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.wrong(name, f"a whole number from {low} to {high}")
        return value


def encode(values: Mapping[str, object]) -> bytes:
    """The same bytes for the same values."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
