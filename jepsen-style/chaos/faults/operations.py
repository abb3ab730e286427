"""What operators do while faults strike. An operation that does not come to its end once all faults are over is a
finding."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from typing import TypeVar

from chaos.faults.arena import Arena, in_thread
from chaos.faults.processes import stop
from chaos.plan import Step
from holdfast.backup.checking import verify
from holdfast.backup.creating import create
from holdfast.backup.errors import BackupError
from holdfast.backup.store import Store
from holdfast.backup.targets import open_target
from holdfast.broker.offline.restoring import check_state
from holdfast.client import AsyncClient, HoldfastError, MoveWish, NotFound, Plan, StepState
from holdfast.client._backups import BackupClient

OPERATION_S_MAX = 300.0  # brokers that are killed need seconds to come back, and a plan needs them all, again and again
_CALL_S = 5.0
AGAIN_S = 0.5
KNOWN_S_MAX = 20.0  # until a new node is in the map, also if etcd is away for a while

T = TypeVar("T")


async def move(arena: Arena, step: Step, _names: list[str]) -> None:
    """One replica goes to a node that has none of its shard."""
    async with _operating(arena, step) as (client, number):
        info = await client.describe_cluster()
        shard = info.shards[arena.draw.randrange(len(info.shards))]
        free = [node.name for node in info.nodes if node.is_alive and node.name not in shard.replicas]
        if not free:
            arena.skipped.append(f"{step.what}: no node without a replica of shard {shard.shard} was alive")
            return
        arena.has_struck(step, [], number)
        wish = MoveWish(shard.shard, arena.draw.choice(shard.replicas), arena.draw.choice(free))
        await apply(arena, client, await client.make_plan(move=wish))
        arena.done[step.what] += wish.shard in await _shards_on(client, wish.destination)


async def transfer(arena: Arena, step: Step, _names: list[str]) -> None:
    """One shard gets another leader."""
    async with _operating(arena, step) as (client, number):
        info = await client.describe_cluster()
        shard = info.shards[arena.draw.randrange(len(info.shards))]
        others = [name for name in shard.replicas if name != shard.leader]
        arena.has_struck(step, [], number)
        await client.transfer(shard.shard, arena.draw.choice(others))
        arena.done[step.what] += 1


async def drain(arena: Arena, step: Step, names: list[str]) -> None:
    """A node is emptied and then used again."""
    [name] = names
    async with _operating(arena, step) as (client, number):
        arena.has_struck(step, [], number)
        try:
            await client.drain_node(name)
            await apply(arena, client, await client.make_plan())
            arena.done[step.what] += not await _shards_on(client, name)
            await asyncio.sleep(step.lasts_s)
        finally:
            await _until_answered(lambda: client.drain_node(name, drain=False))
        await apply(arena, client, await client.make_plan())


async def add(arena: Arena, step: Step, _names: list[str]) -> None:
    """One more node, which gets its part."""
    name = f"n{len(arena.system.brokers) + 1}"
    async with _operating(arena, step) as (client, number):
        arena.struck.add(name)  # a fault may strike it once it is there
        try:
            arena.system.make_broker(name)
            await arena.start(name)
        finally:
            arena.struck.discard(name)
        arena.has_struck(step, [], number)
        plan = await plan_for(client, name)
        if plan is None:
            arena.skipped.append(f"{step.what}: no plan gave {name} a replica in {KNOWN_S_MAX:g} s")
            return
        await apply(arena, client, plan)
        arena.done[step.what] += bool(await _shards_on(client, name))


async def rolling_restart(arena: Arena, step: Step, _names: list[str]) -> None:
    """Each broker and router is stopped and started, and the next one only once all is well. Each counts."""
    for name in (*arena.system.brokers, *arena.system.routers):
        if name not in arena.struck and arena.process(name).is_up:
            await stop(arena, step, [name])
            await arena.whole()
            arena.done[step.what] += 1


async def spread(arena: Arena, step: Step, _names: list[str]) -> None:
    """A queue that is in use gets other shards (`amount`: how many; 0 is its home alone)."""
    if not arena.queues:
        arena.skipped.append(f"{step.what}: no queue whose shards may be changed")
        return
    queue = arena.draw.choice(list(arena.queues))
    async with _operating(arena, step) as (client, number):
        arena.has_struck(step, [], number, queue)
        if step.amount:
            await client.set_queue(queue, spread=min(int(step.amount), arena.system.spec.shards))
        else:
            await client.set_queue(queue, home=True)
        arena.done[step.what] += 1


async def backup(arena: Arena, step: Step, _names: list[str]) -> None:
    """All shards are copied, and the copy is looked at: whatever strikes meanwhile, it is whole or there is none."""
    store = Store(open_target(str(arena.system.directory / "backups"), make=True))
    async with (
        arena.striking(step, []) as number,
        BackupClient(arena.system.router_address, timeout_s=_CALL_S) as client,
    ):
        arena.has_struck(step, [], number)
        try:
            made = await create(client, store, progress=_unseen)
        except (BackupError, HoldfastError) as error:
            arena.skipped.append(f"backup: {error}")
            return
    verdict = await in_thread(verify, store, made.manifest, lambda _bytes: None, check_state)
    arena.done[step.what] += 1
    arena.broken.extend(f"backup {made.manifest.id}: {problem}" for problem in verdict.problems)


def _unseen(_what: str, _total: int) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda _bytes: None)


@asynccontextmanager
async def _operating(arena: Arena, step: Step) -> AsyncIterator[tuple[AsyncClient, str]]:
    async with (
        arena.striking(step, []) as number,
        AsyncClient(arena.system.router_address, timeout_s=_CALL_S) as client,
    ):
        yield client, number


async def apply(arena: Arena, client: AsyncClient, plan: Plan) -> None:
    """Carries a plan out; an operator tries again for as long as it takes. Meanwhile faults can be aimed at both ends
    of a replica that moves."""
    if not plan.steps:
        return
    give_up_s = time.monotonic() + OPERATION_S_MAX
    started = await client.start_plan(plan)
    arena.moving = ends_of_move(started)
    try:
        while time.monotonic() < give_up_s:
            try:
                progress = await client.advance_plan(started.id)
                if progress.is_done:
                    return
                arena.moving = ends_of_move(progress.plan)
            except NotFound:
                return  # done, and forgotten
            except HoldfastError:
                pass
            await asyncio.sleep(AGAIN_S)
    finally:
        arena.moving = ("", "")
    raise AssertionError(f"Expected the plan ({plan.summary}) to be done in {OPERATION_S_MAX:g} s, but it is not.")


def ends_of_move(plan: Plan) -> tuple[str, str]:
    """Source and destination of a replica that is on its way, or the next to be; of none if only leaders change."""
    left = [one for one in plan.steps if not one.is_transfer and not one.state.is_final]
    under_way = [one for one in left if one.state in (StepState.COPYING, StepState.LEAVING)] or left
    return (under_way[0].source, under_way[0].destination) if under_way else ("", "")


async def plan_for(client: AsyncClient, node: str) -> Plan | None:
    """One that gives a new node its part: it serves a moment before the map has it, and plans know it only then."""
    give_up_s = time.monotonic() + KNOWN_S_MAX
    while time.monotonic() < give_up_s:
        plan = await _until_answered(client.make_plan)
        if any(one.destination == node and not one.is_transfer for one in plan.steps):
            return plan
        await asyncio.sleep(AGAIN_S)
    return None


async def _shards_on(client: AsyncClient, node: str) -> set[int]:
    """Of which it has a replica, as the map says: what an operation has really done."""
    info = await _until_answered(client.describe_cluster)
    return {one.shard for one in info.shards if node in one.replicas}


async def _until_answered(call: Callable[[], Awaitable[T]]) -> T:
    """What must not be left half done."""
    give_up_s = time.monotonic() + OPERATION_S_MAX
    while True:
        try:
            return await call()
        except HoldfastError:
            if time.monotonic() > give_up_s:
                raise
        await asyncio.sleep(AGAIN_S)
