"""Runs: what is stored for many tasks that are alike, and for those that depart."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest

from holdfast.machine import entries, keys, ready_rows, run_entries
from holdfast.machine.handlers import runs as run_handlers
from holdfast.machine.ids import TOKEN_MAX, later_task_id, later_token
from holdfast.machine.incarnations import begin_incarnation
from holdfast.machine.invariants import violations
from holdfast.machine.kv import MemoryKV
from holdfast.machine.machine import Machine
from holdfast.machine.new_runs import NewRun, pack_digests, pack_ids, pack_sizes
from holdfast.machine.outcomes import Accepted, AcceptedRun, Acked, AckedRange, Changed, Claimed, Extended, Moved
from holdfast.machine.reader import Reader
from holdfast.machine.ready_lines import read_ages, read_subqueue
from holdfast.machine.rejections import REQUEST_ID_CONFLICT, STALE_TOKEN, TASK_NOT_FOUND, Rejection
from holdfast.machine.rows import CLAIMED, READY, SUCCEEDED
from holdfast.machine.run_entries import AckRange, TaskRange
from holdfast.machine.run_rows import RUN_TASKS_MAX
from holdfast.machine.running import Running
from holdfast.machine.task_walk import walk
from tests.unit.machine.machine_shard import KEEP_MS, LEASE_MS, QUEUE, SECRET, Shard


class RunShard(Shard):
    def enqueue_run(self, *payloads: bytes, request_id: bytes = b"", **changes: Any) -> AcceptedRun:
        sizes = pack_sizes([len(payload) for payload in payloads])
        new = NewRun(QUEUE, 4, request_id, KEEP_MS, 3, 5, 0, b"send", 0, 0, b"", sizes, b"".join(payloads))._replace(
            **changes
        )
        (outcome,) = self.apply(run_entries.EnqueueRuns(self.now_ms, [new]))
        assert isinstance(outcome, AcceptedRun)
        return outcome

    def claim_slice(self, task_id: bytes, count: int, request_id: bytes = b"") -> list[object]:
        times = self.now_ms, self.now_ms + LEASE_MS, b"worker", request_id, self.now_ms + KEEP_MS
        return [*self.apply(entries.Claim(*times, [task_id], [], secret=SECRET, counts=[count]))]

    def ack_range(self, task_id: bytes, token: int, tasks: int) -> AckedRange:
        (outcome,) = self.apply(run_entries.AckRanges(self.now_ms, KEEP_MS, [AckRange(task_id, token, tasks)]))
        assert isinstance(outcome, AckedRange)
        return outcome

    def families(self) -> Counter[int]:
        return Counter(key[0] for key in self.kv.rows())


@pytest.fixture
def shard() -> RunShard:
    return RunShard()


def claimed_of(outcomes: list[object]) -> Claimed:
    (claimed,) = outcomes
    assert isinstance(claimed, Claimed)
    return claimed


def test_a_hundred_tasks_that_come_and_go_together_cost_a_few_rows(shard: RunShard) -> None:
    rows_before = Counter({keys.META: 1, keys.QUEUE: 1, keys.RUN: 1})
    first = shard.enqueue_run(*[b"p"] * 100).task_id
    assert shard.families() == rows_before + Counter({keys.READY: 1, keys.RUN_PAYLOADS: 1})
    claimed = claimed_of(shard.claim_slice(first, 100))
    assert (claimed.task_id, claimed.tasks) == (first, 100)
    assert shard.families() == rows_before + Counter({keys.CLAIM_EXPIRY: 1, keys.RUN_PAYLOADS: 1, keys.WORKER: 1})
    assert shard.ack_range(first, claimed.token, 100).refused == ()
    assert shard.families() == rows_before + Counter({keys.RETENTION: 1})
    shard.now_ms += KEEP_MS
    assert shard.apply(run_entries.PurgeRanges(shard.now_ms, [TaskRange(first, 100)])) == [Changed(100)]
    assert shard.families() == Counter({keys.META: 1, keys.QUEUE: 1})
    assert violations(shard.kv) == []


@pytest.mark.parametrize("at_hand", [True, False])
def test_tasks_that_are_claimed_acked_and_purged_one_by_one_stay_in_their_run(
    shard: RunShard, *, at_hand: bool
) -> None:
    first = shard.enqueue_run(b"a", b"b", b"c").task_id
    ids = [later_task_id(first, index) for index in range(3)]
    for index, task_id in enumerate(ids):
        if not at_hand:
            shard.machine = Machine(shard.kv)
        (claimed,) = shard.apply(
            entries.Claim(shard.now_ms, shard.now_ms + LEASE_MS, b"worker", b"r%d" % index, 10**9, [task_id], [])
        )
        assert isinstance(claimed, Claimed)
        assert shard.machine.claims_of_request(b"worker", b"r%d" % index) == [claimed]
        assert shard.machine.reader.envelopes([task_id]) == [b"\x1a\x01" + b"abc"[index : index + 1]]
        assert shard.ack(task_id, claimed.token) == Acked(())
        assert shard.ack(task_id, claimed.token) == Acked(())  # again
        assert shard.machine.reader.envelopes([task_id]) == [None]
        assert keys.EXECUTION not in shard.families()
        assert violations(shard.kv) == []
    shard.now_ms += KEEP_MS
    for task_id in ids:
        assert shard.apply(entries.Purge(shard.now_ms, [task_id])) == [Moved(SUCCEEDED)]
        assert keys.EXECUTION not in shard.families()
    assert keys.RUN not in shard.families()
    assert violations(shard.kv) == []


def test_a_repeated_claim_is_told_what_it_holds(shard: RunShard) -> None:
    first = shard.enqueue_run(*[b"p"] * 5).task_id
    claimed = claimed_of(shard.claim_slice(first, 5, b"request"))
    assert shard.claim_slice(later_task_id(first, 1), 1, b"request") == [claimed]
    shard.ack_range(later_task_id(first, 1), later_token(claimed.token, 1), 2)
    shard.apply(entries.Cancel(shard.now_ms, KEEP_MS, [later_task_id(first, 3)]))  # it departs, and is told
    held = shard.machine.claims_of_request(b"worker", b"request")
    assert [(claim.task_id, claim.tasks) for claim in held] == [
        (first, 1), (later_task_id(first, 3), 1), (later_task_id(first, 4), 1),
    ]  # fmt: skip


def test_long_runs_are_cut_and_keep_their_ids(shard: RunShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_handlers, "RUN_TASKS_MAX", 3)
    monkeypatch.setattr(run_handlers, "RUN_BYTES_MAX", 10)
    payloads = [b"aaaa", b"bbbb", b"cccc", b"d", b"e", b"f", b"g" * 30, b"h", b"i"]
    first = shard.enqueue_run(*payloads).task_id
    ids = [later_task_id(first, index) for index in range(len(payloads))]
    assert shard.line() == [ids[index] for index in (0, 2, 5, 6, 7)]  # the first of each, and one by itself
    envelopes = shard.machine.reader.envelopes(ids)
    assert envelopes == [b"\x1a" + bytes([len(payload)]) + payload for payload in payloads]
    assert violations(shard.kv) == []


def test_a_slice_is_read_in_one_go(shard: RunShard) -> None:
    first = shard.enqueue_run(b"a", b"bb", b"", b"d").task_id
    reader = shard.machine.reader
    for looked in (reader, Reader(shard.kv)):  # with the run at hand, and without
        assert looked.run_slice(later_task_id(first, 1), 2) == (b"", [b"bb", b""], [])
        assert looked.run_slice(bytes(16), 2) is None
    view = reader.task(later_task_id(first, 1), shard.now_ms)
    assert view is not None
    assert (view.execution.state, view.envelope) == (READY, b"\x1a\x02bb")


def test_a_slice_of_which_all_have_finished_has_nothing_to_read(shard: RunShard) -> None:
    first = shard.enqueue_run(b"a", b"b").task_id
    (claim,) = shard.claim_slice(first, 2)
    assert isinstance(claim, Claimed)
    assert shard.machine.reader.run_slice(first, 2) == (b"", [b"a", b"b"], [])
    shard.ack_range(first, claim.token, 2)
    for reader in (shard.machine.reader, Reader(shard.kv)):
        assert reader.run_slice(first, 2) is None


def test_a_look_at_tasks_is_the_same_with_their_run_at_hand_and_without(shard: RunShard) -> None:
    first = shard.enqueue_run(b"a", b"b", b"c").task_id
    second, beyond = later_task_id(first, 1), later_task_id(first, 3)
    shard.apply(entries.Cancel(shard.now_ms, KEEP_MS, [second]))  # it departs
    ids = [first, second, beyond]
    at_hand = [task and task.encode() for task in shard.machine.executions(ids)]
    assert at_hand == [task and task.encode() for task in Machine(shard.kv).executions(ids)]
    assert [task is None for task in at_hand] == [False, False, True]


def extend(shard: RunShard, claimed: Claimed, places: list[int], expiry_ms: int) -> list[object]:
    items = [
        entries.ExtendItem(later_task_id(claimed.task_id, place), later_token(claimed.token, place), expiry_ms)
        for place in places
    ]
    return [*shard.apply(entries.Extend(shard.now_ms, items))]


def test_tasks_that_are_extended_together_stay_in_their_run(shard: RunShard) -> None:
    first = shard.enqueue_run(*[b"p"] * 100).task_id
    claimed = claimed_of(shard.claim_slice(first, 100))
    before, later_ms = shard.families(), shard.now_ms + 2 * LEASE_MS
    assert extend(shard, claimed, [*range(100)], later_ms) == [Extended(later_ms, False)] * 100
    assert shard.families() == before, "as many rows as before"
    assert [later_ms] == [keys.timed(key)[0] for key in shard.kv.rows() if key[0] == keys.CLAIM_EXPIRY]
    shard.now_ms += 1
    assert extend(shard, claimed, [7], later_ms + 5) == [Extended(later_ms + 5, False)]
    assert extend(shard, claimed, [7, 8, 9], later_ms + 5) == [Extended(later_ms + 5, False)] * 3
    assert shard.families()[keys.CLAIM_EXPIRY] == 3
    assert extend(shard, claimed, [*range(100)], later_ms + 5) == [Extended(later_ms + 5, False)] * 100
    assert shard.families() == before, "they are alike again"
    assert violations(shard.kv) == []
    assert shard.ack_range(first, claimed.token, 100).refused == ()


def test_what_is_extended_with_tokens_that_do_not_hold_is_as_it_was(shard: RunShard) -> None:
    first = shard.enqueue_run(*[b"p"] * 5).task_id
    claimed = claimed_of(shard.claim_slice(first, 4))
    before = shard.kv.rows()
    answers = extend(shard, claimed._replace(token=claimed.token + 1), [0, 1, 2, 3, 4, 5], shard.now_ms + 9)
    assert [answer.code for answer in answers if isinstance(answer, Rejection)] == [STALE_TOKEN] * 5 + [TASK_NOT_FOUND]
    assert {key: row for key, row in shard.kv.rows().items() if key != keys.META_KEY} == {
        key: row for key, row in before.items() if key != keys.META_KEY
    }


def test_a_task_that_finishes_by_itself_leaves_its_payload_where_it_is(
    shard: RunShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = shard.enqueue_run(b"a", b"b", result_ttl_ms=KEEP_MS).task_id
    claimed = claimed_of(shard.claim_slice(first, 1))
    seen: list[bytes] = []
    write = shard.kv.write

    def noting(changes: Mapping[bytes, bytes | None]) -> None:
        seen.extend(changes)
        write(changes)

    monkeypatch.setattr(shard.kv, "write", noting)
    assert shard.ack(first, claimed.token, b"result") == Acked(())
    shard.apply(entries.Cancel(shard.now_ms, KEEP_MS, [later_task_id(first, 1)]))
    assert keys.EXECUTION in {key[0] for key in seen}, "both departed"
    assert keys.ENVELOPE not in {key[0] for key in seen}
    assert violations(shard.kv) == []


def test_a_list_can_be_gone_on_with_in_the_middle_of_a_run(shard: RunShard) -> None:
    first = shard.enqueue_run(*[b"p"] * 5).task_id
    shard.claim_slice(later_task_id(first, 3), 2)
    for state, expected in ((READY, [0, 1, 2]), (CLAIMED, [3, 4])):
        everything = list(walk(shard.kv, [state], QUEUE, b"", {}))
        ids = [later_task_id(first, position) for position in expected]
        assert [task_id for _, task_id in everything if task_id] == ids
        for index, (place, _) in enumerate(everything):
            assert list(walk(shard.kv, [state], QUEUE, place, {})) == everything[index + 1 :]


def test_another_incarnation_gives_back_the_claims_of_runs(shard: RunShard) -> None:
    first = shard.enqueue_run(*[b"p"] * 5).task_id
    shard.claim_slice(first, 4)
    begin_incarnation(shard.kv, 2, {})
    shard.restart()
    tasks = shard.machine.executions([later_task_id(first, index) for index in range(5)])
    assert [task.state for task in tasks if task is not None] == [READY] * 5
    assert violations(shard.kv) == []


def test_a_range_may_name_tokens_that_no_claim_can_have(shard: RunShard) -> None:
    first = shard.enqueue_run(b"a", b"b").task_id
    answer = shard.ack_range(first, TOKEN_MAX, 3)
    assert [(index, refusal.code) for index, refusal in answer.refused] == [
        (0, STALE_TOKEN), (1, STALE_TOKEN), (2, TASK_NOT_FOUND),
    ]  # fmt: skip


def test_whoever_looks_for_a_task_that_is_gone_walks_over_few_tombstones(
    shard: RunShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = shard.enqueue()
    shard.ack(gone, shard.claim(gone))
    shard.now_ms += KEEP_MS
    shard.purge(gone)
    shard.enqueue_run(b"a", b"b")
    shard.restart()
    widths: list[int] = []
    scan = shard.kv.scan

    def noting(start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        if start[0] == keys.RUN:
            widths.append(int.from_bytes(stop[1:], "big") - int.from_bytes(start[1:], "big"))
            assert stop[0] == keys.RUN
        return scan(start, stop, limit)

    monkeypatch.setattr(shard.kv, "scan", noting)
    machine = Machine(shard.kv)
    assert machine.executions([gone]) == machine.reader.executions([gone]) == [None]
    assert widths == [RUN_TASKS_MAX] * 2


# --- tenants, limit keys and request ids ------------------------------------------------------------------------------


def test_a_hundred_tasks_of_a_tenant_cost_a_few_rows_more(shard: RunShard) -> None:
    first = shard.enqueue_run(*[b"p"] * 100, tenant=b"blue", limit_key=b"disk").task_id
    always = Counter({keys.META: 1, keys.QUEUE: 1, keys.RUN: 1})
    pages = len({sequence // ready_rows.AGE_PAGE_PLACES for sequence in range(1, 101)})
    waiting = Counter({keys.READY: 1, keys.SUBQUEUE: 1, keys.READY_AGE: pages, keys.RUN_PAYLOADS: 1})
    assert shard.families() == always + waiting
    claimed = claimed_of(shard.claim_slice(first, 100))
    assert shard.families() == always + Counter({keys.CLAIM_EXPIRY: 1, keys.RUN_PAYLOADS: 1, keys.WORKER: 1})
    assert Running(shard.kv).limit_keys == shard.machine.running.limit_keys == {(QUEUE, b"disk"): 100}
    shard.ack_range(first, claimed.token, 100)
    assert shard.families() == always + Counter({keys.RETENTION: 1})
    assert not shard.machine.running.tenants
    assert violations(shard.kv) == []


@pytest.mark.parametrize("restarts", [False, True])
def test_those_of_a_tenant_that_depart_wait_in_its_line(shard: RunShard, *, restarts: bool) -> None:
    first = shard.enqueue_run(*[b"p"] * 40, tenant=b"blue").task_id
    ids = [later_task_id(first, index) for index in range(40)]
    claimed = claimed_of(shard.claim_slice(ids[1], 3))
    if restarts:
        shard.restart()
    shard.release(ids[2], later_token(claimed.token, 1))
    shard.apply(entries.Cancel(shard.now_ms, KEEP_MS, [ids[10]]))
    assert violations(shard.kv) == []
    line = keys.ready_subqueue(QUEUE, 4, b"blue", b"")
    found, is_all = read_subqueue(shard.kv, line, 0, 100)
    assert is_all
    waiting = [later_task_id(task_id, index) for _, task_id, _, count in found for index in range(count)]
    assert waiting == [ids[index] for index in range(40) if index not in (1, 3, 10)]
    aged, _ = read_ages(shard.kv, shard.machine.ready_in_age_page, QUEUE, 0, 10)
    assert [task_id for _, task_id in aged] == waiting


def test_a_task_of_a_run_is_found_with_one_look(shard: RunShard) -> None:
    """However long the run, and however many there are."""
    for _ in range(5):
        shard.enqueue_run(*[b"p"] * 100)
    first = shard.enqueue_run(
        *[b"%d" % index for index in range(100)], request_ids=pack_ids([b"r%d" % n for n in range(100)])
    )
    reads: list[str] = []

    class Counted(MemoryKV):
        def get(self, key: bytes) -> bytes | None:
            reads.append("get")
            return super().get(key)

        def get_many(self, wanted: list[bytes]) -> list[bytes | None]:
            reads.append("get_many")
            return [shard.kv.get(key) for key in wanted]

        def scan(self, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
            reads.append(f"scan {limit}")
            return super().scan(start, stop, limit)

    found = Reader(Counted(shard.kv.rows())).executions([later_task_id(first.task_id, 70)])
    assert [task is not None and task.request_id for task in found] == [b"r70"]
    assert reads == ["get_many", "scan 1"]
    reads.clear()
    view = Reader(Counted(shard.kv.rows())).task(later_task_id(first.task_id, 70), shard.now_ms)
    assert view is not None
    assert view.envelope == b"\x1a\x0270" + b"\x3a\x03r70"
    assert reads == ["get", "scan 1", "get"], "and its payload"


def test_a_run_of_known_tasks_changes_nothing(shard: RunShard) -> None:
    own: dict[str, Any] = {
        "request_ids": pack_ids([b"a", b"b"]),
        "digests": pack_digests([7, 8]),
        "dedup_window_ms": 10**6,
    }
    first = shard.enqueue_run(b"1", b"2", **own)
    before = shard.families()
    again = shard.enqueue_run(b"1", b"2", **own)
    assert again == AcceptedRun(
        b"", False,
        tuple((place, Accepted(later_task_id(first.task_id, place), True, READY)) for place in range(2)),
    )  # fmt: skip
    assert shard.families() == before
    (place, refusal), (_, known) = shard.enqueue_run(b"1", b"2", **own | {"digests": pack_digests([9, 8])}).others
    assert (place, isinstance(refusal, Rejection) and refusal.code) == (0, REQUEST_ID_CONFLICT)
    assert isinstance(known, Accepted)


def test_what_is_new_of_a_run_is_cut_like_any_other(shard: RunShard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_handlers, "RUN_TASKS_MAX", 2)
    names = [b"%d" % index for index in range(7)]
    window: dict[str, Any] = {"dedup_window_ms": 10**6}
    shard.enqueue_run(b"3", b"5", request_ids=pack_ids([b"3", b"5"]), **window)
    outcome = shard.enqueue_run(*names, request_ids=pack_ids(names), **window)
    assert [place for place, _ in outcome.others] == [3, 5]
    ids = [later_task_id(outcome.task_id, index) for index in range(5)]
    tasks = shard.machine.executions(ids)
    assert [task.request_id for task in tasks if task is not None] == [b"0", b"1", b"2", b"4", b"6"]
    envelopes = shard.machine.reader.envelopes(ids)
    assert envelopes == [b"\x1a\x01%b\x3a\x01%b" % (name, name) for name in (b"0", b"1", b"2", b"4", b"6")]
    assert violations(shard.kv) == []
