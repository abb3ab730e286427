"""The machine beside its model, driven as a leader does.

Entries go through a pipeline as they do behind a leader: decided on the applied state, applied later and in order.
After every applied entry outcomes, the whole state and the invariants are compared; at the end the log is replayed.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from holdfast.machine import entries, keys, outcomes, ready_rows, rows, run_entries
from holdfast.machine.effects import Effects
from holdfast.machine.entries import (
    AckItem,
    BucketLevel,
    ClaimRef,
    Entry,
    ExpireItem,
    ExpiringKey,
    ExtendItem,
    FailItem,
    Mark,
)
from holdfast.machine.invariants import violations
from holdfast.machine.kv import MemoryKV, state_hash
from holdfast.machine.machine import Machine
from holdfast.machine.new_runs import NewRun
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.operator_entries import (
    KEEP_PRIORITY,
    KEEP_START,
    START_AT,
    DiscardDead,
    SetAllocations,
    TtlExpire,
    UpdateItem,
    UpdateTasks,
)
from holdfast.machine.ready_lines import read_ages, read_rows, read_subqueue
from holdfast.machine.rows import CLAIMED, DEAD, DELAYED, READY, RETRY_PENDING
from holdfast.machine.running import Running
from tests.unit.machine.machine_model import ENDED, INCARNATION, PAUSE_MS, SHARD, WAITING
from tests.unit.machine.machine_model_runs import ModelWithRuns, ids_of_new_runs
from tests.unit.machine.machine_model_task import check_budgets, ids_from
from tests.unit.machine.machine_new_tasks import dated_runs, new_runs, new_tasks, queue_names
from tests.unit.machine.machine_picture import (
    Answer,
    Place,
    accepted_in,
    answers_of,
    as_single_tasks,
    claimed_in,
    claims_of,
    in_slices,
    marks_for,
    picture_of,
    ready_places,
    reported,
    single_claims,
    suspect_places,
    suspects_told,
)

T = TypeVar("T")
KEEP_MS = 50
DEAD_KEEP_MS = 80
START_MS = 1_000_000

WORKERS = (b"", b"ann", b"bob")
UNKNOWN_ID = b"\x11" * 16
UNKNOWN_TOKENS = (0, 1, (INCARNATION * 2**48 + 10_000) << 64, ((INCARNATION - 1) * 2**48 + 1) << 64)

# Which tasks or claims an entry is about: the n-th of those that fit the entry, or of all that ever were.
picks = st.lists(st.tuples(st.sampled_from((True, True, False)), st.integers(0, 12)), min_size=1, max_size=3)
Picks = list[tuple[bool, int]]


class MachineAgainstModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.kv = MemoryKV()
        self.machine = Machine(self.kv, shard=SHARD, incarnation=INCARNATION)
        self.model = ModelWithRuns()
        self.clock_ms = START_MS
        self.behind_ms = 0  # how far the stamps of entries are behind the time that was already applied
        self.lag = 0  # how many decided entries may wait to be applied
        self.pipeline: list[tuple[Entry, frozenset[bytes]]] = []  # with the ready tasks that it takes away
        self.log: list[tuple[int, bytes, list[Answer], str]] = []  # term, entry, answers, state hash behind it
        self.term = 1
        self.known_ids: list[bytes] = []
        self.known_claims: list[tuple[bytes, int]] = []
        self.known_slices: list[tuple[bytes, int, int]] = []  # the same that were claimed together, and how many

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
        before, held = self.kv.rows(), self.held()
        done = self.machine.apply(self.machine.meta.applied_index + 1, self.term, read_back)
        effects = self.machine.commit()
        after = self.kv.rows()
        answers = answers_of(done)
        expected = self.model.apply(entry)
        assert len(answers) == len(expected)
        for answer, wanted in zip(answers, expected, strict=True):
            assert wanted == answer
        assert picture_of(after) == self.model.picture()
        meta = rows.Meta.decode(after[keys.META_KEY])
        assert (meta.applied_index, meta.applied_term) == (len(self.log) + 1, self.term)
        assert (meta.shard, meta.incarnation) == (SHARD, INCARNATION)
        assert violations(self.kv) == []
        self.check_counts()
        check_budgets(self.model.tasks.values())
        self.check_refusal(entry, expected, before, after)
        self.check_effects(effects, before, after)
        self.check_window(effects, done, before, after)
        ended = {claim: names for claim, names in held.items() if claim not in self.held()}
        assert {(queue, *pair) for queue, pairs in effects.freed.items() for pair in pairs} == set(ended.values())
        self.log.append((self.term, data, answers, state_hash(self.kv)))
        self.known_ids += [outcome.task_id for outcome in accepted_in(done) if not outcome.duplicate]
        self.known_ids += ids_of_new_runs(entry, done)
        claimed = [claim for done_ in done if isinstance(done_, outcomes.Claimed) for claim in single_claims(done_)]
        slices = [done_ for done_ in done if isinstance(done_, outcomes.Claimed) and done_.tasks > 1]
        self.known_slices += [(claim.task_id, claim.token, claim.tasks) for claim in slices]
        new_claims = [(claim.task_id, claim.token) for claim in claimed]
        self.known_claims += [claim for claim in new_claims if claim not in self.known_claims]
        assert [token for _, token in self.known_claims] == sorted({token for _, token in self.known_claims})

    def held(self) -> dict[tuple[bytes, int], tuple[bytes, bytes, bytes]]:
        """Claims, and whose caps they count for."""
        held = [task for task in self.model.tasks.values() if task.state == CLAIMED]
        return {(task.id, task.token): (task.new.queue, task.new.tenant, task.new.limit_key) for task in held}

    def check_counts(self) -> None:
        """What a leader asks the machine for before it lets somebody claim more."""
        picture = self.model.picture()
        for worker in WORKERS[1:]:
            assert self.machine.worker_claims(worker) == picture["workers"][worker]
            assert self.machine.suspects_held_by(worker) == picture["alone"][worker]
        for counted in (self.machine.running, Running(self.kv)):  # along, and as a start counts them
            tenants = {(queue, keys.SCOPE_TENANT, name): count for (queue, name), count in counted.tenants.items()}
            limit_keys = {(queue, keys.SCOPE_KEY, name): count for (queue, name), count in counted.limit_keys.items()}
            assert tenants | limit_keys == picture["running"]

    def check_refusal(
        self, entry: Entry, expected: list[Answer], before: dict[bytes, bytes], after: dict[bytes, bytes]
    ) -> None:
        """Refused as a whole: only the applied index and time have moved. A claim's marks and levels are no item."""
        if expected and all(isinstance(answer, str) for answer in expected):
            changed = {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}
            marks_and_levels = {keys.QUEUE, keys.SUBQUEUE, keys.BUCKET, keys.KEY_EXPIRY}
            may_change = {keys.META} | (marks_and_levels if isinstance(entry, entries.Claim) else set())
            assert {key[0] for key in changed} <= may_change

    def check_effects(self, effects: Effects, before: dict[bytes, bytes], after: dict[bytes, bytes]) -> None:
        """What a leader learns is enough to keep its timers without reading the state."""
        new = as_single_tasks(after).keys() - as_single_tasks(before).keys()
        assert [timing[:-1] for timing in effects.timings for _ in range(timing.tasks)] == self.model.timings
        died = {key[1:].split(b"\0", 1)[0] for key in new if key[0] == keys.DEAD}
        assert effects.died == died
        changed = {key for key in after if key[0] == keys.SETTINGS and before.get(key) != after[key]}
        assert changed == {keys.settings(queue) for queue in effects.settings}
        outgoing = {keys.outbox_place(key)[0] for key in new if key[0] == keys.OUTBOX}
        assert outgoing == effects.outbox
        ended = {key[-16:] for key in new if key[0] == keys.RETENTION}
        assert ended == {*effects.finished, *(one for range_ in effects.finished_ranges for one in ids_from(*range_))}
        reported = {keys.CLAIM_EXPIRY: effects.expiry_ms, keys.DUE: effects.due_ms, keys.RETENTION: effects.purge_ms,
                keys.KEY_EXPIRY: effects.key_expiry_ms, keys.START_BY: effects.start_by_ms}  # fmt: skip
        for key in new:
            if key[0] in reported:
                assert 0 < reported[key[0]] <= keys.timed(key)[0]

    def check_window(
        self,
        effects: Effects,
        done: list[outcomes.Outcome],
        before: dict[bytes, bytes],
        after: dict[bytes, bytes],
    ) -> None:
        """A leader that adds what became ready and takes away what left or what it claimed knows the ready lines."""
        known, gone = reported(effects)
        claimed = claimed_in(done)
        expected = {place for place in ready_places(before) | known if place[1].task_id not in claimed} - gone
        assert expected == ready_places(after)
        came, left = suspects_told(effects)
        suspects = {place for place in suspect_places(before).items() | came if place[1] not in claimed} - left
        assert suspects == suspect_places(after).items()
        sizes = {task.id: len(task.new.envelope) for task in self.model.tasks.values()}
        for ready in (*effects.ready, *effects.withdrawn):
            assert ready.size_bytes == max(sizes[task_id] for task_id in ids_from(ready.task_id, ready.tasks))

    def ready_line(self, queue: bytes) -> list[Place]:
        """The ready tasks of a queue, read as a leader does: sub-queue by sub-queue, from the low-water marks on."""
        line: list[Place] = []
        counters = self.machine.queue(queue)
        if counters is None:
            return line
        for priority in range(9, -1, -1):
            line += self.subqueue_from(queue, (priority, b"", b""), counters.marks[priority])
            level = keys.subqueue_level(queue, priority)
            subqueues = self.kv.scan(level, keys.after_prefix(level), 1000)
            assert len(subqueues) == counters.subqueues[priority]
            for key, row in subqueues:
                names = priority, *keys.subqueue_names(key, level)
                line += self.subqueue_from(queue, names, ready_rows.SubqueueRow.decode(row).mark)
        assert [place.task_id for place in line] == self.model.line(queue)
        aged, after = read_ages(self.kv, self.machine.ready_in_age_page, queue, counters.age_mark, 1000)
        assert after is None
        by_age = sorted((place for place in line if place.subqueue[1:] != (b"", b"")), key=lambda place: place.sequence)
        assert aged == [(place.sequence, place.task_id) for place in by_age]
        return line

    def subqueue_from(self, queue: bytes, subqueue: tuple[int, bytes, bytes], mark: int) -> list[Place]:
        line = keys.ready_subqueue(queue, *subqueue)
        if subqueue[1:] == (b"", b""):
            found = read_rows(self.kv, line, mark, 1000)
        else:
            found, is_all = read_subqueue(self.kv, line, mark, 1000)
            assert is_all
        return [
            Place(*subqueue, sequence + index, one)
            for sequence, task_id, _, count in found
            for index, one in enumerate(ids_from(task_id, count))
        ]

    def any_in(self, *states: int) -> bool:
        return any(task.state in states for task in self.model.tasks.values())

    def tasks_like(self, picked: Picks, *states: int) -> list[bytes]:
        fitting = [task_id for task_id, task in self.model.tasks.items() if task.state in states]
        return choose(picked, fitting, [*reversed(self.known_ids), UNKNOWN_ID])

    def claims_like(self, picked: Picks) -> list[tuple[bytes, int]]:
        held = [(task_id, task.token) for task_id, task in self.model.tasks.items() if task.state == CLAIMED]
        strange = [(task_id, token) for token in UNKNOWN_TOKENS for task_id in (*self.known_ids[-1:], UNKNOWN_ID)]
        guessed = [(task_id, token ^ 1) for task_id, token in self.known_claims[-2:]]  # all but the secret is right
        lost = [claim for claim in self.known_claims if claim[0] in dict(held) and claim not in held]
        return choose(picked, held, [*guessed, *reversed(lost), *reversed(self.known_claims), *strange])

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
        ranges = self.machine.reader.ranges_at([key[-16:] for key in self.due(keys.CLAIM_EXPIRY, count)])
        expired = [task_id for range_ in ranges for task_id in ids_from(*range_)]
        items = [self.expiry_of(task_id, self.model.tasks[task_id].token) for task_id in expired]
        self.propose(entries.Expire(self.stamp_ms, KEEP_MS, DEAD_KEEP_MS, items))
        self.propose(entries.Promote(self.stamp_ms, [key[-16:] for key in self.due(keys.DUE, count)]))
        self.propose(
            TtlExpire(self.stamp_ms, DEAD_KEEP_MS, b"late", [key[-16:] for key in self.due(keys.START_BY, count)])
        )
        ended = self.machine.reader.ranges_at([key[-16:] for key in self.due(keys.RETENTION, count)])
        self.propose(entries.Purge(self.stamp_ms, [range_.task_id for range_ in ended[:1]]))
        self.propose(run_entries.PurgeRanges(self.stamp_ms, ended[1:]))
        forgotten = [ExpiringKey(*keys.timed(key)) for key in self.due(keys.KEY_EXPIRY, count)]
        self.propose(entries.ExpireKeys(self.stamp_ms, forgotten))

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

    @rule(runs=st.lists(new_runs, min_size=1, max_size=2), tasks=st.lists(new_tasks, max_size=2))
    def enqueue_runs(self, runs: list[NewRun], tasks: list[NewTask]) -> None:
        """With single tasks between them."""
        first, *others = dated_runs(runs, self.clock_ms)
        items: list[NewRun | NewTask] = [*self.dated(tasks[:1]), first]
        self.propose(run_entries.EnqueueRuns(self.stamp_ms, [*items, *self.dated(tasks[1:]), *others]))

    @precondition(lambda self: self.known_claims)
    @rule(picked=picks, count=st.integers(1, 5))
    def ack_ranges(self, picked: Picks, count: int) -> None:
        """Slices as they were claimed, the newest first; or so many tasks from any claim on."""
        newest = [run_entries.AckRange(*slice_) for slice_ in reversed(self.known_slices)]
        others = [run_entries.AckRange(*claim, count) for claim in self.claims_like(picked)]
        self.propose(run_entries.AckRanges(self.stamp_ms, KEEP_MS, choose(picked, newest, others)))

    def dated(self, tasks: Iterable[NewTask]) -> list[NewTask]:
        clock_ms = self.clock_ms
        return [
            new._replace(
                run_at_ms=clock_ms + new.run_at_ms if new.run_at_ms else 0,
                start_by_ms=clock_ms + max(new.run_at_ms, 0) + new.start_by_ms if new.start_by_ms else 0,
            )
            for new in tasks
        ]

    @rule(
        queues=st.lists(queue_names, min_size=1, max_size=2, unique=True),
        count=st.integers(1, 3),
        request_id=st.sampled_from((b"", b"x", b"y")),
        lease_ms=st.sampled_from((10, 40, 1000)),
        strays=st.one_of(st.just([]), picks),
        raise_marks=st.sampled_from(("honest", "honest", "stale", "none")),
        turn=st.integers(0, 5),
        secret=st.sampled_from((1, 2, 2**63, 2**64 - 1)),
    )
    def claim(
        self,
        queues: list[bytes],
        count: int,
        request_id: bytes,
        lease_ms: int,
        strays: Picks,
        raise_marks: str,
        turn: int,
        secret: int,
    ) -> None:
        away = frozenset[bytes]().union(*(taken for _, taken in self.pipeline))
        chosen: list[bytes] = []
        marks: list[Mark] = []
        for queue in queues:
            line = self.ready_line(queue)
            free = [place for place in line if place.task_id not in away]
            free = free[turn % (len(free) or 1) :] + free[: turn % (len(free) or 1)]  # sub-queues take turns
            chosen += [place.task_id for place in free[:count]]
            # A call that may be a repetition carries marks always: its tasks may turn out not to be taken.
            if line and (request_id or raise_marks != "none"):
                counters = self.machine.queue(queue)
                assert counters is not None
                marks += marks_for(queue, counters.mark_version, line, free[count:], stale=raise_marks == "stale")
        extra = self.tasks_like(strays, READY, CLAIMED) if strays else []
        key_expiry_ms = self.clock_ms + 100
        worker = b"worker of " + request_id if request_id else WORKERS[count % 3]
        expiry_ms = self.clock_ms + lease_ms
        firsts, counts = in_slices(chosen) if secret % 2 else (chosen, [])
        wanted = firsts + extra
        entry = entries.Claim(self.stamp_ms, expiry_ms, worker, request_id, key_expiry_ms, wanted, marks)
        entry.secret = secret
        if counts:
            entry.counts = counts + [1 + turn % 2] * len(extra)
        if turn % 2:
            entry.type_expiries[b"send"] = expiry_ms + 7
        for scope, name in ((keys.SCOPE_QUEUE, b""), (keys.SCOPE_TENANT, b"blue"))[: turn % 3]:
            level = BucketLevel(queues[0], scope, name, 1000 * turn, self.clock_ms, self.clock_ms + 10 * turn)
            entry.levels.append(level)
        self.propose(entry, chosen)

    @rule(queue=queue_names, lease_ms=st.sampled_from((10, 1000)))
    def claim_next(self, queue: bytes, lease_ms: int) -> None:
        self.claim([queue], 2, b"", lease_ms, [], "honest", 0, 1)

    @rule(queue=queue_names, count=st.sampled_from((1, 1, 1, 2)), request_id=st.sampled_from((b"", b"x")), strays=picks)
    def claim_alone(self, queue: bytes, count: int, request_id: bytes, strays: Picks) -> None:
        """A suspect; or something else, which must be refused."""
        away = frozenset[bytes]().union(*(taken for _, taken in self.pipeline))
        prefix = keys.suspects_of(queue)
        found = [row[:16] for _, row in self.kv.scan(prefix, keys.after_prefix(prefix), 10)]
        chosen = [task_id for task_id in found if task_id not in away][:count]
        others = [] if chosen else self.tasks_like(strays, READY, CLAIMED)
        worker = b"worker of " + request_id if request_id else WORKERS[count % 3]
        times = self.stamp_ms, self.clock_ms + 10 * count, worker, request_id, self.clock_ms + 100
        self.propose(entries.Claim(*times, chosen + others, [], is_alone=True), chosen)

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
            items.append(FailItem(task_id, token, retry_at_ms, reason, b"error %d" % token, b"%d" % (token % 100)))
        self.propose(entries.Fail(self.stamp_ms, KEEP_MS, DEAD_KEEP_MS, items))

    def spent(self, task_id: bytes, failures: int) -> int:
        """Which budget is spent once the claim has ended; a leader reads it from the task's row."""
        task = self.model.tasks.get(task_id)
        if task is not None and failures and task.failures + failures >= task.new.max_attempts:
            return rows.ATTEMPTS_SPENT
        if task is None or (not failures and not task.suspect):
            return 0
        return rows.CLAIMS_SPENT if task.claims >= task.new.max_claims else 0

    @precondition(lambda self: self.known_claims)
    @rule(picked=picks, lease_ms=st.sampled_from((-20, 10, 200)), apart_ms=st.sampled_from((0, 0, 4)))
    def extend(self, picked: Picks, lease_ms: int, apart_ms: int) -> None:
        claims = [one for claim in self.claims_like(picked) for one in claims_of(*claim, 1 if apart_ms else 4)]
        items = [ExtendItem(*claim, self.clock_ms + lease_ms - apart_ms * index) for index, claim in enumerate(claims)]
        self.propose(entries.Extend(self.stamp_ms, items))

    @precondition(lambda self: self.known_claims)
    @rule(picked=picks, snooze_ms=st.sampled_from((0, 0, 1, 30)))
    def release(self, picked: Picks, snooze_ms: int) -> None:
        items = [ClaimRef(*claim) for claim in self.claims_like(picked)]
        ready_at_ms = self.clock_ms + snooze_ms if snooze_ms else 0
        self.propose(entries.Release(self.stamp_ms, KEEP_MS, items, ready_at_ms))

    @precondition(lambda self: self.known_claims)
    @rule(picked=picks)
    def expire(self, picked: Picks) -> None:
        items = [self.expiry_of(*claim) for claim in self.claims_like(picked)]
        self.propose(entries.Expire(self.stamp_ms, KEEP_MS, DEAD_KEEP_MS, items))

    def expiry_of(self, task_id: bytes, token: int) -> ExpireItem:
        """The end of a lease costs a claim, that of the time that an attempt may take counts as a failure."""
        task = self.model.tasks.get(task_id)
        timeout_ms = task.new.timeout_ms if task is not None else 0
        if task is None or not timeout_ms or task.changed_ms + timeout_ms > self.clock_ms:
            return ExpireItem(task_id, token, self.spent(task_id, 0))
        reason = self.spent(task_id, 1)
        retry_at_ms = 0 if reason else self.clock_ms + token % 3
        return ExpireItem(task_id, token, reason, retry_at_ms, rows.ATTEMPT_TIMED_OUT, b"timed out", b"brief")

    @precondition(lambda self: self.any_in(DELAYED, RETRY_PENDING))
    @rule(picked=picks)
    def promote(self, picked: Picks) -> None:
        self.propose(entries.Promote(self.stamp_ms, self.tasks_like(picked, DELAYED, RETRY_PENDING)))

    @precondition(lambda self: self.known_ids)
    @rule(picked=picks, waiting_only=st.booleans())
    def cancel(self, picked: Picks, waiting_only: bool) -> None:
        self.propose(entries.Cancel(self.stamp_ms, KEEP_MS, self.tasks_like(picked, CLAIMED), waiting_only))

    @precondition(lambda self: self.any_in(DEAD))
    @rule(picked=picks)
    def retry_dead(self, picked: Picks) -> None:
        self.propose(entries.RetryDead(self.stamp_ms, self.tasks_like(picked, DEAD)))

    @precondition(lambda self: self.any_in(DEAD))
    @rule(picked=picks, keep_ms=st.sampled_from((0, 70)))
    def discard_dead(self, picked: Picks, keep_ms: int) -> None:
        self.propose(DiscardDead(self.stamp_ms, self.tasks_like(picked, DEAD), keep_ms, b"ann", b"why"))

    @precondition(lambda self: self.any_in(*WAITING))
    @rule(
        picked=picks,
        priority=st.sampled_from((0, 4, 9, KEEP_PRIORITY)),
        delay_ms=st.sampled_from((None, None, -5, 0, 15)),
    )
    def update(self, picked: Picks, priority: int, delay_ms: int | None) -> None:
        start = (KEEP_START, 0) if delay_ms is None else (START_AT, self.clock_ms + delay_ms)
        items = [UpdateItem(task_id, priority, *start) for task_id in self.tasks_like(picked, *WAITING)]
        self.propose(UpdateTasks(self.stamp_ms, items))

    @precondition(lambda self: self.any_in(*WAITING))
    @rule(picked=picks)
    def ttl_expire(self, picked: Picks) -> None:
        self.propose(TtlExpire(self.stamp_ms, DEAD_KEEP_MS, b"late", self.tasks_like(picked, *WAITING)))

    @rule(
        queue=queue_names, what=st.integers(1, 2), bodies=st.lists(st.tuples(st.integers(0, 2), st.binary(max_size=1)))
    )
    def set_allocations(self, queue: bytes, what: int, bodies: list[tuple[int, bytes]]) -> None:
        self.propose(SetAllocations(self.stamp_ms, queue, what, bodies))

    @precondition(lambda self: self.any_in(*ENDED))
    @rule(picked=picks)
    def purge(self, picked: Picks) -> None:
        self.propose(entries.Purge(self.stamp_ms, self.tasks_like(picked, *ENDED)))

    @precondition(lambda self: self.model.memory)
    @rule(picked=picks)
    def expire_keys(self, picked: Picks) -> None:
        armed = self.kv.scan(keys.family_start(keys.KEY_EXPIRY), keys.family_start(keys.KEY_EXPIRY + 1), 1000)
        items = [ExpiringKey(*keys.timed(key)) for key, _ in armed]
        wrong = [ExpiringKey(item.when_ms - 1, item.key) for item in items]
        nowhere = ExpiringKey(START_MS, keys.dedup(b"nowhere", b"a"))
        self.propose(entries.ExpireKeys(self.stamp_ms, choose(picked, items, [*items, *wrong, nowhere])))

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
        places = sorted((index + turn) % (len(follow_ups) + len(away)) for index in range(len(away)))
        remote_follow_ups = tuple(
            entries.RemoteFollowUp(place, destination, self.clock_ms, envelope)
            for place, (destination, envelope) in zip(places, away, strict=True)
        )
        here = tuple(self.dated(follow_ups))
        items = [AckItem(*claim, None, here, remote_follow_ups) for claim in self.claims_like(picked)]
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
        self.propose(entries.Receive(self.stamp_ms, *source, first, DEAD_KEEP_MS, self.dated(tasks)))

    @rule(queue=queue_names, version=st.integers(1, 6), policy=st.binary(max_size=3), changes_rates=st.booleans())
    def set_queue(self, queue: bytes, version: int, policy: bytes, changes_rates: bool) -> None:
        self.propose(entries.RaiseLevel(self.stamp_ms, entries.MACHINE_LEVEL))
        self.propose(entries.SetQueue(self.stamp_ms, queue, version, policy, changes_rates))

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
        claimed: set[bytes] = set()
        for index, (term, data, answers, hashed) in enumerate(self.log, start=1):
            done = machine.apply(index, term, entries.decode(data))
            assert answers_of(done) == answers
            claimed |= claimed_in(done)
            if commits_behind(index) or index == len(self.log):
                before = ready_places(kv.rows())
                known, gone = reported(machine.commit())
                assert state_hash(kv) == hashed
                # A leader knows of its claims itself; of all others it has to be told.
                wrong = ((before | known) - gone) ^ ready_places(kv.rows())
                assert {place.task_id for _, place in wrong} <= claimed
                claimed = set()
                if restarts:
                    machine = Machine(kv, shard=1, incarnation=1)


def choose(picked: Picks, fitting: Sequence[T], anything: Sequence[T]) -> list[T]:
    pools = [fitting if fits and fitting else anything for fits, _ in picked]
    return [pool[number % len(pool)] for pool, (_, number) in zip(pools, picked, strict=True)]
