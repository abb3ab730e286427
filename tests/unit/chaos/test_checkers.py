"""The judges of the chaos harness are themselves judged: each broken promise is found, and what can be is let pass.

Histories made by hand show each rule from both sides. Random ones come from a model that keeps every promise: nothing
is found in them, and one fault of each kind that is put in is found.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest

from chaos.checkers import check
from chaos.history import (
    ACK,
    CLAIM,
    EXTEND,
    FAIL,
    FAIL_TASK,
    INFO,
    OK,
    RELEASE,
    Call,
    Claim,
    Event,
    Story,
    put_together,
)
from chaos.model import play
from chaos.verdicts import Final
from tests.unit.chaos.chaos_parts import S, claimed, sent, story, used

SEEDS = 60
STEPS = 100


def second_claimed(at: float) -> Claim:
    return claimed(11, at, task="t2", value="v2", lease_s=60)


DONE = Final(states={"t1": "SUCCEEDED"}, enqueued_total=1)
TWO_DONE = Final(states={"t1": "SUCCEEDED", "t2": "SUCCEEDED"}, enqueued_total=2, caps={"q": 1})
TWO_SENT = [sent(), sent("v2", "t2", req_id="r2")]
NOTHING = Final(enqueued_total=0)


def hashed(n1: tuple[int, str], n2: tuple[int, str], replicas: int = 0) -> Final:
    return Final(replicas=replicas, hashes={"0": {"n1": n1, "n2": n2}})


ALLOWED: dict[str, tuple[Final, list[Call | Claim]]] = {
    "one life": (DONE, [sent(), claimed(), used(ACK)]),
    "an enqueue without an answer that happened": (DONE, [sent(outcome=INFO), claimed(), used(ACK)]),
    "an enqueue without an answer that did not": (NOTHING, [sent(outcome=INFO)]),
    "an enqueue that was refused": (NOTHING, [sent(outcome=FAIL)]),
    "refused, sent again, then accepted": (DONE, [sent(outcome=FAIL), sent(at=1), claimed(at=2), used(ACK, at=3)]),
    "sent again and recognised": (DONE, [sent(outcome=INFO), sent(at=1), sent(at=2), claimed(at=3), used(ACK, at=4)]),
    "an ack without an answer that happened": (DONE, [sent(), claimed(), used(ACK, outcome=INFO)]),
    "an ack without an answer that did not happen": (
        DONE, [sent(), claimed(), used(ACK, outcome=INFO), claimed(11, 5), used(ACK, 11, 6)]
    ),
    "a late ack that is refused": (
        DONE, [sent(), claimed(), claimed(11, 3), used(ACK, 10, 4, outcome=FAIL), used(ACK, 11, 5)]
    ),
    "a late ack that is under way when the task is handed out": (
        DONE, [sent(), claimed(), claimed(11, 3, took=1), used(RELEASE, 10, 3.5), used(ACK, 11, 5)]
    ),
    "answers that overtake each other": (
        DONE, [sent(), claimed(10, 1, took=5), claimed(11, 2, took=1), used(ACK, 11, 7)]
    ),
    "a release sent again after the next claim gets its first answer": (
        DONE, [sent(), claimed(), used(RELEASE), claimed(11, 3), used(RELEASE, 10, 4), used(ACK, 11, 5)]
    ),
    "a release whose answer was lost, sent again": (
        DONE, [sent(), claimed(), used(RELEASE, outcome=INFO), claimed(11, 3), used(RELEASE, 10, 4), used(ACK, 11, 5)]
    ),
    "a second claim at a cap after the first was acked": (
        TWO_DONE,
        [*TWO_SENT, claimed(lease_s=60), used(ACK, at=2), second_claimed(3), used(ACK, 11, 4, task="t2")],
    ),
    "a second claim at a cap while the first is acked, or may be": (
        TWO_DONE,
        [*TWO_SENT, claimed(lease_s=60), used(ACK, outcome=INFO), second_claimed(1.6), used(ACK, 11, 4, task="t2")],
    ),
    "a second claim at a cap after the lease of the first": (
        TWO_DONE,
        [*TWO_SENT, claimed(lease_s=2), second_claimed(3), used(ACK, 11, 4, task="t2"), used(ACK, at=5)],
    ),
    "a claim at a cap that was asked for again": (
        replace(DONE, caps={"q": 1}),
        [sent(), claimed(lease_s=60, req="c"), claimed(10, 2, asked=1, lease_s=59, req="c"), used(ACK, at=3)],
    ),
    "two claims at a cap of two, and at one of another queue": (
        replace(TWO_DONE, caps={"q": 2, "other": 1}),
        [*TWO_SENT, claimed(lease_s=60), second_claimed(3), used(ACK, at=4), used(ACK, 11, 4, task="t2")],
    ),
    "an ack sent again": (DONE, [sent(), claimed(), used(ACK), used(ACK, at=3)]),
    "a claim sent again under its request id": (
        DONE, [sent(), claimed(req="c"), claimed(at=2, asked=1, req="c"), used(ACK, at=3)]
    ),
    "a claim whose first answer was lost while others claimed": (
        Final(states={"t1": "SUCCEEDED", "t2": "SUCCEEDED"}, enqueued_total=2),
        [sent(), sent("v2", "t2", req_id="r2"), claimed(11, 2, task="t2", value="v2"), used(ACK, 11, 3, task="t2"),
         claimed(10, 4, asked=1, req="c"), used(ACK, 10, 5)],
    ),
    "brokers that say nothing": (Final(states=None), [sent()]),
    "a delay that is over": (DONE, [replace(sent(), delay_ms=1000), claimed(at=2), used(ACK, at=3)]),
    "a retry that is due": (
        DONE, [sent(), claimed(), replace(used(FAIL_TASK), delay_ms=2000), claimed(11, 5), used(ACK, 11, 6)]
    ),
    "attempts that are counted": (
        DONE, [sent(), claimed(attempt=1), used(FAIL_TASK), used(FAIL_TASK, at=3), claimed(11, 4, attempt=2),
               used(RELEASE, 11, 5), claimed(12, 6, attempt=2), used(ACK, 12, 7)],
    ),
    "attempts that may count": (
        DONE, [sent(), claimed(attempt=1), used(FAIL_TASK, outcome=INFO), claimed(11, 4, attempt=2), used(ACK, 11, 5)]
    ),
    "dead when its budget is spent": (
        replace(DONE, states={"t1": "DEAD"}),
        [replace(sent(), budget=2), claimed(), used(FAIL_TASK), claimed(11, 4), used(FAIL_TASK, 11, 5)],
    ),
    "dead after a failure that may count": (
        replace(DONE, states={"t1": "DEAD"}), [replace(sent(), budget=1), claimed(), used(FAIL_TASK, outcome=INFO)]
    ),
    "a lease that ran out": (DONE, [sent(), claimed(lease_s=1), claimed(11, 2), used(ACK, 11, 3)]),
    "a lease that its holder gave back": (
        DONE, [sent(), claimed(lease_s=60), used(RELEASE), claimed(11, 3), used(ACK, 11, 4)]
    ),
    "a lease that its holder may have given back": (
        DONE, [sent(), claimed(lease_s=60), used(RELEASE, outcome=INFO), claimed(11, 3), used(ACK, 11, 4)]
    ),
}  # fmt: skip

BROKEN: dict[str, tuple[str, Final, list[Call | Claim]]] = {
    "gone": ("lost: t1 was accepted, but no server", Final(), [sent(), claimed(), used(ACK)]),
    "gone before anybody had it": ("lost: t1 was accepted, but no server", Final(), [sent()]),
    "not ended": ("lost: t1 is READY although the queue", replace(DONE, states={"t1": "READY"}), [sent(), claimed()]),
    "dead for no reason": ("attempt: t1 is dead", replace(DONE, states={"t1": "DEAD"}), [sent(), claimed()]),
    "dead too early": (
        "attempt: t1 is dead after at most 1", replace(DONE, states={"t1": "DEAD"}),
        [replace(sent(), budget=2), claimed(), used(FAIL_TASK)],
    ),
    "dead after its ack": (
        "lost: t1 is DEAD although its ack", replace(DONE, states={"t1": "DEAD"}), [sent(), claimed(), used(ACK)]
    ),
    "not dead though spent": (
        "attempt: t1 is SUCCEEDED after 1", DONE,
        [replace(sent(), budget=1), claimed(), used(FAIL_TASK), claimed(11, 5), used(ACK, 11, 6)],
    ),
    "an attempt too many": ("attempt: t1 was handed out as attempt 2", DONE, [sent(), claimed(attempt=2), used(ACK)]),
    "a failure forgotten": (
        "attempt: t1 was handed out as attempt 1", DONE,
        [sent(), claimed(attempt=1), used(FAIL_TASK), claimed(11, 4, attempt=1), used(ACK, 11, 5)],
    ),
    "before its delay was over": ("early: t1", DONE, [replace(sent(), delay_ms=5000), claimed(at=2), used(ACK, at=3)]),
    "before its retry was due": (
        "early: t1", DONE,
        [sent(), claimed(), replace(used(FAIL_TASK), delay_ms=9000), claimed(11, 5), used(ACK, 11, 6)],
    ),
    "an ack that did not stay": (
        "lost: t1 is CLAIMED although its ack", Final(drained=False, states={"t1": "CLAIMED"}),
        [sent(), claimed(), used(ACK)],
    ),
    "ended by nobody": ("lost: t1 is SUCCEEDED, but nobody", DONE, [sent(), claimed(), used(ACK, outcome=FAIL)]),
    "never sent": ("unexpected: t1 was handed out, but nobody", DONE, [claimed(), used(ACK)]),
    "refused but there": ("had been refused", DONE, [sent(outcome=FAIL), claimed(), used(ACK)]),
    "another payload": (
        "unexpected: t1 came with payload v2", DONE,
        [sent(), sent("v2", outcome=INFO, req_id="r2"), claimed(value="v2"), used(ACK)],
    ),
    "another queue": ("from queue other", DONE, [sent(), claimed(queue="other"), used(ACK)]),
    "more tasks than known": ("unexpected: the servers count 2", replace(DONE, enqueued_total=2),
                              [sent(), claimed(), used(ACK)]),
    "fewer tasks than known": ("unexpected: the servers count 0", replace(DONE, enqueued_total=0),
                               [sent(), claimed(), used(ACK)]),
    "two tasks of a request": ("duplicate: request id r1 made 2", DONE, [sent(), sent(task="t2"), claimed()]),
    "two tasks of a request, one seen by a worker only": (
        "duplicate: request id r1 made 2", DONE, [sent(), claimed(), claimed(11, 2, task="t2")]
    ),
    "two tasks of one send": (
        "duplicate: the one send of v1 made 2", DONE,
        [sent(outcome=INFO, req_id=""), claimed(), claimed(11, 2, task="t2")],
    ),
    "a shared token": ("token: 2 claims share", DONE, [sent(), claimed(), claimed(10, 3), used(ACK, at=4)]),
    "a token shared by two tasks": (
        "token: 2 claims share", DONE,
        [sent(), sent("v2", "t2", req_id="r2"), claimed(req="c"), claimed(10, 1, task="t2", value="v2", req="c")],
    ),
    "a smaller token later": ("token: 9 was given out after 10", DONE, [sent(), claimed(), claimed(9, 3)]),
    "a smaller token of another task later": (
        "token: 9 was given out after 10", DONE,
        [sent(), sent("v2", "t2", req_id="r2"), claimed(), claimed(9, 3, task="t2", value="v2")],
    ),
    "a stale ack": ("stale: ack of t1 under token 10", DONE, [sent(), claimed(), claimed(11, 3), used(ACK, 10, 4)]),
    "a stale ack after one without an answer": (
        "stale: ack of t1 under token 10", DONE,
        [sent(), claimed(), used(ACK, 10, 2, outcome=INFO), claimed(11, 3), used(ACK, 10, 4)],
    ),
    "a stale extend": ("stale: extend of t1", DONE, [sent(), claimed(), claimed(11, 3), used(EXTEND, 10, 4)]),
    "a stale release": ("stale: release of t1", DONE, [sent(), claimed(), claimed(11, 3), used(RELEASE, 10, 4)]),
    "a stale release, first sent after the next claim": (
        "stale: release of t1", DONE,
        [sent(), claimed(), claimed(11, 3), used(RELEASE, 10, 4, outcome=INFO), used(RELEASE, 10, 5)],
    ),
    "an ack after a release": ("accepted after its release", DONE, [sent(), claimed(), used(RELEASE), used(ACK, at=3)]),
    "an extend after an ack": ("accepted after its ack", DONE, [sent(), claimed(), used(ACK), used(EXTEND, at=3)]),
    "two acks": ("acked under 2 tokens", DONE, [sent(), claimed(), claimed(11, 1), used(ACK), used(ACK, 11)]),
    "handed out after its ack": ("after-ack: t1", DONE, [sent(), claimed(), used(ACK), claimed(11, 5)]),
    "handed out after its ack in the order of tokens": (
        "after-ack: t1", DONE, [sent(), claimed(), used(ACK, 10, 2), claimed(11, 1.5, took=9)]
    ),
    "a claim sent again gets what was acked": (
        "after-ack: t1", DONE, [sent(), claimed(req="c"), used(ACK), claimed(at=5, asked=1, req="c")]
    ),
    "taken away": ("overlap: t1", DONE, [sent(), claimed(lease_s=60), claimed(11, 3), used(ACK, 11, 4)]),
    "taken away while extended": (
        "overlap: t1", DONE,
        [sent(), claimed(lease_s=1), used(EXTEND, at=1.8, lease_s=60), claimed(11, 5), used(ACK, 11, 6)],
    ),
    "more than a cap allows": (
        "cap: 2 tasks of q", TWO_DONE,
        [*TWO_SENT, claimed(lease_s=60), second_claimed(3), used(ACK, at=4), used(ACK, 11, 4, task="t2")],
    ),
    "more than a cap allows, after an ack that was refused": (
        "cap: 2 tasks of q", TWO_DONE,
        [*TWO_SENT, claimed(lease_s=60), used(ACK, at=2, outcome=FAIL), second_claimed(3), used(ACK, 11, 4, task="t2")],
    ),
    "more than a cap allows, while extended": (
        "cap: 2 tasks of q", TWO_DONE,
        [*TWO_SENT, claimed(lease_s=1), used(EXTEND, at=1.6, lease_s=60), second_claimed(3), used(ACK, at=5)],
    ),
    "replicas that differ": ("hash: the replicas of shard 0 differ", hashed((7, "a"), (7, "b")), []),
    "a replica that says nothing": ("hash: 3 replicas of shard 0", hashed((7, "a"), (7, "a"), 3), []),
    "a replica that stays behind": ("hash: the replicas of shard 0 did not", hashed((7, "a"), (8, "a")), []),
    "two leaders": ("leader: shard 0 has the leaders n1, n3", Final(leaders=[(0, 4, "n1"), (0, 4, "n3")]), []),
    "an index without its record": ("index: shard 0", Final(states_compared=1, unsound=["shard 0 of n1: a row"]), []),
    "no drain": ("drain: ", Final(drained=False), []),
    "no progress": ("liveness: ", Final(live=False), []),
    "damage": ("damage: n2 served", Final(unnoticed=["n2 served"]), []),
    "a broker that does not start": ("broker: n2 ended", Final(broken=["n2 ended with 1"]), []),
}  # fmt: skip


@pytest.mark.parametrize(("final", "parts"), ALLOWED.values(), ids=ALLOWED)
def test_what_can_be_is_let_pass(final: Final, parts: list[Call | Claim]) -> None:
    assert check(story(*parts), final) == []


@pytest.mark.parametrize(("found", "final", "parts"), BROKEN.values(), ids=BROKEN)
def test_a_broken_promise_is_found(found: str, final: Final, parts: list[Call | Claim]) -> None:
    violations = [str(violation) for violation in check(story(*parts), final)]
    assert any(found in violation for violation in violations), violations


# --- random histories -----------------------------------------------------------------------------------------

Mutated = tuple[Story, Final] | None  # None: this history has no place for the fault
Mutation = Callable[[random.Random, Story, Final], Mutated]


@cache
def played(seed: int) -> tuple[list[Event], Final]:
    """Not changed by anybody: mutations change what is put together from it."""
    return play(seed, STEPS)


def _states(final: Final) -> dict[str, str]:
    assert final.states is not None
    return dict(final.states)


def _lose_a_task(draw: random.Random, story: Story, final: Final) -> Mutated:
    gone = draw.choice(sorted(story.known_tasks()))
    return story, replace(final, states={task: state for task, state in _states(final).items() if task != gone})


def _lose_an_ack(draw: random.Random, story: Story, final: Final) -> Mutated:
    task = draw.choice([call.task for call in story.with_token(ACK) if call.outcome == OK])
    return story, replace(final, states={**_states(final), task: "READY"})


def _hand_out_a_stranger(draw: random.Random, story: Story, final: Final) -> Mutated:
    place = draw.randrange(len(story.claims))
    story.claims[place] = replace(story.claims[place], value="of nobody")
    return story, final


def _mix_up_payloads(draw: random.Random, story: Story, final: Final) -> Mutated:
    accepted = {call.task: call.value for call in story.sends() if call.outcome == OK}
    places = [place for place, claim in enumerate(story.claims) if claim.task in accepted]
    others = sorted(set(accepted.values()) - {accepted[story.claims[places[0]].task]})
    if not others:
        return None
    story.claims[places[0]] = replace(story.claims[places[0]], value=draw.choice(others))
    return story, final


def _forget_a_request_id(draw: random.Random, story: Story, final: Final) -> Mutated:
    again = [call for call in story.sends() if call.outcome == OK and call.req_id]
    call = draw.choice(again)
    story.calls.append(replace(call, task="another", invoked_ns=call.ended_ns + 1, ended_ns=call.ended_ns + 2))
    return story, replace(final, states={**_states(final), "another": "SUCCEEDED"})


def _share_a_token(draw: random.Random, story: Story, final: Final) -> Mutated:
    first = draw.choice(story.claims)
    others = [place for place, claim in enumerate(story.claims) if claim.task != first.task]
    if not others:
        return None
    place = draw.choice(others)
    story.claims[place] = replace(story.claims[place], token=first.token)
    return story, final


def _give_out_a_smaller_token(draw: random.Random, story: Story, final: Final) -> Mutated:
    last = max(story.claims, key=lambda claim: claim.asked_ns)
    if not any(claim.ended_ns < last.asked_ns for claim in story.claims):
        return None
    story.claims[story.claims.index(last)] = replace(last, token=0)
    return story, final


def _accept_a_stale_token(draw: random.Random, story: Story, final: Final) -> Mutated:
    """One that was refused because another had the task is accepted."""
    places = [
        place for place, call in enumerate(story.calls)
        if call.outcome == FAIL and call.f in (ACK, EXTEND)
        and any(claim.task == call.task and claim.token > call.token and claim.ended_ns < call.invoked_ns
                for claim in story.claims)
    ]  # fmt: skip
    if not places:
        return None
    place = draw.choice(places)
    story.calls[place] = replace(story.calls[place], outcome=OK)
    return story, final


def _accept_an_ended_token(draw: random.Random, story: Story, final: Final) -> Mutated:
    released = [call for call in story.with_token(RELEASE) if call.outcome == OK]
    if not released:
        return None
    call = draw.choice(released)
    story.calls.append(replace(call, f=ACK, invoked_ns=call.ended_ns + 1, ended_ns=call.ended_ns + 2))
    return story, final


def _hand_out_after_ack(draw: random.Random, story: Story, final: Final) -> Mutated:
    ack = draw.choice([call for call in story.with_token(ACK) if call.outcome == OK])
    claim = next(claim for claim in story.claims if (claim.task, claim.token) == (ack.task, ack.token))
    late_ns = max(claim.ended_ns for claim in story.claims) + S
    token = max(claim.token for claim in story.claims) + 1
    story.claims.append(
        replace(claim, token=token, asked_ns=late_ns, sent_ns=late_ns, ended_ns=late_ns + 1, req_id="late")
    )
    return story, final


def _hand_out_while_held(draw: random.Random, story: Story, final: Final) -> Mutated:
    """The next holder gets the task too early: while the lease runs and its holder has done nothing."""
    places = [
        (first, place) for place, later in enumerate(story.claims) for first in story.claims
        if first.task == later.task and first.token < later.token and first.lease_ms > 50
        and not any(call.task == first.task and call.token == first.token for call in story.calls)
    ]  # fmt: skip
    if not places:
        return None
    first, place = draw.choice(places)
    early_ns = first.ended_ns + 1
    if early_ns + 1 >= first.sent_ns + first.lease_ms * 800_000:
        return None
    story.claims[place] = replace(story.claims[place], asked_ns=early_ns, sent_ns=early_ns, ended_ns=early_ns + 1)
    return story, final


def _lower_a_cap(_: random.Random, story: Story, final: Final) -> Mutated:
    """As if the servers had been told to hand out nothing at all."""
    queues = {claim.queue for claim in story.claims if claim.ended_ns < claim.sent_ns + claim.lease_ms * 500_000}
    settled = {call.token for call in story.with_token() if call.f != EXTEND}
    held = {claim.queue for claim in story.claims if claim.token not in settled} & queues
    return (story, replace(final, caps=dict.fromkeys(held, 0))) if held else None


def _hand_out_early(draw: random.Random, story: Story, final: Final) -> Mutated:
    delayed = {call.value: call for call in reversed(story.sends()) if call.delay_ms}
    places = [place for place, claim in enumerate(story.claims) if claim.value in delayed]
    if not places:
        return None
    place = draw.choice(places)
    early_ns = delayed[story.claims[place].value].invoked_ns + 1
    story.claims[place] = replace(story.claims[place], asked_ns=early_ns, sent_ns=early_ns, ended_ns=early_ns + 1)
    return story, final


def _forget_a_failure(draw: random.Random, story: Story, final: Final) -> Mutated:
    counted = {(call.task, call.token) for call in story.with_token(FAIL_TASK) if call.outcome == OK}
    places = [
        place for place, claim in enumerate(story.claims)
        if any(claim.task == task and token < claim.token for task, token in counted)
    ]  # fmt: skip
    if not places:
        return None
    place = draw.choice(places)
    story.claims[place] = replace(story.claims[place], attempt=1)
    return story, final


def _die_for_no_reason(draw: random.Random, story: Story, final: Final) -> Mutated:
    unlimited = {claim.task for claim in story.claims} - {call.task for call in story.calls if call.f == FAIL_TASK}
    return story, replace(final, states={**_states(final), draw.choice(sorted(unlimited)): "DEAD"})


def _let_replicas_differ(_: random.Random, story: Story, final: Final) -> Mutated:
    index, _hash = final.hashes["0"]["n2"]
    return story, replace(final, hashes={"0": {**final.hashes["0"], "n2": (index, "other")}})


def _elect_two(_: random.Random, story: Story, final: Final) -> Mutated:
    shard, term, _node = final.leaders[-1]
    return story, replace(final, leaders=[*final.leaders, (shard, term, "n9")])


def _do_not_drain(_: random.Random, story: Story, final: Final) -> Mutated:
    return story, replace(final, drained=False)


MUTATIONS: list[tuple[str, Mutation]] = [
    ("lost", _lose_a_task),
    ("lost", _lose_an_ack),
    ("unexpected", _hand_out_a_stranger),
    ("unexpected", _mix_up_payloads),
    ("duplicate", _forget_a_request_id),
    ("token", _share_a_token),
    ("token", _give_out_a_smaller_token),
    ("stale", _accept_a_stale_token),
    ("stale", _accept_an_ended_token),
    ("after-ack", _hand_out_after_ack),
    ("overlap", _hand_out_while_held),
    ("cap", _lower_a_cap),
    ("early", _hand_out_early),
    ("attempt", _forget_a_failure),
    ("attempt", _die_for_no_reason),
    ("hash", _let_replicas_differ),
    ("leader", _elect_two),
    ("drain", _do_not_drain),
]


def test_random_histories_that_can_be_are_let_pass() -> None:
    for seed in range(SEEDS):
        events, final = played(seed)
        assert check(put_together(events), final) == [], f"seed {seed}"


def test_the_model_plays_what_is_hard() -> None:
    """Otherwise nothing would follow from the test above."""
    seen = dict.fromkeys(("refused token", "claim sent again", "unknown ack", "enqueue sent again"), 0)
    for seed in range(10):
        events, _ = played(seed)
        found = put_together(events)
        seen["refused token"] += sum(call.outcome == FAIL for call in found.with_token())
        seen["claim sent again"] += sum(claim.asked_ns < claim.sent_ns for claim in found.claims)
        seen["unknown ack"] += sum(call.outcome == INFO for call in found.with_token(ACK))
        values = [call.value for call in found.sends()]
        seen["enqueue sent again"] += len(values) - len(set(values))
        assert sum(event.f == CLAIM for event in events) > 10
    assert min(seen.values()) >= 10, seen


@pytest.mark.parametrize(("kind", "mutation"), MUTATIONS, ids=[m.__name__.strip("_") for _, m in MUTATIONS])
def test_each_fault_put_into_a_random_history_is_found(kind: str, mutation: Mutation) -> None:
    tried = 0
    for seed in range(SEEDS):
        events, final = played(seed)
        mutated = mutation(random.Random(seed), put_together(events), final)
        if mutated is None:
            continue
        tried += 1
        kinds = {violation.kind for violation in check(*mutated)}
        assert kind in kinds, f"seed {seed}: found {kinds}"
    assert tried >= 20
