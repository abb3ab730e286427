"""How long a call that may be served by several shards waits for each of them. Pure: routers and clients do it alike.

A shard that has lost its majority, or whose leader is silent, must not keep tasks of the others from their workers.
"""

from collections.abc import Hashable

TRY_S_MAX = 2.0  # for one shard, so that one without a leader does not hold up the others
# The part of that in which refused attempts are repeated. In the rest the last one must be answered: if it is cut off,
# nobody knows any more whether it claimed, and that costs much more time.
REPEATS_SHARE = 0.75
GRACE_S = 1.0  # for the answers of the last shards when the others have said that there is nothing
DOUBT_S = 3.0  # the same for a shard that may have claimed for this call: about as long as to elect a leader may take
# Of a batch over several shards: for the answers of the last shards, counted from the first answer. Then their items
# are refused one by one: whoever asked must not wait for a shard that may never answer.
PART_S = 6.0  # longer than to elect a leader takes, also where machines are busy
SICK_PART_S = 0.5  # the same for a shard that did not answer the last time
SICK_PART_MEMORY_S = 30.0  # how long that is remembered
SICK_S = 5.0  # how long a shard that did not answer is not the one that is tried first


class SickShards:
    """Shards that did not answer: not for long, and not any more when another leader is known."""

    def __init__(self, sick_s: float = SICK_S) -> None:
        self._sick_s = sick_s
        self._until: dict[int, tuple[float, Hashable]] = {}

    def failed(self, shard: int, now_s: float, leader: Hashable = None) -> None:
        """`leader`: who is known to lead it, in any form that can be compared."""
        self._until = {each: known for each, known in self._until.items() if known[0] > now_s}
        self._until[shard] = (now_s + self._sick_s, leader)

    def answered(self, shard: int) -> None:
        self._until.pop(shard, None)

    def has(self, shard: int, now_s: float, leader: Hashable = None) -> bool:
        until_s, led_by = self._until.get(shard, (0.0, leader))
        return until_s > now_s and led_by == leader
