"""Which shard a queue calls home: a pure function of its name, so that nobody needs a record to find it.

Everything here is rendezvous hashing: each shard has a score for a key, and the highest wins. Taking a shard away moves
only the keys that it had; adding one moves only the keys that it wins.
"""

from collections.abc import Iterable
from functools import lru_cache
from hashlib import blake2b

# A home among 1,000 shards takes 1,000 hashes. Remembering so many names keeps it off the path of a call and, with
# names of any length that is allowed, under 15 MB.
_HOMES_REMEMBERED = 1 << 15
# Keys of calls come once per call and are then asked for by every item of it; those that tasks are limited by come
# again and again. How long the latter are nobody has checked yet, and what is too long is not remembered.
_KEYS_REMEMBERED = 1 << 12
_KEY_REMEMBERED_MAX = 256  # characters


def home_shard(queue: str, shard_count: int) -> int:
    """The shard with the highest score for this name (rendezvous hashing).

    With one shard more, only the queues that the new shard wins move; all others stay where they are.
    """
    return _home_shard(queue, shard_count)


def spread_shards(queue: str, shard_count: int, spread: int) -> tuple[int, ...]:
    """The `spread` shards with the highest scores, the home first: a wider spread keeps those of a narrower one."""
    if not 1 <= spread <= shard_count:
        raise ValueError(f"Expected a spread over 1 to {shard_count} shards, but got {spread}.")
    return tuple(sorted(range(shard_count), key=lambda shard: _score(queue, shard), reverse=True)[:spread])


def shard_of_key(key: str, shards: tuple[int, ...]) -> int:
    """The one of `shards` with the highest score for `key`, in whatever order they are named."""
    if len(shards) == 1:
        return shards[0]
    return _shard_of_key(key, shards) if len(key) <= _KEY_REMEMBERED_MAX else _winner(key, shards)


@lru_cache(maxsize=_HOMES_REMEMBERED)
def _home_shard(queue: str, shard_count: int) -> int:
    if shard_count < 1:
        raise ValueError(f"Expected at least one shard, but got {shard_count}.")
    return _winner(queue, range(shard_count))


@lru_cache(maxsize=_KEYS_REMEMBERED)
def _shard_of_key(key: str, shards: tuple[int, ...]) -> int:
    return _winner(key, shards)


def _winner(key: str, shards: Iterable[int]) -> int:
    return max(shards, key=lambda shard: _score(key, shard))


def _score(key: str, shard: int) -> bytes:
    return blake2b(f"{shard}/{key}".encode(), digest_size=8).digest()
