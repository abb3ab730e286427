"""What a state says, told without its key layout, so that it can be compared with the model's telling."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from holdfast.machine import keys, outcomes, ready_rows, rows, run_rows
from holdfast.machine.effects import Effects, ReadyTask
from holdfast.machine.entries import AGE_MARK, Mark
from holdfast.machine.ids import later_task_id, later_token
from holdfast.machine.rejections import Rejection
from holdfast.machine.running import claim_row, split_claim_row
from holdfast.machine.runs import index_row, payloads_key

# (name of the outcome, its fields…), or the code of a rejection
Answer = tuple[Any, ...] | str
# ("request", queue, request id), ("answer", token), ("reserve", worker, claim request id),
# ("bucket", queue, scope, name), ("discard", when, task id) or ("result", task id)
Handle = tuple[Any, ...]


class Place(NamedTuple):
    """Where a ready task is."""

    priority: int
    tenant: bytes
    limit_key: bytes
    sequence: int
    task_id: bytes

    @property
    def subqueue(self) -> tuple[int, bytes, bytes]:
        return self[:3]


Window = set[tuple[bytes, Place]]  # with the queue
Suspects = set[tuple[tuple[bytes, int], bytes]]  # queue, place and id


def handle_of(key: bytes) -> Handle:
    if key[0] == keys.DEDUP:
        return ("request", *key[1:].split(b"\0", 1))
    if key[0] == keys.RECENT:
        return ("answer", int.from_bytes(key[1:], "big"))
    if key[0] == keys.BUCKET:
        queue, rest = key[1:].split(b"\0", 1)
        return ("bucket", queue, rest[0], rest[1:])
    if key[0] == keys.DISCARD:
        return ("discard", *keys.timed(key))
    if key[0] == keys.REPORT:
        return ("result", key[1:])
    return ("reserve", *key[1:].split(b"\0", 1))


def fields_of(row: object) -> dict[str, Any]:
    names: tuple[str, ...] = type(row).__slots__  # type: ignore[attr-defined]
    return {name: getattr(row, name) for name in names if not name.startswith("_") and name != "is_in_run"}


def as_single_tasks(state: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The same state, if all tasks that are in runs had rows of their own: nobody can tell the one from the other."""
    runs = [run_rows.Run.decode(row) for key, row in state.items() if key[0] == keys.RUN]
    single = {key: row for key, row in state.items() if key[0] not in (keys.RUN, keys.RUN_PAYLOADS)}
    for run in runs:
        for start, stretch in run.spans():
            row = index_row(run, start, stretch)
            if row is not None:
                del single[row[0]]
        for place in range(run.count):
            task, task_id = run.execution(place), run.id_at(place)
            if task is None:
                continue
            single[keys.execution(task_id)] = task.encode()
            if task.state in (rows.READY, rows.CLAIMED):
                start, end = run.part_at(place)
                payloads = run_rows.RunPayloads(state[payloads_key(run, end)])
                single[keys.envelope(task_id)] = payloads.envelope(place - start, task.request_id)
            if task.state == rows.READY:
                names = task.tenant, task.limit_key
                single[keys.ready(task.queue, task.priority, task.sequence, *names)] = task_id + bytes(4)
            elif task.state == rows.CLAIMED:
                names = task.tenant, task.limit_key
                single[keys.claim_expiry(task.timer_ms, task_id)] = claim_row(task.queue, *names)
            else:
                single[keys.retention(task.timer_ms, task_id)] = b""
    return single


def remembered(key: bytes, row: bytes) -> Any:
    if key[0] == keys.DEDUP:
        dedup = rows.Dedup.decode(row)
        return dedup.task_id, dedup.window_ms, dedup.digest
    if key[0] == keys.CLAIM_REQUEST:
        claims = rows.ClaimRequest.decode(row).claims
        return tuple(pair for task_id, token, tasks in claims for pair in claims_of(task_id, token, tasks))
    if key[0] == keys.BUCKET:
        return rows.Bucket.decode(row)[:2]
    if key[0] == keys.DISCARD:
        discard = rows.Discard.decode(row)
        return tuple(discard._replace(key_expiry_ms=0))
    task_id, kind, state, retry_at_ms, follow_ups = rows.Recent.decode(row)
    answers: dict[int, Answer] = {
        rows.ANSWER_ACK: ("Acked", follow_ups),
        rows.ANSWER_FAIL: ("Failed", state, retry_at_ms),
        rows.ANSWER_RELEASE: ("Moved", state),
    }
    return task_id, answers[kind]


def claims_of(task_id: bytes, token: int, tasks: int) -> list[tuple[bytes, int]]:
    return [(later_task_id(task_id, index), later_token(token, index)) for index in range(tasks)]


def single_rows(with_runs: dict[bytes, bytes]) -> dict[int, list[tuple[bytes, bytes]]]:
    """By family, in order."""
    state = as_single_tasks(with_runs)
    families: dict[int, list[tuple[bytes, bytes]]] = {family: [] for family in keys.FAMILIES}
    for key in sorted(state):
        families[key[0]].append((key, state[key]))
    return families


def picture_of(with_runs: dict[bytes, bytes]) -> dict[str, Any]:
    families = single_rows(with_runs)
    state = {key: row for found in families.values() for key, row in found}
    meta = rows.Meta.decode(state[keys.META_KEY])
    forgotten = {keys.timed(key)[1]: keys.timed(key)[0] for key, _ in families[keys.KEY_EXPIRY]}
    results = {handle_of(key): (None, when_ms) for key, when_ms in forgotten.items() if key[0] == keys.REPORT}
    kept = [
        row
        for family in (keys.DEDUP, keys.RECENT, keys.CLAIM_REQUEST, keys.BUCKET, keys.DISCARD)
        for row in families[family]
    ]
    lines: dict[bytes, list[bytes]] = {}
    for key, task_id in sorted(ready_tasks(families[keys.READY] + families[keys.SUBQUEUE])):
        lines.setdefault(key[1:].split(b"\0", 1)[0], []).append(task_id)
    queues = {key[1:]: fields_of(rows.Queue.decode(row)) for key, row in families[keys.QUEUE]}
    marks = {name: (queue.pop("marks"), queue.pop("age_mark")) for name, queue in queues.items()}
    subqueues = {name: queue.pop("subqueues") for name, queue in queues.items()}
    numbers = ("ready", "claimed", "delayed", "retrying", "dead")
    timed = families[keys.CLAIM_EXPIRY] + families[keys.DUE] + families[keys.RETENTION] + families[keys.START_BY]
    return {
        "clock": (meta.now_ms, meta.stepped_ms, meta.next_sequence, meta.next_token),
        "tasks": {key[1:]: fields_of(rows.Execution.decode(row)) for key, row in families[keys.EXECUTION]},
        "envelopes": {key[1:]: row for key, row in families[keys.ENVELOPE]},
        "reports": {key[1:]: tuple(rows.TaskReport.decode(row)) for key, row in families[keys.REPORT]},
        "lines": lines,
        "queues": {
            name: {field: count for field, count in queue.items() if count or field in numbers}
            for name, queue in queues.items()
        },
        "marks": marks,
        "sub-queue counts": subqueues,
        "subqueues": {
            subqueue_of(key): (subqueue.ready, subqueue.mark)
            for key, subqueue in subqueue_rows(families[keys.SUBQUEUE])
        },
        "ages": ages_in(families[keys.READY_AGE], state),
        "timers": {(key[0], *keys.timed(key)) for key, _ in timed},
        "dead": {
            (queue, int.from_bytes(rest[:8], "big"), rest[8:])
            for queue, rest in (key[1:].split(b"\0", 1) for key, _ in families[keys.DEAD])
        },
        "memory": {handle_of(key): (remembered(key, row), forgotten.get(key)) for key, row in kept} | results,
        "level": meta.machine_level,
        "outbox": {
            keys.outbox_place(key): tuple(rows.OutboxMessage.decode(row))
            for key, row in families[keys.OUTBOX]
            if keys.outbox_place(key)[1]
        },
        "outboxes": {
            keys.outbox_place(key)[0]: tuple(rows.Outbox.decode(row))
            for key, row in families[keys.OUTBOX]
            if not keys.outbox_place(key)[1]
        },
        "inbox": {
            (int.from_bytes(key[1:3], "big"), int.from_bytes(key[3:], "big")): rows.Inbox.decode(row).last
            for key, row in families[keys.INBOX]
        },
        "settings": {key[1:]: tuple(rows.SettingsRow.decode(row)) for key, row in families[keys.SETTINGS]},
        "suspects": suspect_places(state),
        "alone": {key[1:]: int.from_bytes(row, "big") for key, row in families[keys.ALONE]},
        "workers": {key[1:]: int.from_bytes(row, "big") for key, row in families[keys.WORKER]},
        "running": Counter(name for _, row in families[keys.CLAIM_EXPIRY] for name in running_of(row)),
        "unique": {tuple(key[1:].split(b"\0", 1)): row for key, row in families[keys.UNIQUE]},
        "attempts": {
            key[1:]: [tuple(attempt) for attempt in rows.AttemptsRow.decode(row).kept]
            for key, row in families[keys.ATTEMPTS]
        },
        "allocations": {allocation_of(key): row for key, row in families[keys.ALLOCATION]},
    }


def ages_in(pages: list[tuple[bytes, bytes]], state: dict[bytes, bytes]) -> dict[tuple[bytes, int], bytes]:
    """Of those that pages list the ones that are still ready."""
    listed = [
        (key[1:-9], *aged) for key, row in pages for aged in ready_rows.aged_tasks(row, keys.ready_age_number(key))
    ]
    return {
        (queue, sequence): task_id
        for queue, sequence, task_id in listed
        if (row := state.get(keys.execution(task_id))) is not None and rows.Execution.is_in_line_at(row, sequence)
    }


def subqueue_rows(found: list[tuple[bytes, bytes]]) -> list[tuple[bytes, ready_rows.SubqueueRow]]:
    return [(key, ready_rows.SubqueueRow.decode(row)) for key, row in found]


def subqueue_of(key: bytes) -> tuple[bytes, int, bytes, bytes]:
    queue, rest = key[1:].split(b"\0", 1)
    tenant, limit_key = rest[1:].split(b"\0", 1)
    return queue, 9 - rest[0], tenant, limit_key


def running_of(row: bytes) -> list[tuple[bytes, int, bytes]]:
    """Whose caps a claim counts for."""
    queue, tenant, limit_key, _ = split_claim_row(row) if row else (b"", b"", b"", 1)
    named = ((queue, keys.SCOPE_TENANT, tenant), (queue, keys.SCOPE_KEY, limit_key))
    return [name for name in named if name[2]]


def allocation_of(key: bytes) -> tuple[bytes, int, int]:
    queue, rest = key[1:].split(b"\0", 1)
    return queue, rest[0], int.from_bytes(rest[1:], "big")


def answer_of(outcome: outcomes.Outcome) -> Answer:
    return outcome.code if isinstance(outcome, Rejection) else (type(outcome).__name__, *outcome)


def answers_of(done: Iterable[outcomes.Outcome]) -> list[Answer]:
    """One for each task that was claimed, and what was refused of ranges by its code."""
    answers: list[Answer] = []
    for outcome in done:
        if isinstance(outcome, outcomes.Claimed):
            answers += [answer_of(claim)[:-2] for claim in single_claims(outcome)]
        elif isinstance(outcome, outcomes.AckedRange):
            answers.append(("AckedRange", tuple((index, refusal.code) for index, refusal in outcome.refused)))
        elif isinstance(outcome, outcomes.AcceptedRun):
            others = tuple((index, answer_of(other)) for index, other in outcome.others)
            answers.append(("AcceptedRun", outcome.task_id, outcome.duplicate, others))
        else:
            answers.append(answer_of(outcome))
    return answers


def single_claims(claimed: outcomes.Claimed) -> list[outcomes.Claimed]:
    pairs = claims_of(claimed.task_id, claimed.token, claimed.tasks)
    return [claimed._replace(task_id=task_id, token=token, tasks=1) for task_id, token in pairs]


def single_ready(task: ReadyTask) -> list[ReadyTask]:
    return [
        task._replace(sequence=task.sequence + index, task_id=later_task_id(task.task_id, index), tasks=1)
        for index in range(task.tasks)
    ]


def reported(effects: Effects) -> tuple[Window, Window]:
    """What became ready and what left the line without a claim."""
    ready, withdrawn = (
        {
            (place.queue, Place(place.priority, place.tenant, place.limit_key, place.sequence, place.task_id))
            for slice_ in places
            for place in single_ready(slice_)
            if not place.is_suspect
        }
        for places in (effects.ready, effects.withdrawn)
    )
    return ready, withdrawn


def suspects_told(effects: Effects) -> tuple[Suspects, Suspects]:
    """The same of suspects."""
    ready, withdrawn = (
        {((place.queue, place.sequence), place.task_id) for place in places if place.is_suspect}
        for places in (effects.ready, effects.withdrawn)
    )
    return ready, withdrawn


def suspect_places(state: dict[bytes, bytes]) -> dict[tuple[bytes, int], bytes]:
    found = ((key, row) for key, row in state.items() if key[0] == keys.SUSPECT)
    return {(key[1:-9], int.from_bytes(key[-8:], "big")): ready_rows.split_ready_row(row)[0] for key, row in found}


def marks_for(queue: bytes, version: int, line: list[Place], left: list[Place], *, stale: bool) -> list[Mark]:
    """What a leader that has picked all of a line but what is left says about its marks."""
    if stale and version:
        # Decided before something came back: must not count, however wrong it is.
        priority, *names = line[0].subqueue
        return [Mark(queue, version - 1, priority, 10**6, *names), Mark(queue, version - 1, AGE_MARK, 10**6)]
    marks = []
    for subqueue in sorted({place.subqueue for place in line}):
        end = max(place.sequence for place in line if place.subqueue == subqueue) + 1
        first = min((place.sequence for place in left if place.subqueue == subqueue), default=end)
        marks.append(Mark(queue, version, subqueue[0], first, *subqueue[1:]))
    aged = [place.sequence for place in line if place.subqueue[1:] != (b"", b"")]
    if aged:
        first = min((place.sequence for place in left if place.subqueue[1:] != (b"", b"")), default=max(aged) + 1)
        marks.append(Mark(queue, version, AGE_MARK, first))
    return marks


def ready_tasks(state: Iterable[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
    """The READY keys and the ids of all ready tasks, also of those that are in the rows of their sub-queues."""
    for key, row in state:
        if key[0] == keys.READY:
            yield key, ready_rows.split_ready_row(row)[0]
        elif key[0] == keys.SUBQUEUE:
            for sequence, task_id, *_ in ready_rows.SubqueueRow.decode(row).ready_slices():
                yield keys.ready_at(keys.line_of_subqueue(key), sequence), task_id


def ready_places(state: dict[bytes, bytes]) -> Window:
    places = set()
    for key, task_id in ready_tasks(as_single_tasks(state).items()):
        queue, rest = key[1:-8].split(b"\0", 1)
        tenant, limit_key, _ = rest[1:].split(b"\0")
        places.add((queue, Place(9 - rest[0], tenant, limit_key, keys.ready_sequence(key), task_id)))
    return places


def claimed_in(done: Iterable[outcomes.Outcome]) -> set[bytes]:
    claims = [outcome for outcome in done if isinstance(outcome, outcomes.Claimed)]
    return {task_id for claim in claims for task_id, _ in claims_of(*claim[:2], claim.tasks)}


def in_slices(task_ids: list[bytes]) -> tuple[list[bytes], list[int]]:
    """The same tasks, those whose ids follow each other together."""
    firsts: list[bytes] = []
    counts: list[int] = []
    for task_id in task_ids:
        if firsts and later_task_id(firsts[-1], counts[-1]) == task_id:
            counts[-1] += 1
        else:
            firsts.append(task_id)
            counts.append(1)
    return firsts, counts


def accepted_in(done: Iterable[outcomes.Outcome]) -> Iterable[outcomes.Accepted]:
    for outcome in done:
        if isinstance(outcome, outcomes.Accepted):
            yield outcome
        elif isinstance(outcome, outcomes.Acked):
            yield from (follow_up for follow_up in outcome.follow_ups if follow_up.task_id != outcomes.ELSEWHERE)
        elif isinstance(outcome, outcomes.Received):
            yield from outcome.accepted
