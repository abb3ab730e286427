"""A shard's state begins another life: nothing is lost, no claim of the former life holds, sources are known again."""

import pytest

from holdfast.machine import keys
from holdfast.machine.invariants import violations
from holdfast.machine.lives import begin_new_life, inboxes
from holdfast.machine.rows import CANCELLED, DEAD, DELAYED, READY, RETRY_PENDING, SUCCEEDED, Inbox
from tests.unit.machine_shard import Shard, code


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

    meta = begin_new_life(shard.kv, 2, {})

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


def test_sources_that_begin_another_life_too_are_known_by_it() -> None:
    shard = Shard()
    shard.enqueue()
    shard.kv.write({
        keys.inbox(1, 1): Inbox(10).encode(),  # of the life before the last one
        keys.inbox(1, 2): Inbox(20).encode(),
        keys.inbox(4, 1): Inbox(5).encode(),
    })  # fmt: skip
    begin_new_life(shard.kv, 3, {1: (2, 3), 4: (1, 2), 7: (1, 3)})
    assert list(inboxes(shard.kv)) == [(1, 3, Inbox(20)), (4, 2, Inbox(5))]


def test_of_a_shard_that_does_so_alone_all_sources_begin_where_they_are() -> None:
    shard = Shard()
    shard.enqueue()
    shard.kv.write({keys.inbox(1, 1): Inbox(10).encode()})
    begin_new_life(shard.kv, 2, {})
    assert list(inboxes(shard.kv)) == []


def test_lives_only_go_forward() -> None:
    shard = Shard(incarnation=5)
    shard.enqueue()
    with pytest.raises(ValueError, match="above 5"):
        begin_new_life(shard.kv, 5, {})
