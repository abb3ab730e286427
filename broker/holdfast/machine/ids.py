"""Task ids and fencing tokens.

A task id is a UUID of version 8 (RFC 9562): 48 bits of milliseconds, 16 bits of shard, 58 bits of sequence. Ids of one
shard sort in the order of acceptance, and a call that names a task finds its shard without a look-up.

A token is a number and a secret. The number, 16 bits of shard incarnation over 48 bits of a replicated counter, grows
across fail-over, and also when a shard is created anew: it orders tokens. The secret, the lowest 64 bits, belongs to
the claim: the leader drew it, so nobody can guess the token of a claim that another worker holds.
"""

TIME_BITS = 48
SHARD_MAX = (1 << 16) - 1
SEQUENCE_MAX = (1 << 58) - 1
TOKEN_COUNTER_BITS = 48
TOKEN_COUNTER_MAX = (1 << TOKEN_COUNTER_BITS) - 1
SECRET_BITS = 64
SECRET_MAX = (1 << SECRET_BITS) - 1
INCARNATION_MAX = (1 << 16) - 1
TIME_MS_MAX = (1 << TIME_BITS) - 1
TOKEN_NUMBER_MAX = (1 << 64) - 1
TOKEN_MAX = TOKEN_NUMBER_MAX << SECRET_BITS | SECRET_MAX

_VERSION = 8 << 76
_VARIANT = 0b10 << 62


def make_task_id(time_ms: int, shard: int, sequence: int) -> bytes:
    """16 bytes: time(48) version(4) shard-high(12) variant(2) shard-low(4) sequence(58)."""
    number = (
        (time_ms << 80) | _VERSION | ((shard >> 4) << 64) | _VARIANT | ((shard & 0xF) << 58) | sequence
    )  # fmt: skip
    return number.to_bytes(16, "big")


def later_task_id(task_id: bytes, count: int) -> bytes:
    """The id of the task so many places behind another one of its run, in which ids follow each other."""
    return (int.from_bytes(task_id, "big") + count).to_bytes(16, "big")


def task_id_shard(task_id: bytes) -> int:
    high = int.from_bytes(task_id[6:8], "big") & 0xFFF
    low = (task_id[8] >> 2) & 0xF
    return (high << 4) | low


def task_id_time_ms(task_id: bytes) -> int:
    return int.from_bytes(task_id[:6], "big")


def task_id_sequence(task_id: bytes) -> int:
    return int.from_bytes(task_id[8:], "big") & SEQUENCE_MAX


def format_task_id(task_id: bytes) -> str:
    digits = task_id.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def parse_task_id(text: str) -> bytes | None:
    """The 16 bytes of a canonical id, or None if `text` is not an id that a shard could have made."""
    if len(text) != 36 or not text[8] == text[13] == text[18] == text[23] == "-":
        return None
    try:
        task_id = bytes.fromhex(text.replace("-", ""))
    except ValueError:
        return None
    # Shorter if there were more dashes, or spaces, which fromhex passes over.
    if len(task_id) != 16 or task_id[6] >> 4 != 8 or task_id[8] >> 6 != 0b10:
        return None
    return task_id


def make_token(incarnation: int, counter: int, secret: int) -> int:
    return (incarnation << TOKEN_COUNTER_BITS | counter) << SECRET_BITS | secret


def later_token(token: int, count: int) -> int:
    """The token of the task so many places behind another one that was claimed with it.

    Callers may name any number. Behind the last one comes 0: too few for any claim, and not too large for a row."""
    return token + (count << SECRET_BITS) & TOKEN_MAX


def token_counter(token: int) -> int:
    return token >> SECRET_BITS & TOKEN_COUNTER_MAX
