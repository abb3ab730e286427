"""A worker says that it is there, and hears what is wanted of it; nothing that servers do can stop it."""

import asyncio
from typing import Any, cast

import pytest

from holdfast.client import (
    AsyncClient,
    ConnectionFailed,
    HeartbeatAnswer,
    HoldfastError,
    InvalidArgument,
    Unavailable,
    UnexpectedAnswer,
    WorkerState,
)
from holdfast.client.worker.presence import Presence
from holdfast.common.service import end_tasks
from tests.simulation import virtual_time

RUNNING, QUIET, GONE = WorkerState.RUNNING, WorkerState.QUIET, WorkerState.GONE


class Server:
    """Gives the answers of a script, and then one that says to come back in a minute."""

    def __init__(self, *answers: HeartbeatAnswer | HoldfastError) -> None:
        self.answers = list(answers)
        self.heard: list[tuple[float, dict[str, Any]]] = []

    async def heartbeat(self, worker: str, **said: Any) -> HeartbeatAnswer:
        self.heard.append((asyncio.get_running_loop().time(), said | {"worker": worker}))
        answer = self.answers.pop(0) if self.answers else HeartbeatAnswer(None, 60.0)
        if isinstance(answer, HoldfastError):
            raise answer
        return answer


def run(server: Server, seconds: float, *, changes_at: float | None = None) -> tuple[list[WorkerState], list[bool]]:
    """What it was asked for, and whether it was heard, looked at every second."""
    asked_for: list[WorkerState] = []
    heard: list[bool] = []

    async def act() -> None:
        queues = [f"q{number}" for number in range(100)]
        client = cast(AsyncClient, server)
        presence = Presence(client, "w", 8, queues, lambda: RUNNING, asked_for.append)
        running = asyncio.create_task(presence.run())
        for second in range(round(seconds)):
            await asyncio.sleep(1)
            heard.append(presence.was_heard)
            if second + 1 == changes_at:
                presence.state_changed()
        await end_tasks([running])
        await presence.leave()

    virtual_time.run(act, 1)
    return asked_for, heard


def times(server: Server) -> list[int]:
    began_s = server.heard[0][0]
    return [round(at_s - began_s) for at_s, _ in server.heard]


def test_it_says_what_it_is_as_often_as_is_wanted_and_when_it_changes() -> None:
    server = Server(HeartbeatAnswer(None, 3.0), HeartbeatAnswer(QUIET, 3.0))
    asked_for, _ = run(server, 10, changes_at=8)
    assert times(server) == [0, 3, 6, 8, 10]
    assert asked_for == [QUIET]
    first, *_, last = (said for _, said in server.heard)
    assert (first["worker"], first["state"], first["slots"], len(first["queues"])) == ("w", RUNNING, 8, 64)
    assert first["version"]
    assert last["state"] is GONE


@pytest.mark.parametrize(
    ("error", "is_answer"),
    [
        (ConnectionFailed("s"), False),
        (Unavailable("no leader", reason="NOT_LEADER"), True),
        (UnexpectedAnswer("it does not know the call"), True),
        (InvalidArgument("no", reason="INVALID_FIELD"), True),
    ],
)
def test_it_goes_on_whatever_is_answered(error: HoldfastError, is_answer: bool) -> None:
    server = Server(*[error] * 3, HeartbeatAnswer(QUIET, 60.0))
    asked_for, heard = run(server, 40)
    assert heard[0] or not is_answer
    assert asked_for == [QUIET]
    assert heard[-1]


def test_a_farewell_that_nobody_hears_is_none() -> None:
    server = Server(HeartbeatAnswer(None, 60.0), ConnectionFailed("s"))
    run(server, 2)
    assert server.heard[-1][1]["state"] is GONE


def test_a_server_that_wants_it_too_often_is_not_obeyed() -> None:
    server = Server(*[HeartbeatAnswer(None, 0.0)] * 10_000)
    run(server, 2)
    assert len(server.heard) < 50
