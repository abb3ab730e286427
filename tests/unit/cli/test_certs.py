"""Authorities and certificates for test clusters: what is in them, who may read them, and that nothing is lost."""

import json
import ssl
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.main import main
from holdfast.cli.problems import ExitCode
from tests.tls_pairs import shake_hands


def certs(capsys: pytest.CaptureFixture[str], directory: Path, *arguments: str, code: int = 0) -> dict[str, Any]:
    assert main(["certs", *arguments, "--dir", str(directory), "--json"]) == code
    out, err = capsys.readouterr()
    found: dict[str, Any] = json.loads(err if code else out)
    return found


def files_of(made: dict[str, Any]) -> Sequence[Path]:
    return [Path(item[what]) for item in made["certificates"] for what in ("certificate", "key")]


@pytest.fixture
def directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    certs(capsys, tmp_path / "certs", "init")
    return tmp_path / "certs"


def server_context(directory: Path, name: str, authority: str = "ca") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / f"{name}.crt", directory / f"{name}.key")
    context.load_verify_locations(directory / f"{authority}.crt")
    context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_context(directory: Path, name: str, authority: str = "ca") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(directory / f"{name}.crt", directory / f"{name}.key")
    context.load_verify_locations(directory / f"{authority}.crt")
    return context


def test_keys_are_for_their_owner_only(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = certs(capsys, directory, "node", "n1")
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    for path in (*files_of(made), directory / "ca.key", directory / "peers-ca.key"):
        wanted = 0o600 if path.suffix == ".key" else 0o644
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path
    assert not list(directory.glob("*.tmp"))


def test_servers_and_clients_know_each_other_by_these(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certs(capsys, directory, "node", "n1", "--host", "n1.internal", "--host", "10.0.0.11")
    certs(capsys, directory, "client", "billing")
    for host in ("n1", "n1.internal", "10.0.0.11", "localhost", "127.0.0.1"):
        seen = shake_hands(server_context(directory, "n1"), client_context(directory, "billing"), host)
        assert (("commonName", "billing"),) in seen["subject"]
        assert (("organizationalUnitName", "client"),) in seen["subject"]
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        shake_hands(server_context(directory, "n1"), client_context(directory, "billing"), "n2")


def test_a_client_is_no_server(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certs(capsys, directory, "client", "n1")
    with pytest.raises(ssl.SSLCertVerificationError, match="purpose"):
        shake_hands(server_context(directory, "n1"), client_context(directory, "n1"), "n1")


@pytest.mark.parametrize("kind", ["router", "client"])
def test_what_a_router_or_a_client_has_opens_nothing_between_nodes(
    directory: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    """Whatever it is called: what nodes show to each other is signed by an authority that signs nothing else."""
    certs(capsys, directory, "node", "n1")
    certs(capsys, directory, kind, "n2")
    node = server_context(directory, "n1-peers", "peers-ca")
    shake_hands(node, client_context(directory, "n1-peers", "peers-ca"), "n1")
    with pytest.raises(ssl.SSLError):
        shake_hands(node, client_context(directory, "n2", "peers-ca"), "n1")


@pytest.mark.parametrize("arguments", [["init"], ["node", "n1"], ["client", "n1"]], ids=" ".join)
def test_nothing_is_overwritten(directory: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    certs(capsys, directory, "node", "n1")
    before = {path: path.read_bytes() for path in directory.iterdir()}
    error = certs(capsys, directory, *arguments, code=ExitCode.REFUSED)
    assert error["error"]["reason"] == "EXISTS"
    assert {path: path.read_bytes() for path in directory.iterdir()} == before


def test_what_is_renewed_is_for_the_same_hosts(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = certs(capsys, directory, "node", "n1", "--host", "n1.internal", "--days", "10")
    before = {path: path.read_bytes() for path in files_of(first)}
    again = certs(capsys, directory, "node", "n1", "--renew")
    assert files_of(again) == files_of(first)
    assert all(path.read_bytes() != data for path, data in before.items())
    for old, new in zip(first["certificates"], again["certificates"], strict=True):
        assert old["hosts"] == new["hosts"]
        assert old["expires"] < new["expires"]
    other = certs(capsys, directory, "node", "n1", "--renew", "--host", "elsewhere")
    assert "n1.internal" not in other["certificates"][0]["hosts"]
    assert certs(capsys, directory, "node", "n9", "--renew", code=ExitCode.REFUSED)["error"]["reason"] == "NOT_FOUND"


def test_the_list_has_all(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    certs(capsys, directory, "router", "r1", "--host", "queue.example.org")
    certs(capsys, directory, "client", "billing")
    found = {item["name"]: item for item in certs(capsys, directory, "ls")["certificates"]}
    assert found.keys() == {"Holdfast ca", "Holdfast peers-ca", "r1", "billing"}
    assert found["r1"]["kind"] == "router"
    assert "queue.example.org" in found["r1"]["hosts"]
    assert main(["certs", "ls", "--dir", str(directory)]) == ExitCode.OK
    assert "billing.crt" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["node", "ca"], "INVALID_NAME"),
        (["node", "n1-peers"], "INVALID_NAME"),
        (["client", "../n1"], "INVALID_NAME"),
        (["client", "x" * 65], "INVALID_NAME"),
        (["node", "n1", "--host", "n1:7401"], "INVALID_HOST"),
        (["node", "n1", "--host", "x" * 300], "INVALID_HOST"),
        (["node", "n1", *[word for number in range(65) for word in ("--host", f"h{number}")]], "TOO_MANY_HOSTS"),
        (["node", "n1", "--days", "3650"], "AUTHORITY_EXPIRES"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:4])[:40],
)
def test_what_is_wrong_is_refused_and_makes_nothing(
    directory: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], reason: str
) -> None:
    before = set(directory.iterdir())
    assert certs(capsys, directory, *arguments, code=ExitCode.REFUSED)["error"]["reason"] == reason
    assert set(directory.iterdir()) == before


def test_without_an_authority_it_says_how_to_make_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["node", "n1"], ["ls"]):
        error = certs(capsys, tmp_path, *arguments, code=ExitCode.REFUSED)["error"]
        assert error["reason"] == "NO_AUTHORITY"
        assert "holdfast certs init" in error["hint"]


def test_files_that_are_none_are_named(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (directory / "ca.key").write_text("no key")
    error = certs(capsys, directory, "client", "billing", code=ExitCode.REFUSED)["error"]
    assert error["reason"] == "UNREADABLE"
    assert "ca.key" in error["message"]
    (directory / "ca.crt").write_text("no certificate")
    assert "ca.crt" in certs(capsys, directory, "ls", code=ExitCode.REFUSED)["error"]["message"]
