"""A run to accept, and how it is written into an entry: tasks that share everything but their payloads."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.machine.packing import BytesReader, DecodeError

_RUN = struct.Struct(">BHQIIQIQHHHIHIHHI?")
SIZE_BYTES = 4  # of each payload's size
DIGEST_BYTES = 8


class NewRun(NamedTuple):
    """Tasks to accept together. None of them has a unique key, a delay or a time to live of its own: those are accepted
    one by one."""

    queue: bytes
    priority: int
    request_id: bytes  # of all of them together, made up by a client; empty: no deduplication, or each by its own
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
    tenant: bytes = b""
    limit_key: bytes = b""
    request_ids: bytes = b""  # their own, packed; an empty one: no deduplication of that task
    digests: bytes = b""  # of what these stand for, packed; empty: none is compared

    @property
    def tasks(self) -> int:
        return len(self.sizes) // SIZE_BYTES


def pack_ids(request_ids: Sequence[bytes]) -> bytes:
    """Texts without control characters."""
    return b"\0".join(request_ids)


def unpack_ids(request_ids: bytes) -> list[bytes]:
    return request_ids.split(b"\0")


def pack_digests(digests: Sequence[int]) -> bytes:
    return struct.pack(f">{len(digests)}Q", *digests)


def unpack_digests(digests: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(digests) // DIGEST_BYTES}Q", digests)


def pack_sizes(sizes: Sequence[int]) -> bytes:
    return struct.pack(f">{len(sizes)}I", *sizes)


def unpack_sizes(sizes: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(sizes) // SIZE_BYTES}I", sizes)


def put_run(parts: list[bytes], new: NewRun) -> None:
    names = (
        new.queue, new.request_id, new.type, new.header, new.sizes, bytes(new.payloads), new.tenant, new.limit_key,
        new.request_ids, new.digests,
    )  # fmt: skip
    head = _RUN.pack(
        new.priority, new.flags, new.dedup_window_ms, new.max_attempts, new.max_claims, new.result_ttl_ms,
        new.timeout_ms, new.start_by_ms, len(new.queue), len(new.request_id), len(new.type), len(new.header),
        new.tasks, len(new.payloads), len(new.tenant), len(new.limit_key), len(new.request_ids), bool(new.digests),
    )  # fmt: skip
    parts += (head, *names)


def read_run(reader: BytesReader) -> NewRun:
    head = reader.unpack(_RUN)
    priority, flags, window_ms, attempts, claims, result_ttl_ms, timeout_ms, start_by_ms, *lengths = head
    queue_n, request_n, type_n, header_n, tasks, payloads_n, tenant_n, limit_n, ids_n, has_digests = lengths
    queue, request_id, type_name = reader.take(queue_n), reader.take(request_n), reader.take(type_n)
    header, sizes = reader.take(header_n), reader.take(tasks * SIZE_BYTES)
    payloads, tenant, limit_key = reader.view(payloads_n), reader.take(tenant_n), reader.take(limit_n)
    request_ids, digests = reader.take(ids_n), reader.take(tasks * DIGEST_BYTES * has_digests)
    if request_ids and request_ids.count(b"\0") != tasks - 1:
        raise DecodeError(f"the entry has {len(unpack_ids(request_ids))} request ids for {tasks} tasks")
    return NewRun(
        queue, priority, request_id, window_ms, attempts, claims, result_ttl_ms, type_name, flags, timeout_ms,
        header, sizes, payloads, start_by_ms, tenant, limit_key, request_ids, digests,
    )  # fmt: skip
