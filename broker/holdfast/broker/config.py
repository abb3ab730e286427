"""The node's configuration: one frozen object, validated at start. How it is read is in `serving/settings`."""

from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from holdfast.cluster.settings import SECRETS, CallerSettings, Contradiction
from holdfast.serving.settings import (
    ENV_PREFIX,
    HOSTS_PATTERN,
    NAME_PATTERN,
    NETWORKS_PATTERN,
    URL_PATTERN,
    Address,
    ConfigError,
    Name,
    Port,
    Table,
    is_loopback,
    load,
)

__all__ = ["BATCH_BYTES_LIMIT", "ENV_PREFIX", "BrokerConfig", "ClusterNode", "ConfigError", "load_config"]

_KIB = 1024
_MIB = 1024 * _KIB
_GIB = 1024 * _MIB
_TIB = 1024 * _GIB
_MINUTE_MS = 60_000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS
_YEAR_MS = 366 * _DAY_MS

BATCH_BYTES_LIMIT = 256 * _MIB  # no call may ever carry more, whatever is set


# The first field of each pair must not exceed the second.
_ORDERED = (
    ("lease_ms_min", "lease_ms_max"),
    ("retry_base_ms", "retry_cap_ms"),
    ("retry_cap_ms", "delay_ms_max"),  # a back-off is a delay
    ("payload_bytes_max", "batch_bytes_max"),  # or the largest task could never be sent
    ("result_bytes_max", "batch_bytes_max"),
    ("batch_bytes_max", "proposals_bytes_max"),  # or the largest batch could never be taken
    ("batch_bytes_max", "segment_bytes"),  # or the largest batch could never be logged
    ("batch_bytes_max", "bytes_in_flight_max"),
    ("batch_tasks_max", "watched_tasks_max"),  # or the largest wait could never be taken
    ("max_attempts_default", "max_claims_default"),  # every attempt needs a claim
)


_ANY_HOST = ("0.0.0.0", "::", "[::]")  # where a server listens everywhere: no address to be found at


class ClusterNode(BaseModel):
    """One node of a static cluster, as all others know it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Name
    address: Address  # gRPC, for clients
    peer_address: Address  # for the other nodes


_NODES = Table(
    ClusterNode,
    "node",
    "at most 9 tables with name, address (host:port) and peer_address (host:port)",
    '[{"name": "n1", "address": "h1:7401", …}, …]',
)


class BrokerConfig(CallerSettings):
    """Everything a node can be told. Built by `load_config`; built directly it reads no file and no environment."""

    tables: ClassVar[Mapping[str, Table]] = {"nodes": _NODES}
    # Who may post to such a URL is often known by the URL alone.
    secrets: ClassVar[tuple[str, ...]] = (*SECRETS, "cluster_secret", "dead_alert_url")

    # Where the node lives
    data_dir: Path = Field(Path("holdfast-data"), description="directory of the log and the state; created if missing")
    port: Port = Field(7400, description="gRPC port; 0 takes a free one")
    frames: Literal["on", "off"] = Field("on", description="frames beside gRPC, for callers that know them")
    frames_port: Port = Field(0, description="port of frames, which callers are told over gRPC; 0 takes a free one")
    audit: Literal["on", "off"] = Field("on", description="what operators did is written to audit/ of data_dir")
    reflection: Literal["on", "off"] = Field("on", description="reflection of gRPC, which shows tools the API")
    ops_port: Port = Field(7403, description="HTTP port of /metrics, /livez and /readyz; 0 takes a free one")
    shutdown_grace_seconds: float = Field(10.0, ge=0, le=600, description="how long a stop waits for calls under way")

    # The cluster; without a list of nodes and without etcd this one is alone
    node_name: str = Field("n1", pattern=NAME_PATTERN, description="name of this node; never changes")
    shards: int = Field(
        1, ge=1, le=1024, description="number of shards; fixed when the cluster is founded; with etcd its map says it"
    )
    nodes: tuple[ClusterNode, ...] = Field(
        (), max_length=9, description="all nodes of the cluster, the same list on each: name, address, peer_address"
    )
    zone: str | None = Field(
        None, pattern=NAME_PATTERN, description="with etcd: replicas of a shard go to different zones"
    )
    capacity: int = Field(
        100, ge=1, le=1_000_000, description="with etcd: how many replicas, compared with other nodes"
    )
    advertise_address: Address | None = Field(
        None, description="with etcd: host:port at which clients find this node; host and port if not set"
    )
    advertise_peer_address: Address | None = Field(
        None, description="with etcd: host:port at which other nodes find it; host and peer_port if not set"
    )
    peer_host: str | None = Field(
        None, min_length=1, max_length=255, description="address on which other nodes are heard; host unless set"
    )
    peer_port: Port = Field(7402, description="port for the other nodes; 0 takes a free one")
    peer_certificate: Path | None = Field(None, description="PEM file: TLS between nodes; needs the other two")
    peer_key: Path | None = Field(None, description="PEM file with the key of peer_certificate")
    peer_authority: Path | None = Field(None, description="PEM file with who signs the nodes' certificates")
    cluster_secret_file: Path | None = Field(
        None, description="file with a secret that all nodes share and prove to each other; needed off this machine"
    )
    cluster_secret: str | None = Field(
        None, min_length=32, max_length=1024, description="the secret itself; better in a file or the environment"
    )
    heartbeat_ms: int = Field(150, ge=10, le=10_000, description="how often a leader is heard of")
    election_ms: int = Field(
        500, ge=50, le=60_000, description="silence of a leader before an election, and up to twice"
    )
    snapshot_bytes_per_second: int = Field(
        32 * _MIB, ge=64 * _KIB, le=_TIB, description="most bytes of a snapshot sent to another node in a second"
    )
    skip_entries: str | None = Field(
        None,
        max_length=4096,
        description="entries of logs that cannot be applied, by the names in the message, to pass over",
    )

    # Storage
    segment_bytes: int = Field(64 * _MIB, ge=_MIB, le=_GIB, description="size of one log file")
    state_flush_log_bytes: int = Field(64 * _MIB, ge=64 * _KIB, le=_TIB, description="log bytes that force a flush")
    log_keep_bytes: int = Field(
        64 * _MIB, ge=0, le=_TIB, description="log kept for replicas that lag, so that they need no snapshot"
    )
    state_flush_age_seconds: float = Field(
        60.0, ge=0.1, le=86_400, description="age of unflushed state that forces one"
    )
    state_write_buffer_bytes: int = Field(32 * _MIB, ge=_MIB, le=16 * _GIB, description="memory for unflushed state")
    state_block_cache_bytes: int = Field(64 * _MIB, ge=_MIB, le=_TIB, description="memory for state read from disk")
    free_bytes_min: int = Field(512 * _MIB, ge=0, le=_TIB, description="less free disk refuses writes; 0 never does")

    # What one call may carry
    payload_bytes_max: int = Field(_MIB, ge=1, le=64 * _MIB, description="largest payload of a task")
    result_bytes_max: int = Field(_MIB, ge=1, le=64 * _MIB, description="largest result of a task")
    batch_tasks_max: int = Field(1000, ge=1, le=1000, description="most tasks in one call")
    batch_bytes_max: int = Field(4 * _MIB, ge=_KIB, le=BATCH_BYTES_LIMIT, description="most bytes in one call")
    lease_ms_min: int = Field(1000, ge=1, le=_DAY_MS, description="shortest lease")
    lease_ms_max: int = Field(_DAY_MS, ge=1, le=_YEAR_MS, description="longest lease")
    delay_ms_max: int = Field(_YEAR_MS, ge=1, le=10 * _YEAR_MS, description="furthest a task may be put off")
    wait_ms_max: int = Field(60_000, ge=0, le=_HOUR_MS, description="longest a call may wait")

    # What may wait inside the node
    connections_max: int = Field(
        16_384,
        ge=32,
        le=1_000_000,
        description="most connections of callers, over gRPC and in frames each; fewer if few files may be open",
    )
    bytes_in_flight_max: int = Field(
        128 * _MIB, ge=64 * _KIB, le=64 * _GIB, description="most bytes of requests under way"
    )
    claims_per_worker_max: int = Field(1000, ge=1, le=1_000_000, description="most claims one worker holds at once")
    ready_window_tasks: int = Field(
        16_384, ge=16, le=1_000_000, description="ready tasks of a queue kept in memory, a slice as one"
    )
    proposals_max: int = Field(
        10_000, ge=1, le=1_000_000, description="most writes waiting for the log, a majority or the state"
    )
    proposals_bytes_max: int = Field(32 * _MIB, ge=_KIB, le=16 * _GIB, description="most bytes of such writes")
    waiters_max: int = Field(10_000, ge=1, le=1_000_000, description="most Reserve, and most WaitTasks calls waiting")
    worker_heartbeat_ms: int = Field(
        10_000,
        ge=100,
        le=20_000,
        description="how often a worker says that it is there, and hears what is wanted of it",
    )
    watched_tasks_max: int = Field(100_000, ge=1, le=10_000_000, description="most tasks that WaitTasks calls wait for")
    oldest_share_percent: int = Field(10, ge=0, le=100, description="share of claims that take the oldest task first")

    # How long things are kept, and when they are tried again
    dedup_window_ms: int = Field(_DAY_MS, ge=1000, le=_YEAR_MS, description="how long a request_id is remembered")
    # At least as long as outcomes of acks are remembered: a retried ack must not meet a forgotten task.
    finished_retention_ms: int = Field(
        10 * _MINUTE_MS, ge=10 * _MINUTE_MS, le=10 * _YEAR_MS, description="how long a finished task can be looked up"
    )
    result_ttl_default_ms: int = Field(_DAY_MS, ge=0, le=10 * _YEAR_MS, description="how long a result is kept")
    dead_retention_ms: int = Field(14 * _DAY_MS, ge=1, le=10 * _YEAR_MS, description="how long a dead task is kept")
    discard_retention_ms: int = Field(
        90 * _DAY_MS, ge=1, le=10 * _YEAR_MS, description="how long it is known what dead letters were discarded"
    )
    dead_alert_url: str | None = Field(
        None, pattern=URL_PATTERN, description="http or https: gets a POST when a queue has too many dead letters"
    )
    webhook_hosts: str | None = Field(
        None, max_length=4096, pattern=HOSTS_PATTERN, description="whom alerts may be told; none: every host"
    )
    webhook_networks: str | None = Field(
        None,
        max_length=4096,
        pattern=NETWORKS_PATTERN,
        description="networks where alerts may be told, besides public addresses",
    )
    retry_shape: Literal["exponential", "linear", "fixed"] = Field(
        "exponential", description="how the delay grows: by retry_factor, by retry_base_ms, or not at all"
    )
    retry_base_ms: int = Field(1000, ge=0, le=_YEAR_MS, description="delay before the second attempt")
    retry_factor: float = Field(2.0, ge=1, le=100, description="growth of the delay from one attempt to the next")
    retry_cap_ms: int = Field(_HOUR_MS, ge=0, le=_YEAR_MS, description="longest delay between attempts")
    retry_jitter: float = Field(0.2, ge=0, le=1, description="random part of a delay, as a fraction of it")
    max_attempts_default: int = Field(10, ge=1, le=1_000_000, description="failures before a task is dead")
    max_claims_default: int = Field(20, ge=1, le=1_000_000, description="claims that a task may spend before it dies")
    sweep_batch_tasks: int = Field(
        50, ge=1, le=1000, description="most tasks one expiry, promotion or purge moves; to a purge a slice is one"
    )

    @field_validator("data_dir")
    @classmethod
    def _expand_home(cls, value: Path) -> Path:
        return value.expanduser()

    @field_validator("webhook_networks")
    @classmethod
    def _are_networks(cls, value: str | None) -> str | None:
        for part in value.split(",") if value else ():
            ip_network(part.strip())
        return value

    def contradictions(self) -> list[Contradiction]:
        found = [(low, "must not exceed", high) for low, high in _ORDERED if getattr(self, low) > getattr(self, high)]
        found += self.shared_ports("port", "frames_port", "peer_port", "ops_port")
        if 3 * self.heartbeat_ms > self.election_ms:
            found.append(("election_ms", "must be at least three times", "heartbeat_ms"))
        return found + self._cluster_contradictions()

    def _cluster_contradictions(self) -> list[Contradiction]:
        found: list[Contradiction] = []
        names = [node.name for node in self.nodes]
        listed = "nodes" if names else "etcd_endpoints" if self.etcd_endpoints else ""
        if listed and "node_name" not in self.model_fields_set:
            # A default would make every node of one shared file the same one.
            what = "to the name of this node in" if names else "to a name of its own, because others share"
            found.append(("node_name", f"must be set, in the file or as HOLDFAST_NODE_NAME, {what}", listed))
        elif names and self.node_name not in names:
            found.append(("node_name", "must be one of the names in", "nodes"))
        if len(set(names)) < len(names):
            found.append(("nodes", "must have different names, and one is that of this node:", "node_name"))
        found += [("nodes", rule, "") for rule in _shared_addresses(self.nodes)]
        found += self._etcd_contradictions()
        tls = ("peer_certificate", "peer_key", "peer_authority")
        given = [name for name in tls if getattr(self, name) is not None]
        if given and len(given) < len(tls):
            missing = next(name for name in tls if name not in given)
            found.append((given[0], "must come together with", missing))
        if self.cluster_secret is not None and self.cluster_secret_file is not None:
            found.append(("cluster_secret", "must not be set together with", "cluster_secret_file"))
        if listed and not (self.proves_peers or is_loopback(self.peer_host or self.host)):
            rule = (
                "must be set, to the same secret on all nodes (or peer_certificate, peer_key and peer_authority: TLS), "
                "because anybody on the network may reach"
            )
            found.append(("cluster_secret_file", rule, "peer_host" if self.peer_host else "host"))
        return found

    @property
    def skipped(self) -> frozenset[str]:
        """Names of entries (see decoded_entries.py)."""
        names = (name.strip() for name in (self.skip_entries or "").split(","))
        return frozenset(name for name in names if name)

    @property
    def proves_peers(self) -> bool:
        """Whether other nodes have to prove who they are."""
        return any(file is not None for file in (self.peer_authority, self.cluster_secret, self.cluster_secret_file))

    def _etcd_contradictions(self) -> list[Contradiction]:
        found = super().contradictions()
        if self.etcd_endpoints and self.nodes:
            found.append(("etcd_endpoints", "must not be set together with", "nodes"))
        hosts = {"advertise_address": "host", "advertise_peer_address": "peer_host" if self.peer_host else "host"}
        for name, host in hosts.items() if self.etcd_endpoints else ():
            if getattr(self, name) is None and getattr(self, host) in _ANY_HOST:
                found.append((name, "must be set, because nobody can call", host))
        if self.etcd_endpoints and self.tls_cert is not None and self.broker_tls is None:
            found.append(("tls_ca", "must be set, because brokers call each other, and have TLS with", "tls_cert"))
        return found

    def describe(self) -> dict[str, str | int | float]:
        return super().describe() | {"nodes": ", ".join(f"{node.name}={node.address}" for node in self.nodes)}


def _shared_addresses(nodes: Sequence[ClusterNode]) -> list[str]:
    """What is wrong with addresses that stand in the list twice: two servers cannot listen at one."""
    users: dict[str, list[str]] = {}
    for node in nodes:
        users.setdefault(node.address, []).append(f"address of {node.name}")
        users.setdefault(node.peer_address, []).append(f"peer_address of {node.name}")
    return [f"must not have {address} twice: {' and '.join(uses)}" for address, uses in users.items() if len(uses) > 1]


def load_config(
    path: Path | None,
    overrides: Mapping[str, object],
    env: Mapping[str, str] | None = None,
    defaults: Mapping[str, object] | None = None,
) -> BrokerConfig:
    """Lay flags over environment over file over defaults and validate the result.

    overrides: flags by field name; None means that the flag was not given.
    env: the process environment unless told otherwise.
    defaults: defaults of the calling command that differ from those of BrokerConfig.
    """
    config, origins = load(BrokerConfig, path, overrides, env, defaults)
    return config.model_copy(update=_own_ports(config, origins))


def _own_ports(config: BrokerConfig, origins: Mapping[str, str]) -> dict[str, int]:
    """A node listens where the others look for it, unless it is told another port."""
    ports: dict[str, int] = {}
    for node in config.nodes:
        if node.name == config.node_name:
            for field, address in (("port", node.address), ("peer_port", node.peer_address)):
                if origins.get(field, "default") == "default":
                    ports[field] = int(address.rpartition(":")[2])
    return ports
