"""What `holdfast cluster up` writes down about the cluster that it started, so that `cluster down` finds it again."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from holdfast.cluster.local.processes import Identity

FILE_NAME = "cluster.json"
FORMAT = 1

ETCD = "etcd"
ROUTER = "router"


class StateFileError(Exception):
    """The file is there, but it is not one of ours, or it is damaged."""


@dataclass(frozen=True, slots=True)
class Member:
    """One process of the cluster: where it listens, and who it is while it runs."""

    name: str  # etcd, router, or the node's
    ports: Mapping[str, int]  # by their purpose, e.g. port, peer_port, ops_port
    identity: Identity | None = None  # of the process last started; None once it was stopped


@dataclass(frozen=True, slots=True)
class State:
    """The cluster of one directory."""

    cluster_name: str
    shards: int
    replication: int
    is_initialised: bool = False
    members: Mapping[str, Member] = field(default_factory=dict)  # by name, in the order of their start

    @property
    def nodes(self) -> list[str]:
        return [name for name in self.members if name not in (ETCD, ROUTER)]

    def with_member(self, member: Member) -> "State":
        return replace(self, members={**self.members, member.name: member})

    def with_identity(self, name: str, identity: Identity | None) -> "State":
        return self.with_member(replace(self.members[name], identity=identity))


def load(directory: Path) -> State | None:
    """None if nothing was ever started in this directory."""
    path = directory / FILE_NAME
    try:
        values = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise StateFileError(f"{directory} is not a directory.") from None
    except ValueError:
        raise StateFileError(f"{path} is damaged: it is not JSON.") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise StateFileError(f"{path} was not written by this version of `holdfast cluster up`.")
    try:
        return _parsed(values)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise StateFileError(f"{path} is damaged: {type(error).__name__} {error}.") from None


def _parsed(values: Mapping[str, Any]) -> State:
    members = {}
    for member in values["members"]:
        identity = member["identity"]
        who = None if identity is None else Identity(int(identity["pid"]), str(identity["started"]))
        ports = {str(purpose): int(port) for purpose, port in member["ports"].items()}
        members[str(member["name"])] = Member(str(member["name"]), ports, who)
    return State(
        cluster_name=str(values["cluster_name"]),
        shards=int(values["shards"]),
        replication=int(values["replication"]),
        is_initialised=bool(values["is_initialised"]),
        members=members,
    )


def save(directory: Path, state: State) -> None:
    """Atomically: whoever reads it meanwhile finds the old one or the new one."""
    values = {
        "format": FORMAT,
        "cluster_name": state.cluster_name,
        "shards": state.shards,
        "replication": state.replication,
        "is_initialised": state.is_initialised,
        "members": [{**asdict(member), "ports": dict(member.ports)} for member in state.members.values()],
    }
    path = directory / FILE_NAME
    new = path.with_suffix(".new")
    with new.open("w", encoding="utf-8") as file:
        json.dump(values, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
