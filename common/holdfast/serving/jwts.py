"""JWTs: whether one is believed, and for whom. The only file that knows PyJWT.

Keys are read from a file or a URL, again every few minutes, and when a JWT names one that is not among them. They are
fetched in a thread, so whoever brings a new key first is asked to come again in a moment.
"""

import asyncio
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import jwt

from holdfast.access.identities import SUBJECTS_MAX, Identity, is_subject
from holdfast.access.policies import JwtRules
from holdfast.serving.logs import get_logger

KEYS_SECONDS: Final = 300.0  # keys are read again after so long
KEYS_AGAIN_SECONDS: Final = 10.0  # and not sooner than that, whatever JWTs name
LEEWAY_SECONDS: Final = 30  # by which clocks may differ
KEYS_BYTES_MAX: Final = 1024 * 1024
KEYS_MAX: Final = 100
FETCH_SECONDS: Final = 5.0

# Signatures with a public key: a shared one would make everybody who checks a JWT able to make one.
ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_CLAIM_TEXTS_MAX: Final = 256  # of one claim

_log = get_logger(__name__)


class BadJwtError(Exception):
    """It is not believed. `comes_again`: it may be in a moment."""

    def __init__(self, why: str, *, comes_again: bool = False) -> None:
        super().__init__(why)
        self.comes_again = comes_again


class Jwts:
    """Of one issuer."""

    def __init__(self, rules: JwtRules, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._rules = rules
        self._now_s = now_s
        self._keys: dict[str, Any] = {}  # by id
        self._read_s: float | None = None  # when they were, or when that was tried
        self._reading: asyncio.Task[None] | None = None
        self.problem = ""  # why the newest keys could not be read

    def verify(self, text: str, granted: Callable[[str], bool]) -> tuple[Identity, float]:
        """Who it is of, and until when it counts, on time.time(). `granted`: whether anything was granted to a subject.
        Raises BadJwtError."""
        key = self._key_of(text)
        try:
            claims: dict[str, Any] = jwt.decode(
                text, key, algorithms=list(ALGORITHMS), issuer=self._rules.issuer, audience=self._rules.audience,
                leeway=LEEWAY_SECONDS, options={"require": ["exp", "iss", "aud", "sub"]},
            )  # fmt: skip
        except jwt.ExpiredSignatureError:
            raise BadJwtError("it has expired") from None
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise BadJwtError(str(error)[:200] or type(error).__name__) from None
        subjects = [subject for subject in subjects_of(claims) if granted(subject)][:SUBJECTS_MAX]
        return Identity(str(claims["sub"])[:128], "jwt", tuple(subjects)), float(claims["exp"]) + LEEWAY_SECONDS

    def _key_of(self, text: str) -> Any:
        try:
            key_id = jwt.get_unverified_header(text).get("kid", "")
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise BadJwtError("it is none") from None
        if key_id in self._keys:
            self._read_if_older_than(KEYS_SECONDS)
            return self._keys[key_id]
        if not key_id and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        self._read_if_older_than(KEYS_AGAIN_SECONDS)
        if self._reading is not None:
            raise BadJwtError("its key is being looked for", comes_again=True)
        raise BadJwtError(self.problem or "it was signed with a key that the issuer has not got")

    def _read_if_older_than(self, seconds: float) -> None:
        if self._reading is None and (self._read_s is None or self._now_s() - self._read_s > seconds):
            self._read_s = self._now_s()
            self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        try:
            self._keys = await asyncio.to_thread(read_keys, self._rules)
            self.problem = ""
        except (OSError, ValueError) as error:
            self.problem = f"the keys of its issuer cannot be read: {error}"
            _log.error("jwt_keys_not_read", error=str(error))
        finally:
            self._reading = None

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)


def read_keys(rules: JwtRules) -> dict[str, Any]:
    """Public keys by id. Raises OSError or ValueError. Blocks."""
    if rules.jwks_file:
        with Path(rules.jwks_file).open("rb") as file:
            data = file.read(KEYS_BYTES_MAX + 1)
    else:
        data = _fetch(rules.jwks_url)
    if len(data) > KEYS_BYTES_MAX:
        raise ValueError(f"expected at most {KEYS_BYTES_MAX} bytes of keys")
    try:
        found = json.loads(data)["keys"]
        given = [key for key in found if isinstance(key, dict) and key.get("kty") in ("RSA", "EC", "OKP")]
        return {str(key.get("kid", "")): jwt.PyJWK(key).key for key in given[:KEYS_MAX]}
    except (KeyError, TypeError, RecursionError, jwt.PyJWTError) as error:
        raise ValueError(f"expected a JSON Web Key Set ({type(error).__name__})") from None


def _fetch(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=FETCH_SECONDS) as answer:
            data: bytes = answer.read(KEYS_BYTES_MAX + 1)
            return data
    except urllib.error.URLError as error:
        raise OSError(f"{url}: {error.reason}") from None


def subjects_of(claims: dict[str, Any]) -> list[str]:
    """To which something can be granted: each claim that is a text, and each text of a list."""
    found = []
    for claim, value in claims.items():
        values = value if isinstance(value, list) else [value]
        texts = [text for text in values[:_CLAIM_TEXTS_MAX] if isinstance(text, str)]
        found += [f"jwt:{claim}={text}" for text in texts]
    return [subject for subject in found if is_subject(subject)]
