"""A real cluster on this machine: etcd, brokers and a router, as processes that outlive whoever started them.

cluster.py    starts, restarts and stops them
servers.py    how each one is started, and how it is asked whether it is well
processes.py  processes, told apart from others that later get the same number
state.py      what is written down about them

Loaded by name by the command line, and only from the standard library, so that it can say what is missing. What has to
be asked of the servers through their API is asked by an `Administrator`: the client is not known here.
"""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from holdfast.cluster.etcd.process import EtcdProcessError, find_etcd
from holdfast.cluster.local import processes as local_processes
from holdfast.cluster.local import servers as local_servers
from holdfast.cluster.local import state as local_state
from holdfast.cluster.local.processes import Identity
from holdfast.cluster.local.servers import HOST
from holdfast.cluster.local.state import ETCD, ROUTER, Member, State, StateFileError

DEFAULT_NODES = 3
DEFAULT_SHARDS = 4
DEFAULT_REPLICATION = 3
DEFAULT_ROUTER_PORT = 7400  # where clients look if they are told nothing
CLUSTER_NAME = "local"
NODES_MAX = 9

_STOP_GRACE_S = 15.0
_POLL_EVERY_S = 0.1
_LOG_LINES_SHOWN = 15
_REMOVED = "was removed"  # in what a broker says if it ends because the cluster has removed it


class LocalError(Exception):
    """The cluster cannot be started or stopped. `reason` is for programs, `hint` says what to do."""

    def __init__(self, reason: str, sentence: str, hint: str = "", log_lines: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.reason = reason
        self.hint = hint
        self.log_lines = tuple(log_lines)  # the end of the log of the process that it is about


class Administrator(Protocol):
    """Asks the servers through their API. Every method is asked again until it says that all is well."""

    def initialise(self, addresses: Sequence[str], nodes: int, shards: int, replication: int) -> str:
        """Makes a cluster of the nodes that are there. What it waits for; empty once that is done."""
        ...

    def why_not_healthy(self, address: str, nodes: int) -> str:
        """What is still missing, e.g. leaders of shards; empty if nothing is."""
        ...


@dataclass(frozen=True, slots=True)
class Desired:
    """What was asked for; None is what the directory's cluster has, and the default for a new one."""

    nodes: int | None = None
    shards: int | None = None
    replication: int | None = None
    router_port: int | None = None  # 0 is any free one; None prefers the port where clients look


@dataclass(frozen=True, slots=True)
class Server:
    """One process of the cluster, for people and programs."""

    name: str
    address: str
    ops_port: int | None  # of its metrics and health over HTTP
    pid: int | None  # None if it does not run
    log_path: Path
    is_new: bool = False  # started by this call


@dataclass(frozen=True, slots=True)
class LocalCluster:
    """The cluster after `up` or `down`."""

    directory: Path
    servers: tuple[Server, ...]
    shards: int
    replication: int
    killed: tuple[str, ...] = ()  # what did not stop by itself

    @property
    def router(self) -> Server:
        return next(server for server in self.servers if server.name == ROUTER)


def up(
    directory: Path, desired: Desired, administrator: Administrator, *, timeout_s: float, say: Callable[[str], None]
) -> LocalCluster:
    """Starts what does not run, and returns when all of it is well. If that fails, what it started is stopped."""
    directory = directory.absolute()
    with _locked(directory, create=True):
        state = _planned(directory, _loaded(directory), desired)
        start = _Start(directory, state, administrator, time.monotonic() + timeout_s, say)
        try:
            start.run()
        except BaseException:
            start.undo()
            raise
        return _report(directory, start.state, new=set(start.started))


def down(directory: Path, *, purge: bool, say: Callable[[str], None], node: str | None = None) -> LocalCluster | None:
    """Stops what `up` started in this directory, or one node of it, and nothing else. None if there is no cluster.
    `purge`: deletes its data too; the others do without that node then, unless it is added again."""
    directory = directory.absolute()
    if not directory.is_dir():
        return None
    with _locked(directory, create=False):
        state = _loaded(directory)
        if state is None:
            return None
        if node is not None:
            return _down_node(directory, state, node, purge=purge, say=say)
        # Who takes work goes first, who is asked by the others last.
        killed: list[str] = []
        for names in ([ROUTER], state.nodes, [ETCD]):
            state, hard = _stop(directory, state, names, say)
            killed += hard
        if purge:
            _purge(directory, state)
        return replace(_report(directory, state), killed=tuple(killed))


def _down_node(directory: Path, state: State, name: str, *, purge: bool, say: Callable[[str], None]) -> LocalCluster:
    if name not in state.nodes:
        sentence = f"The cluster in {directory} has no node {name}."
        raise LocalError("NODE_NOT_FOUND", sentence, f"It has {', '.join(state.nodes)}.")
    state, killed = _stop(directory, state, [name], say)
    if purge:
        without = {other: member for other, member in state.members.items() if other != name}
        _delete(local_servers.entries_of(directory, name))
        state = replace(state, members=without)
        local_state.save(directory, state)
    return replace(_report(directory, state), killed=tuple(killed))


def read_cluster(directory: Path) -> LocalCluster | None:
    """The cluster of a directory as it is. None if there is none."""
    state = _loaded(directory.absolute())
    return None if state is None else _report(directory.absolute(), state)


@contextmanager
def _locked(directory: Path, *, create: bool) -> Iterator[None]:
    """One command at a time works in a directory."""
    try:
        if create:
            directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise LocalError("BAD_DIRECTORY", f"{directory} cannot be used: {error.strerror}.", "Use --dir.") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        sentence = f"Another `holdfast cluster up` or `down` is at work in {directory}."
        raise LocalError("DIRECTORY_BUSY", sentence, "Wait for it, or use another directory with --dir.") from None
    try:
        yield
    finally:
        os.close(handle)


def _loaded(directory: Path) -> State | None:
    try:
        return local_state.load(directory)
    except StateFileError as error:
        hint = "Without it nobody knows what belongs to the cluster: use another directory with --dir."
        raise LocalError("BAD_STATE", str(error), hint) from None


def _planned(directory: Path, state: State | None, desired: Desired) -> State:
    """The cluster as it should be: the one that is there, with nodes added, or a new one."""
    if state is None:
        if any(directory.iterdir()):
            sentence = f"{directory} has files in it, but no cluster."
            raise LocalError("BAD_DIRECTORY", sentence, "Give a new or empty directory with --dir.")
        state = _new_state(desired)
    for what, has, wanted in (
        ("shards", state.shards, desired.shards),
        ("replicas of each", state.replication, desired.replication),
    ):
        if wanted is not None and wanted != has:
            sentence = f"The cluster in {directory} has {has} {what}, not {wanted}; that was fixed when it was made."
            hint = "Leave that option out, or make another cluster with --dir."
            raise LocalError("CLUSTER_DIFFERS", sentence, hint)
    nodes = desired.nodes or (len(state.nodes) or DEFAULT_NODES)
    if nodes < state.replication and not state.nodes:
        sentence = f"{state.replication} replicas of each shard need as many nodes, but there would be {nodes}."
        raise LocalError("NOT_ENOUGH_NODES", sentence, "Give more with --nodes, or fewer with --replication.")
    if nodes < len(state.nodes):
        sentence = f"The cluster in {directory} has {len(state.nodes)} nodes: starting it with {nodes} would lose some."
        hint = "Leave --nodes out; a node goes with `holdfast node drain`, `node remove` and `cluster down --node`."
        raise LocalError("CLUSTER_DIFFERS", sentence, hint)
    return _with_members(state, nodes, desired.router_port)


def _new_state(desired: Desired) -> State:
    nodes = desired.nodes or DEFAULT_NODES
    replication = desired.replication or min(DEFAULT_REPLICATION, nodes)
    return State(CLUSTER_NAME, desired.shards or DEFAULT_SHARDS, replication)


def _with_members(state: State, nodes: int, router_port: int | None) -> State:
    """Ports stay as they are once they are given: whoever knows an address keeps it."""
    taken = {port for member in state.members.values() for port in member.ports.values()}
    names = [ETCD, *state.nodes]
    number = 1
    while len(names) - 1 < nodes:
        if f"n{number}" not in names:
            names.append(f"n{number}")
        number += 1
    is_new = ROUTER not in state.members
    for name in (*names, ROUTER):
        if name not in state.members:
            ports = {purpose: local_processes.free_port(HOST, taken) for purpose in local_servers.ports_of(name)}
            state = state.with_member(Member(name, ports))
    if router_port is None and is_new and local_processes.port_is_free(HOST, DEFAULT_ROUTER_PORT):
        router_port = DEFAULT_ROUTER_PORT
    return _with_router_port(state, router_port)


def _with_router_port(state: State, wanted: int | None) -> State:
    router = state.members[ROUTER]
    current = router.ports["port"]
    if wanted in (None, 0, current):
        return state
    if _runs(router):
        sentence = f"The router runs already, at port {current}, not {wanted}."
        raise LocalError("CLUSTER_DIFFERS", sentence, "Stop it first: holdfast cluster down.")
    if not local_processes.port_is_free(HOST, wanted):
        raise _port_taken(ROUTER, wanted)
    return state.with_member(replace(router, ports={**router.ports, "port": wanted}))


def _port_taken(name: str, port: int) -> LocalError:
    sentence = f"Port {port}, where {name} is to listen, is taken by another process."
    hint = "Stop that one, or give another port with --router-port." if name == ROUTER else "Stop that one."
    return LocalError("PORT_TAKEN", sentence, hint)


def _runs(member: Member) -> bool:
    return member.identity is not None and local_processes.is_running(member.identity)


class _Start:
    """One run of `up`: knows what it started, so that it can take exactly that back."""

    def __init__(
        self, directory: Path, state: State, administrator: Administrator, ends_s: float, say: Callable[[str], None]
    ) -> None:
        self.state = state
        self.started: list[str] = []
        self._directory = directory
        self._administrator = administrator
        self._ends_s = ends_s
        self._say = say
        self._left_out: set[str] = set()  # nodes that the cluster has removed
        self._log_sizes: dict[str, int] = {}  # before the start: what is beyond that is from this one

    def run(self) -> None:
        for member in self.state.members.values():
            if not _runs(member):  # it has died since it was last started, and is now started anew
                self.state = self.state.with_identity(member.name, None)
        etcd_binary = "" if _runs(self.state.members[ETCD]) else _find_etcd()
        local_servers.make_directories(self._directory)
        local_state.save(self._directory, self.state)
        self._start(ETCD, etcd_binary)
        self._until_alive(ETCD)
        for name in self.state.nodes:
            self._start(name)
        for name in self.state.nodes:
            self._until_alive(name)
        self._initialise()
        self._start(ROUTER)
        for name in (*self.state.nodes, ROUTER):
            self._until(partial(local_servers.why_not_ready, self.state.members[name]), f"{name} to be ready", name)
        router = local_servers.address_of(self.state.members[ROUTER])

        def why_not_healthy() -> str:
            return self._administrator.why_not_healthy(router, len(self.state.nodes) - len(self._left_out))

        self._until(why_not_healthy, "all shards to have leaders", ROUTER)

    def undo(self) -> None:
        """Best effort, and quiet: the reason is told by whoever failed."""
        self.state, _ = _stop(self._directory, self.state, list(reversed(self.started)), lambda _: None)

    def _start(self, name: str, etcd_binary: str = "") -> None:
        member = self.state.members[name]
        if _runs(member):
            return
        self.state = self.state.with_member(self._with_free_ports(member))
        local_servers.write_config(self._directory, self.state, name)
        arguments = local_servers.arguments_of(self._directory, self.state, name, etcd_binary)
        log_path = local_servers.log_path(self._directory, name)
        environment = local_servers.environment_of(os.environ)
        self._log_sizes[name] = log_path.stat().st_size if log_path.exists() else 0
        identity = local_processes.start(arguments, log_path, self._directory, environment)
        self.started.append(name)
        # At once: if this process is killed now, `cluster down` still knows of that one.
        self.state = self.state.with_identity(name, identity)
        local_state.save(self._directory, self.state)
        self._say(f"{name} started (process {identity.pid}).")

    def _with_free_ports(self, member: Member) -> Member:
        """Somebody may have taken a port since it was chosen. Of a new server another one takes its place, but not of
        the one at which clients look for the router."""
        taken = {port for member in self.state.members.values() for port in member.ports.values()}
        is_new = not local_servers.data_path(self._directory, member.name).exists()
        ports = dict(member.ports)
        for purpose, port in member.ports.items():
            if local_processes.port_becomes_free(HOST, port):
                continue
            if not is_new or (member.name, purpose) == (ROUTER, "port"):
                raise _port_taken(member.name, port)
            ports[purpose] = local_processes.free_port(HOST, taken)
        return replace(member, ports=ports)

    def _until_alive(self, name: str) -> None:
        member = self.state.members[name]
        self._until(lambda: "" if local_servers.is_alive(member) else "it does not answer", f"{name} to answer", name)

    def _initialise(self) -> None:
        if self.state.is_initialised:
            return
        state, addresses = self.state, [local_servers.address_of(self.state.members[name]) for name in self.state.nodes]
        self._until(
            lambda: self._administrator.initialise(addresses, len(addresses), state.shards, state.replication),
            "the nodes to make a cluster",
            state.nodes[0],
        )
        self.state = replace(self.state, is_initialised=True)
        local_state.save(self._directory, self.state)
        self._say(f"The cluster is made: {state.shards} shards, {state.replication} replicas of each.")

    def _until(self, problem: Callable[[], str], what: str, about: str) -> None:
        """Waits for something, as long as all processes live and there is time. Of a node that is left out nothing is
        waited for."""
        while about not in self._left_out and (found := problem()):
            self._check_ended()
            if time.monotonic() >= self._ends_s:
                raise self._failed("NOT_HEALTHY", f"Waited in vain for {what}: {found}.", about)
            time.sleep(_POLL_EVERY_S)

    def _check_ended(self) -> None:
        for name, member in self.state.members.items():
            if member.identity is None or local_processes.is_running(member.identity):
                continue
            if not self._was_removed(name):
                raise self._failed("SERVER_ENDED", f"{name} has ended by itself.", name)
            self._left_out.add(name)
            self.state = self.state.with_identity(name, None)
            local_state.save(self._directory, self.state)
            command = f"holdfast cluster down --node {name} --purge --dir {self._directory}"
            self._say(f"{name} was removed from the cluster, and is left out. `{command}` deletes what it has here.")

    def _was_removed(self, name: str) -> bool:
        """Whether a node has ended because it is no longer one of the cluster: it says so at the end of its log."""
        if name not in self.state.nodes or name not in self._log_sizes:
            return False
        lines = local_processes.tail(
            local_servers.log_path(self._directory, name), _LOG_LINES_SHOWN, self._log_sizes[name]
        )
        return any(_REMOVED in line for line in lines)

    def _failed(self, reason: str, sentence: str, name: str) -> LocalError:
        path = local_servers.log_path(self._directory, name)
        hint = f"What was started is stopped again. The whole log is {path}."
        return LocalError(reason, sentence, hint, local_processes.tail(path, _LOG_LINES_SHOWN))


def _find_etcd() -> str:
    try:
        return str(find_etcd())
    except EtcdProcessError as error:
        raise LocalError("NO_ETCD", str(error), "Nothing was started.") from None


def _stop(directory: Path, state: State, names: Sequence[str], say: Callable[[str], None]) -> tuple[State, list[str]]:
    """Stops these at the same time; who had to be killed."""
    members = [state.members[name] for name in names if name in state.members]
    running: dict[Identity, str] = {
        member.identity: member.name for member in members if member.identity is not None and _runs(member)
    }
    killed = [running[identity] for identity in local_processes.stop(list(running), _STOP_GRACE_S)]
    for name in running.values():
        say(f"{name} is stopped{' (it had to be killed)' if name in killed else ''}.")
    for member in members:
        state = state.with_identity(member.name, None)
    local_state.save(directory, state)
    return state, killed


def _purge(directory: Path, state: State) -> None:
    """Removes what belongs to the cluster, and the directory if nothing else is in it."""
    _delete([path for name in state.members for path in local_servers.entries_of(directory, name)])
    _delete([directory / "logs", local_servers.secret_path(directory)])
    (directory / local_state.FILE_NAME).unlink()
    if not any(directory.iterdir()):
        directory.rmdir()


def _delete(paths: Sequence[Path]) -> None:
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _report(directory: Path, state: State, new: set[str] | None = None) -> LocalCluster:
    servers = [
        Server(
            name=member.name,
            address=local_servers.address_of(member),
            ops_port=member.ports.get("ops_port"),
            pid=member.identity.pid if member.identity is not None and _runs(member) else None,
            log_path=local_servers.log_path(directory, member.name),
            is_new=member.name in (new or ()),
        )
        for member in state.members.values()
    ]
    return LocalCluster(directory, tuple(servers), state.shards, state.replication)
