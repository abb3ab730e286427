"""Tokens: `hft_<id>_<secret>`. The id finds what is known of a token; of the secret only a salted hash is kept.

A secret has 256 random bits, so one hash of it is as good as many: nobody can guess what it was made of.
"""

import hashlib
import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

TOKEN_CHARS_MAX: Final = 8192  # of whatever comes as a token: a JWT may be long

_ID_BYTES = 8
_SECRET_BYTES = 32
_SALT_BYTES = 16
_TOKEN = re.compile(r"hft_([0-9a-f]{16})_([0-9a-f]{64})")
_HASH = re.compile(r"sha256:([0-9a-f]{32}):([0-9a-f]{64})")
TOKEN_ID: Final = re.compile(r"[0-9a-f]{16}")

Draw = Callable[[int], bytes]  # so many random bytes


@dataclass(frozen=True, slots=True)
class NewToken:
    """One that was just made. The text is shown once, to whoever asked for it."""

    token_id: str
    text: str
    hash: str

    def __repr__(self) -> str:
        return f"NewToken({self.token_id})"


def make_token(draw: Draw) -> NewToken:
    """`draw`: `secrets.token_bytes`."""
    token_id, secret = draw(_ID_BYTES).hex(), draw(_SECRET_BYTES).hex()
    return NewToken(token_id, f"hft_{token_id}_{secret}", hash_of(secret, draw(_SALT_BYTES)))


def hash_of(secret: str, salt: bytes) -> str:
    return f"sha256:{salt.hex()}:{hashlib.sha256(salt + secret.encode()).hexdigest()}"


def is_hash(text: str) -> bool:
    return _HASH.fullmatch(text) is not None


def split_token(text: str) -> tuple[str, str] | None:
    """Id and secret; None if it is no token of Holdfast."""
    found = _TOKEN.fullmatch(text)
    return (found[1], found[2]) if found else None


def is_secret_of(secret: str, hashed: str) -> bool:
    """In a time that says nothing of how much of it is right."""
    found = _HASH.fullmatch(hashed)
    if found is None:
        return False
    return hmac.compare_digest(hash_of(secret, bytes.fromhex(found[1])), hashed)
