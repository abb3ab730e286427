"""A queue that keeps every promise, in memory and virtual time: it plays random histories that can be.

The checkers must find nothing in them, and must find each fault that a test then puts in.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from chaos.history import (
    ACK,
    CLAIM,
    ENQUEUE,
    EXTEND,
    FAIL,
    FAIL_TASK,
    INFO,
    INVOKE,
    NEEDS_TOKEN,
    OK,
    RELEASE,
    SETTLING,
    Event,
)
from chaos.verdicts import DEAD, SUCCEEDED, Final

MS = 1_000_000
LEASE_MS = 200
QUEUE = "work"

_READY, _CLAIMED = "READY", "CLAIMED"


@dataclass
class _Task:
    task: str
    value: str
    state: str = _READY
    token: int = 0
    lease_ends_ns: int = 0
    due_ns: int = 0  # not handed out before
    budget: int = 0  # failures after which it is dead; 0 for no limit
    failures: int = 0


@dataclass
class _Held:
    """A claim as its holder knows it."""

    task: str
    token: int
    known_ns: int  # when the answer arrived: not earlier can the token be used


@dataclass
class Model:
    """Calls take effect one after the other; around that moment each has an invoke before and an answer after."""

    draw: random.Random
    now_ns: int = 0
    events: list[Event] = field(default_factory=list)
    tasks: dict[str, _Task] = field(default_factory=dict)
    by_value: dict[str, str] = field(default_factory=dict)  # the task that a value has made
    values: list[str] = field(default_factory=list)  # all that were sent under a request id
    held: list[_Held] = field(default_factory=list)
    lost_claims: dict[str, list[tuple[str, int]]] = field(default_factory=dict)  # by request id: claims nobody heard of
    answers: dict[tuple[int, str], bool] = field(default_factory=dict)  # (token, f) that ended a claim
    sent: dict[str, tuple[int, int]] = field(default_factory=dict)  # by value: delay and budget, the same each time
    tokens: int = 0
    procs: int = 0

    # --- one call ---------------------------------------------------------------------------------------------

    def _call(self, invoke: Event, answers: list[Event]) -> int:
        """Writes a call that takes effect now; returns when its caller heard of it."""
        self.procs += 1
        ended_ns = self.now_ns + self.draw.randint(1, 30) * MS
        self.events.append(_at(invoke, self.invoked_ns, self.procs))
        self.events += [_at(answer, ended_ns, self.procs) for answer in answers]
        return ended_ns

    def step(self) -> None:
        self.invoked_ns = self.now_ns + 1  # after the call before has taken effect, or a little earlier
        self.now_ns += self.draw.randint(1, 20) * MS
        self.invoked_ns = max(0, self.invoked_ns - self.draw.randint(0, 15) * MS)
        for task in self.tasks.values():
            if task.state == _CLAIMED and task.lease_ends_ns <= self.now_ns:
                task.state = _READY
        self.draw.choice((self.enqueue, self.enqueue, self.claim, self.claim, self.settle, self.settle, self.settle))()

    def enqueue(self) -> None:
        again = self.values and self.draw.random() < 0.3
        value = self.draw.choice(self.values) if again else f"v{len(self.events)}"
        has_id = again or self.draw.random() < 0.7
        if has_id and not again:
            self.values.append(value)
        delay_ms, budget = self.sent.setdefault(value, (self.draw.choice((0, 0, 80)), self.draw.choice((0, 0, 0, 2))))
        sent = Event(
            t_ns=0, proc=0, type=INVOKE, f=ENQUEUE, queue=QUEUE, value=value, req_id=f"r-{value}" if has_id else "",
            delay_ms=delay_ms, budget=budget,
        )  # fmt: skip
        fate = self.draw.choices(("ok", "unheard", "vanished", "refused"), weights=(6, 1, 1, 1))[0]
        if fate in ("ok", "unheard") and value not in self.by_value:
            task = self.by_value[value] = f"t{len(self.tasks)}"
            self.tasks[task] = _Task(task, value, due_ns=self.now_ns + delay_ms * MS, budget=budget)
        task_id = self.by_value[value] if fate == "ok" else ""
        self._call(sent, [_as(sent, {"ok": OK, "refused": FAIL}.get(fate, INFO), task=task_id)])

    def claim(self, *, everything: bool = False) -> list[_Held]:
        again = bool(self.lost_claims) and self.draw.random() < 0.4 and not everything
        req_id = self.draw.choice(sorted(self.lost_claims)) if again else f"c{len(self.events)}"
        got = [(task, token) for task, token in self.lost_claims.pop(req_id, []) if self._holds(task, token)]
        fate = "ok" if again or everything else self.draw.choices(("ok", "unheard", "vanished"), weights=(8, 1, 1))[0]
        if not got and fate != "vanished":
            ready = [task for task in self.tasks.values() if task.state == _READY and task.due_ns <= self.now_ns]
            got = [self._hand_out(task) for task in ready[: None if everything else self.draw.randint(1, 3)]]
        sent = Event(t_ns=0, proc=0, type=INVOKE, f=CLAIM, queue=QUEUE, req_id=req_id)
        if fate != "ok":
            self.lost_claims[req_id] = got
            self._call(sent, [_as(sent, INFO)])
            return []
        left_ms = {task: (self.tasks[task].lease_ends_ns - self.now_ns) // MS for task, _ in got}
        answers = [
            _as(
                sent,
                OK,
                task=task,
                token=token,
                value=self.tasks[task].value,
                lease_ms=left_ms[task],
                attempt=self.tasks[task].failures + 1,
            )
            for task, token in got
        ]
        known_ns = self._call(sent, answers or [_as(sent, OK)])
        held = [_Held(task, token, known_ns) for task, token in got]
        self.held += held
        return held

    def _hand_out(self, task: _Task) -> tuple[str, int]:
        self.tokens += 1
        task.state, task.token, task.lease_ends_ns = _CLAIMED, self.tokens, self.now_ns + LEASE_MS * MS
        return task.task, task.token

    def _holds(self, task: str, token: int) -> bool:
        return self.tasks[task].state == _CLAIMED and self.tasks[task].token == token

    def settle(self) -> None:
        """Any claim that a caller has heard of, current or not."""
        known = [held for held in self.held if held.known_ns < self.invoked_ns]
        if known:
            kind = self.draw.choices(NEEDS_TOKEN, weights=(3, 2, 2, 2))[0]
            self._settle(self.draw.choice(known), kind, self.draw.choices((OK, INFO, "vanished"), weights=(8, 1, 1))[0])

    def _settle(self, held: _Held, kind: str, fate: str) -> None:
        accepted = fate != "vanished" and self._accepts(held, kind)
        sent = Event(
            t_ns=0, proc=0, type=INVOKE, f=kind, queue=QUEUE, task=held.task, token=held.token,
            lease_ms=LEASE_MS if kind == EXTEND else 0, delay_ms=_retry_ms(held.token) if kind == FAIL_TASK else 0,
        )  # fmt: skip
        self._call(sent, [_as(sent, INFO if fate != OK else OK if accepted else FAIL)])

    def _accepts(self, held: _Held, kind: str) -> bool:
        task = self.tasks[held.task]
        if not self._holds(held.task, held.token):
            return (held.token, kind) in self.answers
        if kind == EXTEND:
            task.lease_ends_ns = self.now_ns + LEASE_MS * MS
        if kind in SETTLING:
            task.state = SUCCEEDED if kind == ACK else _READY
            if kind == FAIL_TASK:
                task.failures += 1
                task.due_ns = self.now_ns + _retry_ms(held.token) * MS
                task.state = DEAD if task.failures == task.budget else _READY
            self.answers[held.token, kind] = True
        return True

    # --- the end ----------------------------------------------------------------------------------------------

    def drain(self) -> None:
        self.now_ns += 2 * LEASE_MS * MS
        self.invoked_ns = self.now_ns - 1
        for task in self.tasks.values():
            if task.state == _CLAIMED:
                task.state = _READY
        for held in self.claim(everything=True):
            self.now_ns = self.invoked_ns = max(self.now_ns, held.known_ns) + MS
            self._settle(held, ACK, OK)

    def final(self) -> Final:
        return Final(
            states={task.task: task.state for task in self.tasks.values()},
            enqueued_total=len(self.tasks),
            hashes={"0": {node: (len(self.events), "abc") for node in ("n1", "n2", "n3")}},
            replicas=3,
            leaders=((0, 1, "n1"), (0, 2, "n2"), (0, 2, "n2"), (1, 2, "n1")),
        )


def play(seed: int, steps: int) -> tuple[list[Event], Final]:
    """A random history that can be, and what it leaves."""
    model = Model(random.Random(seed))
    for _ in range(steps):
        model.step()
    model.drain()
    return list(_in_order(model.events)), model.final()


def _retry_ms(token: int) -> int:
    return 60 if token % 3 == 0 else 0


def _in_order(events: list[Event]) -> Iterator[Event]:
    yield from sorted(events, key=lambda event: event.t_ns)


def _at(event: Event, t_ns: int, proc: int) -> Event:
    return Event(**{**_fields(event), "t_ns": t_ns, "proc": proc})  # type: ignore[arg-type]  # its own fields


def _as(event: Event, kind: str, **changes: object) -> Event:
    return Event(**{**_fields(event), "type": kind, **changes})  # type: ignore[arg-type]  # its own fields


def _fields(event: Event) -> dict[str, object]:
    return {name: getattr(event, name) for name in Event.__dataclass_fields__}


assert SETTLING[1:] == (FAIL_TASK, RELEASE), "the weights of `settle` follow this order"
