"""The age of the oldest claim of a queue, at a bounded cost."""

import pytest

from holdfast.broker.leader import claim_ages
from holdfast.broker.leader.claim_ages import ClaimAges
from holdfast.machine import keys
from tests.unit.machine.machine_shard import LEASE_MS, START_MS, Shard


def ages_of(shard: Shard) -> ClaimAges:
    return ClaimAges(
        shard.machine, now_ms=lambda: shard.now_ms, first_claim=lambda: keys.family_start(keys.CLAIM_EXPIRY)
    )


async def test_it_is_counted_from_the_claim_whatever_its_lease() -> None:
    shard = Shard()
    ages = ages_of(shard)
    first, second = shard.enqueue(), shard.enqueue()
    tokens = {}
    for task_id in (first, second):
        tokens[task_id] = shard.claim(task_id)
        shard.now_ms += 100
    shard.extend(first, tokens[first], shard.now_ms + 10 * LEASE_MS)
    assert ages.age_ms(b"mail") == 0, "nobody has looked"
    await ages.poll()
    assert ages.age_ms(b"mail") == 200
    shard.ack(first, tokens[first])
    assert ages.age_ms(b"mail") == 100, "the next oldest is known at once"
    shard.ack(second, tokens[second])
    assert ages.age_ms(b"mail") == 0
    assert ages.age_ms(b"other") == 0


async def test_a_task_that_is_claimed_again_is_as_young_as_its_claim() -> None:
    shard = Shard()
    ages = ages_of(shard)
    task_id, other = shard.enqueue(), shard.enqueue()
    token = shard.claim(task_id)
    shard.now_ms += 500
    shard.claim(other)
    await ages.poll()
    shard.release(task_id, token)
    shard.now_ms += 100
    shard.claim(task_id)
    assert ages.age_ms(b"mail") == 100


async def test_more_claims_than_one_look_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a look has found stays known until it ends, and every claim is found in the end."""
    monkeypatch.setattr(claim_ages, "POLL_CLAIMS_MAX", 8)
    monkeypatch.setattr(claim_ages, "SLICE_CLAIMS", 4)
    shard = Shard()
    ages = ages_of(shard)
    ids = [shard.enqueue() for _ in range(30)]
    tokens = [shard.claim(task_id) for task_id in ids]
    held = ids[0]
    shard.extend(held, tokens[0], START_MS + 100 * LEASE_MS)  # it has the last row of all
    for task_id, token in zip(ids[1:], tokens[1:], strict=True):
        shard.now_ms += 10
        shard.release(task_id, token)
        shard.claim(task_id)
    for _ in range(4):
        await ages.poll()
    assert ages.age_ms(b"mail") == shard.now_ms - START_MS
    await ages.poll()
    assert ages.age_ms(b"mail") == shard.now_ms - START_MS, "remembered, although this look has not seen it"
    shard.ack(held, tokens[0])
    for _ in range(8):
        await ages.poll()
    assert ages.age_ms(b"mail") == shard.now_ms - START_MS - 10


async def test_queues_and_claims_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_ages, "QUEUES_MAX", 2)
    monkeypatch.setattr(claim_ages, "REMEMBERED_MAX", 3)
    shard = Shard()
    ages = ages_of(shard)
    for name in (b"a", b"b", b"c"):
        for _ in range(5):
            shard.claim(shard.enqueue(queue=name))
            shard.now_ms += 1
    await ages.poll()
    assert {name: len(claims) for name, claims in ages.oldest.items()} == {b"a": 3, b"b": 3}
    assert ages.age_ms(b"a") == 15
    assert ages.age_ms(b"c") == 0
