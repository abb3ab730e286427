"""Posts to other systems: told as well as it goes, and never in anybody's way."""

import contextlib
import functools
import json
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from holdfast.broker.leader import webhooks as webhooks_module
from holdfast.broker.leader.webhook_rules import ForbiddenError, WebhookRules
from holdfast.broker.leader.webhooks import ATTEMPTS_MAX, WAITING_MAX, Webhooks

DEADLINE_S = 20.0
LOCAL = WebhookRules(networks="127.0.0.0/8")


class Receiver:
    """An HTTP server that answers as it is told to."""

    def __init__(self) -> None:
        self.answers: list[int] = []  # statuses; 200 when there are no more
        self.got: list[tuple[str, dict[str, Any]]] = []
        self.hosts: list[str] = []  # as the request has them
        self.arrived = threading.Semaphore(0)
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((self.path, json.loads(body)))
                receiver.hosts.append(self.headers["Host"])
                self.send_response(receiver.answers.pop(0) if receiver.answers else 200)
                self.send_header("Location", "/elsewhere")
                self.end_headers()
                receiver.arrived.release()

            def do_GET(self) -> None:
                receiver.got.append((self.path, {}))
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_args: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/secret-token"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> "Receiver":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def wait(self, count: int = 1) -> None:
        for _ in range(count):
            assert self.arrived.acquire(timeout=DEADLINE_S)


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/secret-token"


class Failures:
    def __init__(self) -> None:
        self.count = 0
        self._came = threading.Semaphore(0)

    def __call__(self) -> None:
        self.count += 1
        self._came.release()

    def wait(self) -> None:
        assert self._came.acquire(timeout=DEADLINE_S)


async def test_a_message_is_posted_as_json() -> None:
    webhooks = Webhooks(LOCAL)
    with Receiver() as receiver:
        webhooks.post(receiver.url, {"queue": "mail", "dead": 3})
        receiver.wait()
        assert receiver.got == [("/secret-token", {"queue": "mail", "dead": 3})]
        await webhooks.close()


async def test_it_is_tried_again_and_given_up_in_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    failures = Failures()
    webhooks = Webhooks(LOCAL, failures, pause_s=0.0)
    with Receiver() as receiver:
        receiver.answers = [500, 503]
        webhooks.post(receiver.url, {"n": 1})
        receiver.wait(ATTEMPTS_MAX)
        receiver.answers = [500] * ATTEMPTS_MAX
        webhooks.post(receiver.url, {"n": 2})
        receiver.wait(ATTEMPTS_MAX)
        failures.wait()
        assert failures.count == 1
        assert [message["n"] for _, message in receiver.got] == [1, 1, 1, 2, 2, 2]
        await webhooks.close()
    logged = capsys.readouterr().out
    assert logged.count("webhook_failed") == 1
    assert "HTTP status 500" in logged
    assert "127.0.0.1" in logged
    assert "secret-token" not in logged


async def test_a_host_that_failed_gets_one_attempt_until_it_answers() -> None:
    failures = Failures()
    webhooks = Webhooks(LOCAL, failures, pause_s=0.0)
    with Receiver() as receiver:
        receiver.answers = [500] * (ATTEMPTS_MAX + 1)
        webhooks.post(receiver.url, {"n": 1})
        webhooks.post(receiver.url, {"n": 2})
        failures.wait()
        failures.wait()
        assert len(receiver.got) == ATTEMPTS_MAX + 1
        webhooks.post(receiver.url, {"n": 3})
        receiver.wait(ATTEMPTS_MAX + 2)
        receiver.answers = [500]
        webhooks.post(receiver.url, {"n": 4})
        receiver.wait(2)
        await webhooks.close()
    assert [message["n"] for _, message in receiver.got] == [1, 1, 1, 2, 3, 4, 4]


async def test_whoever_has_something_told_hears_whether_it_was() -> None:
    failures = Failures()
    webhooks = Webhooks(LOCAL, failures, pause_s=0.0)
    heard: queue.Queue[tuple[int, bool]] = queue.Queue()
    with Receiver() as receiver:
        receiver.answers = [500] * ATTEMPTS_MAX
        for number in (1, 2):
            webhooks.post(
                receiver.url, {"n": number}, functools.partial(lambda n, reported: heard.put((n, reported)), number)
            )
            assert heard.get(timeout=DEADLINE_S) == (number, number == 2)
        await webhooks.close()


async def test_what_is_dropped_is_not_told() -> None:
    webhooks = Webhooks(LOCAL)
    heard: list[bool] = []
    with silent_server() as url:
        for number in range(WAITING_MAX + 10):
            webhooks.post(url, {"n": number}, heard.append)
        assert 9 <= len(heard) <= 10
        assert not any(heard)
        await webhooks.close()


async def test_it_goes_nowhere_else_than_it_was_told_to() -> None:
    failures = Failures()
    webhooks = Webhooks(LOCAL, failures, pause_s=0.0)
    with Receiver() as receiver:
        receiver.answers = [302] * ATTEMPTS_MAX
        webhooks.post(receiver.url, {"n": 1})
        receiver.wait()
        failures.wait()
        await webhooks.close()
        assert {path for path, _ in receiver.got} == {"/secret-token"}


async def test_nobody_is_called_who_is_not_public_unless_it_is_allowed(capsys: pytest.CaptureFixture[str]) -> None:
    failures = Failures()
    webhooks = Webhooks(WebhookRules(), failures, pause_s=3600.0)
    with Receiver() as receiver:
        for url in (receiver.url, receiver.url.replace("127.0.0.1", "localhost")):
            webhooks.post(url, {"n": 1})
            failures.wait()
        await webhooks.close()
        assert not receiver.got
    logged = capsys.readouterr().out
    assert logged.count("webhook_refused") == 2
    assert "webhook_networks" in logged
    assert "secret-token" not in logged


async def test_a_name_is_looked_up_once_and_what_was_checked_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name server that answers with a public address first, and with one of this house when it counts."""
    asked: list[str] = []
    with Receiver() as receiver:
        port = int(receiver.url.split(":")[2].split("/")[0])

        def look_up(host: str, port: int, **_more: object) -> list[Any]:
            asked.append(host)
            address = "127.0.0.1" if len(asked) == 1 else "10.0.0.1"
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port))]

        class Looked:
            getaddrinfo = staticmethod(look_up)

            def __getattr__(self, name: str) -> Any:
                return getattr(socket, name)

        monkeypatch.setattr(webhooks_module, "socket", Looked())
        failures = Failures()
        webhooks = Webhooks(WebhookRules("hooks.test", "127.0.0.0/8"), failures, pause_s=0.0)
        webhooks.post(f"http://hooks.test:{port}/secret-token", {"n": 1})
        receiver.wait()
        assert receiver.hosts == [f"hooks.test:{port}"]
        webhooks.post(f"http://other.test:{port}/secret-token", {"n": 2})
        failures.wait()
        assert asked == ["hooks.test"], "whoever is not on the list is not even looked up"
        webhooks.post(f"http://hooks.test:{port}/secret-token", {"n": 3})
        failures.wait()
        await webhooks.close()
        assert len(receiver.got) == 1


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://127.0.0.1/secret-token", "http://[bad", "nonsense"])
async def test_an_address_that_is_none_is_given_up(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    failures = Failures()
    webhooks = Webhooks(LOCAL, failures, pause_s=0.0)
    webhooks.post(url, {"n": 1})
    failures.wait()
    await webhooks.close()
    logged = capsys.readouterr().out
    assert "webhook_failed" in logged
    assert "secret-token" not in logged
    assert "passwd" not in logged


async def test_too_many_are_dropped_and_said_so(capsys: pytest.CaptureFixture[str]) -> None:
    """A host hangs; a thousand alerts take no time, and nothing is kept of most of them."""
    failures = Failures()
    webhooks = Webhooks(LOCAL, failures)
    with silent_server() as url:
        for number in range(1000):
            webhooks.post(url, {"n": number})
        dropped = failures.count
        assert 1000 - WAITING_MAX - 1 <= dropped <= 1000 - WAITING_MAX
        await webhooks.close()
    logged = capsys.readouterr().out
    assert logged.count("webhook_dropped") == dropped
    assert "secret-token" not in logged


def senders() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "holdfast-webhooks"}


async def test_nothing_is_sent_after_the_end() -> None:
    failed: list[None] = []
    webhooks, of_others = Webhooks(LOCAL, lambda: failed.append(None), pause_s=0.0), senders()
    with Receiver() as receiver:
        webhooks.post(receiver.url, {"n": 1})
        (sender,) = senders() - of_others
        receiver.wait()
        await webhooks.close()
        sender.join(DEADLINE_S)
        assert not sender.is_alive()
        for _ in range(WAITING_MAX + 1):
            webhooks.post(receiver.url, {"n": 2})
        assert not failed, "nothing waits: it would have been too many"
        assert senders() <= of_others
        assert len(receiver.got) == 1


async def test_a_pause_between_attempts_ends_with_it() -> None:
    webhooks, of_others = Webhooks(LOCAL, pause_s=3600.0), senders()
    with Receiver() as receiver:
        receiver.answers = [500] * ATTEMPTS_MAX
        webhooks.post(receiver.url, {"n": 1})
        (sender,) = senders() - of_others
        receiver.wait()
        await webhooks.close()
        sender.join(DEADLINE_S)
        assert not sender.is_alive()


def test_the_end_of_the_process_does_not_wait_for_a_post_that_hangs() -> None:
    program = """
import asyncio, socket
from holdfast.broker.leader import webhook_rules, webhooks
webhooks.TIMEOUT_SECONDS = 3600.0
async def main():
    hooks = webhooks.Webhooks(webhook_rules.WebhookRules(networks="127.0.0.0/8"))
    with socket.create_server(("127.0.0.1", 0)) as server:
        hooks.post(f"http://127.0.0.1:{server.getsockname()[1]}/", {})
        connection, _ = server.accept()
        await hooks.close()
    return connection  # which nobody closes
silent = asyncio.run(main())
print("ended")
"""
    assert webhooks_module.TIMEOUT_SECONDS < 3600.0
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=2 * DEADLINE_S, check=False
    )
    assert (done.returncode, done.stdout.split()[-1:]) == (0, ["ended"]), done.stderr


class TestRules:
    @pytest.mark.parametrize(
        "address",
        [
            "127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
            "224.0.0.1", "255.255.255.255", "::1", "::", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:10.0.0.1",
            "64:ff9b::a00:1", "2002:a00:1::1", "192.0.2.1", "2001:db8::1",
        ],
    )  # fmt: skip
    def test_addresses_that_are_not_public(self, address: str) -> None:
        with pytest.raises(ForbiddenError):
            WebhookRules().choose([address])
        assert WebhookRules().choose([address, "93.184.216.34"]) == "93.184.216.34"

    def test_networks_that_are_allowed(self) -> None:
        rules = WebhookRules(networks="10.0.0.0/8, fc00::/7")
        assert [rules.choose([address]) for address in ("10.1.2.3", "::ffff:10.1.2.3", "fc00::1", "8.8.8.8")]
        for address in ("192.168.0.1", "fe80::1"):
            with pytest.raises(ForbiddenError):
                rules.choose([address])

    def test_hosts_that_are_allowed(self) -> None:
        rules = WebhookRules("hooks.example.org, *.example.com,10.0.0.1")
        for host in ("hooks.example.org", "HOOKS.example.org.", "a.b.example.com", "10.0.0.1"):
            rules.check_host(host)
        for host in ("example.org", "hooks.example.org.evil.test", "example.com", "evil-example.com", "10.0.0.11"):
            with pytest.raises(ForbiddenError, match="webhook_hosts"):
                rules.check_host(host)
