"""Says when a queue has too many dead letters: in the log, and to whoever its policy names.

Whom it could not be told is told again later, for as long as it is true.
"""

from collections.abc import Callable, Iterable

from holdfast.broker.leader.webhooks import Notifier
from holdfast.broker.policy.policies import Policies, alerts
from holdfast.machine.machine import Machine
from holdfast.serving.logs import get_logger

CALM_PERCENT = 90  # of the threshold: below it the alert is over, and can be raised again
AGAIN_MS = 60_000  # after which whom it could not be told is told again
AGAIN_MAX = 20  # alerts that are told again at one look
SCANNED_MAX = 1000  # queues with settings that a new leader looks at in one go

_log = get_logger(__name__)


class _Alert:
    """One that is on."""

    __slots__ = ("has_failed", "posted_ms")

    def __init__(self) -> None:
        self.has_failed = False  # the newest post is over and came to nothing
        self.posted_ms = 0

    def ended(self, is_reported: bool) -> None:
        """From any thread."""
        self.has_failed = not is_reported


class Alerts:
    """The alerts of one shard, while this node leads it. A new leader raises again those that are on."""

    def __init__(self, machine: Machine, policies: Policies, *, now_ms: Callable[[], int], notifier: Notifier) -> None:
        self._reader = machine.reader
        self._machine = machine
        self._policies = policies
        self._now_ms = now_ms
        self._notifier = notifier
        self._on: dict[bytes, _Alert] = {}
        self._scanned_up_to: bytes | None = b""  # whether queues have crossed before this node led; None: all are known

    def follow(self, queues: Iterable[bytes]) -> None:
        """Takes note of queues that have more dead letters, or another policy."""
        if self._policies.is_empty:
            return
        self._calm_down()  # letters that were all retried and died again are news
        for queue in queues:
            self._poll_one(queue)

    def poll(self) -> None:
        """At the begin, and once in a while: which alerts are over, which were on before, and which nobody heard of."""
        self._calm_down()
        self._check_earlier()
        self._notify_again()

    def _calm_down(self) -> None:
        self._on = {queue: alert for queue, alert in self._on.items() if self._is_above(queue, CALM_PERCENT)}

    def _check_earlier(self) -> None:
        """The former leader may have ended before anybody was told. A look is short, however many queues there are."""
        if self._scanned_up_to is None:
            return
        rows, more = self._reader.all_settings(self._scanned_up_to, SCANNED_MAX)
        for queue, settings in rows:
            if alerts(settings):
                self._poll_one(queue)
        self._scanned_up_to = rows[-1][0] if more else None

    def _notify_again(self) -> None:
        before_ms = self._now_ms() - AGAIN_MS
        due = [queue for queue, alert in self._on.items() if alert.has_failed and alert.posted_ms <= before_ms]
        for queue in due[:AGAIN_MAX]:
            self._notify(queue, self._on[queue])

    def _poll_one(self, queue: bytes) -> None:
        if queue not in self._on and self._is_above(queue, 100):
            alert = self._on[queue] = _Alert()
            _log.warning("dead_letter_alert", **self._reported(queue))
            self._notify(queue, alert)

    def _is_above(self, queue: bytes, percent: int) -> bool:
        threshold = self._policies.of(queue).dead_alert_at
        return bool(threshold) and self._dead(queue) * 100 >= threshold * percent

    def _dead(self, queue: bytes) -> int:
        row = self._machine.queue(queue)
        return 0 if row is None else row.dead

    def _reported(self, queue: bytes) -> dict[str, str | int]:
        return {
            "queue": queue.decode(),
            "shard": self._machine.meta.shard,
            "dead": self._dead(queue),
            "threshold": self._policies.of(queue).dead_alert_at,
        }

    def _notify(self, queue: bytes, alert: _Alert) -> None:
        alert.has_failed = False
        url = self._policies.of(queue).dead_alert_url
        if url:
            alert.posted_ms = self._now_ms()
            self._notifier.post(url, self._reported(queue) | {"at_ms": alert.posted_ms}, alert.ended)
