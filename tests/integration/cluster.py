"""A static cluster of real broker processes on this machine: started, killed, paused and broken by a test.

With one node it is a group of one. Everything here blocks; in asynchronous tests call it in a thread.
"""

import json
import os
import random
import shutil
import signal
import socket
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Self

from holdfast.client import Client, ReplicaInfo, ReplicaRole, Tls
from tests.integration.server import DEADLINE_S, Closed, ServerProcess, wait_until

HOST = "127.0.0.1"
MIB = 1024 * 1024
# Below the range from which the kernel takes ports for outgoing connections: while a broker is down, a client could
# otherwise be given its port, or connect to itself.
_PORTS_FIRST, _PORTS_EACH = 10_000, 1_000
# Ports are given long before a server listens there, so each process of tests has its own, and gives none twice.
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw9").removeprefix("gw")) % 10
_PORTS = range(_PORTS_FIRST + _WORKER * _PORTS_EACH, _PORTS_FIRST + (_WORKER + 1) * _PORTS_EACH)
_given: set[int] = set()
_ASK_S = 5.0
LAG_MAX = 50  # entries: as many are on their way under load

CLUSTER_SECRET = "what all nodes of these tests know"

# Early flushes and small files, so that the log is cut within seconds: faults hit that too, and a replica that lost its
# disk is rebuilt from a snapshot. Nothing is forgotten during a run.
SETTINGS: dict[str, object] = {
    "segment_bytes": MIB,
    "batch_bytes_max": MIB // 2,
    "payload_bytes_max": MIB // 4,
    "result_bytes_max": MIB // 4,
    "state_flush_log_bytes": MIB // 4,
    "log_keep_bytes": MIB // 4,
    "state_flush_age_seconds": 0.5,
    "finished_retention_ms": 24 * 3600 * 1000,
    "shutdown_grace_seconds": 2,
    "cluster_secret": CLUSTER_SECRET,
}


class ClusterError(AssertionError):
    """A broker did not do what it was asked for."""


class NodeProcess(ServerProcess):
    """One broker of the cluster, always on the same ports."""

    def __init__(self, directory: Path, name: str, port: int, config: Path, data_dir: Path, **settings: object) -> None:
        super().__init__(directory, data_dir=data_dir, **settings)  # type: ignore[arg-type]  # settings pass through
        self.name = name
        self.port = port
        self.paused = False
        self._config = config

    def launch(self, *, rebuild: bool = False) -> None:
        assert not self.is_up, f"{self.name} is running already"
        self.paused = False
        where = ["--config", str(self._config), "--ops-port", "0", "--data-dir", str(self.data_dir)]
        self._launch("broker", *where, "--log-format", "json", *["--rebuild"] * rebuild)

    @property
    def is_up(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def wait_serving(self, deadline_s: float = DEADLINE_S) -> None:
        wait_until(lambda: self.events("serving") or not self.is_up, f"{self.name} to serve", deadline_s=deadline_s)
        if not self.events("serving"):
            raise ClusterError(f"{self.name} ended with {self.exit_code}:\n{self.log_text}")
        self.ops_port = self.events("serving")[-1]["ops_port"]

    def kill(self) -> None:
        super().kill()
        self.paused = False

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and says nothing."""
        self._running().send_signal(signal.SIGSTOP)
        self.paused = True

    def resume(self) -> None:
        self._running().send_signal(signal.SIGCONT)
        self.paused = False

    def leaderships(self) -> list[tuple[int, int]]:
        """Every (shard, term) that it ever said it leads, oldest first."""
        return [(shard, term) for event, shard, term in self._said(self.whole_log_text) if event == "leading"]

    def leads_in(self, shard: int) -> int | None:
        """The term in which it leads, as far as it has said since its last start; None if it does not."""
        said = [(event, term) for event, item, term in self._said(self.log_text) if item == shard]
        return said[-1][1] if self.is_up and not self.paused and said and said[-1][0] == "leading" else None

    @staticmethod
    def _said(text: str) -> list[tuple[str, int, int]]:
        """The log lines on leadership: event, shard, term."""
        lines = [
            line for line in text.splitlines() if '"leading' in line and line.startswith("{") and line.endswith("}")
        ]
        said = [line for line in map(json.loads, lines) if line.get("event") in ("leading", "leading_no_more")]
        return [(line["event"], int(line["shard"]), int(line["term"])) for line in said]


class Cluster(Closed):
    """`size` brokers with the same list of nodes."""

    tls: Tls | None = None  # of clients

    def __init__(
        self, directory: Path, *, size: int = 3, shards: int = 1, env: Mapping[str, str] | None = None,
        **settings: object,
    ) -> None:  # fmt: skip
        """`env` is given to every broker, e.g. a library to preload; `settings` are names of the configuration."""
        self.directory = directory
        self.names = [f"n{number + 1}" for number in range(size)]
        ports = free_ports(2 * size)
        self._ports = dict(zip(self.names, ports[:size], strict=True))
        self._peer_ports = dict(zip(self.names, ports[size:], strict=True))
        self._shards = shards
        self.nodes = {name: self._make_node(name, {"env": env, **settings}) for name in self.names}

    def _make_node(self, name: str, settings: Mapping[str, object]) -> NodeProcess:
        home = self.directory / name
        home.mkdir(parents=True)
        config = home / f"{name}.toml"
        config.write_text(self._config_text(name), encoding="utf-8")
        return NodeProcess(home, name, self._ports[name], config, home / "data", **{**SETTINGS, **settings})

    def _config_text(self, name: str) -> str:
        if len(self.names) == 1:
            return f'host = "{HOST}"\nport = {self._ports[name]}\n'
        lines = [
            f'node_name = "{name}"',
            f'host = "{HOST}"',
            f"port = {self._ports[name]}",
            f"peer_port = {self._peer_ports[name]}",
            'cluster_name = "chaos"',
            f"shards = {self._shards}",
        ]
        for item in self.names:
            lines += ["[[nodes]]", f'name = "{item}"', f'address = "{HOST}:{self._ports[item]}"']
            lines += [f'peer_address = "{HOST}:{self._peer_ports[item]}"']
        return "\n".join(lines) + "\n"

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> Self:
        """Starts all that are down and waits until each serves: none can found a group alone."""
        down = [node for node in self.nodes.values() if not node.is_up]
        for node in down:
            node.launch()
        for node in down:
            node.wait_serving()
        return self

    def close(self) -> None:
        """Leaves nothing running, whatever the test did."""
        for node in self.nodes.values():
            node.close()

    def start_node(self, name: str, *, rebuild: bool = False) -> None:
        self.nodes[name].launch(rebuild=rebuild)
        self.nodes[name].wait_serving()

    def kill(self, *names: str) -> None:
        for name in names:
            self.nodes[name].kill()

    @property
    def address(self) -> str:
        """All of them, as a client takes it."""
        return ",".join(self.addresses)

    @property
    def addresses(self) -> list[str]:
        return [self.nodes[name].address for name in self.names]

    # --- who leads --------------------------------------------------------------------------------------------

    def leader(self, shard: int = 0) -> str | None:
        """The node that leads in the newest term; None if nobody does. From the logs: nobody is asked or waited for."""
        if len(self.names) == 1:
            [node] = self.nodes.values()
            return node.name if node.is_up and not node.paused else None
        terms = [(term, node.name) for node in self.nodes.values() if (term := node.leads_in(shard)) is not None]
        return max(terms)[1] if terms else None

    def wait_for_leader(self, shard: int = 0) -> str:
        return wait_until(lambda: self.leader(shard) or "", f"a leader of shard {shard}")

    def followers(self, shard: int = 0) -> list[str]:
        leader = self.wait_for_leader(shard)
        return [name for name in self.names if name != leader]

    def leaderships(self) -> list[tuple[int, int, str]]:
        """Every (shard, term, node) that was ever said, in all lives of all brokers."""
        return [(shard, term, node.name) for node in self.nodes.values() for shard, term in node.leaderships()]

    # --- what the brokers say of themselves ---------------------------------------------------------------------

    def replicas(self, shard: int = 0) -> dict[str, ReplicaInfo]:
        """By node: what it says of its replica of a shard. Nodes that do not answer are left out."""
        with Client(self.address, timeout_s=_ASK_S) as client:
            reports = client.describe_nodes()
        reported = {report.name: report.node.replicas for report in reports if report.node is not None}
        return {name: one for name, replicas in reported.items() for one in replicas if one.shard == shard}

    def wait_whole(self) -> None:
        """Returns once every node has a voting replica that has caught up and knows who leads."""
        if len(self.names) > 1:
            what = "every replica to vote, to have caught up and to know who leads"
            wait_until(self._is_whole, what, deadline_s=2 * DEADLINE_S)

    def _is_whole(self) -> bool:
        replicas = self.replicas()
        voting = [one for one in replicas.values() if one.role in (ReplicaRole.LEADER, ReplicaRole.FOLLOWER)]
        newest = max((one.commit_index for one in voting), default=0)
        leaders = [name for name, one in replicas.items() if one.role is ReplicaRole.LEADER]
        known = {one.leader for one in voting if one.role is ReplicaRole.FOLLOWER}
        near = all(one.applied_index + LAG_MAX > newest and not one.problem for one in voting)
        return len(leaders) == 1 and known == set(leaders) and len(voting) == len(self.names) and near

    def hashes(self, shard: int = 0) -> dict[str, tuple[int, str]]:
        """By node: the index of a probe and the hash of the state there; how far it is, if it did not get there."""
        if len(self.names) == 1:
            return {}
        with Client(self.address, timeout_s=DEADLINE_S) as client:
            reported = client.hash_shard(shard)
        return {
            one.node: (one.applied_index, f"none: {one.error}")
            if one.state_hash is None
            else (reported.index, one.state_hash)
            for one in reported.replicas
        }

    def check_hashes(self) -> None:
        """All replicas of each shard hold the same."""
        for shard in range(self._shards):
            hashes = wait_until(partial(self._all_hashes, shard), f"the hashes of shard {shard}")
            assert len(set(hashes.values())) == 1, hashes

    def _all_hashes(self, shard: int) -> dict[str, tuple[int, str]]:
        """None if one is missing: a replica that was sent a snapshot meanwhile has passed the place without a look."""
        found = self.hashes(shard)
        assert set(found) == set(self.names)
        return found if not any(reported.startswith("none: ") for _, reported in found.values()) else {}

    # --- damage -------------------------------------------------------------------------------------------------

    def lose_disk(self, name: str) -> None:
        """Of a broker that is down: everything it had is gone."""
        assert not self.nodes[name].is_up
        shutil.rmtree(self.nodes[name].data_dir)


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on at the moment."""
    found: list[int] = []
    if len(_given) + count > _PORTS_EACH // 2:
        _given.clear()
    for port in _shuffled(_PORTS):
        if port in _given:
            continue
        with socket.socket() as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind((HOST, port))
            except OSError:
                continue
        found.append(port)
        _given.add(port)
        if len(found) == count:
            return found
    raise ClusterError(f"Expected {count} free ports, but found {len(found)}.")


def _shuffled(ports: Iterable[int]) -> list[int]:
    mixed = list(ports)
    random.SystemRandom().shuffle(mixed)
    return mixed
