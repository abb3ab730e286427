"""What TLS costs: processor time of client and server together, with it and without, in turns."""

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import pytest

from holdfast.client import Client, NewTask
from tests.integration.conftest import MakeServer
from tests.integration.server import ServerProcess
from tests.long import long_only
from tests.tls_files import CertsDirectory

ROUNDS = 60
SINGLE_CALLS, BATCHES, BATCH = 100, 20, 100
SINGLE_MAX, BATCH_MAX = 1.25, 1.2  # times as much, on a machine that has other work as well


def cpu_s(server: ServerProcess) -> float:
    """Of the server and of this process, all threads."""
    threads = Path(f"/proc/{server.pid}/task").iterdir()
    server_ns = sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads)
    return server_ns / 1e9 + time.process_time()


def single_calls(client: Client) -> None:
    for _ in range(SINGLE_CALLS):
        client.enqueue(NewTask("single", "t", bytes(100)))


def batches(client: Client) -> None:
    for _ in range(BATCHES):
        client.enqueue_many([NewTask("batch", "t", b"%d" % number + bytes(100)) for number in range(BATCH)])


@long_only
@pytest.mark.parametrize(("work", "most"), [(single_calls, SINGLE_MAX), (batches, BATCH_MAX)])
def test_tls_costs_little(tmp_path: Path, make_server: MakeServer, work: Callable[[Client], None], most: float) -> None:
    certs = CertsDirectory(tmp_path / "certs")
    plain, secure = make_server().start(), make_server(**certs.settings("n1")).start()
    ratios = []
    with Client(plain.address) as one, Client(secure.address, tls=certs.client("billing")) as two:
        for client in (one, two):
            work(client)  # frames are found, and all is warm
        for number in range(ROUNDS):
            spent = {}
            pairs = [(plain, one), (secure, two)]
            for server, client in pairs if number % 2 else reversed(pairs):
                before_s = cpu_s(server)
                work(client)
                spent[server] = cpu_s(server) - before_s
            ratios.append(spent[secure] / spent[plain])
    for server in (plain, secure):
        assert server.metric("holdfast_frame_calls") > ROUNDS, "most calls go in frames"
    print(f"{work.__name__}: {median(ratios):.3f} times as much with TLS")
    assert median(ratios) < most
