"""Names of the keys in etcd. All of a cluster are under one prefix, so that several can share an etcd."""

import re
from functools import lru_cache

NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")  # of a node or a queue: it stands in a key as it is

# Kinds of keys: those of one record only, and those of many, whose name follows after a slash.
CLUSTER = "cluster"
PLAN = "plan"
ACCESS = "access"
INIT = "init"
TURN = "turn"
REBALANCING = "rebalancing"
REBALANCER = "rebalancer"
NODES = "nodes"
DRAINS = "drains"
REMOVED = "removed"
SHARDS = "shards"
LEADERS = "leaders"
QUEUES = "queues"

_SINGLE = frozenset((CLUSTER, ACCESS, PLAN, INIT, TURN, REBALANCING, REBALANCER))
_MANY = frozenset((NODES, DRAINS, REMOVED, SHARDS, LEADERS, QUEUES))
_NUMBERED = frozenset((SHARDS, LEADERS))
_NUMBER = re.compile(r"[0-9]{5}")


class MapKeys:
    """The keys of one cluster."""

    def __init__(self, cluster_name: str) -> None:
        if not NAME.fullmatch(cluster_name):
            raise ValueError(f"Expected the name of a cluster, 1-128 of [A-Za-z0-9._-], but got {cluster_name!r}.")
        self.prefix = f"holdfast/{cluster_name}/".encode()
        self.cluster = self._key(CLUSTER)
        self.plan = self._key(PLAN)
        self.access = self._key(ACCESS)
        self.init = self._key(INIT)  # held by whoever initialises the cluster at the moment
        self.rebalancing = self._key(REBALANCING)
        self.rebalancer = self._key(REBALANCER)  # held by the process that rebalances
        self.turn = self._key(
            TURN
        )  # changed by whoever lets a node go, so that two never do without knowing of each other
        self.shards = self._key(f"{SHARDS}/")
        self.nodes = self._key(f"{NODES}/")

    def node(self, name: str) -> bytes:
        return self._key(f"{NODES}/{name}")

    def drain(self, name: str) -> bytes:
        return self._key(f"{DRAINS}/{name}")

    def removed(self, name: str) -> bytes:
        return self._key(f"{REMOVED}/{name}")

    def shard(self, number: int) -> bytes:
        return self._key(f"{SHARDS}/{number:05d}")

    def leader(self, number: int) -> bytes:
        return self._key(f"{LEADERS}/{number:05d}")

    def queue(self, name: str) -> bytes:
        return self._key(f"{QUEUES}/{name}")

    def parse(self, key: bytes) -> tuple[str, str] | None:
        """The kind of a key and the name in it; None for a key that this version does not know."""
        try:
            kind, _, name = key[len(self.prefix) :].decode().partition("/")
        except UnicodeDecodeError:
            return None
        if kind in _SINGLE:
            return None if name else (kind, "")
        if kind not in _MANY or not (_NUMBER if kind in _NUMBERED else NAME).fullmatch(name):
            return None
        return kind, name

    def _key(self, text: str) -> bytes:
        return self.prefix + text.encode()


@lru_cache(maxsize=8)
def keys_of(cluster_name: str) -> MapKeys:
    return MapKeys(cluster_name)
