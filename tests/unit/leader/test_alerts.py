"""Alerts of dead letters: once for each crossing of the threshold, and until somebody has heard of it."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.broker.config import BrokerConfig
from holdfast.broker.leader import alerts as alerting
from holdfast.broker.leader.alerts import AGAIN_MAX, AGAIN_MS, Alerts
from holdfast.broker.policy.policies import Policies
from holdfast.machine import entries
from holdfast.machine.rows import WORKER_GAVE_UP
from holdfast.proto.v1.cluster_pb2 import QueuePolicy
from tests.unit.machine.machine_shard import QUEUE, Shard

URL = "https://hooks.example/secret-token"


class Watched:
    """A shard whose dead letters are watched."""

    def __init__(self, **policy: Any) -> None:
        self.shard = Shard()
        self.posts: list[tuple[str, dict[str, Any]]] = []
        self.is_away = False  # the one that is told
        self.hangs = False
        self.dead: list[bytes] = []
        self.version = 0
        self.lead()
        if policy:
            self.set_policy(**policy)

    def lead(self) -> None:
        self.policies = Policies(self.shard.machine.reader, BrokerConfig())
        self.alerts = Alerts(self.shard.machine, self.policies, now_ms=lambda: self.shard.now_ms, notifier=self)
        self.alerts.poll()

    def post(self, url: str, message: dict[str, Any], on_end: Callable[[bool], None]) -> None:
        self.posts.append((url, message))
        if not self.hangs:
            on_end(not self.is_away)

    def look_after(self, ms: int) -> None:
        self.shard.now_ms += ms
        self.alerts.poll()

    def set_policy(self, queue: bytes = QUEUE, **policy: Any) -> None:
        self.version += 1
        message = QueuePolicy(**policy).SerializeToString()
        self.shard.apply(entries.SetQueue(self.shard.now_ms, queue, self.version, message))
        self.policies.changed(self.shard.effects.settings)
        self.alerts.follow(self.shard.effects.settings)

    def die(self, count: int = 1, queue: bytes = QUEUE) -> None:
        for _ in range(count):
            task_id = self.shard.enqueue(queue=queue)
            self.shard.fail(task_id, self.shard.claim(task_id), dead_reason=WORKER_GAVE_UP)
            self.dead.append(task_id)
            self.alerts.follow(self.shard.effects.died)

    def retry(self, count: int) -> None:
        for _ in range(count):
            self.shard.retry_dead(self.dead.pop())


def test_the_threshold_is_told_once_with_what_is_needed_to_find_it(capsys: pytest.CaptureFixture[str]) -> None:
    watched = Watched(dead_alert_at=3, dead_alert_url=URL)
    watched.die(2)
    assert not watched.posts
    watched.die(3)
    reported = {"queue": "mail", "shard": 7, "dead": 3, "threshold": 3, "at_ms": watched.shard.now_ms}
    assert watched.posts == [(URL, reported)]
    logged = capsys.readouterr().out
    assert logged.count("dead_letter_alert") == 1
    assert "secret-token" not in logged


def test_it_is_told_again_only_after_it_was_over_by_a_margin() -> None:
    watched = Watched(dead_alert_at=20, dead_alert_url=URL)
    watched.die(20)
    watched.retry(2)
    watched.alerts.poll()
    watched.die(2)
    assert len(watched.posts) == 1, "90 % of the threshold is not over"
    watched.retry(3)
    watched.die(3)
    assert len(watched.posts) == 1, "it was not looked at meanwhile"
    watched.retry(3)
    watched.alerts.poll()
    watched.die(3)
    assert len(watched.posts) == 2


def test_a_threshold_of_one_works() -> None:
    watched = Watched(dead_alert_at=1, dead_alert_url=URL)
    for reported in (1, 2):
        watched.die()
        watched.die()
        assert len(watched.posts) == reported
        watched.retry(2)
        watched.alerts.poll()


def test_without_a_url_it_is_only_logged(capsys: pytest.CaptureFixture[str]) -> None:
    watched = Watched(dead_alert_at=1)
    watched.die()
    assert not watched.posts
    assert "dead_letter_alert" in capsys.readouterr().out


def test_a_queue_without_a_threshold_raises_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for watched in (Watched(), Watched(max_attempts=3, dead_alert_url=URL)):
        watched.die(5)
        watched.alerts.poll()
        assert not watched.posts
    assert "dead_letter_alert" not in capsys.readouterr().out


def test_a_threshold_that_is_set_or_raised_later_counts() -> None:
    watched = Watched(max_attempts=3)
    watched.die(2)
    watched.set_policy(dead_alert_at=2, dead_alert_url=URL)
    watched.die()
    assert len(watched.posts) == 1
    watched.set_policy(dead_alert_at=10, dead_alert_url=URL)
    watched.alerts.poll()
    watched.die(6)
    assert len(watched.posts) == 1
    watched.die()
    assert len(watched.posts) == 2


def test_a_new_leader_tells_what_is_on_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows whether the former one could. It looks at so many queues in one go."""
    monkeypatch.setattr(alerting, "SCANNED_MAX", 2)
    watched = Watched(dead_alert_at=2, dead_alert_url=URL)
    names = [b"a", b"b", b"c", b"calm", b"d"]
    for name in names:
        watched.set_policy(name, dead_alert_at=1 if len(name) == 1 else 2, dead_alert_url=URL)
        watched.die(queue=name)
    watched.die(2)
    watched.posts.clear()
    watched.lead()
    assert [message["queue"] for _, message in watched.posts] == ["a", "b"]
    for _ in range(5):
        watched.look_after(5000)
    watched.die()
    assert [message["queue"] for _, message in watched.posts] == ["a", "b", "c", "d", "mail"]


def test_who_was_away_is_told_again_each_minute_until_it_has_heard(capsys: pytest.CaptureFixture[str]) -> None:
    watched = Watched(dead_alert_at=2, dead_alert_url=URL)
    watched.is_away = True
    watched.die(2)
    watched.look_after(AGAIN_MS - 1)
    watched.die()
    assert len(watched.posts) == 1
    for reported in (2, 3):
        watched.look_after(1)
        watched.look_after(1)
        assert len(watched.posts) == reported
        watched.look_after(AGAIN_MS - 2)
    watched.is_away = False
    watched.look_after(1)
    for _ in range(3):
        watched.look_after(AGAIN_MS)
    assert [message["dead"] for _, message in watched.posts] == [2, 3, 3, 3]
    assert watched.posts[-1][1]["at_ms"] == watched.shard.now_ms - 3 * AGAIN_MS, "it says what is true by then"
    assert capsys.readouterr().out.count("dead_letter_alert") == 1


def test_an_alert_that_is_over_or_without_an_address_is_not_told_again() -> None:
    ends: list[Callable[[Watched], None]] = [lambda item: item.retry(2), lambda item: item.set_policy(dead_alert_at=2)]
    for end in ends:
        watched = Watched(dead_alert_at=2, dead_alert_url=URL)
        watched.is_away = True
        watched.die(2)
        end(watched)
        watched.look_after(AGAIN_MS)
        watched.look_after(AGAIN_MS)
        assert len(watched.posts) == 1


def test_a_post_that_is_still_on_its_way_is_not_sent_twice() -> None:
    watched = Watched(dead_alert_at=1, dead_alert_url=URL)
    watched.hangs = True
    watched.die()
    watched.look_after(10 * AGAIN_MS)
    assert len(watched.posts) == 1


def test_so_many_are_told_again_in_one_go() -> None:
    watched = Watched()
    watched.is_away = True
    for number in range(AGAIN_MAX + 5):
        watched.set_policy(b"q%d" % number, dead_alert_at=1, dead_alert_url=URL)
        watched.die(queue=b"q%d" % number)
    watched.posts.clear()
    watched.look_after(2 * AGAIN_MS)
    assert len(watched.posts) == AGAIN_MAX
    watched.look_after(5000)
    assert len(watched.posts) == AGAIN_MAX + 5


def test_a_threshold_that_is_reached_when_it_is_set_is_told_at_once() -> None:
    watched = Watched(max_attempts=3)
    watched.die(2)
    watched.set_policy(dead_alert_at=2, dead_alert_url=URL)
    assert len(watched.posts) == 1


def test_letters_that_are_all_retried_and_die_again_are_told_again() -> None:
    watched = Watched(dead_alert_at=4, dead_alert_url=URL)
    watched.die(4)
    watched.retry(4)
    watched.die(4)
    assert len(watched.posts) == 2, "nobody had to look meanwhile"
