"""A secret that all nodes of a cluster know, and how each of them proves it without telling it. Pure but for the nonce.

    proof   HMAC-SHA-256 under the secret, of a label, the prover's side, the preface, both hellos, with their lengths

A hello names cluster, node and receiver and has a fresh nonce, so a proof counts for one connection between two nodes,
in one direction, in one version of the protocol. What was recorded on another connection proves nothing. The node that
dials proves itself first: whoever only dials learns nothing that depends on the secret.

A proof tells who connects. It neither hides nor seals what follows: where others can read or change what nodes send
each other, use TLS (tls.py).
"""

import hmac
import secrets
from pathlib import Path
from struct import Struct
from typing import Final

from holdfast.broker.peers.words import PREFACE, Hello, encode_word

NONCE_BYTES: Final = 32
SECRET_BYTES_MIN: Final = 32
SECRET_BYTES_MAX: Final = 1024

DIALLING: Final = b"dialling"
DIALLED: Final = b"dialled"

_LABEL: Final = b"holdfast peers\0"
_LENGTH: Final = Struct(">I")


class ClusterSecretError(Exception):
    """The secret cannot be read, or is none."""


class ClusterSecret:
    """Shows itself to nobody."""

    __slots__ = ("_secret",)

    def __init__(self, secret: bytes) -> None:
        if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
            raise ClusterSecretError(
                f"Expected a cluster secret of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes, but it has "
                f"{len(secret)}; `openssl rand -hex 32` makes one."
            )
        self._secret = secret

    @classmethod
    def read(cls, path: Path) -> "ClusterSecret":
        """From a file; white space around it does not count. Blocks."""
        try:
            with open(path, "rb") as file:
                secret = file.read(2 * SECRET_BYTES_MAX).strip()
        except OSError as error:
            raise ClusterSecretError(
                f"Expected the cluster secret in {path}, but it cannot be read: {error.strerror or error}."
            ) from error
        try:
            return cls(secret)
        except ClusterSecretError as error:
            raise ClusterSecretError(f"{path}: {error}") from None

    def proof(self, side: bytes, dialling: Hello, dialled: Hello) -> bytes:
        """What the node on this side (DIALLING or DIALLED) says to show that it knows the secret."""
        parts = [_LABEL]
        for part in (side, PREFACE, encode_word(dialling), encode_word(dialled)):
            parts += (_LENGTH.pack(len(part)), part)
        return hmac.digest(self._secret, b"".join(parts), "sha256")

    def is_proof(self, proof: bytes, side: bytes, dialling: Hello, dialled: Hello) -> bool:
        """In a time that tells nothing."""
        return hmac.compare_digest(proof, self.proof(side, dialling, dialled))


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)
