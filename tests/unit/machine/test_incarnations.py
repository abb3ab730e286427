"""A shard's state begins another incarnation: nothing is lost, no claim of the former one holds, sources are known
again."""

import random

import pytest

from holdfast.machine import keys
from holdfast.machine.incarnations import begin_incarnation, inboxes
from holdfast.machine.invariants import violations
from holdfast.machine.rows import CANCELLED, CLAIMED, DEAD, DELAYED, READY, RETRY_PENDING, SUCCEEDED, Inbox
from tests.unit.machine.machine_shard import Shard, code


def test_claims_are_given_back_and_tokens_grow() -> None:
    shard = Shard()
    waiting = {state: shard.task_in(state) for state in (READY, DELAYED, RETRY_PENDING, SUCCEEDED, DEAD)}
    claimed = [shard.enqueue(tenant=b"acme", limit_key=b"k") for _ in range(2500)]
    tokens = {task_id: shard.claim(task_id) for task_id in claimed[:-1]}
    suspect = claimed[-1]
    shard.make_suspect(suspect)
    tokens[suspect] = shard.claim(suspect)
    unwanted = shard.enqueue()
    tokens[unwanted] = shard.claim(unwanted)
    shard.cancel(unwanted)
    index = shard.machine.meta.applied_index

    meta = begin_incarnation(shard.kv, 2, {})

    assert meta.incarnation == 2
    assert meta.applied_index > index, "claims are given back by entries"
    assert violations(shard.kv) == []
    shard.restart()
    assert shard.machine.meta.incarnation == 2
    assert {state: shard.state(task_id) for state, task_id in waiting.items()} == {state: state for state in waiting}
    assert shard.state(unwanted) == CANCELLED
    assert shard.queue().claimed == 0
    first = claimed[0]
    assert shard.task(first).claims == 0, "that a claim was given back spends nothing"
    assert code(shard.ack(first, tokens[first])) == "STALE_TOKEN"
    again = shard.claim(first)
    assert again > max(tokens.values())
    assert code(shard.ack(first, tokens[first])) == "STALE_TOKEN"
    assert shard.task(suspect).is_suspect


@pytest.mark.parametrize("seed", range(20))
def test_whatever_has_happened_nothing_is_lost(seed: int) -> None:
    chance, shard = random.Random(seed), Shard()
    tokens: dict[bytes, int] = {}

    def step() -> None:
        claimed = [task_id for task_id in tokens if shard.task(task_id).state == CLAIMED]
        ready = [task_id for task_id in tasks if shard.task(task_id).state == READY]
        act = chance.choice(("enqueue", "claim", "claim", "claim", "fail", "release", "cancel", "lose"))
        if act == "enqueue" or not tasks:
            names = {"tenant": b"t%d" % chance.randrange(3), "limit_key": b"k%d" % chance.randrange(2)}
            tasks.append(
                shard.enqueue(
                    **names if chance.random() < 0.5 else {},
                    priority=chance.randrange(10),
                    max_claims=99,
                    max_attempts=99,
                )
            )
        elif act == "claim" and ready:
            task_id = chance.choice(ready)
            tokens[task_id] = shard.claim(task_id)
        elif act in ("fail", "release") and claimed:
            task_id = chance.choice(claimed)
            (shard.fail if act == "fail" else shard.release)(task_id, tokens[task_id])
        elif act == "cancel" and claimed:
            shard.cancel(chance.choice(claimed))
        elif act == "lose" and ready:
            shard.make_suspect(chance.choice(ready))

    tasks: list[bytes] = []
    for _ in range(120):
        step()
    before = {task_id: shard.task(task_id).state for task_id in tasks}
    unwanted = {task_id for task_id in tasks if shard.task(task_id).cancel_requested}
    begin_incarnation(shard.kv, 2, {})
    assert violations(shard.kv) == []
    shard.restart()
    for task_id, state in before.items():
        expected = state if state != CLAIMED else CANCELLED if task_id in unwanted else READY
        assert shard.state(task_id) == expected


def test_sources_that_begin_another_incarnation_too_are_known_by_it() -> None:
    shard = Shard()
    shard.enqueue()
    shard.kv.write({
        keys.inbox(1, 1): Inbox(10).encode(),  # of the incarnation before the last one
        keys.inbox(1, 2): Inbox(20).encode(),
        keys.inbox(4, 1): Inbox(5).encode(),
    })  # fmt: skip
    begin_incarnation(shard.kv, 3, {1: (2, 3), 4: (1, 2), 7: (1, 3)})
    assert list(inboxes(shard.kv)) == [(1, 3, Inbox(20)), (4, 2, Inbox(5))]


def test_of_a_shard_that_does_so_alone_all_sources_begin_where_they_are() -> None:
    shard = Shard()
    shard.enqueue()
    shard.kv.write({keys.inbox(1, 1): Inbox(10).encode()})
    begin_incarnation(shard.kv, 2, {})
    assert list(inboxes(shard.kv)) == []


def test_incarnations_only_go_forward() -> None:
    shard = Shard(incarnation=5)
    shard.enqueue()
    with pytest.raises(ValueError, match="above 5"):
        begin_incarnation(shard.kv, 5, {})
