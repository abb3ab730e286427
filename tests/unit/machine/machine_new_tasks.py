"""What is enqueued to the machine beside its model."""

from typing import Any

import hypothesis.strategies as st

from holdfast.machine import rows
from holdfast.machine.new_runs import NewRun, pack_digests, pack_ids, pack_sizes
from holdfast.machine.new_tasks import NewTask

WINDOW_MS = 60
QUEUES = (b"mail", b"mail.slow", b"m")
REQUEST_IDS = (b"", b"a", b"b", b"c")

TENANTS = (b"", b"", b"blue", b"red")
LIMIT_KEYS = (b"", b"", b"disk")
# (flags, unique key)
UNIQUE = ((0, b""), (rows.HAS_RETRY, b""), (rows.UNIQUE_UNTIL_DONE, b"u"), (rows.UNIQUE_WHILE_WAITING, b"u"))

queue_names = st.sampled_from(QUEUES)
new_tasks = st.builds(
    lambda unique, **fields: NewTask(flags=unique[0], unique_key=unique[1], **fields),
    st.sampled_from(UNIQUE),
    queue=queue_names,
    priority=st.sampled_from((0, 4, 9)),
    tenant=st.sampled_from(TENANTS),
    limit_key=st.sampled_from(LIMIT_KEYS),
    type=st.sampled_from((b"send", b"")),
    timeout_ms=st.sampled_from((0, 0, 12, 100)),
    start_by_ms=st.sampled_from((0, 0, 0, 20, 90)),  # a time to live until the entry is made
    digest=st.sampled_from((0, 7, 7, 8)),
    request_id=st.sampled_from(REQUEST_IDS),
    dedup_window_ms=st.sampled_from((5, WINDOW_MS, 500)),
    run_at_ms=st.sampled_from((0, 0, 15, 90, -5)),  # a delay until the entry is made
    max_attempts=st.integers(1, 3),
    max_claims=st.integers(1, 3),
    result_ttl_ms=st.sampled_from((0, 20, 300)),
    envelope=st.binary(max_size=4),
)


def run_of(members: list[tuple[bytes, bytes, int]], request_id: bytes, **fields: Any) -> NewRun:
    """`members`: payloads, own request ids and their digests. Those of a run with an id of its own have none."""
    payloads, request_ids, digests = zip(*members, strict=True)
    own_ids = b"" if request_id or not any(request_ids) else pack_ids(request_ids)
    return NewRun(
        sizes=pack_sizes([len(payload) for payload in payloads]), payloads=b"".join(payloads), request_id=request_id,
        request_ids=own_ids, digests=pack_digests(digests) if own_ids and any(digests) else b"", **fields,
    )  # fmt: skip


own_ids = st.sampled_from((*REQUEST_IDS, b"d", b"e", b"longer"))
new_runs = st.builds(
    run_of,
    st.one_of(
        st.lists(st.tuples(st.binary(max_size=3), st.just(b""), st.just(0)), min_size=1, max_size=7),
        st.lists(st.tuples(st.binary(max_size=3), own_ids, st.sampled_from((0, 7, 7, 8))), min_size=1, max_size=7),
    ),
    queue=queue_names,
    tenant=st.sampled_from(TENANTS),
    limit_key=st.sampled_from(LIMIT_KEYS),
    priority=st.sampled_from((0, 4, 9)),
    request_id=st.sampled_from((b"", b"", b"run", b"run 2")),
    dedup_window_ms=st.sampled_from((5, WINDOW_MS, 500)),
    max_attempts=st.integers(1, 3),
    max_claims=st.integers(1, 3),
    result_ttl_ms=st.sampled_from((0, 20, 300)),
    type=st.sampled_from((b"send", b"")),
    flags=st.sampled_from((0, rows.HAS_RETRY)),
    timeout_ms=st.sampled_from((0, 0, 12, 100)),
    start_by_ms=st.sampled_from((0, 0, 0, 0, 20, 90)),  # the same
    header=st.binary(max_size=3),
)


def dated_runs(runs: list[NewRun], clock_ms: int) -> list[NewRun]:
    return [new._replace(start_by_ms=clock_ms + new.start_by_ms if new.start_by_ms else 0) for new in runs]
