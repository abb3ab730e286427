"""Lists whose items are on several shards, page by page. Routers and clients write the same tokens and understand those
of each other.

    shard after shard   the token names the shard, then come a dot and that shard's own token
    merged by name      all shards are asked for what follows a name; the token is that name, as shards write it
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from holdfast.routing.sets import QueueRoute, counted, visible

Item = TypeVar("Item")

PAGE_DEFAULT = 100  # items, if the caller leaves it to the server
PAGE_MAX = 1000
PAGE_BYTES_MAX = 2 * 1024 * 1024
# Of one page. Shards may have nothing, and a cluster has many of them.
SHARDS_ASKED_MAX = 32


class PageTokenError(ValueError):
    """A token that no page ended with."""


def order_of(route: QueueRoute, *, with_drained: bool = False) -> list[int]:
    """The shards of a queue as lists go over them: the home, then by number."""
    shards = counted(route) if with_drained else visible(route)
    return [route.home, *sorted(shard for shard in shards if shard != route.home)]


def place_of(token: str, order: Sequence[int]) -> tuple[int, str]:
    """Where in the order a page begins, and the token for the shard there. A shard that has drained meanwhile is passed
    over. A token without a shard is that of the first, as a queue gives it out that has no other."""
    if "." not in token:
        return 0, token
    number, _, inner = token.partition(".")
    if not (number.isascii() and number.isdigit() and len(number) <= 5):
        raise PageTokenError
    shard = int(number)
    if shard in order:
        return order.index(shard), inner
    following = [index for index, other in enumerate(order) if index and other > shard]
    return (following[0], "") if following else (len(order), "")


class Walk:
    """One page over shards, one after the other. Ask `shard` with `token` for `wanted` items, then say what came, until
    it `is_done`; the page then ends with `next_token`."""

    def __init__(self, order: Sequence[int], token: str, wanted: int, *, shards_max: int = SHARDS_ASKED_MAX) -> None:
        """Raises PageTokenError."""
        self._order = order
        self._position, self.token = place_of(token, order)
        self.wanted = wanted
        self._bytes_left = PAGE_BYTES_MAX
        self._shards_left = shards_max
        self.is_done = self._position >= len(order)

    @property
    def shard(self) -> int:
        return self._order[self._position]

    @property
    def next_token(self) -> str:
        """Empty on the last page."""
        return "" if self._position >= len(self._order) else f"{self.shard}.{self.token}"

    def came(self, items: int, size_bytes: int, next_token: str) -> None:
        """What the shard answered. One that has more has looked at as much as it does in one call: the next call is the
        caller's to make."""
        self.wanted -= items
        self._bytes_left -= size_bytes
        self._shards_left -= 1
        self.token = next_token
        if not next_token:
            self._position += 1
        is_full = self.wanted <= 0 or self._bytes_left <= 0 or self._shards_left <= 0
        self.is_done = bool(next_token) or is_full or self._position >= len(self._order)

    def missed(self) -> None:
        """The shard did not answer, and the list goes on without it. The page ends here: the caller's time is used up,
        and the next shard has a right to as much."""
        self._position += 1
        self.token = ""
        self.is_done = True


def merge_by_name(
    pages: Iterable[tuple[Collection[Item], bool]],
    name_of: Callable[[Item], str],
    add: Callable[[Item, Item], None],
    limit: int,
) -> tuple[list[Item], str]:
    """One page of `limit` items at most, and the name that the next one follows; empty on the last page.

    `pages`: of all shards, each in the order of names, and whether that shard has more. Items of one name become one:
    `add` takes the second into the first."""
    found: dict[str, Item] = {}
    complete_to: str | None = None  # beyond this name, a shard has told only a part
    for items, has_more in pages:
        last = ""
        for item in items:
            last = name_of(item)
            if last in found:
                add(found[last], item)
            else:
                found[last] = item
        if has_more and items:
            complete_to = last if complete_to is None else min(complete_to, last)
    names = sorted(name for name in found if complete_to is None or name <= complete_to)
    reported = names[:limit]
    last = reported[-1] if reported and (len(names) > limit or complete_to is not None) else ""
    return [found[name] for name in reported], last


def worker_token(last: str) -> str:
    """Names of workers may have any characters: their tokens are in hex. Those of queues are their names."""
    return last.encode().hex()
