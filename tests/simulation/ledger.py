"""What callers were told, and whether the node stands by it.

A write is `unknown` from the moment it is sent. An answer makes it certain: accepted or refused. What stays unknown may
have happened once or not at all.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from holdfast.machine import keys
from holdfast.machine.entries import AckItem, FailItem
from holdfast.machine.ids import token_counter
from holdfast.machine.invariants import violations
from holdfast.machine.kv import Rows, rows_of
from holdfast.machine.new_tasks import NewTask
from holdfast.machine.outcomes import Accepted, Acked, Claimed, Failed
from holdfast.machine.rejections import Rejection
from holdfast.machine.rows import (
    CANCELLED,
    DEAD,
    RETRY_PENDING,
    SUCCEEDED,
    WORKER_GAVE_UP,
    Execution,
    Meta,
    Queue,
)
from tests.simulation.world import BrokenPromiseError


@dataclass
class Order:
    """A task that somebody wants. Without a request id it is sent once, with one it is sent until it is certain."""

    new: NewTask
    unknown: int = 0  # times it was sent and not answered
    accepted: int = 0
    task_ids: set[bytes] = field(default_factory=set)

    def __str__(self) -> str:
        return label_of(self.new.envelope).decode()


@dataclass
class Known:
    """A task whose id is known."""

    order: Order
    token: int = 0  # the newest one handed out
    held_until_ms: int = 0  # nobody else may have it before; 0: no promise
    not_before_ms: int = 0
    failures_min: int = 0
    failures_max: int = 0
    acked: Acked | None = None
    acked_token: int = 0
    acked_ms: int = 0
    is_cancelled: bool = False
    is_discarded: bool = False
    maybe_finished: bool = False  # something was sent that ends it
    maybe_revived: bool = False  # something was sent that makes its failures forgotten


def label_of(envelope: bytes) -> bytes:
    return envelope.partition(b" ")[0]


class Ledger:
    """Raises BrokenPromiseError at the first contradiction."""

    def __init__(self, claims_per_worker_max: int) -> None:
        self._claims_per_worker_max = claims_per_worker_max
        self.orders: dict[bytes, Order] = {}
        self.known: dict[bytes, Known] = {}
        self.token_max = 0
        self.now_ms = 0  # the newest applied time seen
        self.discards_unknown = 0
        self.claims = 0  # handed out

    def order(self, new: NewTask) -> Order:
        order = self.orders[label_of(new.envelope)] = Order(new)
        return order

    def task_ids(self) -> list[bytes]:
        return list(self.known)

    # --- enqueue ----------------------------------------------------------------------------------------------

    def sent(self, orders: list[Order]) -> None:
        for order in orders:
            order.unknown += 1

    def refused(self, orders: list[Order]) -> None:
        """The node said that it has not happened and will not."""
        for order in orders:
            order.unknown -= 1
            self._check_count(order)

    def accepted(self, order: Order, outcome: Accepted) -> None:
        if outcome.duplicate and not order.accepted and order.unknown < 2:
            raise BrokenPromiseError(f"{order} was called a duplicate, but had never been sent before")
        order.unknown -= 1
        order.accepted += 1
        self.exists(outcome.task_id, order)

    def exists(self, task_id: bytes, order: Order) -> None:
        order.task_ids.add(task_id)
        self._check_count(order)
        if task_id not in self.known:
            self.known[task_id] = Known(order, not_before_ms=order.new.run_at_ms)
        elif self.known[task_id].order is not order:
            raise BrokenPromiseError(f"{task_id.hex()} is {order} and {self.known[task_id].order}")

    def _check_count(self, order: Order) -> None:
        if len(order.task_ids) > min(order.unknown + order.accepted, 1):
            raise BrokenPromiseError(
                f"{order} was accepted {order.accepted} times and left open {order.unknown} times, but became "
                f"{len(order.task_ids)} tasks"
            )

    # --- claims -----------------------------------------------------------------------------------------------

    def claimed(self, claim: Claimed, envelope: bytes | None, now_ms: int) -> None:
        if envelope is not None:
            self.exists(claim.task_id, self.orders[label_of(envelope)])
        task = self.known.get(claim.task_id)
        if task is None:
            return  # finished already by somebody else, who knows it
        name = f"{task.order} was claimed with token {token_counter(claim.token)}"
        if task.acked is not None or task.is_cancelled or task.is_discarded:
            raise BrokenPromiseError(f"{name} after it had been finished")
        if claim.token < task.token:
            raise BrokenPromiseError(f"{name} after {token_counter(task.token)}")
        if now_ms < task.not_before_ms:
            raise BrokenPromiseError(f"{name} {task.not_before_ms - now_ms} ms early")
        if claim.claims > task.order.new.max_claims:
            raise BrokenPromiseError(f"{name}, but has no claims left")
        if not (task.maybe_revived or task.failures_min <= claim.failures) or claim.failures > task.failures_max:
            raise BrokenPromiseError(f"{name} with {claim.failures} failures")
        if claim.token > task.token:
            if now_ms < task.held_until_ms:
                raise BrokenPromiseError(f"{name} {task.held_until_ms - now_ms} ms before another's lease ends")
            task.token = claim.token
            self.token_max = max(self.token_max, claim.token)
            self.claims += 1
        task.held_until_ms = claim.expiry_ms

    def sends_extension(self, task_id: bytes, token: int, expiry_ms: int) -> None:
        """It may also shorten the lease."""
        task = self.known[task_id]
        if task.token == token:
            task.held_until_ms = min(task.held_until_ms, expiry_ms)

    def extended(self, task_id: bytes, token: int, expiry_ms: int) -> None:
        task = self.known[task_id]
        if task.token == token:
            task.held_until_ms = expiry_ms

    def gives_back(self, task_id: bytes, token: int) -> None:
        """The holder sends something that may end its claim."""
        task = self.known[task_id]
        if task.token == token:
            task.held_until_ms = 0

    # --- settling ---------------------------------------------------------------------------------------------

    def sends_ack(self, item: AckItem, follow_ups: list[Order]) -> None:
        self.gives_back(item.task_id, item.token)
        self.known[item.task_id].maybe_finished = True
        self.sent(follow_ups)

    def acked(self, item: AckItem, outcome: Acked, follow_ups: list[Order], now_ms: int) -> None:
        task = self.known[item.task_id]
        if task.acked is not None and task.acked_token != item.token:
            raise BrokenPromiseError(f"{task.order} was acked with two tokens")
        if task.is_cancelled:
            raise BrokenPromiseError(f"{task.order} was acked although it had been cancelled")
        if task.acked is None:
            task.acked, task.acked_token, task.acked_ms = outcome, item.token, now_ms
        elif [made.task_id for made in task.acked.follow_ups] != [made.task_id for made in outcome.follow_ups]:
            raise BrokenPromiseError(f"the ack of {task.order} was repeated and got another answer")
        for order, made in zip(follow_ups, outcome.follow_ups, strict=True):
            self.accepted(order, made._replace(duplicate=False))

    def ack_rejected(self, item: AckItem, rejection: Rejection, follow_ups: list[Order], now_ms: int) -> None:
        task = self.known[item.task_id]
        if task.acked is not None and task.acked_token == item.token and now_ms < task.acked_ms + 9 * 60 * 1000:
            raise BrokenPromiseError(f"the ack of {task.order} was repeated and got {rejection.code}")
        self.refused(follow_ups)

    def sends_fail(self, item: FailItem) -> None:
        self.gives_back(item.task_id, item.token)
        task = self.known[item.task_id]
        task.failures_max += 1
        task.maybe_finished = True  # a cancellation may have been asked for

    def failed(self, claim: Claimed, item: FailItem, outcome: Failed, *, is_first: bool, gave_up: bool) -> None:
        task = self.known[item.task_id]
        new = task.order.new
        if is_first:
            task.failures_min += 1
        is_spent = gave_up or claim.failures + 1 >= new.max_attempts or claim.claims >= new.max_claims
        if outcome.state != CANCELLED and (outcome.state == DEAD) != is_spent:
            raise BrokenPromiseError(f"{task.order} failed for the {claim.failures + 1}th time and is {outcome.state}")
        if outcome.state == RETRY_PENDING:
            task.not_before_ms = outcome.retry_at_ms

    def sends_cancel(self, task_id: bytes) -> None:
        self.known[task_id].maybe_finished = True

    def cancelled(self, task_id: bytes, state: int) -> None:
        task = self.known[task_id]
        if state == CANCELLED:
            if task.acked is not None:
                raise BrokenPromiseError(f"{task.order} was cancelled although it had been acked")
            task.is_cancelled = True

    def sends_revival(self, task_id: bytes) -> None:
        self.known[task_id].maybe_revived = True

    def sends_discard(self, task_id: bytes) -> None:
        self.known[task_id].maybe_finished = True
        self.discards_unknown += 1

    def discarded(self, task_id: bytes) -> None:
        self.known[task_id].is_discarded = True
        self.discards_unknown -= 1

    def discard_refused(self) -> None:
        self.discards_unknown -= 1

    # --- what the state must say ------------------------------------------------------------------------------

    def check_state(self, kv: Rows) -> None:
        """After a recovery, and at the end."""
        found = violations(kv)
        if found:
            raise BrokenPromiseError(f"the state is broken: {found}")
        meta_row = kv.get(keys.META_KEY)
        meta = Meta.decode(meta_row) if meta_row is not None else Meta()
        if meta.next_token <= token_counter(self.token_max):
            raise BrokenPromiseError(f"token {token_counter(self.token_max)} will be handed out again")
        if meta.now_ms < self.now_ms:
            raise BrokenPromiseError(f"shard time went back from {self.now_ms} to {meta.now_ms}")
        self.now_ms = meta.now_ms
        for key, held in rows_of(kv, keys.family_start(keys.WORKER), keys.family_start(keys.WORKER + 1)):
            if int.from_bytes(held, "big") > self._claims_per_worker_max:
                raise BrokenPromiseError(f"{key[1:]!r} holds {int.from_bytes(held, 'big')} claims")
        for key, envelope in rows_of(kv, keys.family_start(keys.ENVELOPE), keys.family_start(keys.ENVELOPE + 1)):
            order = self.orders.get(label_of(envelope))
            if order is None:
                raise BrokenPromiseError(f"nobody has ordered {envelope!r}")
            self.exists(key[1:], order)
        for task_id, task in self.known.items():
            row = kv.get(keys.execution(task_id))
            self._check_task(task, Execution.decode(row) if row is not None else None)

    def _check_task(self, task: Known, row: Execution | None) -> None:
        name = str(task.order)
        if row is None:
            if not task.maybe_finished:
                raise BrokenPromiseError(f"{name} was accepted and is gone")
            return
        if task.is_discarded:
            raise BrokenPromiseError(f"{name} was discarded and is back as {row.state_name}")
        if task.acked is not None and (row.state != SUCCEEDED or row.token != task.acked_token):
            raise BrokenPromiseError(f"{name} was acked and is {row.state_name}")
        if task.is_cancelled and row.state != CANCELLED:
            raise BrokenPromiseError(f"{name} was cancelled and is {row.state_name}")
        if row.state == SUCCEEDED and not task.maybe_finished:
            raise BrokenPromiseError(f"{name} has succeeded, but nobody has acked it")
        if row.token < task.token:
            raise BrokenPromiseError(f"{name} has forgotten a claim")
        is_spent = row.failures >= row.max_attempts or row.claims >= row.max_claims
        if row.state == DEAD and not is_spent and row.dead_reason != WORKER_GAVE_UP:
            raise BrokenPromiseError(f"{name} is dead with {row.failures} failures and {row.claims} claims")

    def describe(self, kv: Rows) -> str:
        """Tasks by state, and how many rows each family has."""
        found: dict[str, list[str]] = {}
        for task_id, task in self.known.items():
            row = kv.get(keys.execution(task_id))
            found.setdefault(Execution.decode(row).state_name if row is not None else "gone", []).append(
                str(task.order)
            )
        families = Counter(key[0] for key, _ in rows_of(kv, b"\x00", b"\xff"))
        return f"{found}, rows by family {dict(families)}"

    def check_end(self, kv: Rows) -> None:
        """All work is done: each order has ended, and the counters agree."""
        self.check_state(kv)
        rows = [Queue.decode(row) for _, row in rows_of(kv, b"%c" % keys.QUEUE, b"%c" % (keys.QUEUE + 1))]
        enqueued = sum(row.enqueued_total for row in rows)
        sure = sum(bool(order.accepted) for order in self.orders.values())
        unsure = sum(not order.accepted and order.unknown > 0 for order in self.orders.values())
        if not sure <= enqueued <= sure + unsure:
            raise BrokenPromiseError(f"{sure} to {sure + unsure} tasks were accepted, but {enqueued} were counted")
        acked = sum(task.acked is not None for task in self.known.values())
        succeeded = sum(row.succeeded_total for row in rows)
        if succeeded < acked:
            raise BrokenPromiseError(f"{acked} tasks were acked, but {succeeded} were counted")
        gone = enqueued - sum(row.succeeded_total + row.cancelled_total + row.dead for row in rows)
        discards = sum(task.is_discarded for task in self.known.values())
        if not discards <= gone <= discards + self.discards_unknown:
            raise BrokenPromiseError(f"{gone} tasks vanished, but {discards} were discarded")
