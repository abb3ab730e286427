"""Callers of all kinds, and the access rules that let them in, for tests of who may do what."""

import secrets
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.access.documents import to_json
from holdfast.access.editing import add_token
from holdfast.access.policies import AccessPolicy
from holdfast.access.tokens import make_token
from holdfast.client import Client, Unauthenticated
from tests.integration.map_cluster import MapCluster
from tests.integration.server import DEADLINE_S, wait_until

ROLES: dict[str, dict[str, Any]] = {
    "admin": {"rights": ["enqueue", "work", "observe", "operate", "administer"], "queues": ["*"]},
    "operator": {"rights": ["enqueue", "observe", "operate"], "queues": ["*"]},
    "worker": {"rights": ["work"], "queues": ["*"]},
    "all-of-q": {"rights": ["enqueue", "work", "observe", "operate"], "queues": ["q", "q.*"]},
    "all-of-other": {"rights": ["enqueue", "work", "observe", "operate"], "queues": ["other"]},
    "acme": {"rights": ["enqueue", "work", "observe", "operate"], "queues": ["q"], "tenants": ["acme"]},
    "globex": {"rights": ["enqueue", "work", "observe", "operate"], "queues": ["q"], "tenants": ["globex"]},
}


@dataclass
class Access:
    """A file of rules, and a token for each role, called as the role is."""

    path: Path
    policy: AccessPolicy
    tokens: dict[str, str]
    ids: dict[str, str]

    @classmethod
    def make(cls, directory: Path) -> "Access":
        made = cls(directory / "access.json", AccessPolicy.read({"roles": ROLES}), {}, {})
        for role in ROLES:
            made.add(role, role)
        made.add("expired", "admin", expires_at_ms=1)
        made.tokens["unknown"] = make_token(secrets.token_bytes).text
        made.write()
        return made

    def add(self, name: str, *roles: str, expires_at_ms: int = 0) -> str:
        token = make_token(secrets.token_bytes)
        self.policy = add_token(self.policy, token, name, roles, expires_at_ms)
        self.tokens[name], self.ids[name] = token.text, token.token_id
        return token.text

    def write(self) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_bytes(to_json(self.policy))
        fresh.replace(self.path)


SECRET = "a secret that routers and brokers share, long enough"


def make_secret(directory: Path) -> Path:
    """For `router_secret_file`."""
    file = directory / "router.secret"
    file.write_text(SECRET)
    return file


def set_rules(cluster: MapCluster, access: Access) -> None:
    with Client(cluster.address, token=access.tokens["admin"], timeout_s=DEADLINE_S) as admin:
        admin.set_access(access.policy.mapping(), version=admin.get_access().version)


def close_with(cluster: MapCluster, access: Access) -> None:
    """Returns once every server of the cluster asks who calls."""
    set_rules(cluster, access)
    for address in (cluster.address, *cluster.broker_addresses):
        wait_until(partial(is_closed, address), f"{address} to ask who calls")


def is_closed(address: str) -> bool:
    with Client(address, timeout_s=DEADLINE_S) as nobody:
        try:
            nobody.topology()
        except Unauthenticated:
            return True
        return False
