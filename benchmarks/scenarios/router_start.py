"""How soon a router is ready that finds a large map in etcd, and how much memory it takes. There are no brokers."""

import asyncio
import dataclasses
import time
from collections.abc import Iterator, Sequence

from harness.bench import Bench
from harness.mapped import NAME, etcd_in
from harness.probes import NoiseMeter, calibration_ms, process_cpu_s
from harness.results import Aim, BrokenRunError, Measured, Target, expect
from harness.server import ServerProcess
from holdfast.cluster.etcd.api import EtcdError, Put
from holdfast.cluster.etcd.client import EtcdClient
from holdfast.cluster.map.bootstrap import first_records
from holdfast.cluster.map.keys import MapKeys
from holdfast.cluster.map.records import (
    ClusterRecord,
    LeaderRecord,
    Members,
    NodeRecord,
    PolicyRecord,
    QueueRecord,
    ShardRecord,
)

NODES = 30
ZONES = 3
REPLICATION = 3
SPREAD = 4  # shards of a queue that has several
PUTS_PER_COMMIT = 100
CATCH_UP_SECONDS_MAX = 60.0
POLL_SECONDS = 0.05

AIMS = (
    Aim("exec to ready", "s", Target(2.0)),
    Aim("RSS at its peak", "MB", Target(300.0)),
    Aim("RSS when ready", "MB"),
    Aim("CPU until ready", "s"),
    Aim("RSS at its peak, every queue changed", "MB", Target(300.0)),
)


async def measure(bench: Bench) -> Measured:
    measured = Measured(calibration_ms=[calibration_ms()])
    async with bench.data_dir() as path, etcd_in(path) as process:
        etcd = EtcdClient([process.endpoint])
        try:
            await _put_all(etcd, list(_map_of(bench.sizes.map_shards, bench.sizes.map_queues)))
            for index in range(bench.sizes.starts):
                noise = NoiseMeter()
                async with await ServerProcess.start_router(path, process.endpoint, NAME) as router:
                    measured.add(await _look(bench, router, noise))
                    if index == 0:
                        measured.add(await _change_every_queue(bench, etcd, router))
                    await router.stop()
        except EtcdError as error:
            raise BrokenRunError(f"etcd: {error}") from None
        finally:
            await etcd.close()
    measured.calibration_ms.append(calibration_ms())
    measured.counts = {"shards": bench.sizes.map_shards, "queues": bench.sizes.map_queues, "starts": bench.sizes.starts}
    return measured


async def _look(bench: Bench, router: ServerProcess, noise: NoiseMeter) -> Measured:
    """At a router that was just started."""
    ready_s = await router.wait_ready()
    spent_s = process_cpu_s(router.pid)
    memory = router.memory()
    others_percent = noise.others_percent(spent_s)
    gauges = await router.scrape()
    expect("shards that the router knows", int(gauges["holdfast_router_map_shards"]), bench.sizes.map_shards)
    expect("queues that the router knows", int(gauges["holdfast_router_map_queues"]), bench.sizes.map_queues)
    return Measured(
        figures={
            "exec to ready": [ready_s],
            "RSS at its peak": [memory.peak_rss_mb],
            "RSS when ready": [memory.rss_mb],
            "CPU until ready": [spent_s],
        },
        others_percent=[others_percent],
    )


async def _change_every_queue(bench: Bench, etcd: EtcdClient, router: ServerProcess) -> Measured:
    """What was read at the start is thrown away bit by bit: memory must not grow with it."""
    keys, changed = MapKeys(NAME), QueueRecord(policy=PolicyRecord(max_attempts=7))
    puts = [Put(keys.queue(_queue_name(number)), changed.encode()) for number in range(bench.sizes.map_queues)]
    revision = await _put_all(etcd, puts)
    ends_s = time.monotonic() + CATCH_UP_SECONDS_MAX
    while (await router.scrape())["holdfast_router_map_revision"] < revision:
        if time.monotonic() > ends_s:
            raise BrokenRunError(f"the router did not see every change within {CATCH_UP_SECONDS_MAX:g} s")
        await asyncio.sleep(POLL_SECONDS)
    return Measured(figures={"RSS at its peak, every queue changed": [router.memory().peak_rss_mb]})


async def _put_all(etcd: EtcdClient, puts: Sequence[Put]) -> int:
    """The revision after the last."""
    revision = 0
    for index in range(0, len(puts), PUTS_PER_COMMIT):
        revision = (await etcd.commit([], puts[index : index + PUTS_PER_COMMIT])).revision
    return revision


def _queue_name(number: int) -> str:
    return f"team-{number % 100}.queue-{number}"


def _map_of(shards: int, queues: int) -> Iterator[Put]:
    """A map as a large cluster has it after a while: all shards founded and led, every queue with a record."""
    keys = MapKeys(NAME)
    nodes = [
        NodeRecord(
            name=f"n{number}",
            node_id=f"{number:032x}",
            address=f"127.0.0.1:{1000 + number}",
            peer_address=f"127.0.0.1:{2000 + number}",
            zone=f"z{number % ZONES + 1}",
        )
        for number in range(1, NODES + 1)
    ]
    for node in nodes:
        yield Put(keys.node(node.name), node.encode())
    for number, record in first_records(shards, REPLICATION, nodes).items():
        leader = LeaderRecord(record.replicas[0], record.group, 1)
        yield Put(keys.shard(number), _founded(record).encode())
        yield Put(keys.leader(number), leader.encode())
    for number in range(queues):
        yield Put(keys.queue(_queue_name(number)), _queue(number, shards).encode())
    yield Put(keys.cluster, ClusterRecord("0" * 32, shards, REPLICATION).encode())


def _founded(record: ShardRecord) -> ShardRecord:
    return dataclasses.replace(record, is_founded=True, members=Members(1, tuple(sorted(record.founders))))


def _queue(number: int, shards: int) -> QueueRecord:
    """Every other one is spread; the others have a policy."""
    if number % 2:
        return QueueRecord(policy=PolicyRecord(max_attempts=5, retry_base_ms=1000, dead_retention_ms=86_400_000))
    spread = sorted({(number + step) % shards for step in range(SPREAD)})
    return QueueRecord(generation=1, sets=((1, tuple(spread)),))
