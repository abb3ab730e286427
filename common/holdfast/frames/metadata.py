"""What goes with a call beside its request: pairs of texts, as with gRPC. Few differ, so they are coded once."""

from functools import lru_cache

from holdfast.frames.codec import METADATA_BYTES_MAX, BrokenFrameError

Metadata = tuple[tuple[str, str], ...]

PAIRS_MAX = 64  # a pair takes two bytes on the wire, and sixty in memory

_END = b"\0"
_REMEMBERED = 2048


@lru_cache(_REMEMBERED)
def encode_metadata(metadata: Metadata) -> bytes:
    if len(metadata) > PAIRS_MAX:
        raise ValueError(f"expected at most {PAIRS_MAX} pairs of metadata, but got {len(metadata)}")
    texts = [text for pair in metadata for text in pair]
    if any("\0" in text for text in texts):
        raise ValueError("expected metadata without NUL characters")
    encoded = b"".join(text.encode() + _END for text in texts)
    if len(encoded) > METADATA_BYTES_MAX:
        raise ValueError(f"expected at most {METADATA_BYTES_MAX} bytes of metadata, but got {len(encoded)}")
    return encoded


@lru_cache(_REMEMBERED)
def _decode_short(data: bytes) -> Metadata:
    return _decode(data)


_SHORT_BYTES = 256  # what is longer is not remembered: callers choose it


def decode_metadata(data: bytes) -> Metadata:
    """Raises BrokenFrameError."""
    if not data:
        return ()
    return _decode_short(data) if len(data) <= _SHORT_BYTES else _decode(data)


def _decode(data: bytes) -> Metadata:
    if data.count(_END) > 2 * PAIRS_MAX:
        raise BrokenFrameError(f"more than {PAIRS_MAX} pairs of metadata")
    try:
        texts = data.decode().split("\0")
    except UnicodeDecodeError:
        raise BrokenFrameError("metadata that is not UTF-8") from None
    if texts.pop() or len(texts) % 2:
        raise BrokenFrameError("metadata that does not consist of pairs")
    return tuple(zip(texts[::2], texts[1::2], strict=True))
