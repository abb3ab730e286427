"""For whom a router calls: an identity in the metadata of a call, sealed with a secret that routers and brokers share.

    holdfast-caller   base64(JSON of cluster, until, kind, name, subjects) "." base64(HMAC-SHA-256 of that text)

A word counts for a cluster and a few minutes. Without a secret the seal is left out: a broker believes such a word over
a connection whose certificate the access rules call a router.
"""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from holdfast.access.identities import SUBJECT_CHARS_MAX, SUBJECTS_MAX, Identity

LIFETIME_S: Final = 300  # clocks of routers and brokers may differ by about half of that
RENEWED_S: Final = 60  # texts are told apart by brokers, and remembered: a new one for each call would help nobody
SECRET_BYTES_MIN: Final = 32
SECRET_BYTES_MAX: Final = 1024
_WORDS_MAX: Final = 4096
_WORD_CHARS_MAX: Final = 7 * 1024
_KINDS: Final = ("token", "certificate", "jwt", "node", "router", "anonymous")
_LABEL: Final = b"holdfast caller\0"


class RouterSecretError(Exception):
    """The secret cannot be read, or is none."""


class RouterSecret:
    """Shows itself to nobody."""

    __slots__ = ("_key",)

    def __init__(self, secret: bytes) -> None:
        if not SECRET_BYTES_MIN <= len(secret) <= SECRET_BYTES_MAX:
            raise RouterSecretError(
                f"Expected a secret of {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} bytes for routers, but it has "
                f"{len(secret)}; `openssl rand -hex 32` makes one."
            )
        self._key = hashlib.sha256(_LABEL + secret).digest()

    @classmethod
    def read(cls, path: Path) -> "RouterSecret":
        """From a file; white space around it does not count. Blocks."""
        try:
            with open(path, "rb") as file:
                secret = file.read(2 * SECRET_BYTES_MAX).strip()
        except OSError as error:
            raise RouterSecretError(
                f"Expected the secret of routers in {path}, but it cannot be read: {error.strerror or error}."
            ) from error
        try:
            return cls(secret)
        except RouterSecretError as error:
            raise RouterSecretError(f"{path}: {error}") from None

    def seal(self, text: str) -> str:
        return _encode(hmac.digest(self._key, text.encode(), "sha256"))


def read_secret(path: Path | None) -> RouterSecret | None:
    """None: there is none. Raises RouterSecretError. Blocks."""
    return None if path is None else RouterSecret.read(path)


class BadWordError(Exception):
    """Nobody is to be believed because of it; why, in a few words."""


class RouterWords:
    """Makes words, and reads those of others."""

    def __init__(
        self, secret: RouterSecret | None, cluster_id: Callable[[], str], now_s: Callable[[], float] = time.time
    ) -> None:
        self._secret = secret
        self._cluster_id = cluster_id
        self._now_s = now_s
        self._made: dict[tuple[str, Identity], tuple[str, float]] = {}  # and until when it is used

    @property
    def is_sealed(self) -> bool:
        return self._secret is not None

    def word(self, identity: Identity) -> str:
        """The same text for a minute: whoever reads it remembers it."""
        now_s, cluster_id = self._now_s(), self._cluster_id()
        key = cluster_id, identity
        found = self._made.get(key)
        if found is not None and now_s < found[1]:
            return found[0]
        if len(self._made) >= _WORDS_MAX:
            self._made.clear()
        text = self._make(identity, cluster_id, now_s)
        self._made[key] = text, now_s + RENEWED_S
        return text

    def _make(self, identity: Identity, cluster_id: str, now_s: float) -> str:
        said = [cluster_id, int(now_s + LIFETIME_S), identity.kind, identity.name, list(identity.subjects)]
        text = _encode(json.dumps(said, separators=(",", ":")).encode())
        return f"{text}.{self._secret.seal(text) if self._secret is not None else ''}"

    def read(self, word: str, *, is_from_router: bool) -> tuple[Identity, float]:
        """The identity, and until when it counts. `is_from_router`: the connection is known to be a router's. Raises
        BadWordError."""
        text, _, seal = word.partition(".")
        if len(word) > _WORD_CHARS_MAX:
            raise BadWordError("it is too long")
        is_sealed = (
            self._secret is not None and seal and hmac.compare_digest(seal.encode(), self._secret.seal(text).encode())
        )
        if not is_sealed and not is_from_router:
            raise BadWordError("it is not sealed with the secret of this server")
        cluster_id, until_s, identity = _read(text)
        if cluster_id != self._cluster_id():
            raise BadWordError("it is of another cluster")
        if not self._now_s() < until_s <= self._now_s() + 2 * LIFETIME_S:
            raise BadWordError("its time is over; compare the clocks of this server and of the router")
        return identity, until_s


def _read(text: str) -> tuple[str, float, Identity]:
    try:
        cluster_id, until_s, kind, name, subjects = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    except (ValueError, TypeError, RecursionError):
        raise BadWordError("it cannot be read") from None
    is_good = (
        isinstance(cluster_id, str)
        and isinstance(until_s, int)
        and kind in _KINDS
        and isinstance(name, str)
        and len(name) <= SUBJECT_CHARS_MAX
        and isinstance(subjects, list)
        and len(subjects) <= SUBJECTS_MAX
        and all(isinstance(subject, str) and len(subject) <= SUBJECT_CHARS_MAX for subject in subjects)
    )
    if not is_good:
        raise BadWordError("it cannot be read")
    return cluster_id, until_s, Identity(name, kind, tuple(subjects))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
