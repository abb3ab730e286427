"""Limits, and warnings that do not repeat themselves."""

from typing import Any, cast

import pytest

from holdfast.broker.peers.reasons import Reason
from holdfast.broker.peers.records import PeerLimits, Warnings
from holdfast.serving.logs import Logger


class Said:
    """Stands for a logger."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def warning(self, event: str, **facts: Any) -> None:
        self.lines.append((event, facts))


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def warnings(said: Said, clock: Clock) -> Warnings:
    return Warnings(cast(Logger, said), every_seconds=10, now_s=clock)


def test_the_same_warning_is_said_once_and_then_counted(warnings: Warnings, said: Said, clock: Clock) -> None:
    for _ in range(5):
        warnings.closed("refused", Reason.OTHER_CLUSTER, host="h1", found="something")
    assert len(said.lines) == 1
    clock.now_s = 10
    warnings.closed("refused", Reason.OTHER_CLUSTER, host="h1", found="something")
    assert len(said.lines) == 2
    assert said.lines[1][1]["left_out"] == 4
    assert said.lines[1][1]["reason"] == "OTHER_CLUSTER"
    clock.now_s = 20
    warnings.closed("refused", Reason.OTHER_CLUSTER, host="h1", found="something")
    assert "left_out" not in said.lines[2][1]


def test_other_facts_are_another_warning_and_what_was_found_is_not(warnings: Warnings, said: Said) -> None:
    warnings.closed("refused", Reason.OTHER_CLUSTER, host="h1", found="a frame of 17 bytes")
    warnings.closed("refused", Reason.OTHER_CLUSTER, host="h1", found="a frame of 18 bytes")
    warnings.closed("refused", Reason.OTHER_CLUSTER, host="h2")
    warnings.closed("refused", Reason.OTHER_NODE, host="h1")
    assert [(facts["host"], facts["reason"]) for _, facts in said.lines] == [
        ("h1", "OTHER_CLUSTER"),
        ("h2", "OTHER_CLUSTER"),
        ("h1", "OTHER_NODE"),
    ]


def test_made_up_names_do_not_fill_the_log(warnings: Warnings, said: Said, clock: Clock) -> None:
    for number in range(1000):
        warnings.say("refused", node=f"n{number}")
    assert len(said.lines) == Warnings.KINDS_MAX
    clock.now_s = 10
    warnings.say("refused", node="n1000")
    assert said.lines[-1] == ("refused", {"node": "n1000"})


@pytest.mark.parametrize("name", ["body_bytes_max", "half_open_max", "hello_seconds_max", "redial_seconds_min"])
def test_a_limit_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        PeerLimits(**{name: 0})
