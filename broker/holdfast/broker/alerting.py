"""Says when a queue has too many dead letters: in the log, and to whoever its policy names."""

from collections.abc import Callable, Iterable
from typing import Any

from holdfast.broker.policies import Policies
from holdfast.machine.machine import Machine
from holdfast.serving.logs import get_logger

CALM_PERCENT = 90  # of the threshold: below it the alert is over, and can be raised again

_log = get_logger(__name__)


class Alerts:
    """The alerts of one shard, while this node leads it. A new leader raises again what goes on getting worse."""

    def __init__(
        self,
        machine: Machine,
        policies: Policies,
        *,
        now_ms: Callable[[], int],
        post: Callable[[str, dict[str, Any]], None],
    ) -> None:
        self._machine = machine
        self._policies = policies
        self._now_ms = now_ms
        self._post = post
        self._raised: set[bytes] = set()

    def follow(self, queues: Iterable[bytes]) -> None:
        """Takes note of queues that have more dead letters, or another policy."""
        if self._policies.is_empty:
            return
        self.look()  # letters that were all retried and died again are news
        for queue in queues:
            if queue not in self._raised and self._is_above(queue, 100):
                self._raised.add(queue)
                self._raise(queue)

    def look(self) -> None:
        """Once in a while: which alerts are over."""
        self._raised = {queue for queue in self._raised if self._is_above(queue, CALM_PERCENT)}

    def _is_above(self, queue: bytes, percent: int) -> bool:
        threshold = self._policies.of(queue).dead_alert_at
        return bool(threshold) and self._dead(queue) * 100 >= threshold * percent

    def _dead(self, queue: bytes) -> int:
        row = self._machine.queue(queue)
        return 0 if row is None else row.dead

    def _raise(self, queue: bytes) -> None:
        policy = self._policies.of(queue)
        told = {
            "queue": queue.decode(),
            "shard": self._machine.meta.shard,
            "dead": self._dead(queue),
            "threshold": policy.dead_alert_at,
        }
        _log.warning("dead_letter_alert", **told)
        if policy.dead_alert_url:
            self._post(policy.dead_alert_url, told | {"at_ms": self._now_ms()})
