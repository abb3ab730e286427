"""Real etcd servers for tests: fast ones, and what only an administrator of etcd does."""

import asyncio
import base64
import json
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.cluster.etcd.api import Changes, CommitUnknownError, Delete, Etcd, EtcdUnavailableError, Put, Unchanged
from holdfast.cluster.etcd.process import EtcdProcess, free_ports

# Data need not survive a power cut of the machine, elections need not wait for slow networks, and a test may look for
# signs of life more often than a client should.
FAST = ("--unsafe-no-fsync", "--heartbeat-interval=50", "--election-timeout=250", "--grpc-keepalive-min-time=50ms")
WAIT_S = 30.0


def cluster_of(directory: Path, size: int) -> list[EtcdProcess]:
    """Members that have been started and see each other."""
    ports = free_ports(size)
    names = {f"m{number}": port for number, port in enumerate(ports, start=1)}
    members = [EtcdProcess(directory / name, name=name, cluster=names, arguments=FAST) for name in names]
    try:
        for member in members:
            member.launch()
        for member in members:
            member.wait_until_healthy()
    except BaseException:
        for member in members:
            member.kill()
        raise
    return members


def administer(server: EtcdProcess, path: str, *, token: str = "", **fields: Any) -> dict[str, Any]:
    """A call through etcd's own HTTP gateway, for what our client does not do."""
    request = urllib.request.Request(f"http://{server.endpoint}/v3/{path}", json.dumps(fields).encode())
    if token:
        request.add_header("Authorization", token)
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def compact(server: EtcdProcess, revision: int) -> None:
    administer(server, "kv/compaction", revision=revision, physical=True)


def leader_of(members: list[EtcdProcess]) -> EtcdProcess:
    for member in members:
        status = administer(member, "maintenance/status")
        if status["leader"] == status["header"]["member_id"]:
            return member
    raise AssertionError("no member leads")


def protect(server: EtcdProcess, prefix: str, user: str, password: str) -> None:
    """From now on etcd wants a password; the user may touch the prefix only."""
    for name, secret, role in (("root", "top", "root"), (user, password, "some")):
        administer(server, "auth/user/add", name=name, password=secret)
        administer(server, "auth/role/add", name=role)
        administer(server, "auth/user/grant", user=name, role=role)
    first, end = prefix.encode(), prefix.encode()[:-1] + bytes([prefix.encode()[-1] + 1])
    permission = {"permType": "READWRITE", "key": _base64(first), "range_end": _base64(end)}
    administer(server, "auth/role/grant", name="some", perm=permission)
    administer(server, "auth/enable")


def change_users(server: EtcdProcess) -> None:
    """Any change of a server that `protect` protects."""
    token = administer(server, "auth/authenticate", name="root", password="top")["token"]
    administer(server, "auth/role/add", name="another", token=token)


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


# --- watching and writing ---------------------------------------------------------------------------------------------


class Watcher:
    """A watch that writes down all it is told."""

    def __init__(self) -> None:
        self.reported: list[Changes] = []
        self.error: BaseException | None = None
        self._news = asyncio.Event()

    @property
    def events(self) -> list[tuple[int, bytes, bytes | None]]:
        """Revision, key, and value or None for a delete, in the order they came."""
        return [
            (change.row.mod_revision, change.row.key, None if change.is_delete else change.row.value)
            for changes in self.reported
            for change in changes.changes
        ]

    @property
    def revision(self) -> int:
        return self.reported[-1].revision if self.reported else 0

    async def run(self, etcd: Etcd, prefix: bytes, after_revision: int) -> None:
        try:
            async for changes in etcd.watch(prefix, after_revision):
                self.reported.append(changes)
                self._news.set()
        except Exception as error:  # noqa: BLE001  # for `until` to show
            self.error = error
            self._news.set()

    async def until(self, is_so: Callable[["Watcher"], bool], seconds: float = WAIT_S) -> None:
        async with asyncio.timeout(seconds):
            while not is_so(self):
                if self.error is not None:
                    raise self.error
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def watching(etcd: Etcd, prefix: bytes, after_revision: int) -> AsyncIterator[Watcher]:
    watcher = Watcher()
    task = asyncio.create_task(watcher.run(etcd, prefix, after_revision))
    try:
        yield watcher
    finally:
        task.cancel()
        await asyncio.wait([task])


class Writer:
    """Commits without a pause, each to a key of its own, and remembers which were acknowledged."""

    def __init__(self, etcd: Etcd, prefix: bytes) -> None:
        self.acknowledged: dict[bytes, int] = {}  # key -> revision
        self.unknown: set[bytes] = set()
        self.failed: set[bytes] = set()
        self._etcd = etcd
        self._prefix = prefix
        self._is_over = False

    def finish(self) -> None:
        self._is_over = True

    async def run(self) -> None:
        number = 0
        while not self._is_over:
            number += 1
            key = self._prefix + b"%06d" % number
            try:
                committed = await self._etcd.commit([Unchanged(key, 0)], [Put(key, b"x")])
                assert committed.is_done
                self.acknowledged[key] = committed.revision
            except CommitUnknownError:
                self.unknown.add(key)
            except EtcdUnavailableError:
                self.failed.add(key)

    async def until_more(self, count: int) -> None:
        """So many more acknowledged commits."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(WAIT_S):
            while len(self.acknowledged) < wanted:
                await asyncio.sleep(0.005)

    async def undisturbed(self, count: int) -> None:
        """So many more, and while etcd serves no answer is lost. While it ends several may be, one after the other:
        until its last moment it takes connections, only to close them."""
        await self.until_more(1)  # by the present life of etcd: what was under way before is over
        unknown = len(self.unknown)
        await self.until_more(count)
        assert len(self.unknown) == unknown


@asynccontextmanager
async def writing(etcd: Etcd, prefix: bytes) -> AsyncIterator[Writer]:
    writer = Writer(etcd, prefix)
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        writer.finish()
        await task


async def put(etcd: Etcd, key: bytes, value: bytes = b"", lease: int = 0) -> int:
    """Its revision."""
    committed = await etcd.commit([], [Put(key, value, lease)])
    assert committed.is_done
    return committed.revision


async def delete(etcd: Etcd, key: bytes) -> int:
    return (await etcd.commit([], [Delete(key)])).revision


async def fails_within(seconds: float, work: Awaitable[object], error: type[BaseException]) -> str:
    """What the error says."""
    async with asyncio.timeout(seconds):
        with pytest.raises(error) as raised:
            await work
    return str(raised.value)
