"""The init container of components/zones, as a process, against a server that answers as the Kubernetes API does."""

import http.server
import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.broker.config import load_config
from tools.manifests.rendering import DEPLOY

SCRIPT = DEPLOY / "k8s" / "components" / "zones" / "zone.py"
LABELS = {"zoned": {"topology.kubernetes.io/zone": "eu-1a", "other": "x"}, "plain": {}}
TOKEN = "a-token"


class KubernetesApi(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        machine = self.path.removeprefix("/api/v1/nodes/")
        status = 200 if machine in LABELS else 404
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            status = 403
        body = json.dumps({"kind": "Node", "metadata": {"name": machine, "labels": LABELS.get(machine)}}).encode()
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Not into the output of the tests."""


@pytest.fixture(scope="module")
def account(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What Kubernetes mounts: the token, and the authority of the API, which here is its own certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command")
    directory = tmp_path_factory.mktemp("account")
    (directory / "token").write_text(TOKEN + "\n")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2",
         "-subj", "/CN=api", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "api.key", "-out", "ca.crt"],
        check=True, capture_output=True, cwd=directory,
    )  # fmt: skip
    return directory


@pytest.fixture(scope="module")
def port(account: Path) -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), KubernetesApi)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(account / "ca.crt", account / "api.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server.server_port
    server.shutdown()
    server.server_close()


def run(account: Path, port: int, machine: str, to: Path) -> "subprocess.CompletedProcess[str]":
    """As the pod does, but that the account is mounted elsewhere."""
    text = SCRIPT.read_text().replace("/var/run/secrets/kubernetes.io/serviceaccount", str(account))
    environment = {
        "MACHINE": machine,
        "KUBERNETES_SERVICE_HOST": "127.0.0.1",
        "KUBERNETES_SERVICE_PORT": str(port),
        "PATH": os.environ["PATH"],
    }
    command = [sys.executable, "-I", "-c", text, str(to)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("machine", "zone"), [("zoned", "eu-1a"), ("plain", None)])
def test_a_broker_reads_the_zone_of_its_machine(
    account: Path, port: int, tmp_path: Path, machine: str, zone: str | None
) -> None:
    file = tmp_path / "node.toml"
    done = run(account, port, machine, file)
    assert (done.returncode, done.stderr) == (0, f"zone: {zone or 'none'}\n")
    assert load_config(file, {}, env={}).zone == zone


def test_it_says_what_went_wrong_and_writes_nothing(account: Path, port: int, tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    unknown = run(account, port, "unknown", file)
    (outsider := tmp_path / "outsider").mkdir()
    (outsider / "token").write_text("another")
    shutil.copy(account / "ca.crt", outsider)
    refused = run(outsider, port, "zoned", file)
    assert [(done.returncode, done.stderr.count("\n")) for done in (unknown, refused)] == [(1, 1), (1, 1)]
    assert "but: 404" in unknown.stderr
    assert "but: 403" in refused.stderr
    assert not file.exists()
