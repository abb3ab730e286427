"""The number of a shard's founding. A shard that is created anew has another one, so that no replica of its former
incarnation is taken for one of the new.

A group of the partition map has its highest bit (of 64) set and carries the incarnation, which goes into the fencing
tokens of its tasks: those of a later one are larger. Without that bit a group was drawn by a node, and is the first.
"""

INCARNATION_MAX = (1 << 16) - 1
RANDOM_BITS = 47

_MAPPED = 1 << 63


def mapped_group(incarnation: int, random: int) -> int:
    """`random` has RANDOM_BITS bits."""
    if not 1 <= incarnation <= INCARNATION_MAX:
        raise ValueError(f"Expected an incarnation from 1 to {INCARNATION_MAX}, but got {incarnation}.")
    return _MAPPED | (incarnation << RANDOM_BITS) | (random & ((1 << RANDOM_BITS) - 1))


def incarnation_of(group: int) -> int:
    return (group & ~_MAPPED) >> RANDOM_BITS if group & _MAPPED else 1
