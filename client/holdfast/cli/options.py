"""Values of options as people write them: numbers within limits, one of several words, what a tenant may do.

Each function parses a text and raises ValueError with a sentence if it is wrong.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from holdfast.cli import times
from holdfast.client import TenantPolicy
from holdfast.client.models import Choice

T = TypeVar("T")
ChoiceT = TypeVar("ChoiceT", bound=Choice)

CAP_MAX = 1_000_000  # of a cap on concurrency, and of a burst
WEIGHT_MAX = 100

_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)\s*(B|KB|MB|GB)")
_SIZE_UNITS = {"B": 1, "KB": 1_000, "MB": 1_000_000, "GB": 1_000_000_000}
_TENANT_EXAMPLE = "acme:weight=3,concurrency=5,rate=10/s,burst=20"


def whole(low: int, high: int) -> Callable[[str], int]:
    """Parses whole numbers.

    >>> whole(1, 100)("42")
    42
    """

    def parse(text: str) -> int:
        digits = text.strip()
        # No more digits than any limit has: a number of a million digits would take long to read.
        number = int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else None
        if number is None or not low <= number <= high:
            raise ValueError(f"Expected a whole number from {low} to {high}, but got {text!r}.")
        return number

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """Parses numbers that may have a fraction.

    >>> number(0, 1)("0.25")
    0.25
    """

    def parse(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = math.nan
        if not low <= found <= high:  # also for what is no number
            raise ValueError(f"Expected a number from {low:g} to {high:g}, but got {text!r}.")
        return found

    return parse


def size_bytes(text: str) -> int:
    """Parses sizes; units count by thousands.

    >>> size_bytes("20MB"), size_bytes("500 kb")
    (20000000, 500000)
    """
    found = _SIZE.fullmatch(text.strip().upper())
    size = int(float(found[1]) * _SIZE_UNITS[found[2]]) if found is not None else 0
    if size < 1:
        raise ValueError(f"Expected a size such as 500KB, 20MB or 1GB, but got {text!r}.")
    return size


def some_text(text: str) -> str:
    """Refuses the empty text, which a shell makes of a variable that is not set.

    >>> some_text("acme")
    'acme'
    """
    if not text:
        raise ValueError("Expected a text, but it is empty: leave the option out if there is none.")
    return text


def one_of(kinds: type[ChoiceT]) -> Callable[[str], ChoiceT]:
    """Parses one of several words.

    >>> from holdfast.client import RetryShape
    >>> one_of(RetryShape)("linear")
    <RetryShape.LINEAR: 'LINEAR'>
    """

    def parse(text: str) -> ChoiceT:
        words = {word(kind): kind for kind in kinds if kind.name != "UNKNOWN"}
        found = words.get(text.strip().lower().replace("_", "-"))
        if found is None:
            raise ValueError(f"Expected one of {', '.join(words)}, but got {text!r}.")
        return found

    return parse


def word(choice: Choice) -> str:
    """How a choice is written: while-waiting."""
    return choice.lower().replace("_", "-")


def words(kinds: type[Choice]) -> str:
    """All choices, as the help of an option has them: none|one|all."""
    return "|".join(word(kind) for kind in kinds if kind.name != "UNKNOWN")


def tenant(text: str) -> TenantPolicy:
    """What one tenant has in its own way.

    >>> tenant("acme:weight=3,rate=90/m")
    TenantPolicy(tenant='acme', weight=3, concurrency_max=None, rate_per_second=1.5, rate_burst=None)
    """
    name, _, settings = text.rpartition(":")
    if not name or not settings.strip():
        raise ValueError(f"Expected NAME:SETTING,… such as {_TENANT_EXAMPLE}, but got {text!r}.")
    given: dict[str, str] = {}
    for part in settings.split(","):
        key, equals, value = part.strip().partition("=")
        if key not in ("weight", "concurrency", "rate", "burst") or not equals or key in given:
            raise ValueError(
                f"Expected weight=, concurrency=, rate= and burst=, each once, but got {part!r} of {name!r}."
            )
        given[key] = value
    return TenantPolicy(
        name,
        weight=_value(given, "weight", whole(1, WEIGHT_MAX)),
        concurrency_max=_value(given, "concurrency", whole(1, CAP_MAX)),
        rate_per_second=_value(given, "rate", times.rate_per_second),
        rate_burst=_value(given, "burst", whole(1, CAP_MAX)),
    )


def _value(given: Mapping[str, str], key: str, parse: Callable[[str], T]) -> T | None:
    if key not in given:
        return None
    try:
        return parse(given[key])
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None


def shown_tenant(policy: TenantPolicy) -> str:
    """As it is written.

    >>> shown_tenant(TenantPolicy("acme", weight=3, rate_per_second=1.5))
    'acme:weight=3,rate=90/m'
    """
    parts = [
        ("weight", policy.weight),
        ("concurrency", policy.concurrency_max),
        ("rate", None if policy.rate_per_second is None else times.shown_rate(policy.rate_per_second)),
        ("burst", policy.rate_burst),
    ]
    return f"{policy.tenant}:{','.join(f'{key}={value}' for key, value in parts if value is not None)}"
