"""What callers saw, as JSON lines, and how lines become calls that a checker can reason about.

One line is one event: {t_ns, proc, type, f, queue, task, token, req_id, value, err} and more (see `Event`); what says
nothing is left out.

    type    invoke   the call was sent
            ok       it happened, and the answer says so
            fail     it did not happen, and the answer says so
            info     nobody knows: no answer, a lost connection, OUTCOME_UNKNOWN. Both are allowed, for ever.
    f       enqueue, claim, extend, ack, fail, release, cancel, read; `fault` and `heal` for what the harness did to the
            servers; `start` and `end` of a handler, as the handler itself wrote them; `leader` and `ready`: what the
            harness saw of the servers; `lag`: how many milliseconds too late it was given a processor itself
    value   what the payload says: each task to be made has its own, so it names the task before it has an id. Of a task
            that a schedule made, its name and its tick
    req_id  of an enqueue the request id, of a claim the claim request id

A process id has one call under way at a time and is never used again after an info: its call may still take effect,
so nothing that comes later may be read as coming after it. A batch is one invoke line and one completion line per item.
A claim has one invoke line and one ok line per task it got, or a single one without a task if it got none.
"""

import json
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TextIO

INVOKE, OK, FAIL, INFO = "invoke", "ok", "fail", "info"
ENQUEUE, CLAIM, EXTEND = "enqueue", "claim", "extend"
ACK, FAIL_TASK, RELEASE = "ack", "fail", "release"
CANCEL, READ = "cancel", "read"
FAULT, HEAL = "fault", "heal"
START, END = "start", "end"
LEADER, READY, LAG = "leader", "ready", "lag"

SETTLING = (ACK, FAIL_TASK, RELEASE)  # what ends a claim
NEEDS_TOKEN = (*SETTLING, EXTEND)
_POLL_NS_MAX = 40_000_000_000  # so long does a worker of the library wait for an answer
LAG_NS_MIN = 20_000_000  # less is as usual, and not written down
_LAG_NS_MAX = 5_000_000_000  # the longest lag that is looked for
_BUSY_NS = 2_000_000_000  # a machine that was busy is taken to be so for this long before and after
PROCESSES_ON_THE_WAY = 6  # worker, router, leader, two followers, and back
NEMESIS = -1  # the process id of whoever breaks the servers


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of the history."""

    t_ns: int  # on time.monotonic_ns(): one clock for all, because all callers share one machine
    proc: int
    type: str
    f: str
    queue: str = ""
    task: str = ""
    token: int | None = None
    req_id: str = ""
    value: str = ""
    err: str = ""
    lease_ms: int = 0  # of a claim or an extension: how long it holds, counted from the invoke, as told
    delay_ms: int = 0  # of an enqueue or a fail: how long the task is not to be handed out
    priority: int = 0  # of an enqueue
    budget: int = 0  # of an enqueue: failures after which the task is dead; 0 is more than will ever be
    attempt: int = 0  # of a claim: as the worker was told, 1 for the first
    nth: int = 0  # of a claim: how often the task was handed out and not given back, this time included, as told
    made_ms: int = 0  # of a claim: when the task was accepted, in the shard's time, as told
    unique: str = ""  # of an enqueue: the unique key
    scope: str = ""  # of an enqueue with one: how long it keeps others out
    duplicate: bool = False  # of an enqueue: the answer is a task that was there
    limit_key: str = ""  # of a claim
    tenant: str = ""  # of a claim
    ttl_ms: int = 0  # of an enqueue
    timeout_ms: int = 0  # of an enqueue: of one attempt
    result: str = ""  # of an ack, and of a read
    state: str = ""  # of the task, as a cancel or a read was told; of a handler's end, how it ended
    worker: str = ""  # of a worker's own calls and handlers: its name and which life of it
    node: str = ""  # of a fault: whom it struck, with commas; of what was seen, who it was seen of
    began_ns: int = 0  # of a fault: when the harness began with it; to stop or to fill something takes a while
    ends_ns: int = 0  # of a claim or an extension of a worker: when the lease ends, as the worker counts
    asked_ms: int = 0  # of a claim of a worker: the lease that it asked for
    guilty: bool = False  # of an enqueue: the task kills or stalls whoever works on it
    follow_ups: Sequence[str] = ()  # of an ack: the values of its follow-ups, each with its queue and a colon before it

    def to_line(self) -> str:
        said = {
            field_name.name: value
            for field_name in fields(self)
            if (value := getattr(self, field_name.name)) != field_name.default
        }
        return json.dumps(said, separators=(",", ":")) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Anything but a claim: from its invoke to its answer."""

    f: str
    outcome: str  # ok, fail or info
    invoked_ns: int
    ended_ns: int  # of an info the moment when the caller gave up; it means nothing to the servers
    proc: int = 0
    queue: str = ""
    task: str = ""
    token: int = 0
    req_id: str = ""
    value: str = ""
    err: str = ""
    lease_ms: int = 0
    delay_ms: int = 0
    priority: int = 0
    budget: int = 0
    unique: str = ""
    scope: str = ""
    duplicate: bool = False
    ttl_ms: int = 0
    timeout_ms: int = 0
    result: str = ""
    state: str = ""
    worker: str = ""
    ends_ns: int = 0
    guilty: bool = False
    follow_ups: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One task that a claim call was given."""

    task: str
    token: int
    value: str
    queue: str
    asked_ns: int  # when the first call with this request id was sent: the claim is not older than that
    sent_ns: int  # when the call that was answered was sent
    ended_ns: int
    req_id: str = ""
    lease_ms: int = 0
    attempt: int = 0  # 0 if it was not recorded
    nth: int = 0  # 0 if it was not recorded
    made_ms: int = 0
    limit_key: str = ""
    tenant: str = ""
    proc: int = 0
    worker: str = ""
    ends_ns: int = 0  # 0: counted from when it was sent
    asked_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerRun:
    """One run of a handler, as it wrote it down itself."""

    task: str
    value: str
    worker: str
    started_ns: int
    ended_ns: int = 0  # 0: it never did, because its worker died
    how: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One fault, from when the harness began with it until it was undone."""

    what: str
    nodes: tuple[str, ...]
    from_ns: int
    to_ns: int
    queue: str = ""  # whose shards were changed


@dataclass
class Story:
    """A history, its lines put together."""

    calls: list[Call] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)
    # From when to when somebody waited for a claim in vain: each may have claimed anything.
    lost_claims_ns: list[tuple[int, int]] = field(default_factory=list)
    # By queue: when those of them began that were about this queue alone.
    lost_claims_of: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    faults: list[Event] = field(default_factory=list)  # in order of time, healings among them
    runs: list[HandlerRun] = field(default_factory=list)
    leaders: list[Event] = field(default_factory=list)  # each change that was seen: `req_id` is the shard
    ready: list[Event] = field(default_factory=list)  # each change that was seen: `state` is the HTTP status
    lags: list[Event] = field(default_factory=list)  # of the machine: `state` has the milliseconds

    def sends(self) -> list[Call]:
        return [call for call in self.calls if call.f == ENQUEUE]

    def made(self) -> list[Call]:
        """Those that were answered with their own task, and not with another one that has their unique key."""
        return [call for call in self.sends() if call.outcome == OK and not (call.unique and call.duplicate)]

    def made_by(self) -> dict[str, Call]:
        """By task: a send that it came from. None of a schedule is among them."""
        of_value = {send.value: send for send in self.sends()}
        found = {claim.task: of_value[claim.value] for claim in self.claims if claim.value in of_value}
        return found | {send.task: send for send in self.made()}

    def with_token(self, *kinds: str) -> list[Call]:
        return [call for call in self.calls if call.f in (kinds or NEEDS_TOKEN)]

    def begins_ns(self) -> int:
        """Its first call."""
        return min((call.invoked_ns for call in self.calls), default=0)

    def windows(self) -> list[Window]:
        """The faults and operations. A step has a number, which its end names; what has none lasts for a moment."""
        last_ns = max((event.t_ns for event in self.faults), default=0)
        ends = {event.req_id: event.t_ns for event in self.faults if event.f == HEAL and event.req_id}
        return [
            Window(
                what=event.value, nodes=tuple(filter(None, event.node.split(","))),
                from_ns=event.began_ns or event.t_ns,
                to_ns=ends.get(event.req_id, last_ns) if event.req_id else event.t_ns, queue=event.queue,
            )
            for event in self.faults
            if event.f == FAULT
        ]  # fmt: skip

    def held_up_ns(self, from_ns: int, to_ns: int) -> int:
        """How much the machine may have taken from a call in this time: each process on its way waits for a processor
        as the harness did."""
        return PROCESSES_ON_THE_WAY * max(self.lag_ns(from_ns, to_ns), LAG_NS_MIN)

    def lag_ns(self, from_ns: int, to_ns: int) -> int:
        """How much too late the harness itself was given a processor, at the worst of this time or shortly before and
        after: it is one process of many, and others wait while it does not. A line tells of the time before it."""
        from_ns, to_ns = from_ns - _BUSY_NS, to_ns + _BUSY_NS
        place = bisect_left(self.lags, from_ns, key=lambda event: event.t_ns)
        worst_ns = 0
        for number in range(place, len(self.lags)):
            event = self.lags[number]
            if event.t_ns > to_ns + _LAG_NS_MAX:
                break
            late_ns = int(event.state) * 1_000_000
            if event.t_ns - late_ns <= to_ns:
                worst_ns = max(worst_ns, late_ns)
        return worst_ns

    def known_tasks(self) -> set[str]:
        """All tasks that a server ever told of."""
        accepted = {call.task for call in self.calls if call.f == ENQUEUE and call.outcome == OK}
        return accepted | {claim.task for claim in self.claims}


class History:
    """Written while the load runs: kept in memory, and on disk as it grows if there is a file."""

    def __init__(
        self, path: Path | None = None, *, now_ns: Callable[[], int] = time.monotonic_ns, first_proc: int = 0,
        keep: bool = True,
    ) -> None:  # fmt: skip
        """Without `keep` it is only on disk, line by line: for a process that may be killed at any moment."""
        self.events: list[Event] = []
        self._now_ns = now_ns
        self._keep = keep
        buffering = -1 if keep else 1
        self._file: TextIO | None = path.open("w", buffering, encoding="utf-8") if path is not None else None
        self._procs = first_proc

    def new_proc(self) -> int:
        self._procs += 1
        return self._procs

    def write(self, event: Event) -> Event:
        """The event with its time, which is taken here."""
        stamped = replace(event, t_ns=self._now_ns())
        if self._keep:
            self.events.append(stamped)
        if self._file is not None:
            self._file.write(stamped.to_line())
        return stamped

    def fault(
        self, what: str, *, f: str = FAULT, node: str = "", step: str = "", queue: str = "", began_ns: int = 0
    ) -> Event:
        reported = Event(t_ns=0, proc=NEMESIS, type=INFO, f=f, value=what, node=node, req_id=step)
        return self.write(replace(reported, queue=queue, began_ns=began_ns))

    def now_ns(self) -> int:
        return self._now_ns()

    def saw(self, f: str, node: str, *, state: str = "", shard: str = "") -> Event:
        """What the harness saw of a server."""
        return self.write(Event(t_ns=0, proc=NEMESIS, type=INFO, f=f, node=node, state=state, req_id=shard))

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def read_history(path: Path) -> list[Event]:
    """A history from its file. A last line that was not finished is left out: its process was killed."""
    text = path.read_text(encoding="utf-8")
    return [Event(**json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]


def read_histories(directory: Path) -> list[Event]:
    """That of the harness and those of all lives of all workers, in order of time."""
    events = [event for path in sorted(directory.glob("history*.jsonl")) for event in read_history(path)]
    return sorted(events, key=lambda event: event.t_ns)


class MalformedHistoryError(Exception):
    """The history itself is wrong, so nothing can be concluded from it."""


def put_together(events: Iterable[Event]) -> Story:
    """Pairs each completion with its invoke. A call without a completion was under way at the end: info."""
    pairing = _Pairing()
    for event in events:
        pairing.add(event)
    return pairing.finish()


class _Pairing:
    """The calls under way, by process."""

    def __init__(self) -> None:
        self._story = Story()
        self._open: dict[int, list[Event]] = {}  # by process: invokes without a completion
        self._claiming: dict[int, Event] = {}  # by process: its last claim call, which may get several lines
        self._first_asked_ns: dict[str, int] = {}  # by claim request id
        self._retired: set[int] = set()
        self._running: dict[int, Event] = {}  # by process: a handler that has not ended; each run has its own

    def add(self, event: Event) -> None:
        if event.f in (FAULT, HEAL):
            self._story.faults.append(event)
        elif event.f in (LEADER, READY, LAG):
            story = self._story
            {LEADER: story.leaders, READY: story.ready, LAG: story.lags}[event.f].append(event)
        elif event.f in (START, END):
            self._handler(event)
        elif event.type == INVOKE:
            self._invoke(event)
        elif event.f == CLAIM:
            self._complete_claim(event)
        else:
            self._complete(event)
        if event.type == INFO:
            self._retired.add(event.proc)

    def _handler(self, event: Event) -> None:
        if event.f == START:
            self._running[event.proc] = event
            return
        self._story.runs.append(_run(self._running.pop(event.proc), event))

    def _invoke(self, event: Event) -> None:
        if event.proc in self._retired:
            raise MalformedHistoryError(f"process {event.proc} goes on after an info: {event}")
        waiting = self._open.setdefault(event.proc, [])
        if waiting and (waiting[0].f != event.f or event.f == CLAIM):
            raise MalformedHistoryError(f"process {event.proc} has two calls under way: {waiting[0]} and {event}")
        waiting.append(event)
        if event.f == CLAIM:
            self._claiming[event.proc] = event
            if event.req_id:
                self._first_asked_ns.setdefault(event.req_id, event.t_ns)

    def _complete_claim(self, event: Event) -> None:
        invoke = self._claiming.get(event.proc)
        if invoke is None or invoke.req_id != event.req_id:
            raise MalformedHistoryError(f"an answer without a call: {event}")
        self._open[event.proc] = []
        if event.type == INFO:
            self._lose_claim(invoke, event.t_ns)
        if event.type != OK or not event.task:
            return
        assert event.token is not None
        self._story.claims.append(
            Claim(
                task=event.task, token=event.token, value=event.value, queue=event.queue,
                asked_ns=self._first_asked_ns.get(event.req_id, invoke.t_ns), sent_ns=invoke.t_ns,
                ended_ns=event.t_ns, req_id=event.req_id, lease_ms=event.lease_ms, attempt=event.attempt,
                nth=event.nth, made_ms=event.made_ms, limit_key=event.limit_key, tenant=event.tenant, proc=event.proc,
                worker=event.worker, ends_ns=event.ends_ns, asked_ms=event.asked_ms,
            )
        )  # fmt: skip

    def _lose_claim(self, invoke: Event, ended_ns: int) -> None:
        self._story.lost_claims_ns.append((invoke.t_ns, ended_ns))
        if invoke.queue:
            self._story.lost_claims_of[invoke.queue].append(invoke.t_ns)

    def _complete(self, event: Event) -> None:
        waiting = self._open.get(event.proc, [])
        invoke = next((one for one in waiting if _same_item(one, event)), None)
        if invoke is None:
            raise MalformedHistoryError(f"an answer without a call: {event}")
        waiting.remove(invoke)
        call = _call(invoke, event)
        self._story.calls.append(call)
        self._story.calls += _follow_ups(call)

    def finish(self) -> Story:
        for waiting in self._open.values():
            for invoke in waiting:
                if invoke.f == CLAIM:  # its worker was killed, or the run has ended
                    self._lose_claim(invoke, invoke.t_ns + _POLL_NS_MAX)
                else:
                    self._story.calls.append(_call(invoke, replace(invoke, type=INFO, err="still under way")))
        self._story.runs += [_run(event, None) for event in self._running.values()]
        self._story.calls.sort(key=lambda call: call.invoked_ns)
        return self._story


def _same_item(invoke: Event, answer: Event) -> bool:
    if invoke.f != answer.f:
        return False
    if invoke.f == ENQUEUE:
        return invoke.value == answer.value
    return (invoke.task, invoke.token) == (answer.task, answer.token)


def _call(invoke: Event, answer: Event) -> Call:
    return Call(
        f=invoke.f, outcome=answer.type, invoked_ns=invoke.t_ns, ended_ns=answer.t_ns, proc=invoke.proc,
        queue=invoke.queue, task=answer.task, token=invoke.token or 0, req_id=invoke.req_id, value=invoke.value,
        err=answer.err, lease_ms=answer.lease_ms, delay_ms=invoke.delay_ms, budget=invoke.budget,
        priority=invoke.priority, unique=invoke.unique, scope=invoke.scope, duplicate=answer.duplicate,
        ttl_ms=invoke.ttl_ms, timeout_ms=invoke.timeout_ms, result=answer.result, state=answer.state,
        worker=invoke.worker, ends_ns=answer.ends_ns, guilty=invoke.guilty, follow_ups=invoke.follow_ups,
    )  # fmt: skip


def _follow_ups(ack: Call) -> list[Call]:
    """What an ack sends along: it is told no id, so nobody knows more than that it may have been accepted."""
    return [
        Call(
            f=ENQUEUE, outcome=FAIL if ack.outcome == FAIL else INFO, invoked_ns=ack.invoked_ns, ended_ns=ack.ended_ns,
            proc=ack.proc, queue=value.partition(":")[0], value=value,
        )
        for value in ack.follow_ups
    ]  # fmt: skip


def _run(start: Event, end: Event | None) -> HandlerRun:
    return HandlerRun(
        task=start.task, value=start.value, worker=start.worker, started_ns=start.t_ns,
        ended_ns=end.t_ns if end is not None else 0, how=end.state if end is not None else "",
    )  # fmt: skip


def next_writes_s(story: Story) -> Iterator[tuple[Event, float | None]]:
    """For each fault the time until a write was acknowledged that was sent after it; None if there was none.

    One that was sent before does not count: its answer may have been on its way when the fault struck.
    """
    answered = sorted((call for call in story.calls if call.outcome == OK), key=lambda call: call.invoked_ns)
    for fault in story.faults:
        if fault.f != FAULT:
            continue
        later = [call.ended_ns for call in answered if call.invoked_ns > fault.t_ns]
        yield fault, (min(later) - fault.t_ns) / 1e9 if later else None
