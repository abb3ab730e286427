"""Alerts of dead letters: once for each crossing of the threshold."""

from typing import Any

import pytest

from holdfast.broker.alerting import Alerts
from holdfast.broker.config import BrokerConfig
from holdfast.broker.policies import Policies
from holdfast.machine import entries
from holdfast.machine.rows import WORKER_GAVE_UP
from holdfast.proto.v1.cluster_pb2 import QueuePolicy
from tests.unit.machine_shard import QUEUE, Shard

URL = "https://hooks.example/secret-token"


class Watched:
    """A shard whose dead letters are watched."""

    def __init__(self, **policy: Any) -> None:
        self.shard = Shard()
        self.posts: list[tuple[str, dict[str, Any]]] = []
        self.dead: list[bytes] = []
        self.version = 0
        self.lead()
        if policy:
            self.set_policy(**policy)

    def lead(self) -> None:
        self.policies = Policies(self.shard.kv, BrokerConfig())
        self.alerts = Alerts(
            self.shard.machine, self.policies, now_ms=lambda: self.shard.now_ms,
            post=lambda url, message: self.posts.append((url, message)),
        )  # fmt: skip

    def set_policy(self, **policy: Any) -> None:
        self.version += 1
        message = QueuePolicy(**policy).SerializeToString()
        self.shard.apply(entries.SetQueue(self.shard.now_ms, QUEUE, self.version, message))
        self.policies.changed(self.shard.effects.settings)
        self.alerts.follow(self.shard.effects.settings)

    def die(self, count: int = 1) -> None:
        for _ in range(count):
            task_id = self.shard.enqueue()
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
    told = {"queue": "mail", "shard": 7, "dead": 3, "threshold": 3, "at_ms": watched.shard.now_ms}
    assert watched.posts == [(URL, told)]
    logged = capsys.readouterr().out
    assert logged.count("dead_letter_alert") == 1
    assert "secret-token" not in logged


def test_it_is_told_again_only_after_it_was_over_by_a_margin() -> None:
    watched = Watched(dead_alert_at=20, dead_alert_url=URL)
    watched.die(20)
    watched.retry(2)
    watched.alerts.look()
    watched.die(2)
    assert len(watched.posts) == 1, "90 % of the threshold is not over"
    watched.retry(3)
    watched.die(3)
    assert len(watched.posts) == 1, "it was not looked at meanwhile"
    watched.retry(3)
    watched.alerts.look()
    watched.die(3)
    assert len(watched.posts) == 2


def test_a_threshold_of_one_works() -> None:
    watched = Watched(dead_alert_at=1, dead_alert_url=URL)
    for told in (1, 2):
        watched.die()
        watched.die()
        assert len(watched.posts) == told
        watched.retry(2)
        watched.alerts.look()


def test_without_a_url_it_is_only_logged(capsys: pytest.CaptureFixture[str]) -> None:
    watched = Watched(dead_alert_at=1)
    watched.die()
    assert not watched.posts
    assert "dead_letter_alert" in capsys.readouterr().out


def test_a_queue_without_a_threshold_raises_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for watched in (Watched(), Watched(max_attempts=3, dead_alert_url=URL)):
        watched.die(5)
        watched.alerts.look()
        assert not watched.posts
    assert "dead_letter_alert" not in capsys.readouterr().out


def test_a_threshold_that_is_set_or_raised_later_counts() -> None:
    watched = Watched(max_attempts=3)
    watched.die(2)
    watched.set_policy(dead_alert_at=2, dead_alert_url=URL)
    watched.die()
    assert len(watched.posts) == 1
    watched.set_policy(dead_alert_at=10, dead_alert_url=URL)
    watched.alerts.look()
    watched.die(6)
    assert len(watched.posts) == 1
    watched.die()
    assert len(watched.posts) == 2


def test_a_new_leader_tells_again_when_it_gets_worse() -> None:
    watched = Watched(dead_alert_at=2, dead_alert_url=URL)
    watched.die(2)
    watched.lead()
    assert len(watched.posts) == 1
    watched.die()
    assert [message["dead"] for _, message in watched.posts] == [2, 3]


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
