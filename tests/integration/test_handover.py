"""A node is made ready to be stopped: no shard is left without a majority, whoever else wants to stop, wherever it is
asked for. Real etcd, brokers and routers, and the command as a process, as a preStop hook would run it."""

import json
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

from holdfast.client import Client, NewTask
from tests.integration import preloaded
from tests.integration.map_cluster import MapCluster, map_cluster, until
from tests.integration.map_load import load_on, queues_of_all_shards
from tests.integration.server import DEADLINE_S

SHARDS = 4


class Command:
    """`holdfast node handover`, under way."""

    def __init__(self, address: str, node: str, wait: str, out: IO[bytes], err: IO[bytes]) -> None:
        arguments = ["node", "handover", node, "--wait", wait, "--address", address, "--json"]
        self._out, self._err = out, err
        self._process = preloaded.start(arguments, os.environ, Path.cwd(), out, err)

    @property
    def is_waiting(self) -> bool:
        return self._process.poll() is None

    def end(self) -> tuple[int, dict[str, Any], str]:
        """The exit code, what it says, and the problem if there is one."""
        code = self._process.wait(3 * DEADLINE_S)
        for file in (self._out, self._err):
            file.seek(0)
        return code, json.loads(self._out.read()), self._err.read().decode()

    def close(self) -> None:
        """Leaves nothing running, whatever the test did."""
        self._process.kill()
        self._process.wait()


@contextmanager
def handover(address: str, node: str, wait: str = "60s") -> Iterator[Command]:
    with TemporaryFile() as out, TemporaryFile() as err:
        command = Command(address, node, wait, out, err)
        try:
            yield command
        finally:
            command.close()


cluster = map_cluster(size=3, shards=SHARDS)


def led_by(cluster: MapCluster, name: str) -> int:
    return sum(cluster.leader(shard) == name for shard in range(SHARDS))


def state_of(cluster: MapCluster, name: str) -> str:
    return next(node.handover for node in cluster.info().nodes if node.name == name)


def test_it_can_be_asked_for_anywhere_and_taken_back(cluster: MapCluster) -> None:
    """At a router, at another broker, and at the node itself, from inside its pod."""
    for name, address in (
        ("n1", cluster.address),
        ("n2", cluster.nodes["n1"].address),
        ("n3", cluster.nodes["n3"].address),
    ):
        with handover(address, name) as command:
            code, said, err = command.end()
        assert (code, said["may_stop"], said["held_back"], said["leads"]) == (0, True, [], 0), err
        until(lambda name=name: state_of(cluster, name) == "GRANTED", "the map to tell")  # type: ignore[misc]
        assert led_by(cluster, name) == 0
        with Client(cluster.address, timeout_s=DEADLINE_S) as client:
            client.hand_over_node(name, undo=True)
        until(lambda name=name: state_of(cluster, name) == "", "it to be taken back")  # type: ignore[misc]


def _wait_held_back(client: Client, name: str, goes: str) -> None:
    """Until a node is told that all shards keep it because another one goes; it is never let go meanwhile. A shard that
    is being handed over has no leader for a moment, which is another reason."""

    def is_reported() -> bool:
        view = client.hand_over_node(name)
        assert set(view.held_back) == set(range(SHARDS))
        return all(f"{goes} is about to be stopped" in why for why in view.held_back.values())

    until(is_reported, f"{name} to wait for {goes}")


def test_of_all_that_want_to_stop_at_the_same_moment_one_goes_after_the_other(cluster: MapCluster) -> None:
    """Each leads something, and could go alone. The next may only when the last is back and has caught up; callers
    notice nothing. Each is asked for elsewhere: what they agree by is in etcd."""
    cluster.wait_settled()
    with load_on(cluster, queues_of_all_shards("all", SHARDS)) as load, ExitStack() as stack:
        waiting = {name: stack.enter_context(handover(node.address, name)) for name, node in cluster.nodes.items()}
        while waiting:
            until(lambda: any(not command.is_waiting for command in waiting.values()), "one of them to be let go")
            [goes] = [name for name, command in waiting.items() if not command.is_waiting]
            code, said, err = waiting.pop(goes).end()
            assert (code, said["may_stop"], said["leads"]) == (0, True, 0), err
            with Client(cluster.address, timeout_s=DEADLINE_S) as client:
                for name in waiting:
                    _wait_held_back(client, name, goes)
            assert cluster.nodes[goes].stop() == 0
            load.wait_for(10)
            assert all(command.is_waiting for command in waiting.values()), "while it is away"
            cluster.nodes[goes].start()
        cluster.wait_settled()
    load.check(cluster)


def test_it_says_in_time_which_shards_would_lose_their_majority(cluster: MapCluster) -> None:
    """One of three is gone without a word: no other may be stopped. And the node goes on leading what only it can."""
    cluster.wait_settled()
    cluster.nodes["n3"].kill()
    with handover(cluster.nodes["n1"].address, "n1", "3s") as command:
        code, said, err = command.end()
    assert (code, said["may_stop"]) == (7, False)
    assert {reason["shard"] for reason in said["held_back"]} == set(range(SHARDS))
    assert all("n3" in reason["why"] for reason in said["held_back"])
    problem = json.loads(err)
    assert problem["error"]["reason"] == "HELD_BACK"
    assert "shards 0, 1, 2, 3 would lose the majority" in problem["error"]["message"]
    with Client(cluster.address, timeout_s=DEADLINE_S) as client:
        client.enqueue(NewTask("still", "served"))
    cluster.nodes["n2"].kill()
    cluster.nodes["n3"].launch()
    with Client(cluster.address, timeout_s=DEADLINE_S) as client:
        client.enqueue(NewTask("still", "served"))  # n1 and n3 are all there is: it leads although it would rather not
        cluster.nodes["n2"].launch()
        client.hand_over_node("n1", undo=True)
    cluster.wait_settled()


def test_a_single_replica_is_named_and_not_waited_for(tmp_path: Any) -> None:
    with MapCluster(tmp_path, size=1, shards=2, replication=1) as alone:
        alone.start()
        with handover(alone.address, "n1") as command:
            code, said, err = command.end()
        assert (code, said["may_stop"], said["single"]) == (0, True, [0, 1]), err
