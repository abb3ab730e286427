"""What a load process of a row does: one producer or one consumer over the client of that row, until told to stop."""

import asyncio
import dataclasses
import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from harness.loads import Control, report, report_progress
from harness.protocol import GO, READY, RESULT, LoadResult
from harness.results import BrokenRunError
from peers.libraries import settings
from peers.naming import named
from peers.payloads import Payloads, id_of, sent_s_of
from peers.peer import Client
from peers.protocol import PRODUCE, ClientSpec
from peers.tally import DONE, SENT, Tally

WARM_UP_CALLS = 3
FULL_PAUSE_SECONDS = 0.002  # of a producer that is far enough ahead
CLAIM_SECONDS = 0.2  # that a claim waits, so that consumers notice that they should stop


async def produce(spec: ClientSpec, client: Client, result: LoadResult, stopped: Callable[[], bool]) -> None:
    tally = Tally(Path(spec.tally))
    counter = tally.counter(SENT)
    payloads = Payloads(spec.number, spec.payload_bytes)
    calls = 0

    async def call() -> None:
        ids, batch = payloads.take(spec.batch_tasks)
        sent_s = time.monotonic()
        await client.produce(batch)
        counter.add(ids)
        result.sent_s.append(sent_s)
        result.call_ms.append((time.monotonic() - sent_s) * 1000)
        result.done += len(ids)

    began_s = time.monotonic()
    while not stopped():
        if spec.unfinished_max and tally.unfinished > spec.unfinished_max:
            await asyncio.sleep(FULL_PAUSE_SECONDS)
            continue
        if spec.rate_per_s:
            await asyncio.sleep(max(0.0, began_s + calls / spec.rate_per_s - time.monotonic()))
        else:
            await asyncio.sleep(0)  # some clients block: without it nobody would hear the word to stop
        calls += 1
        await call()


async def consume(spec: ClientSpec, client: Client, result: LoadResult, stopped: Callable[[], bool]) -> None:
    counter = Tally(Path(spec.tally)).counter(DONE)
    while not stopped():
        payloads, handle = await client.claim(spec.batch_tasks, CLAIM_SECONDS)
        await asyncio.sleep(0)
        if not payloads:
            continue
        if spec.is_sampled:
            now_s = time.monotonic()
            sent_s = [sent_s_of(payload) for payload in payloads]
            result.sent_s += sent_s
            result.call_ms += [(now_s - each_s) * 1000 for each_s in sent_s]
        await client.ack(handle)
        counter.add(map(id_of, payloads))
        result.done += len(payloads)


async def _warm_up(spec: ClientSpec, client: Client) -> None:
    """Connects, and a producer passes through the code a few times; what it sends is counted like everything else."""
    await client.open()
    if spec.role != PRODUCE:
        return
    counter = Tally(Path(spec.tally)).counter(SENT)
    payloads = Payloads(-2 - spec.number, spec.payload_bytes)  # ids that nobody else has
    for _ in range(WARM_UP_CALLS):
        ids, batch = payloads.take(spec.batch_tasks)
        await client.produce(batch)
        counter.add(ids)


async def main() -> None:
    control = Control()
    spec = ClientSpec(**json.loads(await control.next_line()))
    os.environ.update(settings.environment(spec.target, spec.queue, Path(spec.tally)))
    client: Client = named(spec.client)(spec.target, spec.queue)
    await _warm_up(spec, client)
    report(READY)
    if await control.next_line() != GO:
        raise BrokenRunError("expected the word to go")
    result = LoadResult(started_s=time.monotonic())
    reporting = asyncio.create_task(report_progress(result))
    stopping = asyncio.create_task(control.until_stop())
    await (produce if spec.role == PRODUCE else consume)(spec, client, result, stopping.done)
    reporting.cancel()
    result.ended_s = time.monotonic()
    report(RESULT, result=dataclasses.asdict(result))
