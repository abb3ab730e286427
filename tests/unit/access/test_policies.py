"""Policies: what is read, what is refused, and who may do what under them."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.access import editing
from holdfast.access.documents import from_file, from_json, from_toml, to_json
from holdfast.access.fields import AccessPolicyError
from holdfast.access.identities import ANONYMOUS, Identity, is_subject, of_token
from holdfast.access.permits import Permits, decide, reaches
from holdfast.access.policies import POLICY_BYTES_MAX, TOKENS_MAX, AccessPolicy
from holdfast.access.rights import EVERY_QUEUE, EVERY_TENANT, RIGHTS, Reach, Right
from holdfast.access.tokens import make_token

HASH = f"sha256:{'0' * 32}:{'0' * 64}"
RULES = """
routers = ["router-1"]

[roles.mailer]
rights = ["enqueue", "observe"]
queues = ["mail", "mail.*"]
tenants = ["acme"]

[roles.worker]
rights = ["work"]
queues = ["mail"]

[roles.root]
rights = ["enqueue", "work", "observe", "operate", "administer"]
queues = ["*"]

[grants]
"token:billing" = ["mailer"]
"certificate:w1.example.org" = ["worker"]
"jwt:groups=ops team" = ["root"]

[tokens.0123456789abcdef]
name = "billing"
hash = "HASH"
expires_at_ms = 1790000000000

[jwt]
issuer = "https://id.example.org"
audience = "holdfast"
jwks_file = "/etc/jwks.json"
""".replace("HASH", HASH)
BILLING = of_token("billing")


def test_a_policy_is_read_and_written_as_it_was() -> None:
    policy = from_toml(RULES.encode())
    again = from_json(to_json(policy))
    assert again.mapping() == policy.mapping()
    assert to_json(again) == to_json(policy)
    assert again.roles["mailer"].tenants == frozenset({"acme"})
    assert again.tokens["0123456789abcdef"].expires_at_ms == 1790000000000
    assert from_file("access.json", to_json(policy)).mapping() == from_file("access.toml", RULES.encode()).mapping()


@pytest.mark.parametrize(
    ("right", "queue", "tenant", "is_allowed"),
    [
        (Right.ENQUEUE, "mail", "acme", True),
        (Right.ENQUEUE, "mail.late", "acme", True),
        (Right.ENQUEUE, "mail", "other", False),
        (Right.ENQUEUE, "mail", "", False),
        (Right.ENQUEUE, "mail", EVERY_TENANT, False),
        (Right.ENQUEUE, "mailbox", "acme", False),
        (Right.ENQUEUE, "xmail", "acme", False),
        (Right.OPERATE, "mail", "acme", False),
        (Right.ENQUEUE, EVERY_QUEUE, EVERY_TENANT, False),
    ],
)
def test_a_role_allows_its_rights_on_its_queues_for_its_tenants(
    right: Right, queue: str | None, tenant: str | None, is_allowed: bool
) -> None:
    assert decide(from_toml(RULES.encode()), BILLING, right, queue, tenant) is is_allowed


def test_a_role_without_tenants_is_of_all_of_them() -> None:
    policy, worker = from_toml(RULES.encode()), Identity("w1", "certificate", ("certificate:w1.example.org",))
    assert decide(policy, worker, Right.WORK, "mail", EVERY_TENANT)
    assert decide(policy, worker, Right.WORK, "mail", "")
    assert not decide(policy, worker, Right.WORK, "mail.late", "")


def test_all_of_everything_is_of_those_who_have_it() -> None:
    policy, root = from_toml(RULES.encode()), Identity("al", "jwt", ("jwt:sub=al", "jwt:groups=ops team"))
    permit = Permits(root, policy).of(Right.ADMINISTER)
    assert permit.is_everything
    assert reaches(permit, Reach.CLUSTER)
    assert not reaches(Permits(BILLING, policy).of(Right.ENQUEUE), Reach.CLUSTER)
    assert reaches(Permits(BILLING, policy).of(Right.ENQUEUE), Reach.TASKS)
    assert not reaches(Permits(BILLING, policy).of(Right.WORK), Reach.QUEUES)
    assert decide(AccessPolicy(), Identity("n1", "node"), Right.ADMINISTER, EVERY_QUEUE, EVERY_TENANT)


def test_a_right_of_one_role_never_reaches_the_queues_of_another() -> None:
    policy = AccessPolicy.read({
        "roles": {"a": {"rights": ["observe"], "queues": ["a"]}, "b": {"rights": ["operate"], "queues": ["b"]}},
        "grants": {"token:both": ["a", "b"]},
    })  # fmt: skip
    both = of_token("both")
    assert decide(policy, both, Right.OBSERVE, "a", EVERY_TENANT)
    assert not decide(policy, both, Right.OPERATE, "a", EVERY_TENANT)
    assert not decide(policy, both, Right.OBSERVE, "b", EVERY_TENANT)
    assert Permits(both, policy).any.allows_some("b")


@given(
    st.sampled_from(RIGHTS), st.text(max_size=20), st.text(max_size=20),
    st.builds(Identity, st.text(max_size=9), st.sampled_from(["token", "jwt", "certificate", "anonymous"]),
              st.lists(st.text(max_size=20)).map(tuple)),
)  # fmt: skip
def test_nothing_is_allowed_that_no_role_allows(right: Right, queue: str, tenant: str, who: Identity) -> None:
    assert not decide(AccessPolicy(), who, right, queue, tenant)
    assert not decide(from_toml(RULES.encode()), ANONYMOUS, right, queue, tenant)


@given(st.lists(st.text("ab.*", min_size=1, max_size=6), min_size=1, max_size=4), st.text("ab.", max_size=8))
def test_stars_stand_for_any_characters_and_nothing_else_does(patterns: list[str], queue: str) -> None:
    policy = AccessPolicy.read({
        "roles": {"r": {"rights": ["work"], "queues": patterns}}, "grants": {"token:t": ["r"]},
    })  # fmt: skip

    def fits(pattern: str, name: str) -> bool:
        first, *rest = pattern.split("*")
        if not rest:
            return name == first
        if not name.startswith(first):
            return False
        name = name[len(first) :]
        for part in rest[:-1]:
            at = name.find(part)
            if at < 0:
                return False
            name = name[at + len(part) :]
        return name.endswith(rest[-1])

    expected = any(fits(pattern, queue) for pattern in patterns)
    assert decide(policy, of_token("t"), Right.WORK, queue, EVERY_TENANT) is expected


BAD = [
    ({"rolls": {}}, "rolls", "roles, grants"),
    ({"roles": []}, "roles", "a table"),
    ({"roles": {"a b": {"rights": [], "queues": []}}}, "roles.a b", "letters"),
    ({"roles": {"r": {"rights": ["fly"], "queues": []}}}, "roles.r.rights", "enqueue, work"),
    ({"roles": {"r": {"rights": ["work"]}}}, "roles.r.queues", "a list"),
    ({"roles": {"r": {"rights": ["work"], "queues": ["a?b"]}}}, "roles.r.queues", "stars"),
    ({"roles": {"r": {"rights": ["work"], "queues": ["a"], "tenants": ["*"]}}}, "roles.r.tenants", "tenants"),
    ({"roles": {"r": {"rights": ["work"], "queues": ["a"], "deny": ["b"]}}}, "roles.r.deny", "rights"),
    ({"roles": {"r": {"rights": ["work"], "queues": ["q"] * 257}}}, "roles.r.queues", "256"),
    ({"grants": {"token:a": ["r"]}}, "grants.token:a", "names of roles"),
    ({"grants": {"somebody": []}}, "grants.somebody", "token:NAME"),
    ({"tokens": {"x": {}}}, "tokens.x", "16 hex digits"),
    ({"tokens": {"0123456789abcdef": {"name": "a", "hash": "secret"}}}, "tokens.0123456789abcdef.hash", "a hash"),
    ({"tokens": {"0123456789abcdef": {"name": "a b", "hash": HASH}}}, "tokens.0123456789abcdef.name", "letters"),
    (
        {"tokens": {"0123456789abcdef": {"name": "a", "hash": HASH, "expires_at_ms": -1}}},
        "tokens.0123456789abcdef.expires_at_ms", "whole number",
    ),
    ({"tokens": {f"{number:016x}": {"name": "a", "hash": HASH} for number in range(TOKENS_MAX + 1)}}, "tokens", "4096"),
    ({"jwt": {"issuer": "i", "audience": "a"}}, "jwt", "jwks_file or jwks_url"),
    ({"jwt": {"issuer": "i", "audience": "a", "jwks_url": "file:///etc"}}, "jwt.jwks_url", "https"),
    ({"routers": "r"}, "routers", "a list"),
]  # fmt: skip


@pytest.mark.parametrize(("mapping", "field", "limit"), BAD, ids=[str(index) for index in range(len(BAD))])
def test_a_bad_policy_is_refused_with_field_and_limit(mapping: object, field: str, limit: str) -> None:
    with pytest.raises(AccessPolicyError, match="Expected") as refused:
        AccessPolicy.read(mapping)
    assert refused.value.field == field
    assert limit in refused.value.limit


@pytest.mark.parametrize("data", [b"{", b"[" * 100_000, b"\xff", b"[]", b" " * (POLICY_BYTES_MAX + 1)])
def test_what_is_no_policy_at_all_is_refused(data: bytes) -> None:
    for read in (from_json, from_toml):
        with pytest.raises(AccessPolicyError):
            read(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["rights", "queues", "tenants", "name", "hash", "r", "token:r", "jwt:a=b"]), inner
        )
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["roles", "grants", "tokens", "jwt", "routers"]), json_values))
def test_any_mapping_is_a_policy_or_a_refusal(mapping: dict[str, object]) -> None:
    try:
        policy = AccessPolicy.read(mapping)
    except AccessPolicyError as error:
        assert error.limit
        return
    assert AccessPolicy.read(json.loads(to_json(policy))).mapping() == policy.mapping()


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("token:a", True), ("token:", False), ("token:a b", False), ("anonymous", True), ("jwt:sub=a b", True),
        ("jwt:sub", False), ("certificate:spiffe://x/y", True), ("node:n1", False), ("router:r", False), ("", False),
    ],
)  # fmt: skip
def test_subjects(text: str, is_one: bool) -> None:
    """Nobody can be granted to be a server of the cluster."""
    assert is_subject(text) is is_one


# --- one thing changed


def test_tokens_are_added_and_go() -> None:
    policy = from_toml(RULES.encode())
    new = make_token(lambda count: b"\x01" * count)
    added = editing.add_token(policy, new, "deploy", ["root"], expires_at_ms=5)
    assert decide(added, of_token("deploy"), Right.ADMINISTER, EVERY_QUEUE, EVERY_TENANT)
    assert added.tokens[new.token_id].expires_at_ms == 5
    without = editing.revoke_token(added, new.token_id)
    assert new.token_id not in without.tokens
    assert without.grants == added.grants
    with pytest.raises(AccessPolicyError):
        editing.revoke_token(without, new.token_id)
    with pytest.raises(AccessPolicyError, match="there is no role"):
        editing.add_token(policy, new, "deploy", ["no-such"])
    with pytest.raises(AccessPolicyError):
        editing.add_token(policy, new, "a b", [])


def test_roles_are_granted_and_revoked() -> None:
    policy = editing.grant(from_toml(RULES.encode()), "token:billing", ["worker"])
    assert policy.grants["token:billing"] == ("mailer", "worker")
    assert editing.revoke(policy, "token:billing", ["mailer"]).grants["token:billing"] == ("worker",)
    gone = editing.revoke(policy, "token:billing")
    assert "token:billing" not in gone.grants
    assert not gone.tokens, "its tokens go with it"
    with pytest.raises(AccessPolicyError):
        editing.revoke(policy, "token:nobody")
    with pytest.raises(AccessPolicyError, match=re.escape("has not got root")):
        editing.revoke(policy, "token:billing", ["root"])
    with pytest.raises(AccessPolicyError):
        editing.grant(policy, "somebody", ["root"])


def test_a_policy_that_nobody_could_change_is_noticed() -> None:
    policy = from_toml(RULES.encode())
    assert editing.has_administrator(policy, 0)
    alone = editing.revoke(policy, "jwt:groups=ops team")
    assert not editing.has_administrator(alone, 0)
    token = make_token(lambda count: b"\x02" * count)
    with_token = editing.add_token(alone, token, "root", ["root"], expires_at_ms=100)
    assert editing.has_administrator(with_token, 99)
    assert not editing.has_administrator(with_token, 100), "it has expired"
