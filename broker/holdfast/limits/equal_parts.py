"""Equal parts of limits that nobody allocates: each shard of a spread queue keeps to its own part of a tenant's limit.

All parts together are the limit, where it is large enough for all to have some: a part is never nothing, for then the
tasks that are on that shard would wait for ever. So they are more than a cap only if it is less than the number of
shards, and then they are one each.
"""

from typing import NamedTuple

from holdfast.limits.buckets import Rate, part_of


class Part(NamedTuple):
    place: int  # from 0 on
    of: int  # so many


WHOLE = Part(0, 1)


def cap_part(cap: int, part: Part) -> int:
    """0 stays 0: no cap."""
    return max(1, _split(cap, part)) if cap else 0


def rate_part(rate: Rate | None, part: Part) -> Rate | None:
    if rate is None or part.of == 1:
        return rate
    return part_of(rate, max(1, _split(rate.per_second_milli, part)))


def _split(amount: int, part: Part) -> int:
    return amount // part.of + (part.place < amount % part.of)
