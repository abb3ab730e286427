"""What is remembered on the home of a queue is refused everywhere else, before anything is proposed.

A request id of the producer's own and a unique key are remembered by the shard that is told of them, the claims of a
limit key are counted there, and schedules tick there. Accepted on another one than the home, because of a caller with a
wrong idea of where that is, the same id would make a second task, and a key would have its cap twice. What couriers
bring is not checked: the shard that accepted it has decided where it goes.
"""

from collections.abc import Callable, Iterable
from typing import Final

from holdfast.broker.shard import Shard
from holdfast.machine.new_tasks import NewTask
from holdfast.routing.sets import parse_made_up
from holdfast.serving.refusals import wrong_shard

REMEMBERED_MAX: Final = 1 << 15  # names of queues

HomeOf = Callable[[bytes], int | None]


class HomeGuard:
    """Of one shard. `home_of` says which shard is the home of a queue, which never changes; None: any may be."""

    def __init__(self, shard: Shard, home_of: HomeOf) -> None:
        self._shard = shard
        self._home_of = home_of
        self._at_home: set[bytes] = set()  # queues that were found to be right here

    def check_tasks(self, tasks: Iterable[NewTask]) -> None:
        """Refuses all of them if one should be elsewhere: whoever sent them goes by a wrong map."""
        for new in tasks:
            if new.queue not in self._at_home and (new.unique_key or new.limit_key or _is_own(new.request_id)):
                self.check(new.queue)

    def check(self, queue: bytes) -> None:
        if queue in self._at_home:
            return
        home, here = self._home_of(queue), self._shard.number
        if home is not None and home != here:
            raise wrong_shard(queue.decode(), here, home)
        if len(self._at_home) >= REMEMBERED_MAX:
            self._at_home.clear()
        self._at_home.add(queue)


def _is_own(request_id: bytes) -> bool:
    """Whether the producer chose it, and no client made it up for its own retries."""
    return bool(request_id) and (request_id[:1] != b"~" or parse_made_up(request_id.decode()) is None)
