"""What is remembered on the home of a queue is refused everywhere else, before anything is proposed.

A request id of the producer's own and a unique key are remembered by the shard that is told of them, the claims of a
limit key are counted there, and schedules tick there. Accepted on another one than the home, because of a caller with a
wrong idea of where that is, the same id would make a second task, and a key would have its cap twice. A task that has
neither may be on any shard of its queue, and on no other: nobody would look for it there. What relays bring is not
checked: the shard that accepted it has decided where it goes.
"""

from collections.abc import Iterable
from typing import Final, Protocol

from holdfast.broker.replica.shard import Shard
from holdfast.machine.new_tasks import NewTask
from holdfast.routing.sets import parse_automatic_key
from holdfast.serving.refusals import not_known_here, wrong_shard

REMEMBERED_MAX: Final = 1 << 15  # names of queues


class Homes(Protocol):
    """Where tasks of queues may be. `ClusterView` is the real one."""

    @property
    def cluster_id(self) -> str:
        """Empty while there is none."""
        ...

    def home_of(self, queue: bytes) -> int | None:
        """The home of a queue, which never changes; None: any shard may be."""
        ...

    def may_have(self, shard: int, queue: bytes) -> bool:
        """Whether a shard may have new tasks of a queue, as far as is known."""
        ...


class HomeGuard:
    """Of one shard."""

    def __init__(self, shard: Shard, homes: Homes) -> None:
        self._shard = shard
        self._homes = homes
        self._at_home: set[bytes] = set()  # queues that were found to be right here

    def check_tasks(self, tasks: Iterable[NewTask]) -> None:
        """Refuses all of them if one should be elsewhere: whoever sent them goes by a wrong map."""
        for new in tasks:
            if new.queue in self._at_home:
                continue
            if new.unique_key or new.limit_key or _is_of_home(new.request_id):
                self.check(new.queue)
            elif not new.request_id and not self._homes.may_have(self._shard.number, new.queue):
                raise not_known_here(new.queue.decode(), self._shard.number)

    def check(self, queue: bytes) -> None:
        if queue in self._at_home:
            return
        home, here = self._homes.home_of(queue), self._shard.number
        if home is not None and home != here:
            raise wrong_shard(queue.decode(), here, home)
        if len(self._at_home) >= REMEMBERED_MAX:
            self._at_home.clear()
        self._at_home.add(queue)


def _is_of_home(request_id: bytes) -> bool:
    """Whether the producer chose it, or a client made it up for the first set of all, which is the home."""
    if request_id[:1] != b"~":
        return bool(request_id)
    automatic = parse_automatic_key(request_id.decode())
    return automatic is None or automatic.generation == 0
