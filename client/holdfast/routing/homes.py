"""Which shard a queue calls home: a pure function of its name, so that nobody needs a record to find it."""

from hashlib import blake2b


def home_shard(queue: str, shard_count: int) -> int:
    """The shard with the highest score for this name (rendezvous hashing).

    With one shard more, only the queues that the new shard wins move; all others stay where they are.
    """
    if shard_count < 1:
        raise ValueError(f"Expected at least one shard, but got {shard_count}.")
    return max(range(shard_count), key=lambda shard: blake2b(f"{shard}/{queue}".encode(), digest_size=8).digest())
