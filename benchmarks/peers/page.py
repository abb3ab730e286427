"""The parts of a page that are measured: each is between two comments, and is written anew as a whole."""

import re
from collections.abc import Mapping

NOTHING = "Not measured yet."
_PART = re.compile(r"(?P<begin><!-- measured: (?P<name>[a-z-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def split(text: str) -> list[str]:
    return [found["name"] for found in _PART.finditer(text)]


def fill(text: str, parts: Mapping[str, str]) -> str:
    """The page with these parts. One that has no place in it, or is missing, is an error."""
    named = split(text)
    if sorted(named) != sorted(parts):
        raise ValueError(f"expected a page with the parts {sorted(parts)}, but it has {sorted(named)}")
    return _PART.sub(lambda found: f"{found['begin']}\n{parts[found['name']].strip()}\n\n{found['end']}", text)
