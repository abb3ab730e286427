"""Who calls: tokens, certificates, JWTs and the words of routers, and everything that is none of them."""

import asyncio
import json
import secrets
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from holdfast.access.editing import add_token
from holdfast.access.identities import Identity, of_token
from holdfast.access.policies import AccessPolicy
from holdfast.access.rights import Right
from holdfast.access.tokens import make_token
from holdfast.common.metadata import AUTHORIZATION_KEY, CALLER_KEY
from holdfast.serving.access_rules import AccessFile, AccessFileError, AccessRules
from holdfast.serving.authentication import Authentication
from holdfast.serving.jwts import Jwts
from holdfast.serving.refusals import RefusedError
from holdfast.serving.router_word import BadWordError, RouterSecret, RouterSecretError, RouterWords
from holdfast.serving.served import ConnectionCredentials

RULES: dict[str, Any] = {
    "roles": {"r": {"rights": ["work"], "queues": ["q"]}, "all": {"rights": ["administer"], "queues": ["*"]}},
    "grants": {"certificate:w1.example.org": ["r"], "jwt:groups=ops": ["all"]},
    "routers": ["router-1"],
}
TOKEN = make_token(secrets.token_bytes)
POLICY = add_token(AccessPolicy.read(RULES), TOKEN, "shop", ["r"], expires_at_ms=2_000_000)
SECRET = RouterSecret(b"a secret of routers, which has to be long")


class Call:
    """As a server sees it."""

    def __init__(self, *metadata: tuple[str, str], token: str = "", names: tuple[str, ...] = ()) -> None:
        self.connection_credentials = ConnectionCredentials(token, names)
        self._metadata = metadata

    def invocation_metadata(self) -> Any:
        return self._metadata

    def time_remaining(self) -> float | None:
        return None

    def done(self) -> bool:
        return False


def make(
    policy: AccessPolicy = POLICY, *, now_s: float = 1000.0, secret: RouterSecret | None = SECRET
) -> Authentication:
    words = RouterWords(secret, lambda: "the-cluster", lambda: now_s)
    return Authentication(policy, words, None, lambda: now_s)


def bearer(text: str) -> tuple[str, str]:
    return AUTHORIZATION_KEY, f"Bearer {text}"


def refused(authentication: Authentication, call: Call) -> str:
    with pytest.raises(RefusedError) as error:
        authentication.identify(call)
    assert error.value.reason == "UNAUTHENTICATED"
    return error.value.message


def test_a_token_says_who_calls_in_metadata_and_in_a_hello() -> None:
    authentication = make()
    for call in (Call(bearer(TOKEN.text)), Call(token=TOKEN.text), Call(bearer(TOKEN.text), names=("w1.example.org",))):
        caller = authentication.identify(call)
        assert caller.identity == of_token("shop")
        assert caller.permits.of(Right.WORK).allows("q", "")
    assert "has expired" in refused(make(now_s=2001.0), Call(bearer(TOKEN.text)))
    assert "came without" in refused(authentication, Call())
    assert "not valid" in refused(authentication, Call(bearer(TOKEN.text[:-1] + "x")))
    assert "not valid" in refused(authentication, Call(token="anything"))
    assert "Bearer" in refused(authentication, Call((AUTHORIZATION_KEY, "Basic abc")))


def test_a_wrong_token_is_not_made_good_by_a_certificate() -> None:
    refused(make(), Call(token="wrong", names=("w1.example.org",)))


def test_a_certificate_says_who_calls() -> None:
    caller = make().identify(Call(names=("other", "w1.example.org")))
    assert caller.identity == Identity("other", "certificate", ("certificate:w1.example.org",))
    assert caller.permits.of(Right.WORK).allows("q", "")
    assert not make().identify(Call(names=("stranger",))).permits.any.is_something


def test_whoever_comes_without_may_be_somebody() -> None:
    policy = AccessPolicy.read({**RULES, "grants": {"anonymous": ["r"]}})
    assert make(policy).identify(Call()).permits.of(Right.WORK).allows("q", "")


@given(st.text(max_size=200) | st.text("abcdefghijklmnopqrstuvwxyz0123456789_-.=", max_size=400))
def test_any_text_is_a_caller_or_a_refusal(text: str) -> None:
    authentication = make()
    for call in (
        Call((AUTHORIZATION_KEY, text)),
        Call(bearer(text)),
        Call(token=text or "x"),
        Call((CALLER_KEY, text or "x")),
    ):
        refused(authentication, call)


# --- words of routers


def test_a_sealed_word_is_believed_and_no_other() -> None:
    shop = of_token("shop")
    sealed = RouterWords(SECRET, lambda: "the-cluster", lambda: 1000.0).word(shop)
    caller = make().identify(Call((CALLER_KEY, sealed)))
    assert caller.identity == shop
    assert caller.is_vouched_for
    text, _, seal = sealed.partition(".")
    node = RouterWords(SECRET, lambda: "the-cluster", lambda: 1000.0).word(Identity("n1", "node")).partition(".")[0]
    for word in (text, f"{text}.", f"{text}.{seal[:-1]}", f"{node}.{seal}", f"{text}.{seal}x", seal, "."):
        assert "not believed" in refused(make(), Call((CALLER_KEY, word)))
    assert "not believed" in refused(make(secret=None), Call((CALLER_KEY, sealed)))
    assert "its time is over" in refused(make(now_s=1301.0), Call((CALLER_KEY, sealed)))


def test_a_word_without_a_seal_counts_on_a_routers_connection_only() -> None:
    """Also once it is remembered."""
    authentication = make(secret=None)
    word = RouterWords(None, lambda: "the-cluster", lambda: 1000.0).word(of_token("shop"))
    assert authentication.identify(Call((CALLER_KEY, word), names=("router-1",))).identity == of_token("shop")
    refused(authentication, Call((CALLER_KEY, word)))
    refused(authentication, Call((CALLER_KEY, word), names=("w1.example.org",)))


def test_a_word_stays_the_same_for_a_while() -> None:
    now = [1000.0]
    words = RouterWords(SECRET, lambda: "c", lambda: now[0])
    first = words.word(of_token("a"))
    now[0] += 59
    assert words.word(of_token("a")) == first
    now[0] += 2
    assert words.word(of_token("a")) != first
    identity, until_s = words.read(first, is_from_router=False)
    assert (identity, until_s) == (of_token("a"), 1300)


@given(st.text(max_size=300), st.booleans())
def test_any_text_is_a_word_or_none(text: str, is_from_router: bool) -> None:
    words = RouterWords(SECRET, lambda: "c", lambda: 1000.0)
    with pytest.raises(BadWordError):
        words.read(text, is_from_router=is_from_router)


def test_a_secret_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(RouterSecretError, match="32 to 1024"):
        RouterSecret(b"short")
    with pytest.raises(RouterSecretError, match="cannot be read"):
        RouterSecret.read(tmp_path / "nowhere")


# --- JWTs


KEY, OTHER_KEY = (rsa.generate_private_key(65537, 2048) for _ in range(2))


def jwks(**keys: Any) -> str:
    found = []
    for key_id, key in keys.items():
        found.append({**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())), "kid": key_id})
    return json.dumps({"keys": found})


def signed(key: Any = KEY, key_id: str = "k1", algorithm: str = "RS256", **claims: Any) -> str:
    given = {"iss": "https://id", "aud": "holdfast", "sub": "ada", "exp": time.time() + 60, "groups": ["dev", "ops"]}
    return jwt.encode({**given, **claims}, key, algorithm, headers={"kid": key_id})


async def with_jwts(tmp_path: Path, text: str, *texts: str) -> Any:
    """The last of these, asked once the keys are read."""
    file = tmp_path / "jwks.json"
    file.write_text(jwks(k1=KEY))
    rules = {**RULES, "jwt": {"issuer": "https://id", "audience": "holdfast", "jwks_file": str(file)}}
    policy = AccessPolicy.read(rules)
    assert policy.jwt is not None
    jwts = Jwts(policy.jwt)
    authentication = Authentication(policy, RouterWords(None, str), jwts)
    with pytest.raises(RefusedError, match="being looked for") as first:
        authentication.identify(Call(token=signed()))
    assert first.value.retry_after_ms, "whoever asks again in a moment is let in"
    async with asyncio.timeout(10):
        while True:
            try:
                authentication.identify(Call(token=signed()))
                break
            except RefusedError:
                await asyncio.sleep(0.005)
    try:
        return authentication.identify(Call(token=text))
    finally:
        await jwts.close()


async def test_a_jwt_says_who_calls_and_in_which_groups(tmp_path: Path) -> None:
    caller = await with_jwts(tmp_path, signed())
    assert caller.identity == Identity("ada", "jwt", ("jwt:groups=ops",))
    assert caller.permits.of(Right.ADMINISTER).is_everything
    assert caller.expires_s > time.time()


@pytest.mark.parametrize(
    "claims",
    [
        {"iss": "https://elsewhere"}, {"aud": "another"}, {"exp": time.time() - 100}, {"nbf": time.time() + 1000},
        {"exp": None}, {"sub": None}, {"exp": "soon"},
    ],
)  # fmt: skip
async def test_claims_that_do_not_fit_are_refused(tmp_path: Path, claims: dict[str, Any]) -> None:
    with pytest.raises(RefusedError, match="JWT is not valid"):
        await with_jwts(tmp_path, signed(**claims))


async def test_signatures_that_prove_nothing_are_refused(tmp_path: Path) -> None:
    public = json.dumps({"a": 1})
    unsigned = jwt.encode({"iss": "https://id", "aud": "holdfast", "sub": "a", "exp": 9e9}, "", "none", {"kid": "k1"})
    for number, text in enumerate(
        [
            signed(OTHER_KEY),
            signed(key_id="k2"),
            unsigned,
            signed(public * 9, algorithm="HS256"),
            "a.b.c",
            "e30.e30.e30",
        ]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(RefusedError):
            await with_jwts(folder, text)


# --- rules that come and go


def test_a_file_of_rules_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    path.write_text(json.dumps(RULES))
    file = AccessFile(path)
    assert not file.poll()
    path.write_text(json.dumps({**RULES, "routers": ["another"]}))
    assert file.poll()
    assert file.policy.routers == {"another"}
    path.write_text("{")
    assert not file.poll()
    assert "valid JSON" in file.problem
    assert file.policy.routers == {"another"}, "the last good ones stay"
    with pytest.raises(AccessFileError):
        AccessFile(tmp_path / "nowhere.toml")


def test_rules_of_the_map_count_before_those_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "access.json"
    path.write_text(json.dumps(RULES))
    rules = AccessRules(file=AccessFile(path), follows_map=True)
    assert rules.is_asked
    assert rules.policy == AccessPolicy.read(RULES)
    rules.take(POLICY)
    assert rules.policy == POLICY
    rules.take(None)
    assert rules.policy == AccessPolicy.read(RULES)


def test_until_the_map_was_read_nobody_is_let_in() -> None:
    rules, heard = AccessRules(follows_map=True), list[bool]()
    rules.on_change.append(heard.append)
    path = "/holdfast.proto.v1.Cluster/SetAccess"
    with pytest.raises(RefusedError) as error:
        rules.guard.admit(path, Call())
    assert error.value.reason == "ETCD_UNAVAILABLE"
    rules.take(None)
    assert heard == [False], "there are none: nobody is asked"
    required = AccessRules(is_required=True, follows_map=True)
    required.take(None)
    assert required.is_asked
    with pytest.raises(RefusedError, match="access_file"):
        required.guard.admit(path, Call())
