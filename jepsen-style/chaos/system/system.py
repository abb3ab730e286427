"""A whole system: etcd, brokers with many shards, routers and workers of the library. Everything here blocks."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from chaos.system import servers
from chaos.system.abilities import DISKS, NAMESPACES, Abilities
from chaos.system.disks import Disk
from chaos.system.hosts import Host, Ports
from chaos.system.network import Network
from chaos.system.process import Process, ProcessError, wait_until
from holdfast.broker.offline.restoring import check_state
from holdfast.client import Client, HoldfastError, ReplicaRole

_DISK_BYTES = 192 * servers.MIB
_ASK_S = 5.0
_LAG_MAX = 50  # entries: as many are on their way under load
_WHOLE_S_MAX = 90.0
_PORT_COUNTS = {"etcd": 2, "broker": 3, "router": 2}
_USUAL_PORTS = {"etcd": (2379, 2380), "broker": (7401, 7402, 7403), "router": (7400, 7480)}


@dataclass(frozen=True)
class Spec:
    """How many of what."""

    etcds: int = 1
    brokers: int = 3
    shards: int = 8
    routers: int = 1
    replication: int = 3
    workers: int = 3  # every second one goes straight to the brokers

    def to_dict(self) -> dict[str, int]:
        return asdict(self)


@dataclass
class Options:
    """What a run wants of its processes beside how many there are."""

    first_port: int = 28_000  # where there are no namespaces
    env: Mapping[str, str] = field(default_factory=dict)  # of brokers, routers and workers, e.g. a deliberate bug
    clocks: bool = False  # brokers have a wall clock that can be set
    settings: Mapping[str, object] = field(default_factory=dict)  # of brokers


class System:
    """Started, broken and mended by a run; `close` leaves nothing running."""

    def __init__(self, spec: Spec, abilities: Abilities, directory: Path, options: Options | None = None) -> None:
        self.spec = spec
        self.directory = directory
        self.options = options or Options()
        self._ports = Ports(self.options.first_port)
        self.network = Network() if NAMESPACES in abilities.has else None
        self._has_disks = DISKS in abilities.has
        self.disks: dict[str, Disk] = {}
        self.data_dirs: dict[str, Path] = {}
        self.addresses: dict[str, str] = {}  # of brokers and routers, for clients
        self.ops: dict[str, tuple[str, int]] = {}  # of brokers and routers: host and port
        self.etcds: dict[str, Process] = {}
        self.brokers: dict[str, Process] = {}
        self.routers: dict[str, Process] = {}
        self.workers: dict[str, Process] = {}
        self._make_etcds()
        for number in range(spec.brokers):
            self.make_broker(f"n{number + 1}")
        for number in range(spec.routers):
            self._make_router(f"r{number + 1}")

    # --- parts ------------------------------------------------------------------------------------------------

    def _host(self, name: str) -> Host:
        return self.network.add(name) if self.network is not None else Host(name)

    def _home(self, name: str) -> Path:
        home = self.directory / name
        home.mkdir(parents=True)
        return home

    def _ports_of(self, kind: str) -> tuple[int, ...]:
        if self.network is not None:
            return _USUAL_PORTS[kind]
        return tuple(self._ports.next() for _ in range(_PORT_COUNTS[kind]))

    def _data_dir(self, name: str, home: Path) -> Path:
        if self._has_disks:
            self.disks[name] = Disk(home, _DISK_BYTES)
            home = self.disks[name].path
        self.data_dirs[name] = home / "data"
        return self.data_dirs[name]

    def _make_etcds(self) -> None:
        names = [f"e{number + 1}" for number in range(self.spec.etcds)]
        hosts = {name: self._host(name) for name in names}
        ports = {name: self._ports_of("etcd") for name in names}
        members = {name: hosts[name].at(ports[name][1]) for name in names}
        self.etcd_endpoints = ",".join(hosts[name].at(ports[name][0]) for name in names)
        for name in names:
            home = self._home(name)
            client, peer = ports[name]
            self.etcds[name] = servers.etcd(hosts[name], (client, peer), members, home, self._data_dir(name, home))

    def make_broker(self, name: str) -> Process:
        """One more, not yet started."""
        host, home = self._host(name), self._home(name)
        client, peer, ops = self._ports_of("broker")
        env = dict(self.options.env)
        if self.options.clocks:
            env |= {"LD_PRELOAD": str(self.directory / "clock.so"), "CHAOS_CLOCK": str(self.clock_file(name))}
            self.clock_file(name).write_bytes(bytes(4096))
        self.brokers[name] = servers.broker(
            host, (client, peer, ops), self.etcd_endpoints, home, self._data_dir(name, home), env, self.options.settings
        )
        self.addresses[name], self.ops[name] = host.at(client), (host.address, ops)
        return self.brokers[name]

    def _make_router(self, name: str) -> None:
        host, home = self._host(name), self._home(name)
        client, ops = self._ports_of("router")
        self.routers[name] = servers.router(host, (client, ops), self.etcd_endpoints, home, self.options.env)
        self.addresses[name], self.ops[name] = host.at(client), (host.address, ops)

    def make_workers(self, idle: list[str], busy: list[str]) -> None:
        """Not yet started. Each goes through all routers; every second one learns from them where the brokers are and
        goes straight there. The last one serves the queues that always have something to do, the others those that
        have not: they are to wait for longer than a lease."""
        for number in range(self.spec.workers):
            name = f"w{number + 1}"
            host, home = self._host(name), self._home(name)
            env = {**self.options.env, "CHAOS_WORKER": name, "CHAOS_DIRECT": "1" if number % 2 else ""}
            env["PYTHONPATH"] = servers.python_path(servers.HARNESS_DIR, env.get("PYTHONPATH"))
            is_last = number == self.spec.workers - 1
            queues = [*idle, *busy] if self.spec.workers == 1 or not idle else busy if is_last else idle
            self.workers[name] = servers.worker(host, self.router_address, queues, home, env)

    def launch_worker(self, name: str) -> None:
        process = self.workers[name]
        history = self.directory / f"history-{name}-{process.lives + 1}.jsonl"
        process.launch(env={"CHAOS_HISTORY": str(history), "CHAOS_LIFE": str(process.lives + 1)})

    def clock_file(self, name: str) -> Path:
        return self.directory / f"clock-{name}"

    @property
    def processes(self) -> dict[str, Process]:
        return {**self.etcds, **self.brokers, **self.routers, **self.workers}

    # --- life -------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Everything but workers, initialised and led."""
        for process in (*self.etcds.values(), *self.brokers.values()):
            process.launch()
        for broker in self.brokers.values():
            broker.wait_serving()
        self._initialise()
        for router in self.routers.values():
            router.launch()
        for router in self.routers.values():
            router.wait_serving()
        self.wait_whole()

    def _initialise(self) -> None:
        with Client(self.broker_address, timeout_s=30) as client:

            def is_complete() -> bool:
                return sum(node.is_alive for node in client.describe_cluster().nodes) == len(self.brokers)

            wait_until(is_complete, "all brokers to be registered")
            client.init_cluster(self.spec.shards, replication=self.spec.replication)

    def close(self) -> None:
        for disk in self.disks.values():
            try:
                disk.thaw()  # or its processes could not even be killed
            except OSError:
                pass  # it was not frozen
        for process in self.processes.values():
            if process.is_up:
                process.kill()
        for disk in self.disks.values():
            disk.close()

    def keep_data(self) -> None:
        """Copies what brokers have on their disks to where it stays."""
        for name, disk in self.disks.items():
            shutil.copytree(disk.path / "data", self.directory / name / "data", dirs_exist_ok=True)

    # --- where and who ----------------------------------------------------------------------------------------

    @property
    def router_address(self) -> str:
        """Of all routers, as a client takes it."""
        return ",".join(self.addresses[name] for name in self.routers)

    @property
    def broker_address(self) -> str:
        """Of all brokers that run."""
        return ",".join(
            self.addresses[name] for name, process in self.brokers.items() if process.is_up and not process.paused
        )

    def leaders(self) -> dict[int, str]:
        """By shard: who leads in the newest term, as far as brokers have said. Nobody is asked or waited for."""
        newest: dict[int, tuple[int, str]] = {}
        for name, process in self.brokers.items():
            if not process.is_up or process.paused:
                continue
            mine: dict[int, tuple[str, int]] = {}
            for line in process.said_since_start("leading", "leading_no_more"):
                mine[int(line["shard"])] = (line["event"], int(line["term"]))
            for shard, (event, term) in mine.items():
                if event == "leading":
                    newest[shard] = max(newest.get(shard, (0, "")), (term, name))
        return {shard: name for shard, (_, name) in newest.items()}

    def leaderships(self) -> list[tuple[int, int, str]]:
        """Every (shard, term, node) that was ever said, in all lives of all brokers."""
        return [
            (int(line["shard"]), int(line["term"]), name)
            for name, process in self.brokers.items()
            for line in process.events("leading")
        ]

    # --- polls ------------------------------------------------------------------------------------------------

    def wait_whole(self) -> None:
        """Returns once every shard has the replicas that it should have, all of them voting, led and caught up."""
        problem = ["nobody answered"]

        def is_whole() -> bool:
            try:
                problem[0] = self._why_not_whole()
            except HoldfastError as error:
                problem[0] = str(error)
            return not problem[0]

        try:
            wait_until(is_whole, "every shard to be whole", _WHOLE_S_MAX)
        except ProcessError as error:
            raise ProcessError(f"{error} The last thing seen: {problem[0]}.") from None

    def _why_not_whole(self) -> str:
        with Client(self.broker_address, timeout_s=_ASK_S) as client:
            info = client.describe_cluster()
            reports = client.describe_nodes(timeout_s=2)
        replicas = {
            (one.shard, report.name): one
            for report in reports
            if report.node is not None
            for one in report.node.replicas
        }
        if len(info.shards) != self.spec.shards:
            return f"the map has {len(info.shards)} shards"
        for shard in info.shards:
            here = {name: one for (number, name), one in replicas.items() if number == shard.shard}
            voting = [one for one in here.values() if one.role in (ReplicaRole.LEADER, ReplicaRole.FOLLOWER)]
            newest = max((one.commit_index for one in voting), default=0)
            if {voter.partition("/")[0] for voter in shard.voters} != set(shard.replicas) or shard.learners:
                return f"shard {shard.shard} has the voters {shard.voters} and not {shard.replicas}"
            if len(voting) < len(shard.replicas):
                return f"shard {shard.shard} is served by {len(voting)} of {len(shard.replicas)}"
            if sum(one.role is ReplicaRole.LEADER for one in voting) != 1:
                return f"shard {shard.shard} has no leader"
            behind = [one.problem or f"lag {newest - one.applied_index}" for one in voting
                      if one.problem or one.applied_index + _LAG_MAX <= newest]  # fmt: skip
            if behind:
                return f"a replica of shard {shard.shard} is not well: {behind[0]}"
        return ""

    def unsound_states(self) -> tuple[int, list[str]]:
        """Stops all brokers, and compares all rows of a replica of each shard with each other: indexes and records name
        each other, counts are those of what is there. How many were looked at, and what is wrong."""
        for broker in self.brokers.values():
            broker.ask_to_stop()
        for broker in self.brokers.values():
            broker.wait_for_end()
        states: dict[int, list[tuple[str, Path]]] = {}
        for name in self.brokers:
            for path in sorted(self.data_dirs[name].glob("state*/*/s-*")):
                states.setdefault(int(path.parent.name), []).append((name, path))
        problems: list[str] = []
        for shard, mine in states.items():  # their hashes are equal, so one of them is as good as another
            name, path = mine[shard % len(mine)]
            problems += [f"shard {shard} of {name}: {problem}" for problem in check_state(path).problems]
        return len(states), problems

    def hashes(self) -> dict[int, dict[str, tuple[int, str]]]:
        """By shard and node: the index of a probe and the hash of the state there; or how far it is, if not there."""
        with Client(self.broker_address, timeout_s=30) as client:
            return {shard: self._hashes_of(client, shard) for shard in range(self.spec.shards)}

    @staticmethod
    def _hashes_of(client: Client, shard: int) -> dict[str, tuple[int, str]]:
        found: dict[str, tuple[int, str]] = {}
        for _ in range(5):  # a replica that was sent a snapshot meanwhile has passed the place without a look
            answer = client.hash_shard(shard)
            found = {
                one.node: (one.applied_index, f"none: {one.error}")
                if one.state_hash is None
                else (answer.index, one.state_hash)
                for one in answer.replicas
            }
            if answer.complete:
                break
        return found
