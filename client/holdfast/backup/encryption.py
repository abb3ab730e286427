"""Files that only the holder of a key can read, and nobody else can change unnoticed.

    file       "HFE1", salt (16 bytes), then chunks
    chunk      up to 1 MiB of content, and the 16 bytes of AES-GCM that prove it

Each file has a key of its own, drawn from the key and its salt, so the number of a chunk can be its nonce. The last
chunk is marked in its nonce: that a file was cut, or its chunks exchanged, is noticed like any other change.
"""

import hashlib
import hmac
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from holdfast.backup.errors import DAMAGED, KEY, MISSING_EXTRA, BackupError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

CHUNK_BYTES = 1024 * 1024
KEY_BYTES = 32

_MAGIC = b"HFE1"
_SALT_BYTES = 16
_TAG_BYTES = 16
_HEX_KEY = re.compile(rb"\s*([0-9a-fA-F]{64})\s*")
_MAKE_ONE = "Make one with `openssl rand -hex 32 > backup.key`, and keep it apart from the backups."


def read_key(path: Path) -> "Cipher":
    """A file of 64 hex digits, or of 32 bytes."""
    try:
        data = path.read_bytes()[:1024]
    except OSError as error:
        raise BackupError(KEY, f"The key {path} cannot be read: {error.strerror}.", _MAKE_ONE) from error
    digits = _HEX_KEY.fullmatch(data)
    key = bytes.fromhex(digits[1].decode()) if digits is not None else data
    if len(key) != KEY_BYTES:
        raise BackupError(KEY, f"Expected a key of 64 hex digits or 32 bytes in {path}, but it is not.", _MAKE_ONE)
    return Cipher(key)


class Cipher:
    def __init__(self, key: bytes) -> None:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError as error:
            raise BackupError(
                MISSING_EXTRA, "Encrypted backups need the package 'cryptography', which is missing: run  "
                "pip install 'holdfast-queue[backup]'",
            ) from error  # fmt: skip
        self._aead = AESGCM
        self._key = key
        self.key_id = _derived(key, b"id").hex()[:16]
        self.manifest_key = _derived(key, b"manifest")
        self._address_key = _derived(key, b"address")

    def address(self, sha256: str) -> str:
        """Where the file with this digest is: who cannot read it does not learn what is in it either."""
        return hmac.digest(self._address_key, bytes.fromhex(sha256), "sha256").hex() + ".enc"

    def encrypting(self, file: BinaryIO) -> "Encrypting":
        salt = secrets.token_bytes(_SALT_BYTES)
        file.write(_MAGIC + salt)
        return Encrypting(file, self._aead(_derived(self._key, b"file" + salt)))

    def decrypted(self, file: BinaryIO, name: str) -> Iterator[bytes]:
        """Nothing of a chunk that is not as it was written."""
        from cryptography.exceptions import InvalidTag

        head = file.read(len(_MAGIC) + _SALT_BYTES)
        if len(head) != len(_MAGIC) + _SALT_BYTES or not head.startswith(_MAGIC):
            raise BackupError(DAMAGED, f"The file {name} is damaged: it does not begin like an encrypted one.")
        aead = self._aead(_derived(self._key, b"file" + head[len(_MAGIC) :]))
        number, chunk = 0, _read(file)
        while True:
            following = _read(file)
            try:
                yield aead.decrypt(_nonce(number, is_last=not following), chunk, None)
            except InvalidTag:
                raise BackupError(
                    DAMAGED, f"The file {name} is damaged: chunk {number} is not what was written with this key."
                ) from None  # fmt: skip
            if not following:
                return
            number, chunk = number + 1, following


class Encrypting:
    """Writes what it is given, in chunks; the last one, which may be empty, with `finish`."""

    def __init__(self, file: BinaryIO, aead: "AESGCM") -> None:
        self._file = file
        self._aead = aead
        self._buffer = bytearray()
        self._number = 0

    def write(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) > CHUNK_BYTES:  # never the last: that is known only at the end
            self._put(bytes(self._buffer[:CHUNK_BYTES]), is_last=False)
            del self._buffer[:CHUNK_BYTES]

    def finish(self) -> None:
        self._put(bytes(self._buffer), is_last=True)

    def _put(self, chunk: bytes, *, is_last: bool) -> None:
        self._file.write(self._aead.encrypt(_nonce(self._number, is_last=is_last), chunk, None))
        self._number += 1


def _read(file: BinaryIO) -> bytes:
    """A chunk as it is stored. Objects may come in smaller pieces than were asked for."""
    parts, wanted = [], CHUNK_BYTES + _TAG_BYTES
    while wanted and (part := file.read(wanted)):
        parts.append(part)
        wanted -= len(part)
    return b"".join(parts)


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(11, "big") + bytes([is_last])


def _derived(key: bytes, purpose: bytes) -> bytes:
    """HKDF (RFC 5869) of one block: the key is drawn evenly, so its first step adds nothing."""
    return hmac.digest(key, b"holdfast backup " + purpose + b"\x01", hashlib.sha256)
