"""The command lines and environments of what a system consists of."""

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from chaos.system.hosts import Host
from chaos.system.owners import VARIABLE, owner
from chaos.system.process import Process
from holdfast.broker.config import BrokerConfig
from holdfast.cluster.etcd.process import find_etcd
from holdfast.router.config import RouterConfig

CLUSTER = "chaos"
MIB = 1024 * 1024
HARNESS_DIR = Path(__file__).parents[2]  # on the path of workers, whose app is in it
BUGS_DIR = HARNESS_DIR / "bugs"
APP = "chaos.workloads.app:app"

# Early flushes and small files, so that the log is cut within seconds: faults hit that too, and a replica that lost its
# disk is rebuilt from a snapshot. Nothing is forgotten during a run.
BROKER_SETTINGS: dict[str, object] = {
    "segment_bytes": MIB,
    "batch_bytes_max": MIB // 2,
    "payload_bytes_max": MIB // 4,
    "result_bytes_max": MIB // 4,
    "state_flush_log_bytes": MIB // 4,
    "log_keep_bytes": MIB // 4,
    "state_flush_age_seconds": 2,
    "state_write_buffer_bytes": 8 * MIB,
    "state_block_cache_bytes": 16 * MIB,
    "free_bytes_min": 4 * MIB,
    "finished_retention_ms": 24 * 3600 * 1000,
    "shutdown_grace_seconds": 2,
}
# Few, so that workers without work would use them up if they counted. `idlers` has more than so many.
ROUTER_SETTINGS: dict[str, object] = {"calls_max": 200, "calls_per_shard_max": 200}
# Between brokers off loopback. It protects nothing here, and is the same in every run.
_SECRET = "chaos-chaos-chaos-chaos-chaos-32"
_SECRET_FIELDS = ("cluster_secret", "peer_secret")


def etcd(host: Host, ports: tuple[int, int], members: Mapping[str, str], home: Path, data_dir: Path) -> Process:
    """`ports`: for clients, for peers. `members`: the peer addresses of all by name."""
    client, peer = (f"http://{host.at(port)}" for port in ports)
    command = [
        str(find_etcd()), f"--name={host.name}", f"--data-dir={data_dir}", f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
        "--initial-cluster=" + ",".join(f"{name}=http://{address}" for name, address in members.items()),
        "--logger=zap", "--log-level=warn",
    ]  # fmt: skip
    return Process(host.name, host, command, home / "server.log", _environment({}, prefix="ETCD_"))


def broker(
    host: Host, ports: tuple[int, int, int], etcd_endpoints: str, home: Path, data_dir: Path, env: Mapping[str, str],
    settings: Mapping[str, object],
) -> Process:  # fmt: skip
    """`ports`: for clients, for peers, for operators."""
    wanted = {
        **BROKER_SETTINGS, **settings, "node_name": host.name, "cluster_name": CLUSTER,
        "etcd_endpoints": etcd_endpoints, "host": host.address, "port": ports[0], "peer_port": ports[1],
        "ops_port": ports[2], "data_dir": data_dir, "log_format": "json", "insecure": "on",
        **{name: _SECRET for name in _SECRET_FIELDS if name in BrokerConfig.model_fields},
    }  # fmt: skip
    return Process(host.name, host, _holdfast("broker"), home / "server.log", _environment(wanted) | dict(env))


def router(host: Host, ports: tuple[int, int], etcd_endpoints: str, home: Path, env: Mapping[str, str]) -> Process:
    """`ports`: for clients, for operators."""
    wanted = {
        **ROUTER_SETTINGS, "cluster_name": CLUSTER, "etcd_endpoints": etcd_endpoints, "host": host.address,
        "port": ports[0], "ops_port": ports[1], "log_format": "json", "insecure": "on",
        **{name: _SECRET for name in _SECRET_FIELDS if name in RouterConfig.model_fields},
    }  # fmt: skip
    return Process(host.name, host, _holdfast("router"), home / "server.log", _environment(wanted) | dict(env))


def worker(host: Host, address: str, queues: Sequence[str], home: Path, env: Mapping[str, str]) -> Process:
    """A worker of the library. What its app needs to know is in `env`."""
    wanted = [argument for queue in queues for argument in ("--queue", queue)]
    command = _holdfast(
        "worker", APP, "--name", host.name, "--address", address, "--concurrency", "8", "--grace", "5s", *wanted
    )
    return Process(host.name, host, command, home / "worker.log", _environment({}) | dict(env))


def python_path(first: Path, others: str | None = None) -> str:
    """Where Python looks: there first, then where this process does or these others say."""
    return ":".join(filter(None, [str(first), os.environ.get("PYTHONPATH", "") if others is None else others]))


def _holdfast(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "holdfast.cli", *arguments]


def _environment(settings: Mapping[str, object], *, prefix: str = "HOLDFAST_") -> dict[str, str]:
    """This process's own without settings of other servers, and these."""
    found = {name: value for name, value in os.environ.items() if not name.startswith(prefix)}
    found[VARIABLE] = owner()
    return found | {f"HOLDFAST_{name.upper()}": str(value) for name, value in settings.items()}
