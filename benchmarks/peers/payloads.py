"""What a task carries: when it was sent, its number, and text nobody can compress. All of it is text, because some
libraries take nothing else."""

import base64
import random
import time
from itertools import count, islice

_STAMP_CHARACTERS = 16  # of the time, and again of the id
HEAD_CHARACTERS = 2 * _STAMP_CHARACTERS
_TAILS = 64  # different ones that a producer takes turns with
_IDS_PER_PRODUCER = 1 << 40


class Payloads:
    """Those of one producer."""

    def __init__(self, producer: int, size_bytes: int) -> None:
        draw = random.Random(producer)
        tail_bytes = max(0, size_bytes - HEAD_CHARACTERS)
        self._tails = [base64.b64encode(draw.randbytes(tail_bytes))[:tail_bytes] for _ in range(_TAILS)]
        self._ids = count((producer + 1) * _IDS_PER_PRODUCER)

    def take(self, number: int) -> tuple[list[int], list[bytes]]:
        """Ids, and the payloads that have them."""
        now_ns = b"%016x" % time.monotonic_ns()
        ids = list(islice(self._ids, number))
        return ids, [b"%b%016x%b" % (now_ns, task_id, self._tails[task_id % _TAILS]) for task_id in ids]


def sent_s_of(payload: bytes | str) -> float:
    """When it was sent, by the clock that all processes of a machine share."""
    return int(payload[:_STAMP_CHARACTERS], 16) / 1e9


def id_of(payload: bytes | str) -> int:
    return int(payload[_STAMP_CHARACTERS:HEAD_CHARACTERS], 16)
