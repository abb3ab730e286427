"""Whether a leader may hand out tasks of a queue by the settings that it knows.

Settings of queues come from etcd. A leader that is cut off from it, while others are not, does not hear that a queue
was spread, or given a limit, and would hand it out as before. So who has not heard from etcd for a while asks:

    a node asks all others    which queues have newer settings (settings_news.py). Its shards hand out nothing of those,
                              and allocate nothing of their limits, until it has heard of the change itself
    a shard asks the home     of the queue, if that is another shard. Where the home knows more, or does not answer, it
                              hands out nothing of the queue

While etcd is away for everybody nothing changes: all know the same version, and go on. What is told counts for a few
seconds only, so that nobody waits for ever for a version that an etcd set back to a backup does not have any more.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from holdfast.common.service import Service
from holdfast.limits.reports import LimitGrant, LimitReport
from holdfast.serving.logs import get_logger

SETTINGS = "settings"  # what such a report is about
FRESH_SECONDS = 8.0  # after the last word from etcd what is known counts as the newest
ASK_SECONDS = 4.0  # after the last word from etcd others are asked
RENEW_SECONDS = 2.0  # between two questions
CONFIRMED_SECONDS = 8.0  # that an answer of the home counts, from when it was asked for
BEHIND_SECONDS = 10.0  # that it counts that somebody knows a newer version
POLL_SECONDS = 0.5
ANSWER_SECONDS = 2.0
REPORTS_MAX = 200  # in one call
QUEUES_MAX = 10_000

_log = get_logger(__name__)


class Homes(Protocol):
    """The leaders of other shards, as the homes of queues."""

    async def allocate(self, destination: int, source: int, reports: Sequence[LimitReport]) -> Sequence[LimitGrant]:
        """What the coordinator of limits there says to what is held and wanted here, and to the settings that are known
        here. Raises what it likes: it is called again."""
        ...


class KnownSettings(Protocol):
    """What this node knows of the settings of queues."""

    def home_of(self, queue: bytes) -> int | None:
        """None if nobody but the caller says which one it is."""
        ...

    def settings_version(self, queue: bytes) -> int:
        """0 if nothing is set."""
        ...

    def age_s(self) -> float | None:
        """How long ago etcd said that this is the newest; None if it has not since the start."""
        ...


class _Newer(NamedTuple):
    version: int
    until_s: float


def _boot_seconds() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SettingsGuard(Service):
    """Of one shard, while this node leads it. `on_change`: another answer of `may_hand_out` is to be had."""

    def __init__(
        self,
        shard: int,
        known: KnownSettings,
        homes: Homes,
        on_change: Callable[[bytes], None],
        now_s: Callable[[], float] = _boot_seconds,
    ) -> None:
        super().__init__(self._run)
        self._shard = shard
        self._known = known
        self._homes = homes
        self._on_change = on_change
        self._now_s = now_s
        self.newer: dict[bytes, _Newer] = {}  # by queue: a version that others know
        self.shown: dict[bytes, bool] = {}  # queues that are at home elsewhere: what was answered last
        self._confirmed_s: dict[bytes, float] = {}  # by queue: until when the home's word counts
        self._asked_s: dict[bytes, float] = {}
        self._asking: dict[int, asyncio.Task[None]] = {}  # by home: one call at a time
        self._woken = asyncio.Event()
        self._said_s = float("-inf")

    # --- what is asked here -----------------------------------------------------------------------------------

    def may_hand_out(self, queue: bytes) -> bool:
        home = self._known.home_of(queue)
        if home is None:
            return True
        if home == self._shard:
            return not self.is_behind(queue)
        may = self._may_elsewhere(queue)
        if queue not in self.shown:
            if len(self.shown) >= QUEUES_MAX:  # as many as the scheduler has windows, which all asked since
                del self.shown[next(iter(self.shown))]
            self._woken.set()
        self.shown[queue] = may
        return may

    def is_behind(self, queue: bytes) -> bool:
        """Whether somebody is known to know newer settings."""
        newer = self.newer.get(queue)
        return newer is not None and newer.until_s > self._now_s() and newer.version > self._version(queue)

    def reported(self, queue: bytes, version: int) -> int:
        """Somebody knows this version. Returns the newest that was heard of."""
        known, was_behind = self._version(queue), self.is_behind(queue)
        newest = max(known, version, self.newer[queue].version if was_behind else 0)
        if version > known and (queue in self.newer or len(self.newer) < QUEUES_MAX):
            self.newer[queue] = _Newer(newest, self._now_s() + BEHIND_SECONDS)
            self._woken.set()
            if not was_behind:
                self._say_behind(queue, known, newest)
                self._on_change(queue)
        return newest

    def _say_behind(self, queue: bytes, known: int, newest: int) -> None:
        """Of one queue, if there are many at once: all for the same reason."""
        if self._now_s() - self._said_s >= BEHIND_SECONDS:
            self._said_s = self._now_s()
            _log.warning("settings_are_behind", shard=self._shard, queue=queue.decode(), known=known, newest=newest)

    # --- life -------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            self._woken.clear()
            self.poll()
            is_idle = not (self.shown or self.newer)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if is_idle else POLL_SECONDS):
                    await self._woken.wait()
            await asyncio.sleep(0.05)  # however often it is woken

    def poll(self) -> None:
        """Takes note of what has changed by itself, and begins to ask."""
        for queue in [queue for queue in self.newer if not self.is_behind(queue)]:
            del self.newer[queue]  # it has been heard of here, or nobody speaks of it any more
            self._on_change(queue)
        for queue, shown in list(self.shown.items()):
            if self._may_elsewhere(queue) is not shown:
                del self.shown[queue]  # until it is asked for again
                self._on_change(queue)
        now_s = self._now_s()
        self._confirmed_s = {queue: until_s for queue, until_s in self._confirmed_s.items() if until_s > now_s}
        self._asked_s = {queue: at_s for queue, at_s in self._asked_s.items() if at_s > now_s - RENEW_SECONDS}
        by_home: dict[int, list[bytes]] = {}
        for queue in self._due():
            home = self._known.home_of(queue)
            if home is not None and home not in self._asking:
                by_home.setdefault(home, []).append(queue)
        for home, queues in by_home.items():
            task = self._asking[home] = self.spawn(self._ask(home, queues[:REPORTS_MAX]))
            task.add_done_callback(lambda _done, home=home: self._asking.pop(home, None))  # type: ignore[misc]

    # --- asking ---------------------------------------------------------------------------------------------

    def _may_elsewhere(self, queue: bytes) -> bool:
        if self.is_behind(queue):
            return False
        age_s = self._known.age_s()
        if age_s is not None and age_s <= FRESH_SECONDS:
            return True
        return self._confirmed_s.get(queue, 0.0) > self._now_s()

    def _due(self) -> list[bytes]:
        age_s = self._known.age_s()
        is_due = age_s is None or age_s > ASK_SECONDS
        return [queue for queue in self.shown if queue not in self._asked_s] if is_due else []

    async def _ask(self, home: int, queues: Sequence[bytes]) -> None:
        asked_s = self._now_s()
        self._asked_s |= dict.fromkeys(queues, asked_s)
        reports = [LimitReport(queue, SETTINGS, version=self._version(queue)) for queue in queues]
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                grants = await self._homes.allocate(home, self._shard, reports)
        except Exception as error:  # noqa: BLE001 - however it failed, it is tried again
            _log.debug("settings_not_confirmed", shard=self._shard, home=home, error=str(error) or type(error).__name__)
            return
        for grant in grants:
            self._answered(grant.queue, grant.version, asked_s)

    def _answered(self, queue: bytes, newest: int, asked_s: float) -> None:
        if newest > self._version(queue):
            self.reported(queue, newest)
        elif queue in self.shown:
            self._confirmed_s[queue] = asked_s + CONFIRMED_SECONDS
        if queue in self.shown and self._may_elsewhere(queue) is not self.shown[queue]:
            self._on_change(queue)

    def _version(self, queue: bytes) -> int:
        return self._known.settings_version(queue)
