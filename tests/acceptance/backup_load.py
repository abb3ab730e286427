"""Producers and workers of a cluster or a node that is backed up meanwhile, and what must be in the backup."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from holdfast.client import Accepted, Ack, Acked, Client, NewTask
from tests.integration.server import DEADLINE_S, wait_until

LEASE_MS = 60_000
BATCH = 10


@dataclass
class BackupLoad:
    """Half of the tasks are done, each with a follow-up for one of `follow_up_queues`, which nobody works on."""

    queues: Sequence[str]
    follow_up_queues: Sequence[str]
    accepted: dict[str, tuple[str, float]] = field(default_factory=dict)  # payload to id, and when that was known
    sent_s: dict[str, float] = field(default_factory=dict)  # payload to when its ack was sent
    acked_s: dict[str, float] = field(default_factory=dict)  # payload to when its ack was answered
    failures: list[BaseException] = field(default_factory=list)
    _ends: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self, address: str) -> Iterator[None]:
        threads = [threading.Thread(target=self._guarded, args=(work, address)) for work in (self._produce, self._work)]
        for thread in threads:
            thread.start()
        try:
            wait_until(lambda: len(self.acked_s) > 5 * BATCH or self.failures, "the load to be under way")
            yield
        finally:
            self._ends.set()
            for thread in threads:
                thread.join(DEADLINE_S)
        assert self.failures == []

    def _guarded(self, work: object, address: str) -> None:
        try:
            with Client(address, timeout_s=DEADLINE_S) as client:
                work(client)  # type: ignore[operator]  # one of the two below
        except BaseException as error:  # noqa: BLE001 - it is raised where the test is
            self.failures.append(error)

    def _produce(self, client: Client) -> None:
        for number in itertools.count():
            if self._ends.wait(0.005):
                return
            queue = self.queues[number % len(self.queues)]
            payloads = [f"{number}-{index}" for index in range(BATCH)]
            tasks = [NewTask(queue, "t", payload.encode(), request_id=f"r{payload}") for payload in payloads]
            for payload, outcome in zip(payloads, client.enqueue_many(tasks), strict=True):
                assert isinstance(outcome, Accepted)
                self.accepted[payload] = outcome.task_id, time.monotonic()

    def _work(self, client: Client) -> None:
        """Slower than the producer: there are always tasks that wait."""
        while not self._ends.wait(0.01):
            claims = client.reserve(self.queues, max_tasks=BATCH // 2, worker="w", wait_ms=200, lease_ms=LEASE_MS)
            acks = []
            for claim in claims:
                payload = claim.payload.decode()
                self.sent_s[payload] = time.monotonic()
                queue = self.follow_up_queues[int(payload.partition("-")[2]) % len(self.follow_up_queues)]
                acks.append(Ack(claim, follow_ups=[NewTask(queue, "f", f"f{payload}".encode())]))
            for ack, answer in zip(acks, client.ack_many(acks), strict=True):
                assert isinstance(answer, Acked)
                self.acked_s[ack.claim.payload.decode()] = time.monotonic()  # type: ignore[attr-defined]

    # --- what must hold ---------------------------------------------------------------------------------------

    def check(self, client: Client, began_s: float, ended_s: float) -> None:
        """Of what was restored from a backup that was taken between these moments."""
        there = self._claim_all(client, self.queues)
        for payload, (_task_id, at_s) in self.accepted.items():
            if at_s < began_s and self.sent_s.get(payload, ended_s) >= ended_s:
                assert there[payload] == 1, f"{payload} was accepted before, and is not there"
        for payload, at_s in self.acked_s.items():
            assert at_s >= began_s or not there[payload], f"{payload} was done before, and is handed out again"
        assert max(there.values()) == 1
        follow_ups = self._claim_all(client, self.follow_up_queues)
        for payload, at_s in self.acked_s.items():
            if at_s < began_s:
                assert follow_ups[f"f{payload}"] == 1, f"the follow-up of {payload} was accepted before"
        assert max(follow_ups.values()) == 1, "a follow-up came twice"
        is_there = [payload for payload in there if f"f{payload}" in follow_ups]
        assert is_there == [], "the ack and its follow-up are one entry"

    @staticmethod
    def _claim_all(client: Client, queues: Sequence[str]) -> Counter[str]:
        """How often each payload is there. Twice nothing, a moment apart: follow-ups may be on their way."""
        found: Counter[str] = Counter()
        empty = 0
        while empty < 2:
            claims = client.reserve(queues, max_tasks=500, worker=f"c{len(found)}", wait_ms=300, lease_ms=LEASE_MS)
            found.update(claim.payload.decode() for claim in claims)
            empty = 0 if claims else empty + 1
        return found
