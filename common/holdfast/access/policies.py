"""Roles, who has them, and tokens: one policy, as it stands in a file or in the map of a cluster.

    routers = ["router-1"]            # certificates of routers, which may say for whom they call

    [roles.mailer]
    rights = ["enqueue", "observe"]
    queues = ["mail", "mail.*"]       # a star stands for any characters
    tenants = ["acme"]                # left out: all tenants, and tasks of none

    [grants]
    "token:billing" = ["mailer"]

    [tokens.0123456789abcdef]
    name = "billing"
    hash = "sha256:…"
    expires_at_ms = 1790000000000     # left out: never

    [jwt]
    issuer = "https://id.example.org"
    audience = "holdfast"
    jwks_file = "/etc/holdfast/jwks.json"   # or jwks_url

Nothing is allowed that no role allows. A policy never changes: `editing` makes the next one.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast.access import fields, tokens
from holdfast.access.fields import AccessPolicyError
from holdfast.access.identities import NAME, NAME_CHARS_MAX, SUBJECT_CHARS_MAX, is_subject
from holdfast.access.rights import RIGHTS, Right

POLICY_BYTES_MAX: Final = 512 * 1024
ROLES_MAX: Final = 256
PATTERNS_MAX: Final = 256  # queues, or tenants, of one role
GRANTS_MAX: Final = 4096
ROLES_PER_GRANT_MAX: Final = 64
TOKENS_MAX: Final = 4096
ROUTERS_MAX: Final = 256
_TENANT_CHARS_MAX = 256
_URL_CHARS_MAX = 512
_TIME_MS_MAX = 2**53
_QUEUES = re.compile(r"[A-Za-z0-9._*-]{1,128}")
_ROLE = re.compile(r"[A-Za-z0-9._-]{1,64}")

EVERYTHING: Final = "*"


@dataclass(frozen=True, slots=True)
class Role:
    """What whoever has it may do. A role counts by itself: rights of one never reach the queues of another."""

    rights: frozenset[Right]
    queues: tuple[str, ...]  # patterns
    tenants: frozenset[str] | None = None  # None: all, and tasks of none


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """What is kept of a token. Several may have one name: that is how a token is replaced by another one."""

    name: str
    hash: str
    expires_at_ms: int = 0  # 0: never

    def __repr__(self) -> str:
        return f"TokenRecord({self.name})"


@dataclass(frozen=True, slots=True)
class JwtRules:
    """Which JWTs are believed."""

    issuer: str
    audience: str
    jwks_file: str = ""  # one of the two
    jwks_url: str = ""


@dataclass(frozen=True)
class AccessPolicy:
    """`read` checks it; whoever has one can rely on every name in it."""

    roles: Mapping[str, Role] = field(default_factory=dict)
    grants: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # roles by subject
    tokens: Mapping[str, TokenRecord] = field(default_factory=dict)  # by id
    jwt: JwtRules | None = None
    routers: frozenset[str] = frozenset()

    def roles_of(self, subjects: tuple[str, ...]) -> list[Role]:
        names = dict.fromkeys(name for subject in subjects for name in self.grants.get(subject, ()))
        return [self.roles[name] for name in names]

    @classmethod
    def read(cls, mapping: object) -> "AccessPolicy":
        """Raises AccessPolicyError."""
        values = fields.table(mapping, "", 64)
        fields.no_others(values, ("roles", "grants", "tokens", "jwt", "routers"))
        roles = {
            name: _role(name, given)
            for name, given in fields.table(values.get("roles", {}), "roles", ROLES_MAX).items()
        }
        grants = fields.table(values.get("grants", {}), "grants", GRANTS_MAX)
        known = fields.table(values.get("tokens", {}), "tokens", TOKENS_MAX)
        return cls(
            roles=roles,
            grants={subject: _grant(subject, given, roles) for subject, given in grants.items()},
            tokens={token_id: _token(token_id, given) for token_id, given in known.items()},
            jwt=_jwt(values["jwt"]) if "jwt" in values else None,
            routers=frozenset(fields.texts(values.get("routers", []), "routers", ROUTERS_MAX, 256)),
        )

    def mapping(self) -> dict[str, Any]:
        """As `read` takes it, always the same for the same policy."""
        made: dict[str, Any] = {}
        if self.routers:
            made["routers"] = sorted(self.routers)
        made["roles"] = {name: _role_mapping(role) for name, role in sorted(self.roles.items())}
        made["grants"] = {subject: list(names) for subject, names in sorted(self.grants.items())}
        made["tokens"] = {token_id: _token_mapping(token) for token_id, token in sorted(self.tokens.items())}
        if self.jwt is not None:
            keys = {"jwks_file": self.jwt.jwks_file} if self.jwt.jwks_file else {"jwks_url": self.jwt.jwks_url}
            made["jwt"] = {"issuer": self.jwt.issuer, "audience": self.jwt.audience, **keys}
        return made


def _role(name: str, given: object) -> Role:
    where = f"roles.{name}"
    if not _ROLE.fullmatch(name):
        raise AccessPolicyError(where, "named by 1 to 64 letters, digits, dots, dashes or underscores")
    values = fields.table(given, where, 16)
    fields.no_others(values, ("rights", "queues", "tenants"), where)
    rights = fields.texts(values.get("rights"), f"{where}.rights", len(RIGHTS), 32)
    for right in rights:
        if right not in RIGHTS:
            raise AccessPolicyError(f"{where}.rights", f"some of {', '.join(RIGHTS)}", f"{right!r} is none of them")
    queues = fields.texts(values.get("queues"), f"{where}.queues", PATTERNS_MAX, 128)
    for pattern in queues:
        if not _QUEUES.fullmatch(pattern):
            raise AccessPolicyError(f"{where}.queues", "names of queues, with stars for any characters")
    return Role(frozenset(map(Right, rights)), queues, _tenants(values, where))


def _tenants(values: Mapping[str, Any], where: str) -> frozenset[str] | None:
    if "tenants" not in values:
        return None
    tenants = fields.texts(values["tenants"], f"{where}.tenants", PATTERNS_MAX, _TENANT_CHARS_MAX)
    if EVERYTHING in tenants:
        raise AccessPolicyError(f"{where}.tenants", "names of tenants", "a star is none: leave tenants out for all")
    return frozenset(tenants)


def _grant(subject: str, given: object, roles: Mapping[str, Role]) -> tuple[str, ...]:
    where = f"grants.{subject[:SUBJECT_CHARS_MAX]}"
    if not is_subject(subject):
        raise AccessPolicyError(where, "named token:NAME, certificate:NAME, jwt:CLAIM=VALUE or anonymous")
    names = fields.texts(given, where, ROLES_PER_GRANT_MAX, 64)
    for name in names:
        if name not in roles:
            raise AccessPolicyError(where, "names of roles", f"there is no role {name}")
    return names


def _token(token_id: str, given: object) -> TokenRecord:
    where = f"tokens.{token_id[:64]}"
    if not tokens.TOKEN_ID.fullmatch(token_id):
        raise AccessPolicyError(where, "named by the id of a token, 16 hex digits")
    values = fields.table(given, where, 16)
    fields.no_others(values, ("name", "hash", "expires_at_ms"), where)
    name = fields.text(values.get("name"), f"{where}.name", NAME_CHARS_MAX)
    if not NAME.fullmatch(name):
        raise AccessPolicyError(f"{where}.name", f"1 to {NAME_CHARS_MAX} of letters, digits and ._@-")
    hashed = fields.text(values.get("hash"), f"{where}.hash", 256)
    if not tokens.is_hash(hashed):
        raise AccessPolicyError(f"{where}.hash", "a hash as `holdfast access token create` prints it")
    return TokenRecord(
        name, hashed, fields.whole(values.get("expires_at_ms", 0), f"{where}.expires_at_ms", 0, _TIME_MS_MAX)
    )


def _jwt(given: object) -> JwtRules:
    values = fields.table(given, "jwt", 16)
    fields.no_others(values, ("issuer", "audience", "jwks_file", "jwks_url"), "jwt")
    if ("jwks_file" in values) == ("jwks_url" in values):
        raise AccessPolicyError("jwt", "given jwks_file or jwks_url, one of them")
    where = "jwks_file" if "jwks_file" in values else "jwks_url"
    found = fields.text(values[where], f"jwt.{where}", _URL_CHARS_MAX)
    if where == "jwks_url" and not re.fullmatch(r"https?://[!-~]+", found):
        raise AccessPolicyError("jwt.jwks_url", "a URL of https or http")
    return JwtRules(
        fields.text(values.get("issuer"), "jwt.issuer", _URL_CHARS_MAX),
        fields.text(values.get("audience"), "jwt.audience", _URL_CHARS_MAX),
        **{where: found},
    )


def _role_mapping(role: Role) -> dict[str, Any]:
    made: dict[str, Any] = {
        "rights": [right.value for right in RIGHTS if right in role.rights],
        "queues": list(role.queues),
    }
    if role.tenants is not None:
        made["tenants"] = sorted(role.tenants)
    return made


def _token_mapping(token: TokenRecord) -> dict[str, Any]:
    made: dict[str, Any] = {"name": token.name, "hash": token.hash}
    if token.expires_at_ms:
        made["expires_at_ms"] = token.expires_at_ms
    return made
