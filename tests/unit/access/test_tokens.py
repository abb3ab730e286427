"""Tokens: made once, kept as hashes, checked whatever comes."""

import secrets

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.access.policies import TokenRecord
from holdfast.access.tokens import hash_of, is_hash, is_secret_of, make_token, split_token


def test_a_token_is_its_own_and_no_other() -> None:
    one, other = make_token(secrets.token_bytes), make_token(secrets.token_bytes)
    found = split_token(one.text)
    assert found is not None
    token_id, secret = found
    assert token_id == one.token_id
    assert is_secret_of(secret, one.hash)
    assert not is_secret_of(secret, other.hash)
    assert is_hash(one.hash)


def test_what_is_kept_or_shown_says_nothing_of_the_secret() -> None:
    token = make_token(secrets.token_bytes)
    found = split_token(token.text)
    assert found is not None
    assert found[1] not in token.hash + repr(token) + repr(TokenRecord("a", token.hash))
    assert hash_of("a", b"1" * 16) != hash_of("a", b"2" * 16), "the same secret has another hash elsewhere"


@given(st.text() | st.text("0123456789abcdef_hft", max_size=90))
def test_anything_else_is_no_token(text: str) -> None:
    assert split_token(text) is None or text.startswith("hft_")
    assert not is_secret_of(text, hash_of("x" * 64, b"0" * 16))
    assert not is_secret_of("x", text)


@pytest.mark.parametrize("change", [slice(0, 4), slice(4, 20), slice(21, 85)])
def test_a_changed_token_is_not_valid(change: slice) -> None:
    token = make_token(secrets.token_bytes)
    letters = list(token.text)
    letters[change] = reversed(["0" if letter == "f" else "f" for letter in letters[change]])
    found = split_token("".join(letters))
    assert found is None or found[0] != token.token_id or not is_secret_of(found[1], token.hash)
