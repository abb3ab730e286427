"""What every codec promises of bytes that nobody has encoded."""

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st


def refused_or_exact(
    data: bytes, decode: Callable[[bytes], Any], encode: Callable[[Any], bytes], error: type[Exception]
) -> Any:
    """What they say, which is encoded as exactly these bytes; None if they are refused."""
    try:
        value = decode(data)
    except error:
        return None
    assert encode(value) == data
    return value


def with_another_byte(whole: bytes, data: st.DataObject) -> bytes:
    changed = bytearray(whole)
    changed[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    return bytes(changed)
