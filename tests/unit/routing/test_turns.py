"""With which shard a call begins: no queue starves because the shard that has its tasks is never the first."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.worker.slots import Slots
from holdfast.routing.homes import spread_shards
from holdfast.routing.reserve_calls import shards_in_turn

PLACES = st.dictionaries(st.integers(0, 1023), st.lists(st.integers(0, 30), min_size=1), min_size=1, max_size=40)


@given(PLACES, st.text())
def test_all_shards_come_once_and_those_of_the_first_queues_first(places: dict[int, list[int]], key: str) -> None:
    order = shards_in_turn(places, key)
    assert sorted(order) == sorted(places)
    assert [min(places[shard]) for shard in order] == sorted(map(min, places.values()))
    assert order == shards_in_turn(places, key), "a repeated call begins where the first attempt did"


@pytest.mark.parametrize("first_queue", [(8, 7, 4), (1, 2), (0, 4, 12), (15,), (0, 1, 2, 3, 15)])
def test_each_shard_of_the_first_queue_is_the_first_equally_often(first_queue: tuple[int, ...]) -> None:
    """Also where they are neighbours: what lies between them and the others must not count."""
    places = {shard: [0, 1] if shard in first_queue else [1] for shard in range(16)}
    calls = 3000
    firsts = Counter(shards_in_turn(places, f"request-{number}")[0] for number in range(calls))
    assert set(firsts) == set(first_queue)
    assert min(firsts.values()) > calls / len(first_queue) * 0.85


@pytest.mark.parametrize("has_ids", [True, False])
@pytest.mark.parametrize("spread", [2, 3, 5])
def test_a_busy_worker_takes_from_every_queue_wherever_its_tasks_are(spread: int, has_ids: bool) -> None:
    """Each shard has more than enough tasks of a queue of its own. The tasks of the spread queues are all on one of
    their shards, be it the home or another. Without ids, calls are numbered and queues take turns in step with that."""
    shards = 16
    homes: dict[str, tuple[int, ...]] = {f"own-{shard}": (shard,) for shard in range(shards)}
    homes |= {f"spread-{number}": spread_shards(f"spread-{number}", shards, spread) for number in range(8)}
    has_tasks = {queue: on[number % len(on)] for number, (queue, on) in enumerate(homes.items())}
    slots = Slots(8, dict.fromkeys(homes))
    claimed: Counter[str] = Counter()
    turns = 100
    for number in range(turns * len(homes)):
        ask = slots.ask()
        assert ask is not None
        places: dict[int, list[int]] = {}
        for index, queue in enumerate(ask.queues):
            for shard in homes[queue]:
                places.setdefault(shard, []).append(index)
        first = shards_in_turn(places, f"request-{number}" if has_ids else str(number))[0]
        claimed[next(queue for queue in ask.queues if has_tasks[queue] == first)] += 1
    assert min(claimed[queue] for queue in homes) >= turns / spread / 2
