"""A codec as programs use it: the server never sees what is in a task, and a worker without the key says so."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from holdfast.client import (
    Codec,
    Holdfast,
    RequestIdConflict,
    Retry,
    Schedule,
    TaskFailed,
    TaskState,
    Worker,
    current_task,
)

TIMEOUT_S = 20.0  # generous; nothing takes that long unless it is broken
OLD, NEW = {"old": bytes(32)}, {"new": bytes(range(32))}


class Clinic:
    """An app that keeps a secret."""

    def __init__(self, address: str, queue: str, codec: Codec | None) -> None:
        self.app = Holdfast(address, codec=codec)
        soon = Retry(shape="fixed", base=0.01, jitter=0)

        @self.app.task(queue=queue, max_attempts=2, retry=soon)
        def note(patient: str) -> str:
            if patient == "nobody":
                raise LookupError(f"no patient {patient}")
            if patient == "twins":
                note.enqueue("first twin")
            return f"noted {patient} in attempt {current_task().attempt}"

        self.note = note


async def working(clinic: Clinic, use: Callable[[], Awaitable[None]]) -> None:
    worker = Worker(clinic.app)
    serving = asyncio.create_task(worker.serve())
    try:
        await asyncio.wait_for(use(), 3 * TIMEOUT_S)
    finally:
        worker.stop()
        await asyncio.wait_for(serving, TIMEOUT_S)
        await asyncio.to_thread(clinic.app.close)


async def test_arguments_results_and_errors_stay_between_producer_and_worker(app: Holdfast, queue: str) -> None:
    clinic = Clinic(app.address, queue, Codec(keys=OLD | NEW, key_id="new", errors=True))

    async def use() -> None:
        ada = await clinic.note.enqueue_async("ada")
        many = (await clinic.note.enqueue_many_async(["bob", "twins"])).handles()
        nobody = await clinic.note.enqueue_async("nobody")
        nightly = Schedule("nightly", "@yearly", clinic.note.call("eve").new_task)
        await clinic.app.run_async(lambda client: client.put_schedule(nightly))
        eve = await clinic.app.run_async(lambda client: client.trigger_schedule(queue, "nightly"))
        handles = [ada, *many, clinic.app.handle_async(eve.task_id)]
        said = [await handle.result(timeout=TIMEOUT_S) for handle in handles]
        assert said == [f"noted {name} in attempt 1" for name in ("ada", "bob", "twins", "eve")]
        with pytest.raises(TaskFailed, match="no patient nobody"):
            await nobody.result(timeout=TIMEOUT_S)
        dead = await app.run_async(lambda client: client.get_dead_letter(nobody.id))
        done = await app.run_async(lambda client: client.get_task(ada.id))
        assert dead.last_error is not None
        assert dead.task is not None
        assert dead.last_error.type == "LookupError"
        seen = dead.last_error.message + dead.last_error.traceback + dead.attempts[0].error_message
        assert "nobody" not in seen
        assert b"nobody" not in dead.task.payload
        assert b"ada" not in (done.result or b"")

    await working(clinic, use)


async def test_a_request_id_makes_one_task_of_two_calls(app: Holdfast, queue: str) -> None:
    first, second = (Clinic(app.address, queue, Codec(keys=NEW)) for _ in range(2))
    handles = [await it.note.options(request_id="visit-17").enqueue_async("ada") for it in (first, second)]
    assert handles[0].id == handles[1].id
    assert [handle.duplicate for handle in handles] == [False, True]
    with pytest.raises(RequestIdConflict):
        await second.note.options(request_id="visit-17").enqueue_async("bob")
    for clinic in (first, second):
        await asyncio.to_thread(clinic.app.close)


async def test_a_worker_without_the_key_says_which_and_ends_it(app: Holdfast, queue: str) -> None:
    """It is not handed out for ever; with the key it is done."""
    newer = Clinic(app.address, queue, Codec(keys=NEW))
    task = await newer.note.enqueue_async("ada")
    older = Clinic(app.address, queue, Codec(keys=OLD))

    async def fail() -> None:
        with pytest.raises(TaskFailed) as failed:
            await task.result(timeout=TIMEOUT_S)
        assert (failed.value.error_type, failed.value.dead_reason) == (
            "holdfast.client.errors.KeyMissing",
            "ATTEMPTS_SPENT",
        )
        assert "encrypted with key new" in str(failed.value)
        assert (await task.info()).failures == 2

    await working(older, fail)

    async def retry() -> None:
        await app.run_async(lambda client: client.retry_dead_letter(task.id))
        assert await task.result(timeout=TIMEOUT_S) == "noted ada in attempt 1"

    await working(newer, retry)


async def test_a_task_that_was_put_there_without_the_key_is_not_carried_out(app: Holdfast, queue: str) -> None:
    clinic = Clinic(app.address, queue, Codec(keys=NEW))
    forged = Clinic(app.address, queue, None)

    async def use() -> None:
        task = await forged.note.enqueue_async("mallory")
        with pytest.raises(TaskFailed, match="not encrypted") as failed:
            await task.result(timeout=TIMEOUT_S)
        assert (failed.value.error_type, failed.value.dead_reason) == (
            "holdfast.client.errors.Unreadable",
            "WORKER_GAVE_UP",
        )
        assert (await task.info()).state is TaskState.DEAD

    await working(clinic, use)
    await asyncio.to_thread(forged.app.close)
