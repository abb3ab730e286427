"""TLS of a single node: who gets in, who does not, and what each is told."""

import asyncio
import http.client
import json
import shutil
import socket
import ssl
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.certificates import Kind
from holdfast.cli.main import main
from holdfast.client import AsyncClient, Client, ConnectionFailed, Holdfast, InvalidArgument, NewTask, Tls, Worker
from tests.integration.certificates import Authority
from tests.integration.conftest import MakeServer
from tests.integration.server import ServerProcess, wait_until
from tests.tls_files import CertsDirectory


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> CertsDirectory:
    return CertsDirectory(tmp_path_factory.mktemp("certs") / "certs")


@pytest.fixture(scope="module")
def server(certs: CertsDirectory, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """It wants certificates of its callers."""
    with ServerProcess(tmp_path_factory.mktemp("server"), **certs.settings("n1")) as server:
        yield server.start()


def enqueue(address: str, tls: Tls | None, transport: str = "auto") -> None:
    with Client(address, tls=tls, timeout_s=5, retry=False, transport=transport) as client:
        client.enqueue(NewTask("mail", "welcome"))


@pytest.mark.parametrize("transport", ["auto", "grpc"])
async def test_calls_go_over_either_transport(make_server: MakeServer, certs: CertsDirectory, transport: str) -> None:
    server = await asyncio.to_thread(make_server(**certs.settings("n1")).start)
    async with AsyncClient(server.address, tls=certs.client("billing"), transport=transport) as client:
        for round_ in range(20):
            accepted = await client.enqueue(NewTask("both", f"{transport}{round_}", bytes(100_000)))
            [task] = await client.reserve(["both"], wait_ms=5_000, worker="w")
            assert (task.task_id, task.payload) == (accepted.task_id, bytes(100_000))
            await client.ack(task)
        accepted_many = await client.enqueue_many([NewTask("many", "x", bytes(30_000)) for _ in range(100)])
        assert len({outcome.task_id for outcome in accepted_many if not isinstance(outcome, Exception)}) == 100

    def is_shown() -> bool:  # gauges are renewed once a second, all of them together
        return server.metric("holdfast_applied_index") > 60

    await asyncio.to_thread(wait_until, is_shown, "the calls to be counted")
    assert (await asyncio.to_thread(server.metric, "holdfast_frame_calls") > 0) == (transport == "auto")


def test_a_worker_works(server: ServerProcess, certs: CertsDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = certs.client("worker")
    for name, path in (("CA", mine.ca), ("CERT", mine.cert), ("KEY", mine.key)):
        monkeypatch.setenv(f"HOLDFAST_TLS_{name}", str(path))
    app = Holdfast(server.address)
    assert app.tls == Tls(str(mine.ca), str(mine.cert), str(mine.key))

    @app.task(queue="worked")
    def double(number: int) -> int:
        worker.stop()
        return 2 * number

    worker = Worker(app)
    handle = double.enqueue(21)
    assert worker.run().succeeded == 1
    assert handle.result(timeout=10) == 42
    app.close()


def test_the_command_line_takes_options_or_the_environment(
    server: ServerProcess, certs: CertsDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = certs.client("operator")
    command = ["enqueue", "cli", "greet", "{}", "--address", server.address, "--json"]
    options = ["--tls-ca", str(mine.ca), "--tls-cert", str(mine.cert), "--tls-key", str(mine.key)]
    assert main([*command, *options]) == 0
    assert json.loads(capsys.readouterr().out)["queue"] == "cli"
    assert main([*command, "--timeout", "2s"]) == 4
    assert "wants TLS" in json.loads(capsys.readouterr().err)["error"]["message"]
    for name, path in (("CA", mine.ca), ("CERT", mine.cert), ("KEY", mine.key)):
        monkeypatch.setenv(f"HOLDFAST_TLS_{name}", str(path))
    assert main(command) == 0
    capsys.readouterr()
    assert main([*command, *options[:4]]) == 2
    assert "tls.key" in json.loads(capsys.readouterr().err)["error"]["message"]


@pytest.mark.parametrize("transport", ["auto", "grpc"])
def test_whoever_is_refused_is_told_why(
    server: ServerProcess, certs: CertsDirectory, tmp_path: Path, make_server: MakeServer, transport: str
) -> None:
    other = CertsDirectory(tmp_path / "other")
    mine = certs.client("billing")
    plain = make_server().start()
    port = server.port
    cases = [
        (f"127.0.0.1:{port}", None, "perhaps it wants TLS"),
        (f"127.0.0.1:{port}", certs.only_trust, "a certificate of this client"),
        (f"127.0.0.1:{port}", Tls(mine.ca, other.client("x").cert, other.client("x").key), "certificate of this"),
        (f"127.0.0.1:{port}", other.client("billing"), "not signed by who is trusted here"),
        (f"127.0.0.2:{port}", mine, "connection refused"),
        (plain.address, mine, "does not speak TLS"),
    ]
    for address, tls, words in cases:
        with pytest.raises(ConnectionFailed, match=words):
            enqueue(address, tls, transport)
    enqueue(f"localhost:{port}", mine, transport)


def test_the_name_must_be_right_and_the_certificate_not_over(
    certs: CertsDirectory, tmp_path: Path, make_server: MakeServer
) -> None:
    authority = Authority(tmp_path, "own")
    for file, names, days, words in (
        ("named", "DNS:elsewhere.internal", 2, "not for the name"),
        ("over", "IP:127.0.0.1,DNS:localhost", 0, "has expired"),
    ):
        issued = authority.issue(file, subject="n1", names=names, days=days)
        server = make_server(tls_cert=issued.certificate, tls_key=issued.key).start()
        with pytest.raises(ConnectionFailed, match=words):
            enqueue(server.address, Tls(authority.certificate))


def test_with_a_public_certificate_nobody_needs_one(certs: CertsDirectory, make_server: MakeServer) -> None:
    settings = certs.settings("n2") | {"tls_client_certs": "no"}
    server = make_server(**settings).start()
    for transport in ("auto", "grpc"):
        enqueue(server.address, certs.only_trust, transport)


def test_files_that_are_of_no_use_are_refused_at_the_start(
    certs: CertsDirectory, tmp_path: Path, make_server: MakeServer
) -> None:
    mine = certs.client("billing")
    (tmp_path / "rubbish.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for tls in (
        Tls(tmp_path / "none.pem"),
        Tls(tmp_path / "rubbish.pem"),
        Tls(mine.ca, mine.cert, certs.path / "n1.key"),
    ):
        with pytest.raises(InvalidArgument, match="cannot be used"):
            Client("localhost:1", tls=tls)
    for change in ({"tls_key": certs.path / "billing.key"}, {"tls_ca": tmp_path / "rubbish.pem"}):
        refused = make_server(**certs.settings("n1") | change)
        refused.launch()
        assert refused.wait_for_exit() == 1
        assert "cannot be used" in refused.log_text


def test_operators_are_served_over_tls_without_a_certificate_of_theirs(
    certs: CertsDirectory, make_server: MakeServer
) -> None:
    server = make_server(**certs.settings("n1"), ops_tls="on").start()
    context = ssl.create_default_context(cafile=certs.path / "ca.crt")
    connection = http.client.HTTPSConnection("localhost", server.ops_port, context=context, timeout=10)
    for path, words in (("/livez", "live"), ("/metrics", "holdfast_certificates_expire_timestamp_seconds 1")):
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200
        assert words in answer.read().decode()
    connection.close()
    with pytest.raises(OSError, match=r"reset|closed|Remote end"):
        server.get("/livez")
    for port in (server.port, server.frames_port, server.ops_port):
        assert _version_of(port, certs.client("billing")) == "TLSv1.3"
        with pytest.raises(OSError, match=r"(?i)protocol|version|reset"):
            _version_of(port, certs.client("billing"), at_most=ssl.TLSVersion.TLSv1_1)


def _version_of(port: int, mine: Tls, at_most: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3) -> str | None:
    context = ssl.create_default_context(cafile=str(mine.ca))
    context.load_cert_chain(str(mine.cert), str(mine.key))
    if at_most is ssl.TLSVersion.TLSv1_1:
        context.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.minimum_version = at_most
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            context.maximum_version = at_most
    with (
        socket.create_connection(("127.0.0.1", port), 10) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as secure,
    ):
        return secure.version()


def test_a_certificate_that_changes_is_shown_at_once_and_fails_nobody(tmp_path: Path, make_server: MakeServer) -> None:
    """Also the authority; on both transports, on both sides."""
    certs, newer = CertsDirectory(tmp_path / "certs"), CertsDirectory(tmp_path / "newer")
    server = make_server(**certs.settings("n1")).start()
    newer.issue("n1", Kind.NODE)
    newer.client("billing")
    mine = certs.client("billing")
    with (
        Client(server.address, tls=mine, retry=False) as one,
        Client(server.address, tls=mine, retry=False, transport="grpc") as two,
    ):

        def calls_for(seconds: float) -> None:
            ends_s = time.monotonic() + seconds
            while time.monotonic() < ends_s:
                for client in (one, two):
                    client.enqueue(NewTask("mail", "welcome"))

        def step(what: str) -> None:
            reloads = server.metric("holdfast_certificates_reloaded")
            wait_until(
                lambda: calls_for(0.05) or server.metric("holdfast_certificates_reloaded") > reloads, what  # type: ignore[func-returns-value]
            )  # fmt: skip
            calls_for(3.0)  # longer than clients take to look at their files

        calls_for(0.5)
        certs.trust(newer)
        step("both authorities to be trusted")
        certs.take_from(newer, "n1")
        certs.take_from(newer, "billing")
        step("the new certificates to be shown")
        certs.trust(newer, own=False)
        step("the new authority alone to be trusted")
    shutil.copy(certs.path / "first-ca.crt", tmp_path / "old.crt")
    with pytest.raises(ConnectionFailed, match="not signed"):
        enqueue(server.address, Tls(tmp_path / "old.crt", mine.cert, mine.key))
