"""The words of the transport itself: what is a hello, and who is welcome."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.broker.peers.identities import identity_of, name_of, node_list_digest
from holdfast.broker.peers.reasons import SENTENCES, PeerError, Reason
from holdfast.broker.peers.tls import certified_names
from holdfast.broker.peers.words import (
    PREFACE,
    WORD_BYTES_MAX,
    EmptyAnswer,
    EmptyQuery,
    Expectation,
    Hello,
    Proof,
    Refused,
    Word,
    check_preface,
    decode_word,
    encode_word,
    objection,
)
from tests.unit.codec_checks import refused_or_exact, with_another_byte

ID1, ID2 = "1" * 32, "2" * 32
DIGEST = node_list_digest([("n1", "a"), ("n2", "b")])
EXPECTED = Expectation("dev", DIGEST, "n1", {"n2", "n3"})
HELLO = Hello("dev", DIGEST, "n2", ID2, "n1", empty=True)

NAMES = st.from_regex(r"[A-Za-z0-9._-]{1,128}", fullmatch=True)
NODE_IDS = st.from_regex(r"[0-9a-f]{32}", fullmatch=True)
NUMBERS = st.integers(0, 2**32 - 1)
HELLOS = st.builds(Hello, NAMES, st.binary(max_size=64), NAMES, NODE_IDS, NAMES, st.booleans(), st.binary(max_size=64))
WORDS: st.SearchStrategy[Word] = st.one_of(
    HELLOS,
    st.builds(Refused, st.sampled_from(Reason)),
    st.builds(EmptyQuery, NUMBERS),
    st.builds(EmptyAnswer, NUMBERS, st.booleans()),
    st.builds(Proof, st.binary(min_size=32, max_size=32)),
)


# --- bytes ----------------------------------------------------------------------------------------------------


@given(WORDS)
def test_a_word_comes_back_as_it_was(word: Word) -> None:
    assert decode_word(encode_word(word)) == word


@given(WORDS)
def test_every_word_is_small_enough_to_be_heard(word: Word) -> None:
    assert len(encode_word(word)) <= WORD_BYTES_MAX


@given(WORDS, st.data())
def test_a_word_that_is_cut_short_or_goes_on_is_refused(word: Word, data: st.DataObject) -> None:
    whole = encode_word(word)
    with pytest.raises(PeerError):
        decode_word(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(PeerError):
        decode_word(whole + data.draw(st.binary(min_size=1, max_size=8)))


@given(st.binary(max_size=300) | st.binary(max_size=300).map(lambda rest: b"\x00\x01" + rest))
def test_garbage_is_refused_or_is_exactly_a_word(garbage: bytes) -> None:
    refused_or_exact(garbage, decode_word, encode_word, PeerError)


@given(WORDS, st.data())
def test_a_changed_byte_is_refused_or_makes_another_whole_word(word: Word, data: st.DataObject) -> None:
    changed = with_another_byte(encode_word(word), data)
    assert refused_or_exact(changed, decode_word, encode_word, PeerError) != word


@pytest.mark.parametrize(
    "hello",
    [
        replace(HELLO, name=""),
        replace(HELLO, name="n2/x"),
        replace(HELLO, name="n" * 129),
        replace(HELLO, name="ñ2"),
        replace(HELLO, node_id="A" * 32),
        replace(HELLO, node_id="1" * 31),
        replace(HELLO, cluster="a b"),
        replace(HELLO, receiver="n1\n"),
        replace(HELLO, digest=bytes(65)),
    ],
)
def test_a_hello_with_names_that_are_none_is_refused(hello: Hello) -> None:
    with pytest.raises(PeerError) as caught:
        decode_word(encode_word(hello))
    assert caught.value.reason is Reason.HELLO_BROKEN


def test_a_word_of_another_kind_is_refused() -> None:
    for body in (b"\x00\x09", b"\x01\x01", b"\x00", b""):
        with pytest.raises(PeerError) as caught:
            decode_word(body)
        assert caught.value.reason is Reason.FRAME_UNEXPECTED


def test_the_preface_tells_another_protocol_from_another_version() -> None:
    check_preface(PREFACE)
    with pytest.raises(PeerError) as caught:
        check_preface(b"GET / HTTP/1")
    assert caught.value.reason is Reason.OTHER_PROTOCOL
    with pytest.raises(PeerError, match="version 9 ") as caught:
        check_preface(PREFACE[:-1] + b"\x09")
    assert caught.value.reason is Reason.OTHER_VERSION


# --- who is welcome -------------------------------------------------------------------------------------------


def test_a_node_of_the_list_is_welcome() -> None:
    assert objection(HELLO, EXPECTED, None, None) is None
    assert objection(HELLO, EXPECTED, "n2", None) is None
    assert objection(HELLO, EXPECTED, "n2", {"n2", "other"}) is None


@pytest.mark.parametrize(
    ("hello", "dialled", "certified", "reason"),
    [
        (replace(HELLO, cluster="prod"), None, None, Reason.OTHER_CLUSTER),
        (replace(HELLO, digest=b"another"), None, None, Reason.OTHER_NODE_LIST),
        (replace(HELLO, name="n1"), None, None, Reason.OWN_NAME),
        (replace(HELLO, name="n1"), "n2", None, Reason.OWN_NAME),
        (replace(HELLO, name="n9"), None, None, Reason.UNKNOWN_NODE),
        (replace(HELLO, receiver="n3"), None, None, Reason.OTHER_NODE),
        (replace(HELLO, name="n3"), "n2", None, Reason.OTHER_NODE),
        (HELLO, None, {"n3"}, Reason.TLS_NAME),
        (HELLO, "n2", set(), Reason.TLS_NAME),
    ],
)
def test_who_is_not_welcome_hears_why(
    hello: Hello, dialled: str | None, certified: set[str] | None, reason: Reason
) -> None:
    assert objection(hello, EXPECTED, dialled, certified) is reason


def test_every_reason_has_a_sentence() -> None:
    assert SENTENCES.keys() == set(Reason)


# --- names ----------------------------------------------------------------------------------------------------


def test_an_identity_is_a_name_and_an_id() -> None:
    assert identity_of("n2", ID2) == f"n2/{ID2}"
    assert name_of(identity_of("n2", ID2)) == "n2"
    for name, node_id in (("n/2", ID2), ("", ID2), ("n2", "short")):
        with pytest.raises(ValueError, match="Expected"):
            identity_of(name, node_id)


def test_the_digest_of_a_list_tells_its_order_and_where_fields_end() -> None:
    lists: list[list[tuple[str, ...]]] = [
        [("n1", "a"), ("n2", "b")],
        [("n2", "b"), ("n1", "a")],
        [("n1", "a", "n2", "b")],
        [("n1a",), ("n2", "b")],
        [("n1", "a")],
        [],
    ]
    assert len({node_list_digest(rows) for rows in lists}) == len(lists)
    assert node_list_digest(lists[0]) == DIGEST


def test_a_certificate_names_what_its_authority_wrote() -> None:
    certificate = {
        "subject": ((("organizationName", "n9"),), (("commonName", "N1"),)),
        "subjectAltName": (("DNS", "n2"), ("IP Address", "127.0.0.1"), ("URI", "n8")),
    }
    assert certified_names(certificate) == {"n1", "n2"}
    assert certified_names({}) == set()
