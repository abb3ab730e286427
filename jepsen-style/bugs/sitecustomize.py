"""Deliberate bugs in servers and workers, which are to be caught: put this directory on PYTHONPATH and name one in
CHAOS_BUG.

Python imports a module of this name when it starts. Nothing of this is in the product.
"""

import importlib
import os
from collections.abc import Callable
from functools import partial
from typing import Any


def _handlers(name: str) -> Any:
    """A module of the broker, to be changed."""
    return importlib.import_module(f"holdfast.machine.handlers.{name}")


def _token_check_off() -> None:
    """Whoever held a task may end it, whoever holds it now."""
    from holdfast.machine.rows import CLAIMED

    settling = _handlers("settling")

    settling._holds = lambda task, token: task is not None and task.state == CLAIMED


def _dedup_off() -> None:
    _change_new_tasks(lambda new: new._replace(request_id=b""))


def _delay_ignored() -> None:
    _change_new_tasks(lambda new: new._replace(run_at_ms=0))


def _priorities_ignored() -> None:
    _change_new_tasks(lambda new: new._replace(priority=5))


def _replicas_differ() -> None:
    """Something of the process gets into the state."""
    _change_new_tasks(lambda new: new._replace(tenant=b"%d" % os.getpid()))


def _change_new_tasks(change: Callable[[Any], Any]) -> None:
    accepting = _handlers("accepting")

    accept = accepting.accept_task
    accepting.accept_task = lambda draft, new: accept(draft, change(new))


def _ack_forgotten() -> None:
    """One ack of twenty says yes and gives the task back."""
    from holdfast.machine.rows import SUCCEEDED
    from holdfast.machine.transitions import return_to_ready_line

    settling = _handlers("settling")

    finish = settling.enter_finished

    def forget(draft: Any, task_id: bytes, task: Any, state: int, purge_ms: int) -> None:
        if state == SUCCEEDED and task.sequence % 20 == 0 and task.claims < 3:
            return_to_ready_line(draft, task_id, task)
        else:
            finish(draft, task_id, task, state, purge_ms)

    settling.enter_finished = forget


def _index_forgotten() -> None:
    """One finished task of five is in no list of what is to be removed some day. Nobody would notice for long."""
    transitions: Any = importlib.import_module("holdfast.machine.transitions")

    arm = transitions._arm_purge

    def forget(draft: Any, task_id: bytes, purge_ms: int) -> None:
        if task_id[-1] % 5:
            arm(draft, task_id, purge_ms)

    transitions._arm_purge = forget


def _task_dropped() -> None:
    """One task of three is called done when it is handed back."""
    from holdfast.machine.rows import SUCCEEDED
    from holdfast.machine.transitions import enter_finished, return_to_ready_line

    settling = _handlers("settling")

    def drop(draft: Any, task_id: bytes, task: Any) -> None:
        if task.sequence % 3 == 0:
            enter_finished(draft, task_id, task, SUCCEEDED, draft.now_ms + 3_600_000)
        else:
            return_to_ready_line(draft, task_id, task)

    settling.return_to_ready_line = drop


def _token_reused() -> None:
    claiming = _handlers("claiming")

    enter = claiming.enter_claimed

    def enter_and_turn_back(draft: Any, task_id: bytes, task: Any, entry: Any, expiry_ms: int) -> None:
        enter(draft, task_id, task, entry, expiry_ms)
        if task.sequence % 20 == 0:
            draft.meta.next_token -= 1

    claiming.enter_claimed = enter_and_turn_back


def _lease_too_short() -> None:
    """The worker is told of a longer lease than the task has."""
    claiming = _handlers("claiming")

    grant = claiming._granted

    def promise_more(task_id: bytes, task: Any) -> Any:
        claimed = grant(task_id, task)
        return claimed._replace(expiry_ms=claimed.expiry_ms + 3000)

    claiming._granted = promise_more


def _failures_not_counted() -> None:
    settling = _handlers("settling")

    fail_one = settling._fail_one

    def fail_and_forget(draft: Any, item: Any, entry: Any) -> Any:
        outcome = fail_one(draft, item, entry)
        task = draft.execution(item.task_id)
        if task is not None and task.failures and task.sequence % 4 == 0:
            task.failures -= 1
            draft.save(item.task_id, task)
        return outcome

    settling._fail_one = fail_and_forget


def _cap_doubled(which: str) -> None:
    """Twice as many may be claimed at the same time as was said."""
    from holdfast.broker.policy.policies import _Reader

    cap = _Reader.cap
    _Reader.cap = lambda self, name, plain=0: (1 + (name == which)) * cap(self, name, plain)  # type: ignore[method-assign]


def _tick_lost() -> None:
    """One tick of three is dealt with and makes no task."""
    from holdfast.machine.outcomes import Fired

    scheduling = _handlers("scheduling")

    fire_one = scheduling._fire_one

    def forget(draft: Any, entry: Any, known: Any, tick_ms: int, new: Any) -> Any:
        made = fire_one(draft, entry, known, tick_ms, new) if tick_ms // 1000 % 3 else None
        return made or Fired(b"", False)

    scheduling._fire_one = forget


def _tick_twice() -> None:
    scheduling = _handlers("scheduling")

    fire_one = scheduling._fire_one

    def fire_again(draft: Any, *tick: Any) -> Any:
        fire_one(draft, *tick)
        return fire_one(draft, *tick)

    scheduling._fire_one = fire_again


def _ticks_not_made_up() -> None:
    """A leader does not care about ticks from before its time."""
    manager: Any = importlib.import_module("holdfast.broker.leader.schedule_manager")

    manager.GRACE_MS = 0
    manager.CATCH_UPS = dict.fromkeys(manager.CATCH_UPS, "none")


def _unique_keys_ignored() -> None:
    _change_new_tasks(lambda new: new._replace(unique_key=b""))


def _ttl_ignored() -> None:
    _change_new_tasks(lambda new: new._replace(start_by_ms=0))


def _timeout_ignored() -> None:
    _change_new_tasks(lambda new: new._replace(timeout_ms=0))


def _results_mixed_up() -> None:
    """Each gets the result of the one before."""
    settling = _handlers("settling")

    keep, results = settling.keep_result, [b""]

    def mix_up(draft: Any, task_id: bytes, task: Any, result: bytes, keep_ms: int) -> None:
        results.append(result)
        keep(draft, task_id, task, results.pop(0), keep_ms)

    settling.keep_result = mix_up


def _cancel_forgotten() -> None:
    """It says yes and does nothing."""
    from holdfast.machine.outcomes import Moved
    from holdfast.machine.rows import CANCELLED, CLAIMED, DEAD, SUCCEEDED

    operating = _handlers("operating")

    cancel_one = operating.cancel_one

    def forget(draft: Any, task_id: bytes, *rest: Any) -> Any:
        task = draft.execution(task_id)
        waits = task is not None and task.state not in (CANCELLED, CLAIMED, DEAD, SUCCEEDED)
        return Moved(CANCELLED) if waits else cancel_one(draft, task_id, *rest)

    operating.cancel_one = forget


# --- what only whole systems show -------------------------------------------------------------------------------------


def _lease_of_the_wait() -> None:
    """A worker counts its lease from when it began to wait for a task, and not from when it got one."""
    wire: Any = importlib.import_module("holdfast.client._wire")
    claimed_tasks = wire.claimed_tasks

    def forget_the_wait(response: Any, sent_s: float) -> Any:
        response.waited_ms = response.routed_ms = 0
        return claimed_tasks(response, sent_s)

    wire.claimed_tasks = forget_the_wait


def _wait_at_the_router_not_told() -> None:
    """A router does not say how long a call was there before it was sent on: its worker takes that off the lease."""
    methods: Any = importlib.import_module("holdfast.router.methods")
    methods.Method.with_routed = lambda self, answer, routed_s: answer


def _leases_not_looked_at() -> None:
    """A worker starts what it was given, however long the answer took."""
    session: Any = importlib.import_module("holdfast.client.worker.session")
    session.end_if_over = lambda *job: None


def _ready_while_stalled() -> None:
    """A broker says that it is ready whatever it lacks."""
    node: Any = importlib.import_module("holdfast.broker.node")
    node.Node._readiness = lambda self: (True, "serving")


def _acks_wait_for_the_slowest() -> None:
    """A worker reports for all shards in one call, which is answered when the last of them has answered."""
    settling: Any = importlib.import_module("holdfast.client.worker.settling")
    settling.shard_of_task = lambda task_id: 0


def _enqueues_wait_for_the_slowest() -> None:
    """Single enqueues share requests across shards."""
    single: Any = importlib.import_module("holdfast.client._single_enqueues")
    single.SingleEnqueues.group_of = lambda self, item: "all"
    single.SingleEnqueues.group_of_repeated = lambda self, item, refusal: None


def _rounds_without_budget() -> None:
    """Each busy shard takes its time in a round, one after the other, and signs of life wait for the end of it."""
    import time

    rounds: Any = importlib.import_module("holdfast.broker.replica.commit_loop")
    replica: Any = importlib.import_module("holdfast.broker.replica.replica")
    step = replica.Replica.step

    def step_slowly(self: Any, *arguments: Any) -> Any:
        staged = step(self, *arguments)
        if staged:
            time.sleep(0.06)
        return staged

    replica.Replica.step = step_slowly
    rounds.CommitLoop._beat = lambda self, began_s: None


def _suspects_off() -> None:
    """Tasks whose worker died go back into their line, to be handed out in company, and each has lost a claim."""
    from holdfast.machine.rows import CLAIMS_SPENT
    from holdfast.machine.transitions import enter_dead, return_to_ready_line

    timing = _handlers("timing")

    def count(draft: Any, task_id: bytes, task: Any) -> None:
        if task.claims < task.max_claims:
            return_to_ready_line(draft, task_id, task)
        else:
            enter_dead(draft, task_id, task, CLAIMS_SPENT, draft.now_ms + 3_600_000)

    timing.become_suspect = count


def _waits_share_the_budget() -> None:
    """Workers without work use up what a router takes of other calls."""
    admission: Any = importlib.import_module("holdfast.router.admission")
    begin = admission.Admission.__init__

    def begin_with_one(self: Any, **limits: Any) -> None:
        begin(self, **limits)
        self.waiting = self.working

    admission.Admission.__init__ = begin_with_one


def _sync_lies() -> None:
    """The log says that it is on disk, and mostly is not yet: everything is synced a few times a second. A log with
    holes, or one that ends before the state, is noticed by the broker itself: so all files are synced at once, and no
    state is written."""
    import ctypes
    import time

    os.environ |= {"HOLDFAST_STATE_FLUSH_AGE_SECONDS": "3600", "HOLDFAST_STATE_FLUSH_LOG_BYTES": str(64 * 1024 * 1024)}
    sync_all_of, last_s = ctypes.CDLL(None).syncfs, [0.0]

    def sync_now_and_then(fd: Any) -> None:
        if time.monotonic() - last_s[0] > 0.3:
            sync_all_of(fd)
            last_s[0] = time.monotonic()

    os.fdatasync = sync_now_and_then


# What a checker must say of each.
BUGS: dict[str, tuple[Callable[[], None], str]] = {
    "token-check-off": (_token_check_off, "stale"),
    "dedup-off": (_dedup_off, "duplicate"),
    "delay-ignored": (_delay_ignored, "early"),
    "priorities-ignored": (_priorities_ignored, "priority"),
    "cap-doubled": (partial(_cap_doubled, "concurrency_max"), "cap"),
    "key-cap-doubled": (partial(_cap_doubled, "key_concurrency_max"), "cap"),
    "tenant-cap-doubled": (partial(_cap_doubled, "tenant_concurrency_max"), "cap"),
    "ack-forgotten": (_ack_forgotten, "after-ack"),
    "index-forgotten": (_index_forgotten, "index"),
    "task-dropped": (_task_dropped, "lost"),
    "token-reused": (_token_reused, "token"),
    "lease-too-short": (_lease_too_short, "overlap"),
    "failures-not-counted": (_failures_not_counted, "attempt"),
    "tick-lost": (_tick_lost, "tick"),
    "tick-twice": (_tick_twice, "duplicate"),
    "unique-keys-ignored": (_unique_keys_ignored, "unique"),
    "ttl-ignored": (_ttl_ignored, "ttl"),
    "timeout-ignored": (_timeout_ignored, "timeout"),
    "results-mixed-up": (_results_mixed_up, "result"),
    "cancel-forgotten": (_cancel_forgotten, "cancel"),
    "replicas-differ": (_replicas_differ, "hash"),  # takes more than one replica
    "ticks-not-made-up": (_ticks_not_made_up, "tick"),  # takes a fail-over
    "sync-lies": (_sync_lies, "lost"),  # takes a power cut
    "lease-of-the-wait": (_lease_of_the_wait, "lease"),
    "wait-at-the-router-not-told": (_wait_at_the_router_not_told, "lease"),
    "leases-not-looked-at": (_leases_not_looked_at, "start"),  # takes workers that are stopped
    "ready-while-stalled": (_ready_while_stalled, "ready"),  # takes a disk that stalls
    "acks-wait-for-the-slowest": (_acks_wait_for_the_slowest, "latency"),
    "enqueues-wait-for-the-slowest": (_enqueues_wait_for_the_slowest, "latency"),
    "rounds-without-budget": (_rounds_without_budget, "election"),
    "suspects-off": (_suspects_off, "innocent"),  # takes tasks that kill their worker
    "waits-share-the-budget": (_waits_share_the_budget, "refused"),
}

if os.environ.get("CHAOS_BUG"):
    BUGS[os.environ["CHAOS_BUG"]][0]()
