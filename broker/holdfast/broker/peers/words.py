"""What the transport itself has to say, and the check of a hello. Pure.

preface   magic (8 bytes), protocol version (4 bytes): the first bytes of each side, the same in every version, so that
          a release can name the version that it does not know
word      0 (1 byte; the body of any other frame begins with its version, never 0), kind (1 byte), its fields;
          in a frame like everything after the preface
text      length (2 bytes), UTF-8

dialling node                      dialled node
  preface, Hello        ──────>
                        <──────    preface, Hello or Refused
  Proof, or Refused     ──────>                                 with a cluster secret (handshake.py)
                        <──────    Proof or Refused             likewise
  frames                ──────>
  EmptyQuery            ──────>
                        <──────    EmptyAnswer, or Refused (a newer connection came)
"""

from collections.abc import Callable, Set
from dataclasses import dataclass
from struct import Struct
from typing import Final

from holdfast.broker.peers.identities import identity_of, is_name, is_node_id
from holdfast.broker.peers.reasons import PeerError, Reason

MAGIC: Final = b"HOLDPEER"
PROTOCOL_VERSION: Final = 8
WORD: Final = 0  # the first byte of a frame's body that is a word
WORD_BYTES_MAX: Final = 1024  # all that is read from somebody who has not said hello
DIGEST_BYTES_MAX: Final = 64
NONCE_BYTES_MAX: Final = 64
PROOF_BYTES: Final = 32
HELLO_KIND, REFUSED_KIND, EMPTY_QUERY_KIND, EMPTY_ANSWER_KIND, PROOF_KIND = range(1, 6)

_PREFACE: Final = Struct(">8sI")
PREFACE_BYTES: Final = _PREFACE.size
PREFACE: Final = _PREFACE.pack(MAGIC, PROTOCOL_VERSION)
_BEGIN: Final = Struct(">BB")
_LENGTH: Final = Struct(">H")
_REFUSED: Final = Struct(">BBB")
_EMPTY_QUERY: Final = Struct(">BBI")
_EMPTY_ANSWER: Final = Struct(">BBIB")


@dataclass(frozen=True, slots=True)
class Hello:
    cluster: str
    digest: bytes  # of the list of nodes
    name: str  # the sender's
    node_id: str
    receiver: str  # the name of the node that the sender means to speak to
    empty: bool  # the sender has no log yet
    nonce: bytes = b""  # fresh, of a sender with a cluster secret; empty without one

    @property
    def identity(self) -> str:
        return identity_of(self.name, self.node_id)


@dataclass(frozen=True, slots=True)
class Refused:
    """The last word on a connection."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class EmptyQuery:
    """Are you empty still? The answer repeats the number."""

    number: int


@dataclass(frozen=True, slots=True)
class EmptyAnswer:
    number: int
    empty: bool


@dataclass(frozen=True, slots=True)
class Proof:
    """That the sender knows the cluster secret (handshake.py)."""

    proof: bytes


Word = Hello | Refused | EmptyQuery | EmptyAnswer | Proof


@dataclass(frozen=True, slots=True)
class Expectation:
    """What a node knows of its cluster when it hears a hello."""

    cluster: str
    digest: bytes
    own_name: str
    others: Set[str]
    has_secret: bool = False


def check_preface(preface: bytes) -> None:
    """Raises `PeerError` unless the other side speaks this protocol in this version."""
    magic, version = _PREFACE.unpack(preface)
    if magic != MAGIC:
        raise PeerError(Reason.OTHER_PROTOCOL, "another protocol")
    if version != PROTOCOL_VERSION:
        raise PeerError(Reason.OTHER_VERSION, f"version {version} where {PROTOCOL_VERSION} is spoken")


def objection(hello: Hello, expected: Expectation, dialled: str | None, certified: Set[str] | None) -> Reason | None:
    """Why this hello is to be refused; None when it is welcome.

    `dialled` is the node that was meant to answer (None when the other side dialled), `certified` the names in its
    certificate (None without TLS). First what a person has to put right on both nodes, then what this sender is.
    """
    if hello.cluster != expected.cluster:
        return Reason.OTHER_CLUSTER
    if hello.digest != expected.digest:
        return Reason.OTHER_NODE_LIST
    if bool(hello.nonce) != expected.has_secret:
        return Reason.SECRET_MISSING
    if hello.name == expected.own_name:
        return Reason.OWN_NAME
    if hello.receiver != expected.own_name or (dialled is not None and hello.name != dialled):
        return Reason.OTHER_NODE
    if hello.name not in expected.others:
        return Reason.UNKNOWN_NODE
    if certified is not None and hello.name.lower() not in certified:
        return Reason.TLS_NAME
    return None


def encode_word(word: Word) -> bytes:
    match word:
        case Hello():
            return _encode_hello(word)
        case Refused(reason):
            return _REFUSED.pack(WORD, REFUSED_KIND, reason)
        case EmptyQuery(number):
            return _EMPTY_QUERY.pack(WORD, EMPTY_QUERY_KIND, number)
        case EmptyAnswer(number, empty):
            return _EMPTY_ANSWER.pack(WORD, EMPTY_ANSWER_KIND, number, empty)
        case Proof(proof):
            return _BEGIN.pack(WORD, PROOF_KIND) + proof


def _encode_hello(hello: Hello) -> bytes:
    fields = (
        hello.cluster.encode(),
        hello.digest,
        hello.name.encode(),
        hello.node_id.encode(),
        hello.receiver.encode(),
        hello.nonce,
    )
    parts = [_BEGIN.pack(WORD, HELLO_KIND)]
    for field in fields:
        parts += (_LENGTH.pack(len(field)), field)
    parts.append(b"\x01" if hello.empty else b"\x00")
    return b"".join(parts)


def decode_word(body: bytes) -> Word:
    """The word in the body of a frame; raises `PeerError` for anything else."""
    reader = _READERS.get(body[1]) if len(body) >= _BEGIN.size and body[0] == WORD else None
    if reader is None:
        raise PeerError(Reason.FRAME_UNEXPECTED, "a word of an unknown kind")
    return reader(body)


def _read_hello(body: bytes) -> Word:
    fields: list[bytes] = []
    place = _BEGIN.size
    for _ in range(6):
        if len(body) - place < _LENGTH.size:
            raise _broken("a hello that is too short")
        (length,) = _LENGTH.unpack_from(body, place)
        place += _LENGTH.size
        fields.append(body[place : place + length])
        place += length
    if len(body) != place + 1:
        raise _broken("a hello of another length")
    try:
        cluster, name, node_id, receiver = (fields[index].decode("ascii") for index in (0, 2, 3, 4))
    except UnicodeDecodeError:
        raise _broken("a hello with a name that is none") from None
    if not (is_name(cluster) and is_name(name) and is_name(receiver) and is_node_id(node_id)):
        raise _broken("a hello with a name that is none")
    if len(fields[1]) > DIGEST_BYTES_MAX or len(fields[5]) > NONCE_BYTES_MAX:
        raise _broken("a hello with a digest or a nonce that is too long")
    return Hello(cluster, fields[1], name, node_id, receiver, _flag(body[place]), fields[5])


def _read_refused(body: bytes) -> Word:
    (number,) = _fields(_REFUSED, body)
    try:
        return Refused(Reason(number))
    except ValueError:
        raise _broken(f"a refusal for the unknown reason {number}") from None


def _read_empty_query(body: bytes) -> Word:
    (number,) = _fields(_EMPTY_QUERY, body)
    return EmptyQuery(number)


def _read_empty_answer(body: bytes) -> Word:
    number, empty = _fields(_EMPTY_ANSWER, body)
    return EmptyAnswer(number, _flag(empty))


def _read_proof(body: bytes) -> Word:
    proof = body[_BEGIN.size :]
    if len(proof) != PROOF_BYTES:
        raise _broken(f"a proof of {len(proof)} bytes where it takes {PROOF_BYTES}")
    return Proof(proof)


def _fields(form: Struct, body: bytes) -> tuple[int, ...]:
    if len(body) != form.size:
        raise _broken(f"a word of {len(body)} bytes where it takes {form.size}")
    return form.unpack(body)[2:]


def _flag(number: int) -> bool:
    if number > 1:
        raise _broken("a flag that is neither 0 nor 1")
    return number == 1


def _broken(detail: str) -> PeerError:
    return PeerError(Reason.HELLO_BROKEN, detail)


_READERS: Final[dict[int, Callable[[bytes], Word]]] = {
    HELLO_KIND: _read_hello,
    REFUSED_KIND: _read_refused,
    EMPTY_QUERY_KIND: _read_empty_query,
    EMPTY_ANSWER_KIND: _read_empty_answer,
    PROOF_KIND: _read_proof,
}
