"""The form of payloads and results that a codec has changed. It says itself what was done, so that nothing has to be
agreed on but the keys.

    "\\xffHF1"          it begins like this; 1 is the version of the form
    flags (1 byte)     1: compressed with zlib; 2: encrypted
    encrypted:         length of the key's id (1 byte), the id, the message (`_aead`)
    not encrypted:     the data

What does not begin like this is as somebody without a codec has sent it: no JSON and no text in UTF-8 does. A text that
is encrypted, as of errors, is the same in base64 behind "hf-sealed:".
"""

import base64
import zlib
from dataclasses import dataclass

MAGIC = b"\xffHF"
_VERSION = b"1"
_BEGINNING = MAGIC + _VERSION
_COMPRESSED = 1
_ENCRYPTED = 2
KEY_ID_BYTES_MAX = 64
DECODED_BYTES_MAX = 64 * 1024 * 1024  # a few bytes can claim to be many
_SEALED_TEXT = "hf-sealed:"
_LEVEL = 3  # JSON is hardly smaller with more


class MalformedError(Exception):
    """Why this cannot be read, to be said behind "it"."""


@dataclass(frozen=True, slots=True)
class Coded:
    """What one of these says about itself."""

    head: bytes  # all before the body
    body: bytes
    is_compressed: bool
    key_id: str | None  # None: it is not encrypted


def is_coded(data: bytes) -> bool:
    return data.startswith(MAGIC)


def head_of(key_id: str | None, *, is_compressed: bool) -> bytes:
    flags = _COMPRESSED * is_compressed
    if key_id is None:
        return _BEGINNING + bytes([flags])
    name = key_id.encode("ascii")
    return _BEGINNING + bytes([flags | _ENCRYPTED, len(name)]) + name


def parse(data: bytes) -> Coded:
    """Raises MalformedError."""
    if data[len(MAGIC) : len(_BEGINNING)] != _VERSION:
        raise MalformedError("has a form that only a newer version of Holdfast knows")
    if len(data) <= len(_BEGINNING):
        raise MalformedError("ends too early")
    flags, at = data[len(_BEGINNING)], len(_BEGINNING) + 1
    if flags & ~(_COMPRESSED | _ENCRYPTED):
        raise MalformedError("has a form that only a newer version of Holdfast knows")
    key_id = None
    if flags & _ENCRYPTED:
        size = data[at] if len(data) > at else 0
        name = data[at + 1 : at + 1 + size]
        if not 0 < len(name) == size <= KEY_ID_BYTES_MAX or not is_key_id(name.decode("latin-1")):
            raise MalformedError("names no key")
        key_id, at = name.decode("ascii"), at + 1 + size
    return Coded(data[:at], data[at:], bool(flags & _COMPRESSED), key_id)


def is_key_id(text: str) -> bool:
    return 0 < len(text) <= KEY_ID_BYTES_MAX and text.isascii() and all(c.isalnum() or c in "._-" for c in text)


def compressed(data: bytes) -> bytes | None:
    """None if that would not make it smaller."""
    smaller = zlib.compress(data, _LEVEL)
    return smaller if len(smaller) < len(data) else None


def decompressed(data: bytes) -> bytes:
    """Raises MalformedError."""
    reader = zlib.decompressobj()
    try:
        found = reader.decompress(data, DECODED_BYTES_MAX)
    except zlib.error:
        raise MalformedError("cannot be decompressed") from None
    if not reader.eof:
        is_too_large = len(found) == DECODED_BYTES_MAX
        raise MalformedError(f"has more than {DECODED_BYTES_MAX} bytes" if is_too_large else "ends too early")
    return found


def sealed_text(data: bytes) -> str:
    return _SEALED_TEXT + base64.b64encode(data).decode("ascii")


def is_sealed_text(text: str) -> bool:
    return text.startswith(_SEALED_TEXT)


def data_of(text: str) -> bytes | None:
    """None if it was cut, or is no sealed text."""
    try:
        return base64.b64decode(text.removeprefix(_SEALED_TEXT), validate=True)
    except ValueError:
        return None


def description(data: bytes) -> str | None:
    """For those who look at it without its key; None if no codec has changed it."""
    if not is_coded(data):
        return None
    try:
        coded = parse(data)
    except MalformedError as error:
        return f"changed by a codec; it {error}"
    if coded.key_id is None:
        return "compressed" if coded.is_compressed else "as it is"
    return f"encrypted with key {coded.key_id}"
