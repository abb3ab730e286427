"""What must be true of a shard's state after every entry, checked by reading all of it. For tests and diagnosis."""

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from holdfast.machine import keys
from holdfast.machine.ids import SECRET_BITS, token_counter
from holdfast.machine.kv import Rows, rows_of
from holdfast.machine.new_runs import unpack_sizes
from holdfast.machine.ready_rows import SubqueueRow, aged_tasks, ready_row
from holdfast.machine.rows import (
    CANCELLED,
    CLAIMED,
    DEAD,
    DELAYED,
    HAS_ATTEMPTS,
    LOST_UNIQUE_KEY,
    PRIORITIES,
    READY,
    REPORT_CONFLICT,
    REPORT_ERROR,
    REPORT_RESULT,
    RETRY_PENDING,
    SUCCEEDED,
    UNIQUE_UNTIL_DONE,
    UNIQUE_WHILE_WAITING,
    AttemptsRow,
    Bucket,
    ClaimRequest,
    Dedup,
    Discard,
    Execution,
    Inbox,
    Meta,
    Outbox,
    Queue,
    Schedule,
    SettingsRow,
    TaskReport,
)
from holdfast.machine.run_rows import Run, RunPayloads
from holdfast.machine.running import claim_row
from holdfast.machine.runs import index_row, payloads_keys

_FINISHED = (SUCCEEDED, CANCELLED)


def _family(kv: Rows, family: int) -> Iterator[tuple[bytes, bytes]]:
    return rows_of(kv, keys.family_start(family), keys.family_start(family + 1))


def violations(kv: Rows) -> list[str]:
    """One sentence per broken rule; empty if the state is sound."""
    meta_row = kv.get(keys.META_KEY)
    if meta_row is None:
        return [] if not kv.scan(b"\x00", b"\xff", 1) else ["there are rows, but none says how far the log was applied"]
    meta = Meta.decode(meta_row)
    own = {key[1:]: Execution.decode(row) for key, row in _family(kv, keys.EXECUTION)}
    runs = {key: Run.decode(row) for key, row in _family(kv, keys.RUN)}
    in_runs = {
        run.id_at(place): task
        for run in runs.values()
        for place in range(run.count)
        if (task := run.execution(place)) is not None
    }
    found = [f"task {task_id.hex()} is in a run and has rows of its own" for task_id in own.keys() & in_runs.keys()]
    tasks = own | in_runs
    found += _run_violations(kv, runs)
    found += _index_violations(kv, own, runs)
    found += _task_violations(meta, tasks)
    found += _queue_violations(kv, tasks, meta.now_ms)
    found += _subqueue_violations(kv, tasks, meta.now_ms)
    found += _age_violations(kv, tasks)
    found += _unique_violations(kv, tasks)
    found += _schedule_violations(kv)
    found += _attachment_violations(kv, own)
    found += _memory_violations(kv, tasks)
    found += _worker_violations(kv, tasks)
    found += _outbox_violations(kv)
    found += [
        f"the settings of queue {key[1:]!r} have no version"
        for key, row in _family(kv, keys.SETTINGS)
        if not SettingsRow.decode(row).version
    ]
    return found


def _expected_index(tasks: dict[bytes, Execution]) -> dict[bytes, bytes]:
    """Every index row that the executions call for."""
    rows: dict[bytes, bytes] = {}
    for task_id, task in tasks.items():
        if task.state == READY and task.is_suspect:
            rows[keys.suspect(task.queue, task.sequence)] = ready_row(task_id, task.size_bytes)
        elif task.state == READY:
            place = task.queue, task.priority, task.sequence, task.tenant, task.limit_key
            rows[keys.ready(*place)] = ready_row(task_id, task.size_bytes)
        elif task.state == CLAIMED:
            rows[keys.claim_expiry(task.timer_ms, task_id)] = claim_row(task.queue, task.tenant, task.limit_key)
        elif task.state in (DELAYED, RETRY_PENDING):
            rows[keys.due(task.timer_ms, task_id)] = b""
        else:
            rows[keys.retention(task.timer_ms, task_id)] = b""
            if task.state == DEAD:
                rows[keys.dead(task.queue, task.changed_ms, task_id)] = b""
        if task.start_by_ms and task.state != CLAIMED:
            rows[keys.start_by(task.start_by_ms, task_id)] = b""
    return rows


def _run_violations(kv: Rows, runs: dict[bytes, Run]) -> list[str]:
    """Stretches follow each other, none is two that could be one, and there are payloads while they are needed."""
    found = []
    payloads = {key: RunPayloads(row) for key, row in _family(kv, keys.RUN_PAYLOADS)}
    needed = {key for run in runs.values() if run.unfinished for key in payloads_keys(run)}
    found += [f"payloads {key.hex()} are missing, or of no run" for key in payloads.keys() ^ needed]
    for key, run in runs.items():
        if key != keys.run(run.last_sequence) or not run.there or run.stretches[-1].end != run.count:
            found.append(f"run {key.hex()} has other tasks than it says")
        spans = list(run.spans())
        for (before_start, before), (start, stretch) in pairwise(spans):
            if stretch.end <= start or stretch.continues(before, start, before_start):
                found.append(f"run {key.hex()} has two stretches at {start} that are one")
        rows = [payloads[part] for part in payloads_keys(run) if part in payloads]
        sizes = tuple(size for row in rows for size in row.sizes)
        if rows and ({len(row.header) for row in rows}, sizes) != ({run.header_bytes}, unpack_sizes(run.sizes)):
            found.append(f"run {key.hex()} has payloads of other sizes than it says")
    return found


def _index_violations(kv: Rows, own: dict[bytes, Execution], runs: dict[bytes, Run]) -> list[str]:
    """`own`: the tasks that are in no run."""
    expected = _expected_index(own)
    stretches = (index_row(run, start, stretch) for run in runs.values() for start, stretch in run.spans())
    expected.update(row for row in stretches if row is not None)
    actual: dict[bytes, bytes] = {}
    families = (keys.READY, keys.CLAIM_EXPIRY, keys.DUE, keys.DEAD, keys.RETENTION, keys.START_BY, keys.SUSPECT)
    for family in families:
        actual.update(_family(kv, family))
    found = []
    for key, row in _family(kv, keys.SUBQUEUE):
        line = keys.line_of_subqueue(key)
        for sequence, task_id, size_bytes, _ in SubqueueRow.decode(row).ready_slices():
            place = keys.ready_at(line, sequence)
            if place in actual:
                found.append(f"sub-queue {key.hex()} has the task {task_id.hex()} twice")
            actual[place] = ready_row(task_id, size_bytes)
    found += [f"index row {key.hex()} has no task in that state" for key in actual.keys() - expected.keys()]
    found += [f"index row {key.hex()} is missing" for key in expected.keys() - actual.keys()]
    found += [f"index row {key.hex()} names another task" for key, row in expected.items() if actual.get(key) != row]
    return found


def _task_violations(meta: Meta, tasks: dict[bytes, Execution]) -> list[str]:
    found = []
    tokens: Counter[int] = Counter()
    for task_id, task in tasks.items():
        name = f"task {task_id.hex()} ({task.state_name})"
        if task.token:
            tokens[task.token >> SECRET_BITS] += 1
            if token_counter(task.token) >= meta.next_token:
                found.append(f"{name} has a token that was not handed out yet")
        if task.sequence >= meta.next_sequence:
            found.append(f"{name} has a sequence that was not handed out yet")
        if task.claims > task.max_claims:
            found.append(f"{name} was claimed {task.claims} times, but at most {task.max_claims} are allowed")
        if task.failures > task.max_attempts:
            found.append(f"{name} failed {task.failures} times, but at most {task.max_attempts} are allowed")
        if (task.state == DEAD) != bool(task.dead_reason):
            found.append(f"{name} has the dead reason {task.dead_reason}")
        if task.changed_ms > meta.now_ms:
            found.append(f"{name} changed in the future")
        if task.state in (READY, CLAIMED) and not task.enqueued_ms <= task.ready_since_ms <= task.changed_ms:
            found.append(f"{name} says that it joined its line at {task.ready_since_ms}")
        if task.cancel_requested and task.state in (READY, DELAYED, RETRY_PENDING):
            found.append(f"{name} waits although its cancellation was asked for")
        # Only claims that were released have ended, and the present one has not.
        may_ttl_expire = task.state in (READY, DELAYED, CLAIMED) and task.claims == (task.state == CLAIMED)
        if task.start_by_ms and not may_ttl_expire:
            found.append(f"{name} can still die of waiting")
        if task.state == CLAIMED and task.timeout_ms and task.timer_ms > task.changed_ms + task.timeout_ms:
            found.append(f"{name} is claimed for longer than it may run")
    found += [f"token {token} belongs to {count} tasks" for token, count in tokens.items() if count > 1]
    return found


def _is_late(task: Execution, now_ms: int) -> bool:
    """It came too late to be claimed and waits for its death only: no mark looks after it."""
    return 0 < task.start_by_ms <= now_ms


def _queue_violations(kv: Rows, tasks: dict[bytes, Execution], now_ms: int) -> list[str]:
    counts: dict[bytes, Counter[int]] = {}
    first_ready: dict[tuple[bytes, int], int] = {}
    for task in tasks.values():
        counts.setdefault(task.queue, Counter())[task.state] += 1
        if task.is_in_line and task.is_plain and not _is_late(task, now_ms):
            place = (task.queue, task.priority)
            first_ready[place] = min(first_ready.get(place, task.sequence), task.sequence)
    found = []
    queues = {key[1:]: Queue.decode(row) for key, row in _family(kv, keys.QUEUE)}
    for name in counts.keys() - queues.keys():
        found.append(f"queue {name!r} has tasks, but no counters")
    for name, queue in queues.items():
        actual = counts.get(name, Counter())
        stored = {READY: queue.ready, CLAIMED: queue.claimed, DELAYED: queue.delayed, RETRY_PENDING: queue.retrying,
                  DEAD: queue.dead}  # fmt: skip
        found += [
            f"queue {name!r} counts {count} tasks in state {state}, but there are {actual[state]}"
            for state, count in stored.items()
            if count != actual[state]
        ]
        suspects = sum(task.state == READY and task.is_suspect for task in tasks.values() if task.queue == name)
        if queue.suspects != suspects:
            found.append(f"queue {name!r} counts {queue.suspects} ready suspects, but there are {suspects}")
        for priority in range(PRIORITIES):
            first = first_ready.get((name, priority))
            if first is not None and first < queue.marks[priority]:
                found.append(f"queue {name!r} has a ready task at {first} behind its mark {queue.marks[priority]}")
    return found


def _subqueue_violations(kv: Rows, tasks: dict[bytes, Execution], now_ms: int) -> list[str]:
    """Sub-queues, and the marks of those who look for the oldest task."""
    sequences: dict[bytes, list[int]] = {}
    firsts: dict[bytes, int] = {}
    subqueues: dict[bytes, Counter[int]] = {}
    oldest: dict[bytes, int] = {}
    for task in tasks.values():
        if task.is_in_line and not task.is_plain:
            subqueue = keys.subqueue(task.queue, task.priority, task.tenant, task.limit_key)
            if subqueue not in sequences:
                subqueues.setdefault(task.queue, Counter())[task.priority] += 1
            sequences.setdefault(subqueue, []).append(task.sequence)
            if not _is_late(task, now_ms):
                firsts[subqueue] = min(firsts.get(subqueue, task.sequence), task.sequence)
                oldest[task.queue] = min(oldest.get(task.queue, task.sequence), task.sequence)
    stored = {key: SubqueueRow.decode(row) for key, row in _family(kv, keys.SUBQUEUE)}
    found = [f"sub-queue {key.hex()} is not as its tasks are" for key in stored.keys() ^ sequences.keys()]
    found += [
        f"sub-queue {key.hex()} has {stored[key].ready} ready tasks behind {stored[key].mark}, but there are {places}"
        for key, places in sequences.items()
        if key in stored and (stored[key].ready != len(places) or stored[key].mark > firsts.get(key, stored[key].mark))
    ]
    for key, row in _family(kv, keys.QUEUE):
        queue, name = Queue.decode(row), key[1:]
        if queue.subqueues != [subqueues.get(name, Counter())[priority] for priority in range(PRIORITIES)]:
            found.append(f"queue {name!r} counts its sub-queues as {queue.subqueues}")
        if name in oldest and oldest[name] < queue.age_mark:
            found.append(f"queue {name!r} has a ready task at {oldest[name]} behind its age mark {queue.age_mark}")
    return found


def _age_violations(kv: Rows, tasks: dict[bytes, Execution]) -> list[str]:
    """The pages list all ready tasks of sub-queues, each in its place, and each page has one. Others have left."""
    waiting = [(task_id, task) for task_id, task in tasks.items() if task.is_in_line and not task.is_plain]
    expected = {(task.queue, task.sequence, task_id) for task_id, task in waiting}
    stored: set[tuple[bytes, int, bytes]] = set()
    found = []
    for key, row in _family(kv, keys.READY_AGE):
        places = {(key[1:-9], *place) for place in aged_tasks(row, keys.ready_age_number(key))}
        stored |= places
        if not places & expected:
            found.append(f"the page of ages {key.hex()} has no ready task")
    found += [f"the ages of queue {queue!r} lack {place}" for queue, place, _ in expected - stored]
    return found


def _unique_violations(kv: Rows, tasks: dict[bytes, Execution]) -> list[str]:
    """A unique key belongs to a task that has it by right, and a task that lost its key to another one says so."""
    holders = dict(_family(kv, keys.UNIQUE))
    found = []
    for key, task_id in holders.items():
        task = tasks.get(task_id)
        if task is None or keys.unique(task.queue, task.unique_key) != key or not _may_have_key(task):
            found.append(f"unique key {key.hex()} belongs to task {task_id.hex()}, which must not have it")
    found += [
        f"task {task_id.hex()} has lost its unique key"
        for task_id, task in tasks.items()
        if task.unique_key
        and _may_have_key(task)
        and not task.flags & LOST_UNIQUE_KEY
        and holders.get(keys.unique(task.queue, task.unique_key)) != task_id
    ]
    return found


def _may_have_key(task: Execution) -> bool:
    if task.state in (READY, DELAYED, RETRY_PENDING):
        return bool(task.flags & (UNIQUE_UNTIL_DONE | UNIQUE_WHILE_WAITING))
    return task.state == CLAIMED and bool(task.flags & UNIQUE_UNTIL_DONE)


def _schedule_violations(kv: Rows) -> list[str]:
    expected = set()
    for key, row in _family(kv, keys.SCHEDULE):
        schedule = Schedule.decode(row)
        if schedule.next_ms:
            expected.add(keys.schedule_due(schedule.next_ms, *keys.schedule_names(key[1:])))
    actual = {key for key, _ in _family(kv, keys.SCHEDULE_DUE)}
    return [f"the next tick {key.hex()} is not what its schedule says" for key in expected ^ actual]


def _attachment_violations(kv: Rows, tasks: dict[bytes, Execution]) -> list[str]:
    found = []
    sizes = {key[1:]: len(row) for key, row in _family(kv, keys.ENVELOPE)}
    envelopes = sizes.keys()
    needed = {task_id for task_id, task in tasks.items() if task.state not in _FINISHED}
    found += [f"task {task_id.hex()} has lost its envelope" for task_id in needed - envelopes]
    found += [f"envelope {task_id.hex()} belongs to no unfinished task" for task_id in envelopes - needed]
    found += [
        f"task {task_id.hex()} says its envelope has {tasks[task_id].size_bytes} bytes, but it has {size}"
        for task_id, size in sizes.items()
        if task_id in tasks and tasks[task_id].size_bytes != size
    ]
    for key, row in _family(kv, keys.REPORT):
        task, kind = tasks.get(key[1:]), TaskReport.decode(row).kind
        if task is None:
            found.append(f"report {key[1:].hex()} belongs to no task")
        elif kind == REPORT_RESULT and not task.result_end_ms:
            found.append(f"report {key[1:].hex()} is the result of a task that has none")
        if kind not in (REPORT_ERROR, REPORT_RESULT, REPORT_CONFLICT):
            found.append(f"report {key[1:].hex()} is of an unknown kind")
    listed = {key[1:]: AttemptsRow.decode(row) for key, row in _family(kv, keys.ATTEMPTS)}
    reported = {task_id for task_id, task in tasks.items() if task.flags & HAS_ATTEMPTS}
    found += [f"the attempts of task {task_id.hex()} are not as it says" for task_id in listed.keys() ^ reported]
    return found


def _worker_violations(kv: Rows, tasks: dict[bytes, Execution]) -> list[str]:
    """A worker is said to hold as many claims as it does."""
    claimed = (task for task in tasks.values() if task.state == CLAIMED and task.worker)
    actual = Counter(keys.worker(task.worker) for task in claimed)
    alone = (task for task in tasks.values() if task.state == CLAIMED and task.worker and task.is_suspect)
    actual.update(keys.alone(task.worker) for task in alone)
    families = (keys.WORKER, keys.ALONE)
    stored = {key: int.from_bytes(row, "big") for family in families for key, row in _family(kv, family)}
    return [
        f"{key!r} is said to hold {stored.get(key)} claims, but holds {actual[key]}"
        for key in actual.keys() | stored.keys()
        if stored.get(key) != actual[key]
    ]


def _outbox_violations(kv: Rows) -> list[str]:
    """Messages have the numbers that their outbox says, without a gap, and nobody has heard of a message number 0."""
    boxes: dict[int, Outbox] = {}
    messages: dict[int, set[int]] = {}
    for key, row in _family(kv, keys.OUTBOX):
        destination, sequence = keys.outbox_place(key)
        if sequence:
            messages.setdefault(destination, set()).add(sequence)
        else:
            boxes[destination] = Outbox.decode(row)
    found = []
    for destination in sorted(boxes.keys() | messages.keys()):
        box = boxes.get(destination, Outbox())
        if messages.get(destination, set()) != set(range(box.delivered + 1, box.last + 1)):
            found.append(f"the outbox for shard {destination} does not have the messages that it says")
        if not box.last or box.delivered > box.last:
            found.append(f"the outbox for shard {destination} has delivered {box.delivered} messages of {box.last}")
    found += [f"inbox {key.hex()} is empty" for key, row in _family(kv, keys.INBOX) if not Inbox.decode(row).last]
    return found


def _short_results(kv: Rows, tasks: dict[bytes, Execution]) -> Iterator[tuple[bytes, int]]:
    """The REPORT keys of results that go before their tasks do, and when."""
    for key, row in _family(kv, keys.REPORT):
        task = tasks.get(key[1:])
        if task is not None and TaskReport.decode(row).kind == REPORT_RESULT and task.result_end_ms < task.timer_ms:
            yield key, task.result_end_ms


def _memory_violations(kv: Rows, tasks: dict[bytes, Execution]) -> list[str]:
    """Rows that are kept only for a while and the times at which they are forgotten belong together."""
    armed: dict[bytes, list[int]] = {}
    for key, _ in _family(kv, keys.KEY_EXPIRY):
        when_ms, target = keys.timed(key)
        armed.setdefault(target, []).append(when_ms)
    kept: dict[bytes, int | None] = {}
    kept.update((key, Dedup.decode(row).key_expiry_ms) for key, row in _family(kv, keys.DEDUP))
    kept.update((key, ClaimRequest.decode(row).key_expiry_ms) for key, row in _family(kv, keys.CLAIM_REQUEST))
    kept.update((key, Bucket.decode(row).key_expiry_ms) for key, row in _family(kv, keys.BUCKET))
    kept.update((key, Discard.decode(row).key_expiry_ms) for key, row in _family(kv, keys.DISCARD))
    kept.update((key, None) for key, _ in _family(kv, keys.RECENT))
    kept.update(_short_results(kv, tasks))
    found = [f"row {key.hex()} is never forgotten" for key in kept.keys() - armed.keys()]
    found += [f"row {key.hex()} is forgotten, but is not there" for key in armed.keys() - kept.keys()]
    found += [f"row {key.hex()} is forgotten more than once" for key, times in armed.items() if len(times) > 1]
    requests = ((key, Dedup.decode(row)) for key, row in _family(kv, keys.DEDUP))
    found += [
        f"request id {key.hex()} is forgotten before its window is over"
        for key, dedup in requests
        if dedup.key_expiry_ms < dedup.window_end_ms
    ]
    found += [
        f"row {key.hex()} is forgotten at another time than it says"
        for key, when_ms in kept.items()
        if when_ms is not None and key in armed and armed[key] != [when_ms]
    ]
    return found
