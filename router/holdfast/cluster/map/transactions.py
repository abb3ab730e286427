"""Writes that hold only if nothing changed since they were decided on: read, decide, commit; again on a conflict."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from holdfast.cluster.etcd.api import CommitUnknownError, Delete, Etcd, Put, Row, Unchanged
from holdfast.cluster.map.keys import keys_of
from holdfast.cluster.map.records import ClusterRecord
from holdfast.common.backoff import Backoff
from holdfast.serving.refusals import conflict, no_cluster

ATTEMPTS_MAX = 10
_BACKOFF = Backoff(first_s=0.01, max_s=0.32)

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Decision(Generic[T]):
    """What follows from the rows: a result, and the changes that make it true; none if it is true already."""

    result: T
    changes: Sequence[Put | Delete] = ()


class Transactions:
    """The way to etcd of everything that changes the map."""

    def __init__(self, etcd: Etcd, cluster_name: str, *, sleep: Sleep = asyncio.sleep) -> None:
        self.etcd = etcd
        self.keys = keys_of(cluster_name)
        self.sleep = sleep
        self._cluster: ClusterRecord | None = None  # it never changes

    async def decide(
        self, keys: Sequence[bytes], decide: Callable[[Sequence[Row | None]], Decision[T]], what: str
    ) -> tuple[T, int]:
        """The result, and the revision of the commit, 0 if there was none.

        `decide` is called again after every conflict, and also after a commit whose answer was lost. So what it wants
        must look done to it once it is done. `what` names, for people, the thing that others keep changing.
        """
        lost: CommitUnknownError | None = None
        for attempt in range(ATTEMPTS_MAX):
            if attempt:
                await self.sleep(_BACKOFF.pause_s(attempt, random.random))
            rows = [await self.etcd.get(key) for key in keys]
            decision = decide(rows)
            if not decision.changes:
                return decision.result, 0
            compares = [unchanged(key, row) for key, row in zip(keys, rows, strict=True)]
            try:
                committed = await self.etcd.commit(compares, decision.changes)
            except CommitUnknownError as error:
                lost = error
                continue
            lost = None
            if committed.is_done:
                return decision.result, committed.revision
        raise lost or conflict(what)

    async def cluster(self) -> ClusterRecord:
        """RefusedError(NO_CLUSTER) before it is initialised."""
        if self._cluster is None:
            row = await self.etcd.get(self.keys.cluster)
            if row is None:
                raise no_cluster()
            self._cluster = ClusterRecord.decode(row.key.decode(), row.value)
        return self._cluster


def unchanged(key: bytes, row: Row | None) -> Unchanged:
    return Unchanged(key, row.mod_revision if row else 0)
