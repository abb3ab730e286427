"""Messages that only holders of a key can read or make: AES-GCM with a key of its own for each message.

    salt (12 bytes), nonce (12 bytes), ciphertext, tag (16 bytes)

The key of a message is drawn from the key and the salt, so that salt and nonce together are what must not come twice:
24 random bytes, enough for more messages than will ever be sent, by any number of processes that share a key and know
nothing of each other. Where the same must look the same they are drawn from the key and all that is encrypted.
"""

import hashlib
import hmac
import secrets

from holdfast.client.errors import InvalidArgument

KEY_BYTES = 32
_SALT_BYTES = 12
_NONCE_BYTES = 12
_HEAD_BYTES = _SALT_BYTES + _NONCE_BYTES

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
except ImportError:
    _IS_THERE = False
else:
    _IS_THERE = True


def check_installed() -> None:
    if not _IS_THERE:
        raise InvalidArgument(
            "Keys of a codec need the package 'cryptography', which is missing: run  pip install cryptography",
            reason="INVALID_FIELD",
            field="codec.keys",
        )


def seal(key: bytes, data: bytes, bound: bytes, once: str = "") -> bytes:
    """`bound`: what must be the same when it is opened. `once`: the same data with the same of these is sealed to the
    same, which tells whoever sees both that they are; empty: nothing is ever sealed to the same."""
    head = _drawn_head(key, data, bound, once) if once else secrets.token_bytes(_HEAD_BYTES)
    return head + AESGCM(_message_key(key, head)).encrypt(head[_SALT_BYTES:], data, bound)


def open_sealed(key: bytes, sealed: bytes, bound: bytes) -> bytes | None:
    """None if this is not what was sealed with this key and this bound."""
    head = sealed[:_HEAD_BYTES]
    if len(head) < _HEAD_BYTES:
        return None
    try:
        return AESGCM(_message_key(key, head)).decrypt(head[_SALT_BYTES:], sealed[_HEAD_BYTES:], bound)
    except InvalidTag:
        return None


def _drawn_head(key: bytes, data: bytes, bound: bytes, once: str) -> bytes:
    digests = (hashlib.sha256(part).digest() for part in (bound, once.encode(errors="replace"), data))
    return hmac.digest(key, b"holdfast once" + b"".join(digests), "sha256")[:_HEAD_BYTES]


def _message_key(key: bytes, head: bytes) -> bytes:
    """HKDF (RFC 5869) of one block: the key is drawn evenly, so its first step adds nothing."""
    return hmac.digest(key, b"holdfast payload" + head[:_SALT_BYTES] + b"\x01", "sha256")
