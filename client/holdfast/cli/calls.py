"""What the commands ask the server. Each call opens a client, asks once, and closes it."""

import asyncio
import json
import os
from collections.abc import Awaitable, Callable, Sequence
from typing import NoReturn, TypeVar

from holdfast.cli.problems import usage
from holdfast.client import Accepted, AsyncClient, NewTask, QueueStats, Rejected, TaskInfo

T = TypeVar("T")

JSON_HEADERS = {"content-type": "application/json"}


def json_payload(text: str) -> bytes:
    """The bytes of a JSON text as it was written, once it is known to be JSON."""
    try:
        json.loads(text, parse_constant=_no_constant)
        return text.strip().encode()
    except RecursionError:
        raise usage("Expected JSON, but it is nested too deeply.") from None
    except UnicodeError:
        raise usage("Expected JSON in UTF-8, but it is in another encoding.") from None
    except ValueError as error:
        raise usage(f"Expected JSON, but it is not: {error}.", "Quote it for the shell: '{\"id\": 1}'.") from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def enqueue(address: str, timeout_s: float, task: NewTask) -> Accepted:
    return _ask(address, timeout_s, lambda client: client.enqueue(task))


def queue_stats(address: str, timeout_s: float, queues: Sequence[str]) -> list[QueueStats | Rejected]:
    return _ask(address, timeout_s, lambda client: client.queue_stats_many(queues))


def get_task(address: str, timeout_s: float, task_id: str) -> TaskInfo:
    return _ask(address, timeout_s, lambda client: client.get_task(task_id))


def _ask(address: str, timeout_s: float, question: Callable[[AsyncClient], Awaitable[T]]) -> T:
    async def ask() -> T:
        # A person is waiting: say at once that nobody answers, instead of trying until the time is up.
        async with AsyncClient(address, timeout_s=timeout_s, retry=False) as client:
            return await question(client)

    # gRPC's own remarks on standard error would mix with ours, which say more.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    return asyncio.run(ask())
