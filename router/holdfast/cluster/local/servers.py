"""How each server of a local cluster is started, and how it is asked whether it is well."""

import http.client
import json
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from holdfast.cluster.local.state import ETCD, ROUTER, Member, State

HOST = "127.0.0.1"
ZONES = 3  # nodes are spread over so many made-up zones, so that placement has something to show

_HOLDFAST = (sys.executable, "-m", "holdfast.cli")
_ASK_S_MAX = 2.0

# The ports of each kind of server, by the name of the setting. The first one is that of its API.
ETCD_PORTS = ("client_port", "peer_port")
NODE_PORTS = ("port", "peer_port", "ops_port")
ROUTER_PORTS = ("port", "ops_port")


def ports_of(name: str) -> Sequence[str]:
    return {ETCD: ETCD_PORTS, ROUTER: ROUTER_PORTS}.get(name, NODE_PORTS)


def address_of(member: Member) -> str:
    """Where its API is."""
    return f"{HOST}:{member.ports[ports_of(member.name)[0]]}"


def log_path(directory: Path, name: str) -> Path:
    return directory / "logs" / f"{name}.log"


def config_path(directory: Path, name: str) -> Path:
    return directory / f"{name}.toml"


def secret_path(directory: Path) -> Path:
    """What the brokers of the cluster know, and nobody else."""
    return directory / "cluster.secret"


def data_path(directory: Path, name: str) -> Path:
    return directory / name


def arguments_of(directory: Path, state: State, name: str, etcd_binary: str) -> list[str]:
    """The command line of a server."""
    if name == ETCD:
        return _etcd_arguments(directory, state.members[ETCD], etcd_binary)
    command = ROUTER if name == ROUTER else "broker"
    return [*_HOLDFAST, command, "--config", str(config_path(directory, name))]


def _etcd_arguments(directory: Path, member: Member, binary: str) -> list[str]:
    client_url = f"http://{HOST}:{member.ports['client_port']}"
    peer_url = f"http://{HOST}:{member.ports['peer_port']}"
    return [
        binary,
        f"--name={ETCD}",
        f"--data-dir={data_path(directory, ETCD)}",
        f"--listen-client-urls={client_url}",
        f"--advertise-client-urls={client_url}",
        f"--listen-peer-urls={peer_url}",
        f"--initial-advertise-peer-urls={peer_url}",
        f"--initial-cluster={ETCD}={peer_url}",
        "--auto-compaction-mode=periodic",
        "--auto-compaction-retention=1h",
        "--log-level=warn",
    ]


def settings_of(directory: Path, state: State, name: str) -> dict[str, str | int]:
    """What is in the configuration file of a broker or the router."""
    member = state.members[name]
    settings: dict[str, str | int] = {
        "host": HOST,
        **member.ports,
        "cluster_name": state.cluster_name,
        "etcd_endpoints": address_of(state.members[ETCD]),
        "log_format": "json",
    }
    if name != ROUTER:
        zone = f"z{(int(name.removeprefix('n')) - 1) % ZONES + 1}"  # of its number: it stays when others come and go
        settings |= {"node_name": name, "zone": zone, "data_dir": str(data_path(directory, name))}
        settings |= {"cluster_secret_file": str(secret_path(directory))}
    return settings


def toml_text(settings: Mapping[str, str | int]) -> str:
    """A text or a number is written in TOML as it is in JSON."""
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in settings.items()]
    return "# Written by `holdfast cluster up`, at each start anew.\n" + "".join(lines)


def environment_of(environment: Mapping[str, str]) -> dict[str, str]:
    """What a server sees of the environment: settings of the person who starts it must not reach every node."""
    return {name: value for name, value in environment.items() if not name.startswith(("HOLDFAST_", "ETCD_"))}


def make_directories(directory: Path) -> None:
    (directory / "logs").mkdir(parents=True, exist_ok=True)
    _make_secret(secret_path(directory))


def _make_secret(path: Path) -> None:
    """Once: it is that of the whole cluster."""
    if path.exists():
        return
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
        file.write(secrets.token_hex(32) + "\n")
    new.replace(path)


def write_config(directory: Path, state: State, name: str) -> None:
    if name != ETCD:
        text = toml_text(settings_of(directory, state, name))
        config_path(directory, name).write_text(text, encoding="utf-8")


def is_alive(member: Member) -> bool:
    """Whether the server answers at all."""
    if member.name == ETCD:
        return _get(member.ports["client_port"], "/health")[0] == http.client.OK
    return _get(member.ports["ops_port"], "/livez")[0] == http.client.OK


def why_not_ready(member: Member) -> str:
    """Why a broker or the router takes no work yet; empty if it does. A broker is ready also while it waits for others,
    and says so."""
    status, text = _get(member.ports["ops_port"], "/readyz")
    if status == http.client.OK and "serving, but " not in text:
        return ""
    return " ".join(text.split()) or "it does not answer"


def _get(port: int, path: str) -> tuple[int, str]:
    """The status and the text of an answer; status 0 if there is none."""
    connection = http.client.HTTPConnection(HOST, port, timeout=_ASK_S_MAX)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return 0, ""
    finally:
        connection.close()


def entries_of(directory: Path, name: str) -> list[Path]:
    """Files and directories of one server; whatever else is there is somebody else's."""
    set_aside = [] if name in (ETCD, ROUTER) else sorted(directory.glob(f"{name}.damaged-*"))  # by `broker --rebuild`
    return [data_path(directory, name), config_path(directory, name), log_path(directory, name), *set_aside]
