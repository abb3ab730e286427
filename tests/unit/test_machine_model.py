"""The machine against a model: plain dicts, no key layout, the rules of the transition table written a second time.

Entries go through a pipeline as they do behind a leader: decided on the applied state, applied later and in order.
After every applied entry outcomes, the whole state and the invariants are compared; at the end the log is replayed.
"""

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TypeVar

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from holdfast.machine import entries, keys, outcomes, rows
from holdfast.machine.effects import Effects
from holdfast.machine.entries import AckItem, ClaimRef, Entry, ExpireItem, ExtendItem, FailItem, ForgetItem, NewTask
from holdfast.machine.hashing import state_hash
from holdfast.machine.invariants import violations
from holdfast.machine.kv import MemoryKV
from holdfast.machine.machine import Machine
from holdfast.machine.rows import CANCELLED, CLAIMED, DEAD, DELAYED, READY, RETRY_PENDING
from tests.unit.machine_model import (
    ENDED,
    INCARNATION,
    PAUSE_MS,
    SHARD,
    Answer,
    Model,
    answer_of,
    picture_of,
)

T = TypeVar("T")
KEEP_MS = 50
DEAD_KEEP_MS = 80
WINDOW_MS = 60
START_MS = 1_000_000

QUEUES = (b"mail", b"mail.slow", b"m")
WORKERS = (b"", b"ann", b"bob")
REQUEST_IDS = (b"", b"a", b"b", b"c")
STRANGER = b"\x11" * 16
UNKNOWN_TOKENS = (0, 1, INCARNATION * 2**48 + 10_000, (INCARNATION - 1) * 2**48 + 1)

queue_names = st.sampled_from(QUEUES)
new_tasks = st.builds(
    NewTask,
    queue=queue_names,
    priority=st.sampled_from((0, 4, 9)),
    tenant=st.sampled_from((b"", b"blue")),
    request_id=st.sampled_from(REQUEST_IDS),
    dedup_window_ms=st.sampled_from((5, WINDOW_MS, 500)),
    run_at_ms=st.sampled_from((0, 0, 15, 90, -5)),  # a delay until the entry is made
    max_attempts=st.integers(1, 3),
    max_claims=st.integers(1, 3),
    result_ttl_ms=st.sampled_from((0, 20, 300)),
    envelope=st.binary(max_size=4),
)
# Which tasks or claims an entry is about: the n-th of those that fit the entry, or of all that ever were.
picks = st.lists(st.tuples(st.sampled_from((True, True, False)), st.integers(0, 12)), min_size=1, max_size=3)
Picks = list[tuple[bool, int]]


class MachineAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.kv = MemoryKV()
        self.machine = Machine(self.kv, shard=SHARD, incarnation=INCARNATION)
        self.model = Model()
        self.clock_ms = START_MS
        self.behind_ms = 0  # how far the stamps of entries are behind the time that was already applied
        self.lag = 0  # how many decided entries may wait to be applied
        self.pipeline: list[tuple[Entry, frozenset[bytes]]] = []  # with the ready tasks that it takes away
        self.log: list[tuple[int, bytes, list[Answer], str]] = []  # term, entry, answers, state hash behind it
        self.term = 1
        self.known_ids: list[bytes] = []
        self.known_claims: list[tuple[bytes, int]] = []

    # What a leader does.

    @property
    def stamp_ms(self) -> int:
        return self.clock_ms - self.behind_ms

    def propose(self, entry: Entry, taken: Iterable[bytes] = ()) -> None:
        self.pipeline.append((entry, frozenset(taken)))
        self.drain(self.lag)

    def drain(self, waiting_max: int) -> None:
        while len(self.pipeline) > waiting_max:
            self.apply(self.pipeline.pop(0)[0])

    def apply(self, entry: Entry) -> None:
        data = entries.encode(entry)
        read_back = entries.decode(data)
        assert type(read_back) is type(entry)
        assert read_back == entry
        before = self.kv.rows()
        done = self.machine.apply(self.machine.meta.applied_index + 1, self.term, read_back)
        effects = self.machine.commit()
        after = self.kv.rows()
        answers = [answer_of(outcome) for outcome in done]
        expected = self.model.apply(entry)
        assert len(answers) == len(expected)
        for answer, wanted in zip(answers, expected, strict=True):
            assert wanted == answer
        assert picture_of(after) == self.model.picture()
        meta = rows.Meta.decode(after[keys.META_KEY])
        assert (meta.applied_index, meta.applied_term) == (len(self.log) + 1, self.term)
        assert (meta.shard, meta.incarnation) == (SHARD, INCARNATION)
        assert violations(self.kv) == []
        for worker in WORKERS[1:]:
            assert self.machine.worker_claims(worker) == self.model.picture()["workers"][worker]
        self.check_budgets()
        self.check_refusal(expected, before, after)
        self.check_effects(effects, before, after)
        self.log.append((self.term, data, answers, state_hash(self.kv)))
        self.known_ids += [outcome.task_id for outcome in accepted_in(done) if not outcome.duplicate]
        claimed = [outcome for outcome in done if isinstance(outcome, outcomes.Claimed)]
        new_claims = [(claim.task_id, claim.token) for claim in claimed]
        self.known_claims += [claim for claim in new_claims if claim not in self.known_claims]
        assert [token for _, token in self.known_claims] == sorted({token for _, token in self.known_claims})

    def check_budgets(self) -> None:
        """Dead if and only if a budget is spent or the worker gave up: what waits still has a claim and an attempt."""
        for task in self.model.tasks.values():
            attempts_left = task.new.max_attempts - task.failures
            claims_left = task.new.max_claims - task.claims
            if task.state in (READY, DELAYED, RETRY_PENDING):
                assert attempts_left > 0
                assert claims_left > 0
            elif task.dead_reason == rows.ATTEMPTS_SPENT:
                assert attempts_left == 0
            elif task.dead_reason == rows.CLAIMS_SPENT:
                assert claims_left == 0
                assert attempts_left > 0

    def check_refusal(self, expected: list[Answer], before: dict[bytes, bytes], after: dict[bytes, bytes]) -> None:
        """Refused as a whole: only the applied index and time have moved. A claim's marks are no item of it."""
        if expected and all(isinstance(answer, str) for answer in expected):
            changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
            assert all(key[0] in (keys.META, keys.QUEUE) for key in changed)

    def check_effects(self, effects: Effects, before: dict[bytes, bytes], after: dict[bytes, bytes]) -> None:
        """What a leader learns is enough to keep its window and its timers without reading the state."""
        new = after.keys() - before.keys()
        line = {rows.split_ready_row(after[key]) for key in new if key[0] == keys.READY}
        assert line <= {(ready.task_id, ready.size_bytes) for ready in effects.ready}
        for ready in effects.ready:
            assert self.model.tasks[ready.task_id].place == ready.sequence
        left = [before[key] for key in before.keys() - after.keys() if key[0] == keys.READY]
        gone = {rows.split_ready_row(row)[0] for row in left}
        waiting = {task_id for task_id in gone if self.model.tasks[task_id].state == CANCELLED}
        assert waiting == {ready.task_id for ready in effects.withdrawn}
        changed = {key for key in after if key[0] == keys.SETTINGS and before.get(key) != after[key]}
        assert changed == {keys.settings(queue) for queue in effects.settings}
        posted = {keys.outbox_place(key)[0] for key in new if key[0] == keys.OUTBOX}
        assert posted == effects.outbox
        ended = {key[-16:] for key in new if key[0] == keys.RETENTION}
        assert ended == set(effects.finished)
        told = {keys.CLAIM_EXPIRY: effects.expiry_ms, keys.DUE: effects.due_ms, keys.RETENTION: effects.purge_ms,
                keys.FORGET: effects.forget_ms}  # fmt: skip
        for key in new:
            if key[0] in told:
                assert 0 < told[key[0]] <= keys.timed(key)[0]

    def ready_line(self, queue: bytes) -> list[tuple[int, int, bytes]]:
        """(priority, sequence, task id) of the ready tasks, read as a leader does: from the low-water marks on."""
        line = []
        counters = self.machine.queue(queue)
        for priority in range(9, -1, -1) if counters is not None else ():
            assert counters is not None
            start = keys.ready(queue, priority, counters.marks[priority])
            found = self.kv.scan(start, keys.after_prefix(keys.ready_band(queue, priority)), 1000)
            line += [(priority, keys.ready_sequence(key), rows.split_ready_row(row)[0]) for key, row in found]
        assert [task_id for _, _, task_id in line] == self.model.line(queue)
        return line

    def any_in(self, *states: int) -> bool:
        return any(task.state in states for task in self.model.tasks.values())

    def tasks_like(self, picked: Picks, *states: int) -> list[bytes]:
        fitting = [task_id for task_id, task in self.model.tasks.items() if task.state in states]
        return choose(picked, fitting, [*reversed(self.known_ids), STRANGER])

    def claims_like(self, picked: Picks) -> list[tuple[bytes, int]]:
        held = [(task_id, task.token) for task_id, task in self.model.tasks.items() if task.state == CLAIMED]
        strange = [(task_id, token) for token in UNKNOWN_TOKENS for task_id in (*self.known_ids[-1:], STRANGER)]
        lost = [claim for claim in self.known_claims if claim[0] in dict(held) and claim not in held]
        return choose(picked, held, [*reversed(lost), *reversed(self.known_claims), *strange])

    # What happens.

    @initialize(tasks=st.lists(new_tasks, min_size=2, max_size=6))
    def elect(self, tasks: list[NewTask]) -> None:
        self.propose(entries.LeaderStarted(self.stamp_ms, False))
        self.enqueue(tasks)

    @rule(passed_ms=st.sampled_from((1, 5, 20, 60, 150, PAUSE_MS)), behind_ms=st.sampled_from((0, 0, 0, 7)))
    def time_passes(self, passed_ms: int, behind_ms: int) -> None:
        self.clock_ms += passed_ms
        self.behind_ms = behind_ms

    @rule(passed_ms=st.sampled_from((5, 20, 60, 150)), count=st.integers(1, 3))
    def timers_fire(self, passed_ms: int, count: int) -> None:
        """What is due by the leader's clock, read from the indexes ordered by time."""
        self.time_passes(passed_ms, 0)
        expired = [key[-16:] for key in self.due(keys.CLAIM_EXPIRY, count)]
        items = [ExpireItem(id_, self.model.tasks[id_].token, self.spent(id_, 0)) for id_ in expired]
        self.propose(entries.Expire(self.stamp_ms, KEEP_MS, DEAD_KEEP_MS, items))
        self.propose(entries.Promote(self.stamp_ms, [key[-16:] for key in self.due(keys.DUE, count)]))
        self.propose(entries.Purge(self.stamp_ms, [key[-16:] for key in self.due(keys.RETENTION, count)]))
        forgotten = [ForgetItem(*keys.timed(key)) for key in self.due(keys.FORGET, count)]
        self.propose(entries.Forget(self.stamp_ms, forgotten))

    def due(self, family: int, limit: int) -> list[bytes]:
        found = self.kv.scan(keys.family_start(family), keys.timed_from(family, self.clock_ms + 1), limit)
        return [key for key, _ in found]

    @rule(lag=st.integers(0, 3))
    def change_lag(self, lag: int) -> None:
        self.lag = lag
        self.drain(lag)

    @rule()
    def restart(self) -> None:
        """What is in memory is a copy of what is in the state."""
        self.kv = MemoryKV(self.kv.rows())
        self.machine = Machine(self.kv, shard=1, incarnation=1)

    @rule(survivors=st.integers(0, 3))
    def fail_over(self, survivors: int) -> None:
        """Entries at the end of the pipeline never reached a majority; the new leader decides anew."""
        del self.pipeline[survivors:]
        self.drain(0)
        self.term += 1
        self.propose(entries.LeaderStarted(self.stamp_ms, False))

    @precondition(lambda self: not self.model.stepped_ms and len(self.log) > 20)
    @rule()
    def clock_steps(self) -> None:
        self.drain(0)
        self.clock_ms += 2_000_000
        self.propose(entries.LeaderStarted(self.clock_ms, True))

    @rule(tasks=st.lists(new_tasks, min_size=1, max_size=3))
    def enqueue(self, tasks: list[NewTask]) -> None:
        self.propose(entries.Enqueue(self.stamp_ms, self.dated(tasks)))

    def dated(self, tasks: Iterable[NewTask]) -> list[NewTask]:
        return [new._replace(run_at_ms=self.clock_ms + new.run_at_ms if new.run_at_ms else 0) for new in tasks]

    @rule(
        queues=st.lists(queue_names, min_size=1, max_size=2, unique=True),
        count=st.integers(1, 3),
        request_id=st.sampled_from((b"", b"x", b"y")),
        lease_ms=st.sampled_from((10, 40, 1000)),
        strays=st.one_of(st.just([]), picks),
        raise_marks=st.sampled_from(("honest", "honest", "stale", "none")),
    )
    def claim(
        self, queues: list[bytes], count: int, request_id: bytes, lease_ms: int, strays: Picks, raise_marks: str
    ) -> None:
        away = frozenset[bytes]().union(*(taken for _, taken in self.pipeline))
        chosen: list[bytes] = []
        marks: list[entries.Mark] = []
        for queue in queues:
            line = self.ready_line(queue)
            free = [place for place in line if place[2] not in away]
            chosen += [task_id for _, _, task_id in free[:count]]
            # A call that may be a repetition carries marks always: its tasks may turn out not to be taken.
            if line and (request_id or raise_marks != "none"):
                marks += self.marks_for(queue, line, free[count:], stale=raise_marks == "stale")
        extra = self.tasks_like(strays, READY, CLAIMED) if strays else []
        forget_ms = self.clock_ms + 100
        worker = b"worker of " + request_id if request_id else WORKERS[count % 3]
        expiry_ms = self.clock_ms + lease_ms
        entry = entries.Claim(self.stamp_ms, expiry_ms, worker, request_id, forget_ms, chosen + extra, marks)
        self.propose(entry, chosen)

    @rule(queue=queue_names, lease_ms=st.sampled_from((10, 1000)))
    def claim_next(self, queue: bytes, lease_ms: int) -> None:
        self.claim([queue], 2, b"", lease_ms, [], "honest")

    def marks_for(
        self, queue: bytes, line: list[tuple[int, int, bytes]], left: list[tuple[int, int, bytes]], stale: bool
    ) -> list[entries.Mark]:
        counters = self.machine.queue(queue)
        assert counters is not None
        if stale and counters.mark_version:
            # Decided before something came back: must not count, however wrong it is.
            return [entries.Mark(queue, counters.mark_version - 1, line[0][0], 10**6)]
        marks = []
        for band in sorted({priority for priority, _, _ in line}):
            end = max(sequence for priority, sequence, _ in line if priority == band) + 1
            first = min((sequence for priority, sequence, _ in left if priority == band), default=end)
            marks.append(entries.Mark(queue, counters.mark_version, band, first))
        return marks

    @precondition(lambda self: self.known_claims)
    @rule(
        picked=picks,
        result=st.one_of(st.none(), st.binary(max_size=3)),
        follow_ups=st.one_of(st.just([]), st.lists(new_tasks, max_size=2)),
    )
    def ack(self, picked: Picks, result: bytes | None, follow_ups: list[NewTask]) -> None:
        new = tuple(self.dated(follow_ups))
        items = [AckItem(task_id, token, result, new) for task_id, token in self.claims_like(picked)]
        self.propose(entries.Ack(self.stamp_ms, KEEP_MS, items))

    @precondition(lambda self: self.known_claims)
    @rule(picked=picks, gives_up=st.sampled_from((False, False, False, True)), backoff_ms=st.sampled_from((1, 30)))
    def fail(self, picked: Picks, gives_up: bool, backoff_ms: int) -> None:
        items = []
        for task_id, token in self.claims_like(picked):
            reason = self.spent(task_id, 1) or (rows.WORKER_GAVE_UP if gives_up else 0)
            retry_at_ms = 0 if reason else self.clock_ms + backoff_ms
            items.append(FailItem(task_id, token, retry_at_ms, reason, b"error %d" % token))
        self.propose(entries.Fail(self.stamp_ms, KEEP_MS, DEAD_KEEP_MS, items))

    def spent(self, task_id: bytes, failures: int) -> int:
        """Which budget is spent once the claim has ended; a leader reads it from the task's row."""
        task = self.model.tasks.get(task_id)
        if task is not None and failures and task.failures + failures >= task.new.max_attempts:
            return rows.ATTEMPTS_SPENT
        return rows.CLAIMS_SPENT if task is not None and task.claims >= task.new.max_claims else 0

    @precondition(lambda self: self.known_claims)
    @rule(picked=picks, lease_ms=st.sampled_from((-20, 10, 200)))
    def extend(self, picked: Picks, lease_ms: int) -> None:
        claims = enumerate(self.claims_like(picked))
        items = [ExtendItem(*claim, self.clock_ms + lease_ms - 4 * number) for number, claim in claims]
        self.propose(entries.Extend(self.stamp_ms, items))

    @precondition(lambda self: self.known_claims)
    @rule(picked=picks)
    def release(self, picked: Picks) -> None:
        items = [ClaimRef(*claim) for claim in self.claims_like(picked)]
        self.propose(entries.Release(self.stamp_ms, KEEP_MS, items))

    @precondition(lambda self: self.known_claims)
    @rule(picked=picks)
    def expire(self, picked: Picks) -> None:
        items = [ExpireItem(task_id, token, self.spent(task_id, 0)) for task_id, token in self.claims_like(picked)]
        self.propose(entries.Expire(self.stamp_ms, KEEP_MS, DEAD_KEEP_MS, items))

    @precondition(lambda self: self.any_in(DELAYED, RETRY_PENDING))
    @rule(picked=picks)
    def promote(self, picked: Picks) -> None:
        self.propose(entries.Promote(self.stamp_ms, self.tasks_like(picked, DELAYED, RETRY_PENDING)))

    @precondition(lambda self: self.known_ids)
    @rule(picked=picks)
    def cancel(self, picked: Picks) -> None:
        self.propose(entries.Cancel(self.stamp_ms, KEEP_MS, self.tasks_like(picked, CLAIMED)))

    @precondition(lambda self: self.any_in(DEAD))
    @rule(picked=picks)
    def retry_dead(self, picked: Picks) -> None:
        self.propose(entries.RetryDead(self.stamp_ms, self.tasks_like(picked, DEAD)))

    @precondition(lambda self: self.any_in(DEAD))
    @rule(picked=picks)
    def discard_dead(self, picked: Picks) -> None:
        self.propose(entries.DiscardDead(self.stamp_ms, self.tasks_like(picked, DEAD)))

    @precondition(lambda self: self.any_in(*ENDED))
    @rule(picked=picks)
    def purge(self, picked: Picks) -> None:
        self.propose(entries.Purge(self.stamp_ms, self.tasks_like(picked, *ENDED)))

    @precondition(lambda self: self.model.memory)
    @rule(picked=picks)
    def forget(self, picked: Picks) -> None:
        armed = self.kv.scan(keys.family_start(keys.FORGET), keys.family_start(keys.FORGET + 1), 1000)
        items = [ForgetItem(*keys.timed(key)) for key, _ in armed]
        wrong = [ForgetItem(item.when_ms - 1, item.key) for item in items]
        nowhere = ForgetItem(START_MS, keys.dedup(b"nowhere", b"a"))
        self.propose(entries.Forget(self.stamp_ms, choose(picked, items, [*items, *wrong, nowhere])))

    @precondition(lambda self: self.known_claims)
    @rule(
        picked=picks,
        follow_ups=st.lists(new_tasks, max_size=2),
        away=st.lists(st.tuples(st.sampled_from((2, 9)), st.binary(max_size=3)), max_size=3),
        turn=st.integers(0, 4),
        waiting_max=st.sampled_from((2, 4, 100)),
    )
    def ack_away(
        self, picked: Picks, follow_ups: list[NewTask], away: list[tuple[int, bytes]], turn: int, waiting_max: int
    ) -> None:
        """Follow-ups of this shard and of others, mixed."""
        places = sorted((at + turn) % (len(follow_ups) + len(away)) for at in range(len(away)))
        parcels = tuple(
            entries.Parcel(place, destination, self.clock_ms, envelope)
            for place, (destination, envelope) in zip(places, away, strict=True)
        )
        here = tuple(self.dated(follow_ups))
        items = [AckItem(*claim, None, here, parcels) for claim in self.claims_like(picked)]
        self.propose(entries.AckAway(self.stamp_ms, KEEP_MS, waiting_max, items))

    @rule(destination=st.sampled_from((2, 9)), count=st.integers(0, 4))
    def deliver(self, destination: int, count: int) -> None:
        sequence = self.model.delivered[destination] + count
        self.propose(entries.Delivered(self.stamp_ms, destination, sequence))

    @rule(
        source=st.sampled_from(((5, 1), (5, 2))),
        ahead=st.sampled_from((-2, -1, 0, 0, 0, 1)),
        tasks=st.lists(new_tasks, max_size=3),
    )
    def receive(self, source: tuple[int, int], ahead: int, tasks: list[NewTask]) -> None:
        first = max(1, self.model.inbox.get(source, 0) + 1 + ahead)
        self.propose(entries.Receive(self.stamp_ms, *source, first, self.dated(tasks)))

    @rule(queue=queue_names, version=st.integers(1, 6), policy=st.binary(max_size=3))
    def set_queue(self, queue: bytes, version: int, policy: bytes) -> None:
        self.propose(entries.RaiseLevel(self.stamp_ms, entries.MACHINE_LEVEL))
        self.propose(entries.SetQueue(self.stamp_ms, queue, version, policy))

    # Other replicas.

    def teardown(self) -> None:
        self.drain(0)
        self.replay(lambda _: True)
        self.replay(lambda index: index % 3 == 0, restarts=True)
        self.replay(lambda _: False)

    def replay(self, commits_behind: Callable[[int], bool], *, restarts: bool = False) -> None:
        """The same log on a fresh replica, whose commits hold other groups of entries."""
        kv = MemoryKV()
        machine = Machine(kv, shard=SHARD, incarnation=INCARNATION)
        for index, (term, data, answers, hashed) in enumerate(self.log, start=1):
            done = machine.apply(index, term, entries.decode(data))
            assert [answer_of(outcome) for outcome in done] == answers
            if commits_behind(index) or index == len(self.log):
                machine.commit()
                assert state_hash(kv) == hashed
                if restarts:
                    machine = Machine(kv, shard=1, incarnation=1)


def accepted_in(done: Iterable[outcomes.Outcome]) -> Iterable[outcomes.Accepted]:
    for outcome in done:
        if isinstance(outcome, outcomes.Accepted):
            yield outcome
        elif isinstance(outcome, outcomes.Acked):
            yield from (follow_up for follow_up in outcome.follow_ups if follow_up.task_id != outcomes.ELSEWHERE)
        elif isinstance(outcome, outcomes.Received):
            yield from outcome.accepted


def choose(picked: Picks, fitting: Sequence[T], anything: Sequence[T]) -> list[T]:
    pools = [fitting if fits and fitting else anything for fits, _ in picked]
    return [pool[number % len(pool)] for pool, (_, number) in zip(pools, picked, strict=True)]


TestMachineAgainstModel = MachineAgainstModel.TestCase
TestMachineAgainstModel.settings = settings(max_examples=30, stateful_step_count=50, deadline=None, print_blob=True)


# Hypothesis finds and shrinks short histories well; these go deeper, into states that take many steps to reach.


def some_tasks(rng: Random, count_max: int) -> list[NewTask]:
    return [
        NewTask(
            queue=rng.choice(QUEUES),
            priority=rng.choice((0, 4, 9)),
            tenant=rng.choice((b"", b"blue")),
            request_id=rng.choice((b"", b"", b"%d" % rng.randrange(12))),
            dedup_window_ms=rng.choice((5, WINDOW_MS, 500)),
            run_at_ms=rng.choice((0, 0, 15, 90)),
            max_attempts=rng.randint(1, 4),
            max_claims=rng.randint(2, 5),
            result_ttl_ms=rng.choice((0, 20, 300)),
            envelope=rng.randbytes(rng.randrange(5)),
        )
        for _ in range(rng.randint(1, count_max))
    ]


def random_step(run: MachineAgainstModel, rng: Random) -> None:
    picked = [(rng.random() < 0.8, rng.randrange(13)) for _ in range(rng.randint(1, 3))]
    queues = rng.sample(QUEUES, rng.randint(1, 2))
    request_id = rng.choice((b"", b"x", b"y"))
    strays = picked if rng.random() < 0.2 else []
    raise_marks = rng.choice(("honest", "honest", "stale", "none"))
    steps: list[tuple[int, Callable[[], None]]] = [
        (8, lambda: run.enqueue(some_tasks(rng, 3))),
        (14, lambda: run.claim(queues, rng.randint(1, 3), request_id, rng.choice((10, 40, 300)), strays, raise_marks)),
        (5, lambda: run.ack(picked, rng.choice((None, b"", b"done")), rng.choice(([], [], some_tasks(rng, 2))))),
        (6, lambda: run.fail(picked, rng.random() < 0.2, rng.choice((1, 30)))),
        (3, lambda: run.extend(picked, rng.choice((-20, 10, 200)))),
        (4, lambda: run.release(picked)),
        (2, lambda: run.expire(picked)),
        (2, lambda: run.promote(picked)),
        (2, lambda: run.cancel(picked)),
        (2, lambda: run.retry_dead(picked)),
        (1, lambda: run.discard_dead(picked)),
        (1, lambda: run.purge(picked)),
        (1, lambda: run.forget(picked)),
        (
            2,
            lambda: run.ack_away(
                picked, some_tasks(rng, 1), [(rng.choice((2, 9)), rng.randbytes(2))], rng.randrange(2), 6
            ),
        ),
        (2, lambda: run.deliver(rng.choice((2, 9)), rng.randrange(4))),
        (1, lambda: run.receive((5, rng.randint(1, 2)), rng.choice((-1, 0, 0, 1)), some_tasks(rng, 2))),
        (1, lambda: run.set_queue(rng.choice(QUEUES), rng.randrange(1, 30), rng.randbytes(2))),
        (4, lambda: run.time_passes(rng.choice((1, 5, 20)), rng.choice((0, 0, 7)))),
        (6, lambda: run.timers_fire(rng.choice((1, 5, 20, 60)), 3)),
        (2, lambda: run.change_lag(rng.randrange(4))),
        (1, lambda: run.fail_over(rng.randrange(4))),
        (1, lambda: run.restart()),
    ]
    weights, actions = zip(*steps, strict=True)
    rng.choices(actions, weights)[0]()


@pytest.mark.parametrize("seed", range(8))
def test_long_histories(seed: int) -> None:
    rng = Random(seed)
    run = MachineAgainstModel()
    run.elect(some_tasks(rng, 6))
    for step in range(400):
        random_step(run, rng)
        if step == 150:
            run.clock_steps()
        elif step == 200:
            run.time_passes(PAUSE_MS, 0)
    run.teardown()
