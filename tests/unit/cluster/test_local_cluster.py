"""`holdfast cluster up` and `down` without real servers: processes, what is written down, and what is stopped again."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast.cluster.etcd.process import EtcdProcessError
from holdfast.cluster.local import cluster as local
from holdfast.cluster.local import processes as local_processes
from holdfast.cluster.local import servers as local_servers
from holdfast.cluster.local import state as local_state
from holdfast.cluster.local.cluster import Desired, LocalCluster, LocalError
from holdfast.cluster.local.processes import Identity
from holdfast.cluster.local.state import Member, State, StateFileError

# A server that answers every request with 200; told so, it ends at once or when it is asked whether it is ready, is
# never ready, or ready and for ever without the others.
FAKE = """
import http.server, os, sys, threading
ports, how = [int(port) for port in sys.argv[1].split(",")], sys.argv[2]
print("fake server starts", flush=True)
if how == "ends":
    sys.exit("it has no disk")
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if how == "removed" and self.path == "/readyz":
            print("Expected it to be a node of the cluster, but it was removed", flush=True)
            os._exit(1)
        lacks = how in ("unready", "lonely") and self.path == "/readyz"
        self.send_response(503 if lacks and how == "unready" else 200)
        self.end_headers()
        self.wfile.write(b"serving, but it waits for godot" if lacks else b"ok")
    def log_message(self, *given): pass
servers = [http.server.HTTPServer(("127.0.0.1", port), Answer) for port in ports]
for server in servers[1:]:
    threading.Thread(target=server.serve_forever, daemon=True).start()
servers[0].serve_forever()
"""


class Administrator:
    """Says that all is well, and remembers what it was asked."""

    def __init__(self) -> None:
        self.made: list[tuple[int, int, int]] = []
        self.why_not_healthy: Callable[[str, int], str] = lambda address, nodes: ""

    def initialise(self, addresses: Sequence[str], nodes: int, shards: int, replication: int) -> str:
        assert len(addresses) == nodes
        self.made.append((nodes, shards, replication))
        return ""


class Stage:
    """A directory with fake servers."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.directory = directory
        self.administrator = Administrator()
        self.said: list[str] = []
        self.how: dict[str, str] = {}
        self._now_s = 0.0
        monkeypatch.setattr(local, "time", SimpleNamespace(monotonic=lambda: self._now_s, sleep=time.sleep))
        monkeypatch.setattr(local, "find_etcd", lambda: Path("etcd"))
        monkeypatch.setattr(local_servers, "arguments_of", self._arguments)

    def _arguments(self, directory: Path, state: State, name: str, etcd_binary: str) -> list[str]:
        ports = ",".join(map(str, state.members[name].ports.values()))
        return [sys.executable, "-S", "-c", FAKE, ports, self.how.get(name, "well")]

    def up(self, **given: int) -> LocalCluster:
        desired = Desired(**{"router_port": 0, **given})
        return local.up(self.directory, desired, self.administrator, timeout_s=60.0, say=self.said.append)

    def out_of_time(self, problem: str) -> str:
        """A problem that has lasted for the whole time limit."""
        self._now_s += 61.0
        return problem

    def down(self, *, purge: bool = False, node: str | None = None) -> LocalCluster | None:
        return local.down(self.directory, purge=purge, say=self.said.append, node=node)


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    stage = Stage(tmp_path / "cluster", monkeypatch)
    try:
        yield stage
    finally:
        if (stage.directory / local_state.FILE_NAME).exists():
            stage.down()


def pids(report: LocalCluster) -> dict[str, int | None]:
    return {server.name: server.pid for server in report.servers}


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    assert local_processes.wait_for(lambda: local_processes.identify(pid) is None, 10)


def listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


# -------------------------------------------------------------------------------------------------------- processes


def test_a_process_is_known_by_its_number_and_its_start() -> None:
    ours = local_processes.identify(os.getpid())
    assert ours is not None
    assert local_processes.is_running(ours)
    assert not local_processes.is_running(Identity(ours.pid, "another boot:1"))
    assert local_processes.identify(0) is None


@pytest.mark.parametrize(
    ("stat", "started"),
    [
        ("7 (python) S " + " ".join(map(str, range(4, 30))), "boot:22"),
        ("7 (a) b) (c) R " + " ".join(map(str, range(4, 30))), "boot:22"),
        ("7 (python) Z " + " ".join(map(str, range(4, 30))), None),
        ("7 (python) S 4 5", None),
        ("", None),
    ],
)
def test_the_start_of_a_process_in_what_the_kernel_says(stat: str, started: str | None) -> None:
    assert local_processes.parse_stat(stat, "boot") == started


def sleeper(tmp_path: Path, code: str = "import time; time.sleep(60)") -> Identity:
    return local_processes.start([sys.executable, "-S", "-c", code], tmp_path / "log", tmp_path, os.environ)


def test_a_process_that_has_got_the_number_since_is_left_alone(tmp_path: Path) -> None:
    other = sleeper(tmp_path)
    recorded = Identity(other.pid, "a process that has ended")
    assert not local_processes.send(recorded, signal.SIGKILL)
    assert local_processes.stop([recorded], 0.1) == []
    assert local_processes.is_running(other)
    assert local_processes.stop([other], 10) == []
    assert not local_processes.is_running(other)
    assert local_processes.identify(other.pid) is None, "nothing is left of it"


def test_who_does_not_stop_is_killed(tmp_path: Path) -> None:
    deaf = sleeper(
        tmp_path, "import signal,time; signal.signal(15, signal.SIG_IGN); print(1,flush=True); time.sleep(60)"
    )
    assert local_processes.wait_for(lambda: (tmp_path / "log").read_text() == "1\n", 10)
    assert local_processes.stop([deaf], 0.2) == [deaf]
    assert not local_processes.is_running(deaf)


def test_a_process_has_a_session_of_its_own(tmp_path: Path) -> None:
    child = sleeper(tmp_path)
    try:
        assert os.getsid(child.pid) == child.pid != os.getsid(0)
    finally:
        local_processes.stop([child], 10)


def test_the_end_of_a_log(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"line {n}\n" for n in range(10_000)))
    assert local_processes.tail(tmp_path / "log", 2) == ["line 9998", "line 9999"]
    assert local_processes.tail(tmp_path / "none", 2) == []


def test_a_free_port_is_not_promised_twice() -> None:
    taken: set[int] = set()
    ports = [local_processes.free_port("127.0.0.1", taken) for _ in range(20)]
    assert len(set(ports)) == 20
    assert taken == set(ports)
    with socket.create_server(("127.0.0.1", ports[0])):
        assert not local_processes.port_is_free("127.0.0.1", ports[0])
    assert local_processes.port_is_free("127.0.0.1", ports[0])


# ------------------------------------------------------------------------------------------------- what is written


def test_the_state_is_read_as_it_was_written(tmp_path: Path) -> None:
    state = State("local", 4, 3, is_initialised=True)
    state = state.with_member(Member("etcd", {"client_port": 1, "peer_port": 2}, Identity(7, "boot:9")))
    state = state.with_member(Member("n1", {"port": 3}))
    assert local_state.load(tmp_path) is None
    local_state.save(tmp_path, state)
    assert local_state.load(tmp_path) == state
    assert list(state.nodes) == ["n1"]
    local_state.save(tmp_path, state.with_identity("etcd", None))
    loaded = local_state.load(tmp_path)
    assert loaded is not None
    assert loaded.members["etcd"].identity is None
    assert [path.name for path in tmp_path.iterdir()] == [local_state.FILE_NAME]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("[]", "not written by this version"),
        ('{"format": 2}', "not written by this version"),
        ('{"format": 1, "members": []}', "damaged: KeyError"),
        ('{"format": 1, "members": [{"name": "n1", "identity": 7, "ports": {}}]}', "damaged: TypeError"),
    ],
)
def test_a_state_that_is_none_is_told(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / local_state.FILE_NAME).write_text(text)
    with pytest.raises(StateFileError, match=says):
        local_state.load(tmp_path)
    with pytest.raises(LocalError, match=says) as refused:
        local.down(tmp_path, purge=True, say=print)
    assert refused.value.reason == "BAD_STATE"
    assert (tmp_path / local_state.FILE_NAME).exists(), "nothing is deleted that is not understood"


def test_what_each_server_is_told(tmp_path: Path) -> None:
    state = State("local", 4, 3).with_member(Member("etcd", {"client_port": 21, "peer_port": 22}))
    for number in range(1, 5):
        state = state.with_member(Member(f"n{number}", {"port": number, "peer_port": 12, "ops_port": 13}))
    state = state.with_member(Member("router", {"port": 31, "ops_port": 32}))
    of_node = local_servers.settings_of(tmp_path, state, "n4")
    assert of_node == {
        "host": "127.0.0.1", "port": 4, "peer_port": 12, "ops_port": 13, "cluster_name": "local",
        "etcd_endpoints": "127.0.0.1:21", "log_format": "json", "node_name": "n4", "zone": "z1",
        "data_dir": str(tmp_path / "n4"), "cluster_secret_file": str(tmp_path / "cluster.secret"),
    }  # fmt: skip
    of_router = local_servers.settings_of(tmp_path, state, "router")
    assert not {"data_dir", "cluster_secret_file"} & of_router.keys()
    assert 'node_name = "n4"\n' in local_servers.toml_text(of_node)
    assert "port = 4\n" in local_servers.toml_text(of_node)
    of_etcd = local_servers.arguments_of(tmp_path, state, "etcd", "/bin/etcd")
    assert "--listen-client-urls=http://127.0.0.1:21" in of_etcd
    assert of_etcd[0] == "/bin/etcd"
    router = local_servers.arguments_of(tmp_path, state, "router", "")
    assert router[-3:] == ["router", "--config", str(tmp_path / "router.toml")]
    environment = local_servers.environment_of({"PATH": "x", "HOLDFAST_PORT": "1", "ETCD_NAME": "e"})
    assert environment == {"PATH": "x"}


def test_a_cluster_has_one_secret_that_only_its_user_can_read(tmp_path: Path) -> None:
    local_servers.make_directories(tmp_path)
    path = local_servers.secret_path(tmp_path)
    secret = path.read_text()
    assert len(bytes.fromhex(secret.strip())) == 32
    assert path.stat().st_mode & 0o777 == 0o600
    local_servers.make_directories(tmp_path)
    assert path.read_text() == secret


# ------------------------------------------------------------------------------------------------------ up and down


def test_up_starts_all_and_down_stops_exactly_that(stage: Stage) -> None:
    report = stage.up()
    assert [server.name for server in report.servers] == ["etcd", "n1", "n2", "n3", "router"]
    assert all(server.is_new and server.pid for server in report.servers)
    assert stage.administrator.made == [(3, 4, 3)]
    assert listens(report.router.address)
    assert json.loads((stage.directory / "cluster.json").read_text())["is_initialised"] is True

    again = stage.up()
    assert pids(again) == pids(report)
    assert not any(server.is_new for server in again.servers)
    assert len(stage.administrator.made) == 1

    stopped = stage.down()
    assert stopped is not None
    assert set(pids(stopped).values()) == {None}
    assert stopped.killed == ()
    assert not any(local_processes.identify(pid) for pid in pids(report).values() if pid)
    assert stage.said[-5:] == [f"{name} is stopped." for name in ("router", "n1", "n2", "n3", "etcd")]
    assert stage.down() is not None, "doing it twice does no harm"

    (stage.directory / "mine.txt").write_text("mine")
    stage.down(purge=True)
    assert [path.name for path in stage.directory.iterdir()] == ["mine.txt"]
    assert stage.down(purge=True) is None


def test_up_starts_again_what_has_died_and_adds_nodes(stage: Stage) -> None:
    before = stage.up()
    died = pids(before)["n2"]
    assert died is not None
    kill(died)
    after = stage.up(nodes=4)
    assert {server.name for server in after.servers if server.is_new} == {"n2", "n4"}
    assert pids(after)["n2"] != died
    addresses = {server.name: server.address for server in before.servers}
    assert {name: server.address for server in after.servers if (name := server.name) in addresses} == addresses
    assert stage.administrator.made == [(3, 4, 3)], "a cluster is made once"
    with pytest.raises(LocalError, match="has 4 nodes"):
        stage.up(nodes=3)
    with pytest.raises(LocalError, match="has 4 shards, not 8"):
        stage.up(shards=8)
    assert pids(stage.up()) == pids(after), "a refusal stops nothing"
    stage.down(purge=True)
    assert not stage.directory.exists()


def test_a_port_that_somebody_holds_for_a_moment_is_kept(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    before = {server.name: server for server in stage.up().servers}
    died = before["n2"].pid
    assert died is not None
    kill(died)
    is_free, held = local_processes.port_is_free, {int(before["n2"].address.rpartition(":")[2])}

    def read_cluster(host: str, port: int) -> bool:
        if port in held:
            held.remove(port)
            return False
        return is_free(host, port)

    monkeypatch.setattr(local_processes, "port_is_free", read_cluster)
    after = {server.name: server.address for server in stage.up().servers}
    assert not held
    assert after["n2"] == before["n2"].address
    stage.down(purge=True)


def test_one_node_can_be_stopped_or_taken_out(stage: Stage) -> None:
    before = pids(stage.up())
    (stage.directory / "n2").mkdir()
    stopped = stage.down(node="n2")
    assert stopped is not None
    assert pids(stopped) == {**before, "n2": None}
    assert {server.name for server in stage.up().servers if server.is_new} == {"n2"}
    assert (stage.directory / "n2").exists()
    stage.down(node="n2", purge=True)
    assert not list(stage.directory.rglob("n2*"))
    after = stage.up()
    assert pids(after) == {name: pid for name, pid in before.items() if name != "n2"}
    with pytest.raises(LocalError, match="has no node n2") as refused:
        stage.down(node="n2")
    assert refused.value.reason == "NODE_NOT_FOUND"
    assert stage.down(purge=True) is not None
    assert not stage.directory.exists()


def test_if_a_server_ends_all_that_was_started_is_stopped(stage: Stage) -> None:
    stage.how["n2"] = "ends"
    with pytest.raises(LocalError, match="n2 has ended") as failed:
        stage.up()
    assert failed.value.reason == "SERVER_ENDED"
    assert failed.value.log_lines[-1] == "it has no disk"
    report = local.read_cluster(stage.directory)
    assert report is not None
    assert set(pids(report).values()) == {None}  # their ports say nothing: others may have taken them since
    stage.how.clear()
    assert all(stage.up().servers), "the same directory can be used again"


def test_a_node_that_was_removed_is_left_out_and_the_others_go_on(stage: Stage) -> None:
    before = pids(stage.up())
    stage.down(node="n1")
    router = before["router"]
    assert router is not None
    kill(router)
    stage.how["n1"] = "removed"
    expected: list[int] = []

    def why_not_healthy(address: str, nodes: int) -> str:
        expected.append(nodes)
        return ""

    stage.administrator.why_not_healthy = why_not_healthy
    after = stage.up()
    assert pids(after) == {**before, "n1": None, "router": after.router.pid}
    assert after.router.pid not in (None, router)
    assert expected == [2], "it is not waited for"
    [sentence] = [line for line in stage.said if "left out" in line]
    assert f"`holdfast cluster down --node n1 --purge --dir {stage.directory}`" in sentence
    stage.how["n1"] = "ends"
    with pytest.raises(LocalError, match="n1 has ended"):  # what its log said at a former start is not why
        stage.up()


def test_purge_deletes_what_was_set_aside_of_its_nodes(stage: Stage) -> None:
    stage.up()
    for name in ("n2.damaged-20300102", "n3.damaged-20300102", "n22.damaged-20300102"):
        (stage.directory / name).mkdir()
        (stage.directory / name / "log").write_text("old")
    stage.down(node="n2", purge=True)
    left = {path.name for path in stage.directory.glob("*.damaged-*")}
    assert left == {"n3.damaged-20300102", "n22.damaged-20300102"}
    stage.down(purge=True)
    assert [path.name for path in stage.directory.iterdir()] == ["n22.damaged-20300102"], "it has no node n22"


@pytest.mark.parametrize("how", ["unready", "lonely"])
def test_what_ran_before_stays_when_a_later_start_fails(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    before = stage.up()
    stage.how["n4"] = how
    ask = local_servers.why_not_ready

    def why_not_ready(member: Member) -> str:
        problem = ask(member)
        return stage.out_of_time(problem) if "godot" in problem else problem

    monkeypatch.setattr(local_servers, "why_not_ready", why_not_ready)
    with pytest.raises(LocalError, match="n4 to be ready: serving, but it waits for godot") as failed:
        stage.up(nodes=4)
    assert failed.value.reason == "NOT_HEALTHY"
    report = local.read_cluster(stage.directory)
    assert report is not None
    assert pids(report) == {**pids(before), "n4": None}


def test_shards_without_leaders_are_waited_for(stage: Stage) -> None:
    problems = iter(["shard 3: no leader", ""])
    stage.administrator.why_not_healthy = lambda address, nodes: next(problems)
    stage.up()
    assert list(problems) == []
    stage.administrator.why_not_healthy = lambda address, nodes: stage.out_of_time("shard 3: no leader")
    with pytest.raises(LocalError, match="Waited in vain for all shards to have leaders: shard 3: no leader"):
        stage.up()


def test_ctrl_c_stops_what_was_started(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(stage.administrator, "initialise", interrupted)
    with pytest.raises(KeyboardInterrupt):
        stage.up()
    report = local.read_cluster(stage.directory)
    assert report is not None
    assert set(pids(report).values()) == {None}


def test_without_etcd_nothing_is_started(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise EtcdProcessError("Expected the program etcd, but it is nowhere.")

    monkeypatch.setattr(local, "find_etcd", missing)
    with pytest.raises(LocalError, match="Expected the program etcd") as refused:
        stage.up()
    assert refused.value.reason == "NO_ETCD"
    assert stage.said == []


def test_a_directory_of_somebody_else_is_refused(stage: Stage) -> None:
    stage.directory.mkdir()
    (stage.directory / "thesis.txt").write_text("years of work")
    with pytest.raises(LocalError, match="has files in it, but no cluster"):
        stage.up()
    assert stage.down(purge=True) is None
    assert (stage.directory / "thesis.txt").exists()


def test_one_command_at_a_time(stage: Stage) -> None:
    stage.directory.mkdir()
    handle = os.open(stage.directory, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(LocalError, match="at work in"):
            stage.up()
    finally:
        os.close(handle)


@pytest.mark.parametrize(
    ("desired", "reason"), [({"nodes": 2, "replication": 3}, "NOT_ENOUGH_NODES"), ({"router_port": -1}, "PORT_TAKEN")]
)
def test_what_cannot_be_is_refused_before_anything_starts(stage: Stage, desired: dict[str, int], reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        given = {name: other.getsockname()[1] if value == -1 else value for name, value in desired.items()}
        with pytest.raises(LocalError) as refused:
            stage.up(**given)
    assert refused.value.reason == reason
    assert stage.said == []


def test_few_nodes_have_as_many_replicas(stage: Stage) -> None:
    assert stage.up(nodes=1, shards=1).replication == 1


def test_it_needs_the_standard_library_only() -> None:
    """So that the command line can load it where the server's libraries are missing, and say what is."""
    missing = ["grpc", "google.protobuf", "pydantic", "structlog"]
    code = f"import sys; sys.modules.update(dict.fromkeys({missing})); import holdfast.cluster.local.cluster"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
