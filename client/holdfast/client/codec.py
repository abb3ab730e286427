"""Payloads and results that only those with a key can read: producers and workers can, brokers cannot.

codec = Codec(keys={"2026-11": bytes.fromhex(os.environ["MAIL_KEY"])})
app = Holdfast("localhost:7400", codec=codec)
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from holdfast.client import _aead, _coded
from holdfast.client.errors import InvalidArgument, KeyMissing, Unreadable

Keys = Mapping[str, bytes] | Callable[[str], bytes | None]
KeyId = str | Callable[[], str]

_KEY_KEPT_S = 300.0  # how long the answer of a function stands
_NO_KEY_KEPT_S = 5.0  # that it knows no such key
_KEYS_KEPT_MAX = 100  # ids come from payloads, too
_TEXT_BYTES_MAX = 16 * 1024  # of an error, by the limits of the servers
_TOO_MUCH = "…"


@dataclass(frozen=True, slots=True)
class Bound:
    """What some bytes belong to: where they are found instead, they cannot be read."""

    what: str  # "the payload", "the result": how an error calls them
    to: str  # the type of a payload's task, the id of a result's or an error's

    def data(self, head: bytes) -> bytes:
        return b"\0".join((head, self.what.encode(), self.to.encode()))


def of_payload(task_type: str) -> Bound:
    return Bound("the payload", task_type)


def of_result(task_id: str) -> Bound:
    return Bound("the result", task_id)


def of_error(task_id: str) -> Bound:
    return Bound("the error", task_id)


class Codec:
    """Compresses and encrypts payloads and results on the way out, and reads them on the way in: brokers, backups and
    operators see neither. For `codec=` of `Holdfast`, `AsyncClient` and `Client`; workers have that of their app.

    keys: by their ids, 32 bytes each; or a function that returns the key of an id, or None if there is none. It is
    called on the thread of the client, so it must not take long, and is asked again after five minutes. An exception
    that it raises counts as `KeyMissing`: such a call, or such an attempt, is worth trying again.
    key_id: which key encrypts what is new, or a function that says it each time. With one key it need not be given. All
    other keys only read. Without keys nothing is encrypted.
    compress_above: what has more bytes is compressed, if that makes it smaller; None: nothing is. How small something
    becomes tells a little of what is in it: leave it out where somebody may choose a part of a secret payload.
    errors: texts and tracebacks of failed attempts are encrypted as well. The name of the exception never is: retry
    rules look at it.
    reads_plain: with keys, what is not encrypted is refused, because whoever controls a broker could have put it there.
    True takes it all the same, for as long as there are tasks from before.

    A payload is bound to the type of its task and a result to its task: put elsewhere, they cannot be read. Queue and
    tenant are not part of it, so that tasks may be handed on to others.

    >>> codec = Codec(keys={"2025": bytes(32), "2026": bytes(range(32))}, key_id="2026")
    >>> codec
    Codec(keys=['2025', '2026'], key_id='2026')
    >>> Codec(compress_above=512)
    Codec(compress_above=512)
    """

    def __init__(
        self,
        keys: Keys | None = None,
        *,
        key_id: KeyId | None = None,
        compress_above: int | None = 1024,
        errors: bool = False,
        reads_plain: bool = False,
    ) -> None:
        """Raises `InvalidArgument` if a key or an id cannot be one, or if the package 'cryptography' is missing."""
        self._keyring = None if keys is None else _Keyring(keys, key_id)
        if keys is None and (key_id is not None or errors):
            raise _refused("keys", "Expected keys together with key_id and errors, but there are none.")
        is_number = isinstance(compress_above, int) and not isinstance(compress_above, bool)
        if compress_above is not None and (not is_number or compress_above < 0):
            sentence = f"Expected compress_above as a number of bytes, or None, but got {compress_above!r}."
            raise _refused("compress_above", sentence)
        self._compress_above = compress_above
        self.seals_errors = errors
        self._reads_plain = reads_plain or keys is None

    def __repr__(self) -> str:  # never with a key
        return f"Codec(compress_above={self._compress_above})" if self._keyring is None else f"Codec({self._keyring!r})"

    def encode(self, data: bytes, bound: Bound, once: str = "") -> bytes:
        """Raises `KeyMissing`, and `InvalidArgument` if it is more than anybody would read.

        `once`: a name of this very thing. It is encrypted to the same when it is encrypted again under that name.
        """
        if len(data) > _coded.DECODED_BYTES_MAX:
            sentence = f"Expected at most {_coded.DECODED_BYTES_MAX} bytes as {bound.what}, but got {len(data)}."
            raise InvalidArgument(sentence, reason="TOO_LARGE", field=bound.what.split()[-1])
        limit = self._compress_above
        smaller = _coded.compressed(data) if limit is not None and len(data) > limit else None
        if self._keyring is None:
            if smaller is None and not _coded.is_coded(data):
                return data
            return _coded.head_of(None, is_compressed=smaller is not None) + (data if smaller is None else smaller)
        name, key = self._keyring.newest()
        head = _coded.head_of(name, is_compressed=smaller is not None)
        return head + _aead.seal(key, data if smaller is None else smaller, bound.data(head), once)

    def decode(self, data: bytes, bound: Bound) -> bytes:
        """Raises `Unreadable`, or `KeyMissing`, which is one."""
        if not _coded.is_coded(data):
            return self._plain(data, bound)
        try:
            coded = _coded.parse(data)
            body = coded.body if coded.key_id is not None else self._plain(coded.body, bound)
            if coded.key_id is not None:
                body = self._opened(coded, bound)
            return _coded.decompressed(body) if coded.is_compressed else body
        except _coded.MalformedError as error:
            raise Unreadable(bound.what, f"it {error}") from None

    def seal_text(self, text: str, bound: Bound) -> str:
        """Of an error: what would be too long for the servers is cut at its end."""
        if not text:
            return text
        while True:
            sealed = _coded.sealed_text(self.encode(text.encode(errors="replace"), bound))
            if len(sealed) <= _TEXT_BYTES_MAX:
                return sealed
            text = text[: len(text) * 3 // 4] + _TOO_MUCH

    def open_text(self, text: str, bound: Bound) -> str:
        """What cannot be read is shown as such: an error that nobody can read is no reason to show nothing else."""
        if not _coded.is_sealed_text(text):
            return text  # servers and other clients write errors, too
        data = _coded.data_of(text)
        if data is None:
            return "(encrypted, and only its beginning was kept)"
        try:
            return self.decode(data, bound).decode(errors="replace")
        except Unreadable as error:
            return f"({error})"

    def _plain(self, data: bytes, bound: Bound) -> bytes:
        if not self._reads_plain:
            raise Unreadable(bound.what, "it is not encrypted: reads_plain=True of the codec would take it")
        return data

    def _opened(self, coded: _coded.Coded, bound: Bound) -> bytes:
        assert coded.key_id is not None
        if self._keyring is None:
            raise KeyMissing(coded.key_id, bound.what, "this codec has no keys")
        found = _aead.open_sealed(self._keyring.key(coded.key_id, bound.what), coded.body, bound.data(coded.head))
        if found is None:
            why = f"it is not what was encrypted with key {coded.key_id}, or belongs to another task"
            raise Unreadable(bound.what, why)
        return found


class _Keyring:
    """The keys, of which one is for what is new."""

    def __init__(self, keys: Keys, key_id: KeyId | None) -> None:
        _aead.check_installed()
        self._function = None if isinstance(keys, Mapping) else keys
        self._keys = dict(keys) if isinstance(keys, Mapping) else {}
        self._kept: dict[str, tuple[bytes | None, float]] = {}  # of the function, and until when
        if self._function is not None and not callable(self._function):
            raise _refused("keys", f"Expected keys by their ids, or a function, but got {type(keys).__name__}.")
        if self._function is None and not self._keys:
            raise _refused("keys", "Expected at least one key, but there is none.")
        for name, key in self._keys.items():
            _check_id(name, "keys")
            _check_key(name, key)
        if key_id is None and len(self._keys) == 1:
            [key_id] = self._keys
        if key_id is None:
            raise _refused("key_id", "Expected a key_id that says which key encrypts what is new, but there is none.")
        if isinstance(key_id, str):
            _check_id(key_id, "key_id")
            if self._function is None and key_id not in self._keys:
                raise _refused("key_id", f"Expected the key_id of one of the keys, but there is no key {key_id}.")
        self._key_id = key_id

    def __repr__(self) -> str:
        keys = sorted(self._keys) if self._function is None else "a function"
        return f"keys={keys}, key_id={self._key_id!r}" if isinstance(self._key_id, str) else f"keys={keys}"

    def newest(self) -> tuple[str, bytes]:
        if isinstance(self._key_id, str):
            name = self._key_id
        else:
            name = self._key_id()
            _check_id(name, "key_id")
        return name, self.key(name, "")

    def key(self, name: str, what: str) -> bytes:
        """`what` is to be read with it; empty: it is to be written."""
        key = self._keys.get(name)
        if key is None and self._function is not None:
            key = self._asked(name, what)
        if key is None:
            raise KeyMissing(name, what)
        return key

    def _asked(self, name: str, what: str) -> bytes | None:
        assert self._function is not None
        now_s = time.monotonic()
        key, until_s = self._kept.get(name, (None, 0.0))
        if now_s < until_s:
            return key
        try:
            key = self._function(name)
        except Exception as error:
            raise KeyMissing(name, what, f"whoever was asked for it raised {type(error).__name__}") from error
        if key is not None:
            _check_key(name, key)
        while len(self._kept) >= _KEYS_KEPT_MAX:
            self._kept.pop(next(iter(self._kept)), None)
        self._kept[name] = key, now_s + (_NO_KEY_KEPT_S if key is None else _KEY_KEPT_S)
        return key


def _check_id(name: object, field: str) -> None:
    if not isinstance(name, str) or not _coded.is_key_id(name):
        wanted = f"an id of a key with 1-{_coded.KEY_ID_BYTES_MAX} of [A-Za-z0-9._-]"
        raise _refused(field, f"Expected {wanted}, but got {name!r}.")


def _check_key(name: str, key: object) -> None:
    if not isinstance(key, bytes) or len(key) != _aead.KEY_BYTES:
        got = f"{len(key)} bytes" if isinstance(key, bytes) else type(key).__name__  # never the key
        make = "secrets.token_bytes(32) makes one"
        raise _refused("keys", f"Expected key {name} to be {_aead.KEY_BYTES} bytes, but got {got}: {make}.")


def _refused(field: str, sentence: str) -> InvalidArgument:
    return InvalidArgument(sentence, reason="INVALID_FIELD", field=f"codec.{field}")
