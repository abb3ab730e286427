"""The judges of what a task can ask for, and of schedules: histories made by hand that can be, and some that cannot."""

from dataclasses import replace
from typing import Any

import pytest

from chaos.checkers import check
from chaos.history import ACK, CANCEL, EXTEND, FAIL, FAIL_TASK, INFO, OK, READ, RELEASE, Call, Claim
from chaos.verdicts import Final, Ticks
from tests.unit.chaos.chaos_parts import S, claimed, sent, story, used

Parts = list[Call | Claim]

DONE = Final(states={"t1": "SUCCEEDED"}, enqueued_total=1)
TWO_DONE = Final(states={"t1": "SUCCEEDED", "t2": "SUCCEEDED"}, enqueued_total=2)
DEAD = Final(states={"t1": "DEAD"}, enqueued_total=1)
CANCELLED = Final(states={"t1": "CANCELLED"}, enqueued_total=1)


def ask(f: str, at: float, *, state: str = "", result: str = "", outcome: str = OK) -> Call:
    """A cancellation, or a look at the task."""
    return replace(used(f, 0, at, outcome=outcome), state=state, result=result)


# --- schedules ------------------------------------------------------------------------------------------------

THREE_TICKS = Final(
    states=dict.fromkeys(("t1", "t2", "t3"), "SUCCEEDED"), enqueued_total=3,
    ticks={"s": Ticks(first_ms=1000, every_ms=1000, last_ms=3000, fired_total=3)},
)  # fmt: skip


def tick(number: int, *, task: int = 0, made_ms: int = 0) -> Parts:
    """A tick, claimed and acked."""
    token, name = 10 + (task or number), f"t{task or number}"
    claim = claimed(token, 10 + token, task=name, value=f"s@{number * 1000}")
    return [replace(claim, made_ms=made_ms or number * 1000), used(ACK, token, 11 + token, task=name)]


# --- limits ---------------------------------------------------------------------------------------------------

BY_KEY, BY_TENANT = replace(TWO_DONE, key_caps={"q": 1}), replace(TWO_DONE, tenant_caps={"q": 1})


def two_held(**second: Any) -> Parts:
    """Two claims at the same time; the first has the limit key k and the tenant t."""
    first = replace(claimed(lease_s=60), limit_key="k", tenant="t")
    other = replace(claimed(11, 3, task="t2", value="v2", lease_s=60), **second)
    return [sent(), sent("v2", "t2", req_id="r2"), first, other, used(ACK, at=4), used(ACK, 11, 4, task="t2")]


# --- priorities -----------------------------------------------------------------------------------------------

RANKED = replace(TWO_DONE, ranked=("q",))


def ranked(first: int, second: int, *, known: float = 0, at: float = 3, nth: int = 1) -> Parts:
    """Two tasks with these priorities; the second one may be known of late, and is handed out after the first."""
    sends = [replace(sent(), priority=first), replace(sent("v2", "t2", at=known, req_id="r2"), priority=second)]
    claims = [replace(claimed(), nth=1), replace(claimed(11, at, task="t2", value="v2"), nth=nth)]
    return [*sends, *claims, used(ACK, at=5), used(ACK, 11, 5, task="t2")]


# --- unique keys ----------------------------------------------------------------------------------------------


def wanted(value: str = "v1", task: str = "t1", at: float = 0, *, scope: str = "UNTIL_DONE", key: str = "k",
           outcome: str = OK, taken: bool = False, req_id: str = "") -> Call:  # fmt: skip
    """An enqueue with a unique key; `taken`: the answer is a task that was there."""
    send = sent(value, task, outcome=outcome, at=at, req_id=req_id)
    return replace(send, unique=key, scope=scope, duplicate=taken)


def waiting(value: str = "v1", task: str = "t1", at: float = 0, **more: Any) -> Call:
    return wanted(value, task, at, scope="WHILE_WAITING", **more)


def second_done(at: float) -> Parts:
    return [claimed(11, at, task="t2", value="v2"), used(ACK, 11, at + 1, task="t2")]


# --- time to live and timeouts ----------------------------------------------------------------------------------


def brief(**more: Any) -> Call:
    return replace(sent(**more), ttl_ms=2000)


def timed(**more: Any) -> Call:
    return replace(sent(**more), timeout_ms=5000, budget=2)


TTL_PASSED = replace(DEAD, reasons={"t1": "TTL_PASSED"})
SPENT = replace(DEAD, reasons={"t1": "ATTEMPTS_SPENT"}, errors={"t1": "TaskTimeout"})


# --- results --------------------------------------------------------------------------------------------------


def acked(result: str, at: float = 2, *, token: int = 10, outcome: str = OK) -> Call:
    return replace(used(ACK, token, at, outcome=outcome), result=result)


def with_result(result: str) -> Final:
    return replace(DONE, results={"t1": result})


ALLOWED: dict[str, tuple[Final, Parts]] = {
    "every tick once": (THREE_TICKS, [*tick(1), *tick(2), *tick(3)]),
    "a tick that was handed out again": (
        THREE_TICKS,
        [replace(claimed(10, 10, task="t3", value="s@3000"), made_ms=3000), *tick(1), *tick(2), *tick(3)],
    ),
    "two tasks of other keys": (BY_KEY, two_held(limit_key="other", tenant="t")),
    "two tasks of other tenants": (BY_TENANT, two_held(limit_key="k", tenant="other")),
    "two tasks of which one has no key": (BY_KEY, two_held()),
    "two tasks of a key in another queue than the capped one": (
        replace(TWO_DONE, key_caps={"other": 1}), two_held(limit_key="k")
    ),
    "the higher priority first": (RANKED, ranked(7, 3)),
    "one like the other": (RANKED, ranked(3, 3)),
    "a higher priority that was sent meanwhile": (RANKED, ranked(3, 7, known=0.6)),
    "a higher priority that somebody else asked for meanwhile": (RANKED, ranked(3, 7, at=1.4)),
    "a higher priority that somebody held before": (RANKED, ranked(3, 7, nth=2)),
    "a higher priority where they are not strict": (TWO_DONE, ranked(3, 7)),
    "answered with the task that has the key": (
        DONE, [wanted(), wanted("v2", at=1, taken=True), claimed(at=2), wanted("v3", at=3, taken=True), used(ACK, at=4)]
    ),
    "answered with a task that nobody was told of": (
        DONE, [wanted(outcome=INFO), wanted("v2", at=1, taken=True), claimed(at=2), used(ACK, at=4)]
    ),
    "sent again under its request id after the other was done": (
        DONE,
        [wanted(), wanted("v2", at=1, taken=True, req_id="r"), claimed(at=2), used(ACK, at=3),
         wanted("v2", at=4, taken=True, req_id="r")],
    ),
    "sent again, and made by the first attempt after all": (
        TWO_DONE,
        [wanted(outcome=INFO, req_id="r"), claimed(), used(ACK), wanted("v2", "t2", 3),
         wanted(at=4, taken=True, req_id="r"), *second_done(5)],
    ),
    "added after the other was done": (
        TWO_DONE, [wanted(), claimed(), used(ACK), wanted("v2", "t2", 3), *second_done(4)]
    ),
    "added while the other was acked, or may have been": (
        TWO_DONE, [wanted(), claimed(), used(ACK, outcome=INFO), wanted("v2", "t2", 2.1), *second_done(4)]
    ),
    "added after the other was cancelled": (
        replace(TWO_DONE, states={"t1": "CANCELLED", "t2": "SUCCEEDED"}),
        [wanted(), ask(CANCEL, 1, state="CANCELLED"), wanted("v2", "t2", 2), *second_done(4)],
    ),
    "added with another key": (
        TWO_DONE, [wanted(), wanted("v2", "t2", 1, key="other"), claimed(at=2), used(ACK, at=3), *second_done(4)]
    ),
    "added while the other is claimed": (
        TWO_DONE, [waiting(), claimed(lease_s=60), waiting("v2", "t2", 2), used(ACK, at=3), *second_done(4)]
    ),
    "both wait, because the first came back": (
        TWO_DONE,
        [waiting(), claimed(lease_s=60), waiting("v2", "t2", 2), used(RELEASE, at=3), *second_done(4), claimed(12, 7),
         used(ACK, 12, 8)],
    ),
    "added while the other may have been claimed by somebody who did not hear of it": (
        TWO_DONE, [waiting(), waiting("v2", "t2", 1), replace(claimed(at=2), nth=2), used(ACK, at=3), *second_done(4)]
    ),
    "started in time": (DONE, [brief(), replace(claimed(), nth=1), used(ACK)]),
    "started in time and tried again later": (
        DONE, [brief(), replace(claimed(), nth=1), used(FAIL_TASK), replace(claimed(11, 60), nth=2), used(ACK, 11, 61)]
    ),
    "not started in time": (TTL_PASSED, [brief()]),
    "given back, and not started in time": (TTL_PASSED, [brief(), replace(claimed(), nth=1), used(RELEASE)]),
    "not started in time, and nobody was told of it": (
        Final(enqueued_total=1), [brief(outcome=INFO)]
    ),
    "lent for no longer than the timeout": (
        DONE, [timed(), claimed(lease_s=5), used(EXTEND, at=2, lease_s=4.5), used(ACK, at=3)]
    ),
    "lent from when it was asked for": (DONE, [timed(), claimed(took=2, lease_s=6.9), used(ACK, at=4)]),
    "taken too long, and tried again": (
        DONE, [timed(), claimed(attempt=1), replace(claimed(11, 9, attempt=2), nth=2), used(ACK, 11, 10)]
    ),
    "taken too long, though nobody had heard of it": (
        DONE, [timed(), replace(claimed(at=9, attempt=2), nth=2), used(ACK, at=10)]
    ),
    "taken too long twice": (SPENT, [timed(), claimed(), claimed(11, 9)]),
    "taken too long and failed": (
        replace(SPENT, errors={"t1": "ValueError"}), [timed(), claimed(), claimed(11, 9), used(FAIL_TASK, 11, 10)]
    ),
    "the result of the ack": (
        with_result("a"), [sent(), claimed(), acked("a"), ask(READ, 3, state="SUCCEEDED", result="a")]
    ),
    "the result of the first ack": (with_result("a"), [sent(), claimed(), acked("a"), acked("b", 3)]),
    "the result of an ack without an answer": (
        with_result("a"), [sent(), claimed(), acked("a", outcome=INFO), acked("b", 3)]
    ),
    "the result of an ack sent again after one without an answer": (
        with_result("b"), [sent(), claimed(), acked("a", outcome=INFO), acked("b", 3)]
    ),
    "cancelled while it waited": (CANCELLED, [sent(), ask(CANCEL, 1, state="CANCELLED")]),
    "cancelled twice": (CANCELLED, [sent(), ask(CANCEL, 1, state="CANCELLED"), ask(CANCEL, 2, state="CANCELLED")]),
    "cancelled, or not": (DONE, [sent(), ask(CANCEL, 1, outcome=INFO), claimed(at=2), used(ACK, at=3)]),
    "cancelled while it was handed out": (
        CANCELLED, [sent(), claimed(at=0.6, lease_s=1), ask(CANCEL, 0.7, state="CLAIMED")]
    ),
    "cancelled while it ran, and done all the same": (
        DONE, [sent(), claimed(), ask(CANCEL, 2, state="CLAIMED"), used(ACK, at=3)]
    ),
    "cancelled too late": (DONE, [sent(), claimed(), used(ACK), ask(CANCEL, 3, outcome=FAIL)]),
    "a budget spent by a task that was cancelled": (
        CANCELLED, [replace(sent(), budget=1), claimed(), ask(CANCEL, 2, state="CLAIMED"), used(FAIL_TASK, at=3)]
    ),
    "read before it was done": (DONE, [sent(), claimed(), ask(READ, 1.8, state="CLAIMED"), used(ACK)]),
    "a read that was refused": (DONE, [sent(), claimed(), used(ACK), ask(READ, 3, outcome=FAIL)]),
    "read while it was acked": (DONE, [sent(), claimed(), used(ACK), ask(READ, 2.2, state="CLAIMED")]),
}  # fmt: skip

BROKEN: dict[str, tuple[str, Final, Parts]] = {
    "a tick without a task": ("tick: s@2000 made no task", THREE_TICKS, [*tick(1), *tick(3)]),
    "a tick that is none": ("tick: s@4000 made a task, but is no tick", THREE_TICKS, [*tick(1), *tick(4)]),
    "a tick with two tasks": ("duplicate: s@2000 made 2 tasks", THREE_TICKS, [*tick(1), *tick(2), *tick(2, task=3)]),
    "a tick too early": ("tick: the task of s@2000", THREE_TICKS, [*tick(1), *tick(2, made_ms=1999), *tick(3)]),
    "more tasks than ticks": (
        "tick: s made 4 tasks of 3 ticks",
        replace(THREE_TICKS, ticks={"s": replace(THREE_TICKS.ticks["s"], fired_total=4)}),
        [*tick(1), *tick(2), *tick(3)],
    ),
    "two tasks of a limit key": ("cap: 2 tasks of q with limit key k", BY_KEY, two_held(limit_key="k")),
    "two tasks of a tenant": ("cap: 2 tasks of q of tenant t", BY_TENANT, two_held(tenant="t")),
    "a higher priority that waited": ("priority: t1 of priority 3 was handed out before t2 of 7", RANKED, ranked(3, 7)),
    "two with a key": (
        "unique: t2 was added although t1", TWO_DONE,
        [wanted(), wanted("v2", "t2", 1), claimed(at=2), used(ACK, at=3), *second_done(4)],
    ),
    "two with a key, one running": (
        "unique: t2 was added although t1", TWO_DONE,
        [wanted(), claimed(lease_s=60), wanted("v2", "t2", 2), used(ACK, at=3), *second_done(4)],
    ),
    "two with a key, one known by its claim only": (
        "unique: t2 was added although t1", TWO_DONE,
        [wanted(), wanted("v2", outcome=INFO, at=1), *second_done(2), claimed(12, 4), used(ACK, 12, 5)],
    ),
    "two with a key, after an ack that did not happen": (
        "unique: t2 was added although t1", TWO_DONE,
        [wanted(), claimed(), used(ACK, outcome=INFO), wanted("v2", "t2", 3), claimed(12, 5), used(ACK, 12, 6),
         *second_done(7)],
    ),
    "two that wait with a key": (
        "unique: t2 was added although t1", TWO_DONE,
        [waiting(), waiting("v2", "t2", 1), replace(claimed(at=2), nth=1), used(ACK, at=3), *second_done(4)],
    ),
    "sent again under its request id, and answered with another": (
        "unique: v2 was answered with 2 tasks", TWO_DONE,
        [wanted(), wanted("v2", at=1, taken=True, req_id="r"), claimed(at=2), used(ACK, at=3),
         wanted("v2", "t2", 4, req_id="r"), *second_done(5)],
    ),
    "answered with a task of another key": (
        "unique: v2 was answered with t1, which has the key k", DONE,
        [wanted(), wanted("v2", at=1, key="other", taken=True), claimed(at=2), used(ACK, at=3)],
    ),
    "answered with a task that had ended": (
        "unique: v2 was answered with t1, which had ended", DONE,
        [wanted(), claimed(), used(ACK), wanted("v2", at=3, taken=True)],
    ),
    "answered with a task that was cancelled": (
        "unique: v2 was answered with t1, which had ended", CANCELLED,
        [wanted(), ask(CANCEL, 1, state="CANCELLED"), wanted("v2", at=3, taken=True)],
    ),
    "answered with a task that did not wait": (
        "unique: v2 was answered with t1, which did not wait", DONE,
        [waiting(), claimed(lease_s=60), waiting("v2", at=2, taken=True), used(ACK, at=3)],
    ),
    "answered with a task that never was": (
        "lost: t9 was accepted, but no server", DONE,
        [wanted(), wanted("v2", "t9", at=1, taken=True), claimed(at=2), used(ACK, at=3)],
    ),
    "started too late": ("ttl: t1 was started after", DONE, [brief(), replace(claimed(at=9), nth=1), used(ACK, at=10)]),
    "dead though started": (
        "ttl: t1 died of its time to live, but had been", TTL_PASSED, [brief(), replace(claimed(), nth=1)]
    ),
    "dead of a time to live that it has not": ("ttl: t1 died of its time to live, but has none", TTL_PASSED, [sent()]),
    "dead of something else": (
        "attempt: t1 is dead", replace(DEAD, reasons={"t1": "ATTEMPTS_SPENT"}), [brief()]
    ),
    "lent beyond its timeout": ("timeout: t1 was lent for 6000 ms", DONE, [timed(), claimed(lease_s=6), used(ACK)]),
    "prolonged beyond its timeout": (
        "timeout: t1 was lent for 3000 ms", DONE,
        [timed(), claimed(lease_s=5), used(EXTEND, at=6, lease_s=3), used(ACK, at=7)],
    ),
    "taken too long twice, and dead of something else": (
        "timeout: t1 took too long and died of no error", replace(SPENT, errors={"t1": ""}),
        [timed(), claimed(), claimed(11, 9)],
    ),
    "taken too long, and not counted": (
        "attempt: t1 was handed out as attempt 1 after 1", DONE,
        [timed(), claimed(attempt=1), replace(claimed(11, 9, attempt=1), nth=2), used(ACK, 11, 10)],
    ),
    "taken too long twice, and not dead": (
        "attempt: t1 is SUCCEEDED after 2", DONE,
        [timed(), claimed(), claimed(11, 9), claimed(12, 18), used(ACK, 12, 19)],
    ),
    "dead of timeouts that were none": (
        "attempt: t1 is dead after at most 1", SPENT, [timed(), claimed(), used(RELEASE), claimed(11, 9)]
    ),
    "another result": ("result: t1 has the result b", with_result("b"), [sent(), claimed(), acked("a")]),
    "no result": ("result: t1 has the result none", with_result(""), [sent(), claimed(), acked("a")]),
    "the result of an ack that was sent again": (
        "result: t1 has the result b", with_result("b"), [sent(), claimed(), acked("a"), acked("b", 3)]
    ),
    "the result of an ack that was refused": (
        "result: t1 has the result a", with_result("a"),
        [sent(), claimed(), claimed(11, 3), acked("a", 4, outcome=FAIL), acked("b", 5, token=11)],
    ),
    "another result for a moment": (
        "result: t1 has the result b", with_result("a"),
        [sent(), claimed(), acked("a"), ask(READ, 3, state="SUCCEEDED", result="b")],
    ),
    "handed out after it was cancelled": (
        "cancel: t1 was handed out under token 10", CANCELLED,
        [sent(), ask(CANCEL, 1, state="CANCELLED"), claimed(at=2)],
    ),
    "handed out again after it was cancelled while it ran": (
        "cancel: t1 was handed out under token 11", DONE,
        [sent(), claimed(lease_s=1), ask(CANCEL, 2, state="CLAIMED"), claimed(11, 4), used(ACK, 11, 5)],
    ),
    "done though cancelled": (
        "cancel: t1 is SUCCEEDED", DONE, [sent(), claimed(), ask(CANCEL, 1.6, state="CANCELLED"), used(ACK)]
    ),
    "dead though cancelled": (
        "cancel: t1 is DEAD", DEAD, [replace(sent(), budget=1), claimed(), ask(CANCEL, 2, state="CLAIMED"),
                                     used(FAIL_TASK, at=3)],
    ),
    "waits though cancelled": (
        "lost: t1 is READY", replace(DONE, states={"t1": "READY"}), [sent(), ask(CANCEL, 1, state="CANCELLED")]
    ),
    "cancelled by nobody": (
        "lost: t1 is CANCELLED", CANCELLED, [sent(), ask(CANCEL, 1, outcome=FAIL)]
    ),
    "cancelled after its ack": ("lost: t1 is CANCELLED although its ack", CANCELLED,
                                [sent(), claimed(), ask(CANCEL, 2, state="CLAIMED"), used(ACK, at=3)]),
    "read by somebody who is behind": (
        "read: t1 was read as CLAIMED", DONE, [sent(), claimed(), used(ACK), ask(READ, 3, state="CLAIMED")]
    ),
    "not found": (
        "read: t1 was not found by a read", DONE,
        [sent(), claimed(), used(ACK), replace(ask(READ, 3, outcome=FAIL), err="NotFound TASK_NOT_FOUND")],
    ),
    "read as ready after it was cancelled": (
        "read: t1 was read as READY", CANCELLED,
        [sent(), ask(CANCEL, 1, state="CANCELLED"), ask(READ, 2, state="READY")],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("final", "parts"), ALLOWED.values(), ids=ALLOWED)
def test_what_can_be_is_let_pass(final: Final, parts: Parts) -> None:
    assert check(story(*parts), final) == []


@pytest.mark.parametrize(("found", "final", "parts"), BROKEN.values(), ids=BROKEN)
def test_a_broken_promise_is_found(found: str, final: Final, parts: Parts) -> None:
    violations = [str(violation) for violation in check(story(*parts), final)]
    assert any(found in violation for violation in violations), violations


def test_a_second_that_waits_is_let_pass_while_a_lost_claim_may_have_had_the_first() -> None:
    """The server gives back by itself what nobody heard of, and then nothing tells of it."""
    parts = [waiting(), waiting("v2", "t2", 1), replace(claimed(at=2), nth=1), used(ACK, at=3), *second_done(4)]
    seen = story(*parts)
    seen.lost_claims_ns.append((int(0.7 * S), int(1.7 * S)))
    assert check(seen, TWO_DONE) == []
