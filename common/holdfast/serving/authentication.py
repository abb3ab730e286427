"""Who calls: from the metadata of a call, the hello of a connection, or the certificate that came with it.

What was found out about a token is remembered until the access rules change or it expires, so nearly every call costs
one look into a dictionary.
"""

import time
from collections.abc import Callable
from typing import Any, Final

from holdfast.access.identities import ANONYMOUS, ANONYMOUS_SUBJECT, SUBJECTS_MAX, Identity, is_subject, of_token
from holdfast.access.permits import Permits
from holdfast.access.policies import AccessPolicy
from holdfast.access.tokens import TOKEN_CHARS_MAX, is_secret_of, split_token
from holdfast.common.metadata import AUTHORIZATION_KEY, CALLER_KEY
from holdfast.serving.jwts import BadJwtError, Jwts
from holdfast.serving.refusals import unauthenticated
from holdfast.serving.router_word import BadWordError, RouterWords
from holdfast.serving.served import CallContext, ConnectionCredentials

CALLERS_MAX: Final = 4096  # that are remembered
_BEARER: Final = "bearer "
_NOBODY: Final = ConnectionCredentials()
_NOT_VALID: Final = "The token is not valid: it was revoked, or is none of this cluster; ask for another one."


class Caller:
    """Somebody who was authenticated, and what has been found out about the calls that they may make."""

    __slots__ = ("admitted", "expires_s", "identity", "is_vouched_for", "permits")

    def __init__(
        self, identity: Identity, policy: AccessPolicy, expires_s: float = 0.0, *, is_vouched_for: bool = False
    ) -> None:
        """`is_vouched_for`: by a router, which ends what it must when the time of its own caller is over."""
        self.identity = identity
        self.expires_s = expires_s  # on time.time(); 0: never
        self.is_vouched_for = is_vouched_for
        self.permits = Permits(identity, policy)
        self.admitted: dict[str, Any] = {}  # by the path of a method


class Authentication:
    """Under one set of access rules: others have their own."""

    def __init__(
        self, policy: AccessPolicy, words: RouterWords, jwts: Jwts | None, now_s: Callable[[], float] = time.time
    ) -> None:
        self.policy = policy
        self._words = words
        self._jwts = jwts
        self._now_s = now_s
        self._callers: dict[object, Caller] = {}
        self._anonymous = Caller(ANONYMOUS, policy) if ANONYMOUS_SUBJECT in policy.grants else None

    def identify(self, context: CallContext) -> Caller:
        """Raises RefusedError."""
        token = word = ""
        for key, value in context.invocation_metadata() or ():
            if key == AUTHORIZATION_KEY:
                token = _bearer(value)
            elif key == CALLER_KEY:
                word = value if isinstance(value, str) else "?"
        if word:
            names = credentials_of(context).certificate_names
            is_from_router = bool(names) and not self.policy.routers.isdisjoint(names)
            return self._remembered((word, is_from_router), lambda: self._of_word(word, is_from_router=is_from_router))
        if token:
            return self._remembered(token, lambda: self._of_token(token))
        known = credentials_of(context)
        if known.token:
            return self._remembered(known.token, lambda: self._of_token(known.token))
        if known.certificate_names:
            return self._remembered(known, lambda: self._of_certificate(known))
        if self._anonymous is None:
            raise unauthenticated(
                "Expected a token or a client certificate, but the call came without; give the client one (token_file=,"
                " HOLDFAST_TOKEN_FILE or --token-file)."
            )
        return self._anonymous

    def is_over(self, caller: Caller) -> bool:
        """The time of somebody who was let in under these rules."""
        return bool(caller.expires_s) and not caller.is_vouched_for and self._now_s() >= caller.expires_s

    def again(self, caller: Caller, context: CallContext) -> Caller:
        """Somebody who was let in under other rules. Raises RefusedError."""
        return Caller(caller.identity, self.policy) if caller.is_vouched_for else self.identify(context)

    def _remembered(self, key: object, find: Callable[[], Caller]) -> Caller:
        caller = self._callers.get(key)
        if caller is None:
            caller = find()
            if len(self._callers) >= CALLERS_MAX:
                self._callers.clear()
            self._callers[key] = caller
        if caller.expires_s and self._now_s() >= caller.expires_s:
            self._callers.pop(key, None)
            raise unauthenticated("The token has expired; ask for another one.")
        return caller

    def _of_token(self, text: str) -> Caller:
        found = split_token(text)
        if found is None:
            return self._of_jwt(text)
        token_id, secret = found
        record = self.policy.tokens.get(token_id)
        if record is None or not is_secret_of(secret, record.hash):
            raise unauthenticated(_NOT_VALID)
        return Caller(of_token(record.name), self.policy, record.expires_at_ms / 1000)

    def _of_jwt(self, text: str) -> Caller:
        if self._jwts is None or len(text) > TOKEN_CHARS_MAX or text.count(".") != 2:
            raise unauthenticated(_NOT_VALID)
        try:
            identity, until_s = self._jwts.verify(text, self.policy.grants.__contains__)
        except BadJwtError as error:
            raise unauthenticated(
                f"The JWT is not valid: {error}; ask its issuer for another one.",
                retry_after_ms=500 if error.comes_again else 0,
            ) from None
        return Caller(identity, self.policy, until_s)

    def _of_certificate(self, known: ConnectionCredentials) -> Caller:
        names = known.certificate_names
        subjects = [subject for name in names if is_subject(subject := f"certificate:{name}")]
        granted = [subject for subject in subjects if subject in self.policy.grants]
        return Caller(Identity(names[0], "certificate", tuple(granted[:SUBJECTS_MAX])), self.policy)

    def _of_word(self, word: str, *, is_from_router: bool) -> Caller:
        try:
            identity, until_s = self._words.read(word, is_from_router=is_from_router)
        except BadWordError as error:
            raise unauthenticated(
                f"The word of a router for its caller is not believed: {error}; give routers and brokers the same "
                "router_secret_file."
            ) from None
        return Caller(identity, self.policy, until_s, is_vouched_for=True)


def credentials_of(context: Any) -> ConnectionCredentials:
    """Of the connection that a call came over: frames know them, gRPC is asked."""
    known = getattr(context, "connection_credentials", None)
    if known is not None:
        return known  # type: ignore[no-any-return]
    ask = getattr(context, "auth_context", None)
    found = ask() if ask is not None else None
    if not found:
        return _NOBODY
    names = [*found.get("x509_subject_alternative_name", ()), *found.get("x509_common_name", ())]
    texts = [name.decode(errors="replace") if isinstance(name, bytes) else str(name) for name in names]
    return ConnectionCredentials("", tuple(dict.fromkeys(texts)))


def _bearer(value: object) -> str:
    if not isinstance(value, str) or not value[: len(_BEARER)].lower() == _BEARER or len(value) > TOKEN_CHARS_MAX + 7:
        raise unauthenticated("Expected `Bearer` and a token in the metadata authorization, but it is something else.")
    return value[len(_BEARER) :].strip() or "?"
