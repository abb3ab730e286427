"""Waits until a node may be stopped: asks it to hand over, again and again, until every shard can do without it."""

import asyncio
import time
from collections.abc import Callable

from holdfast.cli import calls
from holdfast.cli.problems import PASSING, CommandFailed, ExitCode, Problem, named_shards, problem_of
from holdfast.client import (
    AsyncClient,
    Conflict,
    HandoverProgress,
    HoldfastError,
)

PAUSE_S = 0.5
_REASONS_SHOWN_MAX = 3

# Called with what the node last said, if anything, and why it cannot be asked at the moment.
Show = Callable[[HandoverProgress | None, str], None]


def follow(
    address: str, timeout_s: float, node: str, wait_s: float, show: Show
) -> tuple[HandoverProgress | None, Problem | None]:
    """What the node said last, and why it may not stop; no problem if it may. It is asked at least once."""
    ends_s = time.monotonic() + wait_s

    async def question(client: AsyncClient) -> tuple[HandoverProgress | None, Problem | None]:
        return await _follow(client, node, ends_s, wait_s, show)

    try:
        return calls.ask(address, timeout_s, question)
    except KeyboardInterrupt:
        message = f"Interrupted: node {node} may not stop yet."
        raise CommandFailed(Problem(ExitCode.INTERRUPTED, "INTERRUPTED", message, _undo_hint(node))) from None


async def _follow(
    client: AsyncClient, node: str, ends_s: float, wait_s: float, show: Show
) -> tuple[HandoverProgress | None, Problem | None]:
    progress: HandoverProgress | None = None
    while True:
        trouble: HoldfastError | None = None
        try:
            progress = await client.hand_over_node(node)
        except (*PASSING, Conflict) as error:
            if isinstance(error, Conflict) and error.metadata.get("why") != "unreachable":
                raise
            trouble = error
        if progress is not None and trouble is None and progress.may_stop:
            return progress, None
        show(progress, "" if trouble is None else problem_of(trouble).message)
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            return progress, _not_yet(node, wait_s, progress) if trouble is None else problem_of(trouble)
        await asyncio.sleep(min(PAUSE_S, left_s))


def _not_yet(node: str, wait_s: float, progress: HandoverProgress | None) -> Problem:
    held_back = {} if progress is None else progress.held_back
    reasons = [f"shard {shard}: {why}" for shard, why in list(held_back.items())[:_REASONS_SHOWN_MAX]]
    more = "; …" * (len(held_back) > _REASONS_SHOWN_MAX)
    message = (
        f"Node {node} must not be stopped yet, after {wait_s:g} s: {named_shards(list(held_back))} would lose the "
        f"majority ({'; '.join(reasons)}{more})."
    )
    return Problem(ExitCode.UNFINISHED, "HELD_BACK", message, _undo_hint(node))


def _undo_hint(node: str) -> str:
    return (
        f"Bring the missing nodes back, then run this again. If it is to stay: `holdfast node handover {node} --undo`."
    )
