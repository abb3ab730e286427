"""A run to accept, and how it is written into an entry: tasks that share everything but their payloads."""

import struct
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from holdfast.machine.packing import BytesReader

_RUN = struct.Struct(">BHQIIQIQHHHIHI")
SIZE_BYTES = 4  # of each payload's size


class NewRun(NamedTuple):
    """Tasks to accept together. None of them has a tenant, a limit key, a unique key, a delay or a time to live of its
    own: those are accepted one by one."""

    queue: bytes
    priority: int
    request_id: bytes  # of all of them together, made up by a client; empty: no deduplication
    dedup_window_ms: int
    max_attempts: int
    max_claims: int
    result_ttl_ms: int
    type: bytes
    flags: int  # rows.HAS_RETRY
    timeout_ms: int
    header: bytes  # an envelope without a payload: a task's own is made of it and its payload
    sizes: bytes  # of the payloads, SIZE_BYTES each
    payloads: bytes | memoryview  # one behind the other; of an entry that was read, where they are in it
    start_by_ms: int = 0  # unless it is 0 they are stored one by one: each dies of waiting unless it is started by then

    @property
    def digest(self) -> int:
        """Of what the request id stands for: it is not compared, because a client made it up."""
        return 0

    @property
    def tasks(self) -> int:
        return len(self.sizes) // SIZE_BYTES


def pack_sizes(sizes: Sequence[int]) -> bytes:
    return struct.pack(f">{len(sizes)}I", *sizes)


def unpack_sizes(sizes: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(sizes) // SIZE_BYTES}I", sizes)


def put_runs(parts: list[bytes], runs: Iterable[NewRun]) -> None:
    for new in runs:
        names = new.queue, new.request_id, new.type, new.header, new.sizes, bytes(new.payloads)
        head = _RUN.pack(
            new.priority, new.flags, new.dedup_window_ms, new.max_attempts, new.max_claims, new.result_ttl_ms,
            new.timeout_ms, new.start_by_ms, len(new.queue), len(new.request_id), len(new.type), len(new.header),
            new.tasks, len(new.payloads),
        )  # fmt: skip
        parts += (head, *names)


def read_runs(reader: BytesReader, count: int) -> list[NewRun]:
    runs = []
    for _ in range(count):
        head = reader.unpack(_RUN)
        priority, flags, window_ms, attempts, claims, result_ttl_ms, timeout_ms, start_by_ms, *lengths = head
        queue_n, request_n, type_n, header_n, tasks, payloads_n = lengths
        queue, request_id, type_name = reader.take(queue_n), reader.take(request_n), reader.take(type_n)
        header, sizes = reader.take(header_n), reader.take(tasks * SIZE_BYTES)
        runs.append(
            NewRun(
                queue, priority, request_id, window_ms, attempts, claims, result_ttl_ms, type_name, flags, timeout_ms,
                header, sizes, reader.view(payloads_n), start_by_ms,
            )
        )  # fmt: skip
    return runs
