"""A policy with one thing changed."""

from collections.abc import Sequence
from dataclasses import replace

from holdfast.access.fields import AccessPolicyError
from holdfast.access.identities import NAME, NAME_CHARS_MAX, of_token
from holdfast.access.policies import AccessPolicy, TokenRecord
from holdfast.access.rights import Right
from holdfast.access.tokens import NewToken


def grant(policy: AccessPolicy, subject: str, roles: Sequence[str]) -> AccessPolicy:
    """With these roles beside those that the subject has."""
    granted = dict.fromkeys((*policy.grants.get(subject, ()), *roles))
    return _checked(replace(policy, grants={**policy.grants, subject: tuple(granted)}))


def revoke(policy: AccessPolicy, subject: str, roles: Sequence[str] = ()) -> AccessPolicy:
    """Without these roles; without roles, without all that the subject has. Of a token's name all tokens go then."""
    if subject not in policy.grants:
        raise AccessPolicyError(f"grants.{subject}", "a grant that there is")
    grants = dict(policy.grants)
    left = tuple(name for name in grants.pop(subject) if roles and name not in roles)
    missing = [name for name in roles if name not in policy.grants[subject]]
    if missing:
        raise AccessPolicyError(f"grants.{subject}", "roles that it has", f"it has not got {missing[0]}")
    if left:
        return _checked(replace(policy, grants={**grants, subject: left}))
    kept = {token_id: token for token_id, token in policy.tokens.items() if of_token(token.name).subjects[0] != subject}
    return _checked(replace(policy, grants=grants, tokens=kept))


def add_token(
    policy: AccessPolicy, token: NewToken, name: str, roles: Sequence[str], expires_at_ms: int = 0
) -> AccessPolicy:
    """With this token, for a name that may have some already; roles are those of the name."""
    if not NAME.fullmatch(name):
        raise AccessPolicyError("name", f"1 to {NAME_CHARS_MAX} of letters, digits and ._@-")
    known = {**policy.tokens, token.token_id: TokenRecord(name, token.hash, expires_at_ms)}
    added = replace(policy, tokens=known)
    return grant(added, f"token:{name}", roles) if roles else _checked(added)


def revoke_token(policy: AccessPolicy, token_id: str) -> AccessPolicy:
    """Without this token. Others of its name, and the name's roles, stay."""
    if token_id not in policy.tokens:
        raise AccessPolicyError("token", "the id of a token that there is")
    return replace(policy, tokens={key: token for key, token in policy.tokens.items() if key != token_id})


def has_administrator(policy: AccessPolicy, now_ms: int) -> bool:
    """Whether anybody could change this policy: otherwise it is the last."""
    names = {token.name for token in policy.tokens.values() if not token.expires_at_ms or token.expires_at_ms > now_ms}
    for subject in policy.grants:
        kind, _, name = subject.partition(":")
        is_there = name in names if kind == "token" else kind != "jwt" or policy.jwt is not None
        if is_there and _administers(policy, subject):
            return True
    return False


def _administers(policy: AccessPolicy, subject: str) -> bool:
    roles = policy.roles_of((subject,))
    return any(Right.ADMINISTER in role.rights and "*" in role.queues and role.tenants is None for role in roles)


def _checked(policy: AccessPolicy) -> AccessPolicy:
    return AccessPolicy.read(policy.mapping())
