"""The calls about dead letters. `AsyncClient` inherits them."""

import getpass
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace

from holdfast.client import _queues_wire, _wire
from holdfast.client._calls import Calls, next_page
from holdfast.client._fitting import only, whole
from holdfast.client._rpc import method
from holdfast.client.errors import Rejected
from holdfast.client.models import TaskInfo
from holdfast.client.queue_models import (
    DeadLetterDone,
    DeadLetterFilter,
    DeadLetterPage,
    DeadLetterProgress,
    DiscardPage,
)
from holdfast.proto.v1 import tasks_pb2 as pb
from holdfast.routing.pages import PAGE_MAX

_SERVICE = "DeadLetters"
_LIST = method(pb, _SERVICE, "ListDeadLetters", pb.ListDeadLettersRequest, pb.ListDeadLettersResponse)
_GET = method(pb, _SERVICE, "GetDeadLetter", pb.GetDeadLetterRequest, pb.GetDeadLetterResponse)
_RETRY = method(pb, _SERVICE, "RetryDeadLetters", pb.RetryDeadLettersRequest, pb.RetryDeadLettersResponse)
_DISCARD = method(pb, _SERVICE, "DiscardDeadLetters", pb.DiscardDeadLettersRequest, pb.DiscardDeadLettersResponse)
_LIST_DISCARDS = method(pb, _SERVICE, "ListDiscards", pb.ListDiscardsRequest, pb.ListDiscardsResponse)

_NAME_BYTES_MAX = 256  # of whoever discards

_Act = Callable[[list[str]], Awaitable[list[DeadLetterDone | Rejected]]]


class DeadLetterCalls(Calls):
    """Tasks whose budget is spent, or that a worker gave up."""

    async def list_dead_letters(
        self,
        queue: str,
        *,
        where: DeadLetterFilter | None = None,
        page_size: int = 100,
        page_token: str = "",
        timeout_s: float | None = None,
    ) -> DeadLetterPage:
        """One page of the dead letters of a queue, oldest first; pass on `next_page_token` for the next page.

        A page may be empty and not the last: a call looks at a bounded number of letters, whether they fit or not.
        """
        request = _queues_wire.list_dead_letters_request(queue, where, page_size, page_token)
        page = _queues_wire.dead_letter_page(await self._call(_LIST, request, timeout_s, repeatable=True))
        return replace(page, tasks=self._coding.infos(page.tasks))

    async def iter_dead_letters(
        self,
        queue: str,
        *,
        where: DeadLetterFilter | None = None,
        page_size: int = 100,
        timeout_s: float | None = None,
    ) -> AsyncIterator[TaskInfo]:
        """All dead letters of a queue that fit, oldest first, page by page; `timeout_s` is the time for one page.

        >>> import asyncio
        >>> async def main() -> None:
        ...     async with AsyncClient() as client:
        ...         async for letter in client.iter_dead_letters("mail", where=DeadLetterFilter(type="welcome")):
        ...             print(letter.task_id, letter.dead_reason)
        >>> asyncio.run(main())
        the-id ATTEMPTS_SPENT
        """
        token = ""
        while True:
            page = await self.list_dead_letters(
                queue, where=where, page_size=page_size, page_token=token, timeout_s=timeout_s
            )
            for letter in page.tasks:
                yield letter
            token = next_page(token, page.next_page_token, len(page.tasks))
            if not token:
                return

    async def get_dead_letter(self, task_id: str, *, timeout_s: float | None = None) -> TaskInfo:
        """A dead letter with its payload and its last attempts."""
        response = await self._call(_GET, _queues_wire.get_dead_letter_request(task_id), timeout_s, repeatable=True)
        return self._coding.info(_wire.task_info(response))

    # ------------------------------------------------------------------------------------------------- retrying

    async def retry_dead_letter(self, task_id: str, *, timeout_s: float | None = None) -> DeadLetterDone:
        """Makes a dead task ready again, with fresh budgets."""
        return only(await self.retry_dead_letters([task_id], timeout_s=timeout_s))

    async def retry_dead_letters(
        self, task_ids: Sequence[str], *, timeout_s: float | None = None
    ) -> list[DeadLetterDone | Rejected]:
        """Makes many dead tasks ready again."""
        if not task_ids:
            return []
        # Not repeated after a lost connection: the task may have died again in between.
        request = _queues_wire.retry_dead_letters_request(task_ids)
        response = await self._call(_RETRY, request, timeout_s, repeatable=False)
        return _queues_wire.dead_letter_outcomes(response, len(task_ids))

    async def retry_dead_letters_where(
        self,
        queue: str,
        where: DeadLetterFilter | None = None,
        *,
        limit: int | None = None,
        dry_run: bool = False,
        batch_size: int = 100,
        progress: Callable[[DeadLetterProgress], None] | None = None,
        timeout_s: float | None = None,
    ) -> DeadLetterProgress:
        """Makes all dead letters of a queue that fit ready again, the oldest first and at most `limit`, in batches.

        Letters that come after the call began (at each shard of the queue: by its own time, when its first page is
        read) are left alone, so it ends also if tasks die again at once. `progress` is called after each batch. With
        `dry_run` letters are counted only. `timeout_s` is the time for one request. If a request fails, that is raised:
        what `progress` last told has been done, and the same call may be made again.

        >>> import asyncio
        >>> async def main() -> None:
        ...     async with AsyncClient() as client:
        ...         told = await client.retry_dead_letters_where("mail", DeadLetterFilter(error="timeout"))
        ...         print(f"{told.done} of {told.found} retried")
        >>> asyncio.run(main())
        1 of 1 retried
        """

        async def retry(task_ids: list[str]) -> list[DeadLetterDone | Rejected]:
            return await self.retry_dead_letters(task_ids, timeout_s=timeout_s)

        pages = _Pages(queue, where or DeadLetterFilter(), limit, batch_size, timeout_s)
        return await self._act_on(pages, None if dry_run else retry, progress)

    # ----------------------------------------------------------------------------------------------- discarding

    async def discard_dead_letter(
        self, task_id: str, *, by: str | None = None, note: str = "", timeout_s: float | None = None
    ) -> DeadLetterDone:
        """Deletes a dead task for good, and leaves a record with who discarded it and why: see `list_discards`.

        `by` is user@host of this process unless it is given; an empty one leaves it out.
        """
        return only(await self.discard_dead_letters([task_id], by=by, note=note, timeout_s=timeout_s))

    async def discard_dead_letters(
        self, task_ids: Sequence[str], *, by: str | None = None, note: str = "", timeout_s: float | None = None
    ) -> list[DeadLetterDone | Rejected]:
        """Deletes many dead tasks for good."""
        if not task_ids:
            return []
        # Not repeated after a lost connection: the second answer would be that there is no such task.
        request = _queues_wire.discard_dead_letters_request(task_ids, _whoever_this_is() if by is None else by, note)
        response = await self._call(_DISCARD, request, timeout_s, repeatable=False)
        return _queues_wire.dead_letter_outcomes(response, len(task_ids))

    async def discard_dead_letters_where(
        self,
        queue: str,
        where: DeadLetterFilter | None = None,
        *,
        by: str | None = None,
        note: str = "",
        limit: int | None = None,
        dry_run: bool = False,
        batch_size: int = 100,
        progress: Callable[[DeadLetterProgress], None] | None = None,
        timeout_s: float | None = None,
    ) -> DeadLetterProgress:
        """Deletes all dead letters of a queue that fit, for good; see `retry_dead_letters_where`."""

        async def discard(task_ids: list[str]) -> list[DeadLetterDone | Rejected]:
            return await self.discard_dead_letters(task_ids, by=by, note=note, timeout_s=timeout_s)

        pages = _Pages(queue, where or DeadLetterFilter(), limit, batch_size, timeout_s)
        return await self._act_on(pages, None if dry_run else discard, progress)

    async def list_discards(
        self, queue: str = "", *, page_size: int = 100, page_token: str = "", timeout_s: float | None = None
    ) -> DiscardPage:
        """One page of what was discarded, when and by whom, the oldest first; without a queue: of all queues."""
        request = _queues_wire.list_discards_request(queue, page_size, page_token)
        return _queues_wire.discard_page(await self._call(_LIST_DISCARDS, request, timeout_s, repeatable=True))

    async def _act_on(
        self, pages: "_Pages", act: _Act | None, progress: Callable[[DeadLetterProgress], None] | None
    ) -> DeadLetterProgress:
        """`act`: None counts only."""
        reported = DeadLetterProgress()
        token = ""
        while pages.limit is None or reported.found < pages.limit:
            left = pages.batch_size if pages.limit is None else min(pages.batch_size, pages.limit - reported.found)
            page = await self.list_dead_letters(
                pages.queue, where=pages.where, page_size=left, page_token=token, timeout_s=pages.timeout_s
            )
            task_ids = [letter.task_id for letter in page.tasks]
            outcomes = await act(task_ids) if act is not None and task_ids else []
            reported = _after(reported, len(task_ids), outcomes)
            if progress is not None and task_ids:
                progress(reported)
            token = next_page(token, page.next_page_token, len(page.tasks))
            if not token:
                break
        return reported


class _Pages:
    """Which letters, and how many at once."""

    def __init__(
        self, queue: str, where: DeadLetterFilter, limit: int | None, batch_size: int, timeout_s: float | None
    ) -> None:
        if limit is not None:
            whole("limit", limit, 1, None)
        whole("batch_size", batch_size, 1, PAGE_MAX)
        self.queue = queue
        self.where = where
        self.limit = limit
        self.batch_size = batch_size
        self.timeout_s = timeout_s


def _after(
    reported: DeadLetterProgress, found: int, outcomes: Sequence[DeadLetterDone | Rejected]
) -> DeadLetterProgress:
    refusals = [outcome for outcome in outcomes if isinstance(outcome, Rejected)]
    return DeadLetterProgress(
        reported.found + found,
        reported.done + len(outcomes) - len(refusals),
        reported.refused + len(refusals),
        refusals[-1] if refusals else reported.last_refusal,
    )


def _whoever_this_is() -> str:
    """user@host, for records of what was done by whom."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):  # a user without a name, as in some containers
        user = f"uid-{os.getuid()}" if hasattr(os, "getuid") else "somebody"
    name = f"{user}@{socket.gethostname()}"
    return name.encode(errors="replace")[:_NAME_BYTES_MAX].decode(errors="ignore")
