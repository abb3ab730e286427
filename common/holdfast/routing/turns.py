"""Which shard a call that asks several for tasks begins with."""

import zlib
from collections.abc import Mapping, Sequence


def shards_in_turn(places: Mapping[int, Sequence[int]], key: str) -> list[int]:
    """All these shards, in an order that is the same for the same `key`. `places`: which of the call's queues each of
    them may have tasks of.

    The shards of the first queue come first, and each of them is as likely as the others to be the very first. While
    there is much to do, the first one answers with whatever it has: the tasks of a shard that is hardly ever the first
    for its queue would be left until all the others have none of any queue.
    """
    start = zlib.crc32(key.encode())
    by_queue: dict[int, list[int]] = {}
    for shard in sorted(places):
        by_queue.setdefault(min(places[shard]), []).append(shard)
    order: list[int] = []
    for _, shards in sorted(by_queue.items()):
        first = start % len(shards)
        order += shards[first:] + shards[:first]
    return order
