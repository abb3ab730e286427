"""A cluster on this machine. What starts and stops its processes is loaded by name, as server commands are; what has
to be asked of them is asked here, through the client."""

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

from holdfast.cli import calls, cluster_calls, health
from holdfast.cli.problems import CommandFailed, ExitCode, Problem
from holdfast.client import ConnectionFailed, DeadlineExceeded, HoldfastError, Rejected

_MODULE = "holdfast.cluster.local.cluster"
_ASK_S_MAX = 3.0


class Server(Protocol):
    """As holdfast.cluster.local.cluster.Server."""

    name: str
    address: str
    ops_port: int | None
    pid: int | None
    log_path: Path
    is_new: bool


class LocalCluster(Protocol):
    """As holdfast.cluster.local.cluster.LocalCluster."""

    directory: Path
    servers: tuple[Server, ...]
    shards: int
    replication: int
    killed: tuple[str, ...]

    @property
    def router(self) -> Server: ...


class Administrator:
    """Asks the servers of a cluster that is being started. What it returns is what is still missing."""

    def initialise(self, addresses: Sequence[str], nodes: int, shards: int, replication: int) -> str:
        try:
            missing = self._missing_nodes(addresses[0], nodes)
            if not missing:
                calls.ask(addresses[0], _ASK_S_MAX, lambda client: client.init_cluster(shards, replication=replication))
            return missing
        except Rejected as error:
            # A former start may have got as far as this before it was stopped.
            return "" if error.reason == "CLUSTER_EXISTS" else self._passing(error)
        except (ConnectionFailed, DeadlineExceeded) as error:
            return str(error)

    def _missing_nodes(self, address: str, nodes: int) -> str:
        """All nodes should get shards from the beginning, not only as many as a shard needs."""
        try:
            info = cluster_calls.describe(address, _ASK_S_MAX)
        except Rejected as error:
            if error.reason == cluster_calls.NO_CLUSTER:
                return ""  # it tells of nodes only once there is a cluster
            raise
        if not info.etcd_answers:
            return "etcd does not answer the nodes yet"
        alive = sum(node.is_alive for node in info.nodes)
        return "" if alive >= nodes else f"{alive} of {nodes} nodes have registered"

    def why_not_healthy(self, address: str, nodes: int) -> str:
        try:
            info = cluster_calls.describe(address, _ASK_S_MAX)
        except Rejected as error:
            return self._passing(error)
        except HoldfastError as error:
            return str(error)
        if not info.etcd_answers:
            return "etcd does not answer the nodes yet"
        alive = sum(node.is_alive for node in info.nodes)
        if alive < nodes:
            return f"{alive} of {nodes} nodes have registered"
        # Not every problem: a node that has lost its data may be rebuilt for long, and work goes on meanwhile.
        bad = [f"shard {view.shard}: {view.problem}" for view in health.views(info) if not view.leader]
        return "; ".join(bad[:3])

    @staticmethod
    def _passing(error: Rejected) -> str:
        if error.retry_after_ms or error.reason in (cluster_calls.NOT_ENOUGH_NODES, cluster_calls.NO_CLUSTER):
            return str(error)
        raise error


def up(
    directory: Path, *, nodes: int | None, shards: int | None, replication: int | None, router_port: int | None,
    timeout_s: float, say: Callable[[str], None],
) -> LocalCluster:  # fmt: skip
    local = _load()
    desired = local.Desired(nodes=nodes, shards=shards, replication=replication, router_port=router_port)
    return cast(
        LocalCluster,
        _reported(local, lambda: local.up(directory, desired, Administrator(), timeout_s=timeout_s, say=say)),
    )


def down(directory: Path, *, node: str | None, purge: bool, say: Callable[[str], None]) -> LocalCluster | None:
    local = _load()
    return cast(LocalCluster | None, _reported(local, lambda: local.down(directory, purge=purge, say=say, node=node)))


def _load() -> Any:
    try:
        return importlib.import_module(_MODULE)
    except ImportError as error:
        if error.name not in (_MODULE, "holdfast.cluster"):
            raise
        message = (
            "`holdfast cluster up` needs the server, which is missing: run  pip install 'holdfast-queue[server,local]'"
        )
        raise CommandFailed(Problem(ExitCode.MISSING_EXTRA, "MISSING_EXTRA", message)) from error


def _reported(local: Any, act: Callable[[], object]) -> object:
    try:
        return act()
    except local.LocalError as error:
        codes = {"NO_ETCD": ExitCode.MISSING_EXTRA, "NODE_NOT_FOUND": ExitCode.NOT_FOUND}
        code = codes.get(error.reason, ExitCode.REFUSED)
        problem = Problem(code, error.reason, str(error), error.hint)
        raise LocalFailed(problem, error.log_lines) from None


class LocalFailed(CommandFailed):
    """With the end of the log that tells why, if there is one."""

    def __init__(self, problem: Problem, log_lines: Sequence[str]) -> None:
        super().__init__(problem)
        self.log_lines = tuple(log_lines)
