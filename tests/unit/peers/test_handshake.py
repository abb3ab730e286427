"""The cluster secret: what proves it, and what does not."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.broker.peers.handshake import (
    DIALLED,
    DIALLING,
    NONCE_BYTES,
    ClusterSecret,
    ClusterSecretError,
    new_nonce,
)
from holdfast.broker.peers.reasons import Reason
from holdfast.broker.peers.words import PROOF_BYTES, Expectation, Hello, objection

TEXT = b"0123456789abcdef0123456789abcdef"
SECRET = ClusterSecret(TEXT)
ONE = Hello("dev", b"digest", "n1", "1" * 32, "n2", empty=True, nonce=b"a" * NONCE_BYTES)
TWO = Hello("dev", b"digest", "n2", "2" * 32, "n1", empty=False, nonce=b"b" * NONCE_BYTES)
OTHERS: list[dict[str, str | bytes | bool]] = [
    {"cluster": "other"}, {"digest": b"other"}, {"name": "n3"}, {"node_id": "3" * 32}, {"receiver": "n3"},
    {"empty": True}, {"nonce": b"c" * NONCE_BYTES},
]  # fmt: skip


def test_a_proof_is_that_of_one_side_of_one_connection() -> None:
    proof = SECRET.proof(DIALLING, ONE, TWO)
    assert len(proof) == PROOF_BYTES
    assert SECRET.is_proof(proof, DIALLING, ONE, TWO)
    assert not SECRET.is_proof(proof, DIALLED, ONE, TWO), "the other side cannot send it back"
    assert not SECRET.is_proof(proof, DIALLING, TWO, ONE)
    assert not ClusterSecret(TEXT[::-1]).is_proof(proof, DIALLING, ONE, TWO)


@pytest.mark.parametrize("change", OTHERS, ids=lambda change: next(iter(change)))
def test_a_proof_counts_for_nothing_where_anything_else_was_said(change: dict[str, str | bytes | bool]) -> None:
    for side in (DIALLING, DIALLED):
        proof = SECRET.proof(side, ONE, TWO)
        assert not SECRET.is_proof(proof, side, ONE, replace(TWO, **change))  # type: ignore[arg-type]
        if change != {"empty": True}:
            assert not SECRET.is_proof(proof, side, replace(ONE, **change), TWO)  # type: ignore[arg-type]


@given(st.binary(max_size=64))
def test_no_guess_is_a_proof(guess: bytes) -> None:
    assert not SECRET.is_proof(guess, DIALLING, ONE, TWO)


def test_nonces_are_fresh() -> None:
    assert len({new_nonce() for _ in range(100)}) == 100
    assert len(new_nonce()) == NONCE_BYTES


def test_a_secret_shows_itself_to_nobody() -> None:
    assert TEXT.decode() not in repr(SECRET) + str(SECRET)


def test_a_secret_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"\n" + TEXT + b"\r\n")
    assert ClusterSecret.read(path).proof(DIALLED, ONE, TWO) == SECRET.proof(DIALLED, ONE, TWO)
    with pytest.raises(ClusterSecretError, match=r"cannot be read: No such file"):
        ClusterSecret.read(tmp_path / "nothing")
    for wrong in (b"", b"too short", bytes(2000)):
        path.write_bytes(wrong.replace(b"\0", b"x"))
        with pytest.raises(ClusterSecretError, match="Expected a cluster secret of 32 to 1024 bytes") as refused:
            ClusterSecret.read(path)
        assert str(path) in str(refused.value)
        assert "too short" not in str(refused.value)


def test_both_nodes_have_a_secret_or_neither() -> None:
    for has_secret in (True, False):
        expected = Expectation("dev", b"digest", "n2", {"n1"}, has_secret=has_secret)
        assert objection(ONE, expected, None, None) is (None if has_secret else Reason.SECRET_MISSING)
        silent = replace(ONE, nonce=b"")
        assert objection(silent, expected, None, None) is (Reason.SECRET_MISSING if has_secret else None)
