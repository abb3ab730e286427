"""What a new user does first: start the server, hand over a task, look at it, make mistakes.

test_docs.py runs README.md and the other pages as they are printed.
"""

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.integration import preloaded
from tests.integration.server import ServerProcess, wait_until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    server = ServerProcess(tmp_path_factory.mktemp("first-use")).start()
    yield server
    server.close()


def holdfast(server: ServerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return preloaded.run(*arguments, "--address", server.address)


def test_the_banner_says_where_things_are_and_how_to_go_on(server: ServerProcess) -> None:
    first_task = f'holdfast enqueue default greet \'{{"name": "world"}}\' --address {server.address}'
    wait_until(lambda: first_task in server.log_text, "the whole banner, which comes after the server serves")
    banner = server.log_text
    assert f"http://127.0.0.1:{server.ops_port}/metrics" in banner
    assert str(server.data_dir) in banner


def test_enqueue_look_and_get(server: ServerProcess) -> None:
    enqueued = holdfast(server, "enqueue", "orders", "ship", '{"order": 17}', "--priority", "7", "--json")
    assert enqueued.returncode == 0, enqueued.stderr
    task_id = json.loads(enqueued.stdout)["task_id"]

    stats = json.loads(holdfast(server, "queue", "stats", "orders", "--json").stdout)["queues"][0]
    assert (stats["queue"], stats["ready"], stats["claimed"], stats["dead"]) == ("orders", 1, 0, 0)

    task = json.loads(holdfast(server, "task", "get", task_id, "--json").stdout)
    assert (task["state"], task["queue"], task["priority"]) == ("READY", "orders", 7)

    for people in (("queue", "stats", "orders"), ("task", "get", task_id)):
        shown = holdfast(server, *people)
        assert shown.returncode == 0
        assert "orders" in shown.stdout


def test_the_same_request_id_adds_nothing(server: ServerProcess) -> None:
    first, second = (
        json.loads(holdfast(server, "enqueue", "once", "t", "--request-id", "order-17", "--json").stdout)
        for _ in range(2)
    )
    assert first["task_id"] == second["task_id"]
    assert (first["duplicate"], second["duplicate"]) == (False, True)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "says"),
    [
        (("task", "get", "018f3a1c-0000-8000-8000-00000000ffff"), 5, "task"),
        (("task", "get", "nonsense"), 1, "task_id"),
        (("queue", "stats", "never-used"), 5, "never-used"),
        (("enqueue", "bad queue", "t"), 1, "queue"),
        (("enqueue", "q", "t", "{not json"), 2, "JSON"),
        (("enqueue", "q", "t", "--run-at", "2099-01-01T00:00:00+00:00"), 1, "run_at_ms"),
    ],
)
def test_a_mistake_gets_one_clear_line(
    server: ServerProcess, arguments: tuple[str, ...], exit_code: int, says: str
) -> None:
    refused = holdfast(server, *arguments)
    assert refused.returncode == exit_code
    assert says in refused.stderr
    assert "Traceback" not in refused.stderr
