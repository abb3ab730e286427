"""A task to accept, and how it is written into an entry."""

import struct
from collections.abc import Sequence
from typing import NamedTuple

from holdfast.machine.packing import BytesReader

_TASK = struct.Struct(">BBQQIIQIQQBHHHHHI")


class NewTask(NamedTuple):
    """A task to accept."""

    queue: bytes
    priority: int
    tenant: bytes
    request_id: bytes  # empty: no deduplication
    dedup_window_ms: int  # how long `request_id` is remembered; 0 without one
    run_at_ms: int  # 0: at once
    max_attempts: int
    max_claims: int
    result_ttl_ms: int
    envelope: bytes
    type: bytes = b""
    limit_key: bytes = b""
    unique_key: bytes = b""
    flags: int = 0  # rows.HAS_RETRY and rows.UNIQUE_*
    timeout_ms: int = 0
    start_by_ms: int = 0  # 0: it never dies of waiting
    digest: int = 0  # of what `request_id` stands for; 0: not to be compared


def put_tasks(parts: list[bytes], tasks: Sequence[NewTask]) -> None:
    pack = _TASK.pack
    for (
        queue, priority, tenant, request_id, window_ms, run_at_ms, max_attempts, max_claims, result_ttl_ms, envelope,
        type_name, limit_key, unique_key, flags, timeout_ms, start_by_ms, digest,
    ) in tasks:  # fmt: skip
        names = queue, tenant, request_id, type_name, limit_key, unique_key, envelope
        parts.append(
            pack(
                priority, flags, window_ms, run_at_ms, max_attempts, max_claims, result_ttl_ms, timeout_ms,
                start_by_ms, digest, *map(len, names),
            )
        )  # fmt: skip
        parts += names


def read_tasks(reader: BytesReader, count: int) -> list[NewTask]:
    data, offset, size, unpack_from = reader.data, reader.offset, _TASK.size, _TASK.unpack_from
    tasks = []
    for _ in range(count):
        (
            priority, flags, window_ms, run_at_ms, max_attempts, max_claims, result_ttl_ms, timeout_ms, start_by_ms,
            digest, queue_n, tenant_n, request_n, type_n, limit_n, unique_n, envelope_n,
        ) = unpack_from(data, offset)  # fmt: skip
        a = offset + size
        b = a + queue_n
        c = b + tenant_n
        d = c + request_n
        e = d + type_n
        f = e + limit_n
        g = f + unique_n
        offset = g + envelope_n
        tasks.append(
            NewTask(
                data[a:b], priority, data[b:c], data[c:d], window_ms, run_at_ms, max_attempts, max_claims,
                result_ttl_ms, data[g:offset], data[d:e], data[e:f], data[f:g], flags, timeout_ms, start_by_ms, digest,
            )
        )  # fmt: skip
    reader.offset = offset
    return tasks
