"""PostgreSQL: one table; a claim is `SELECT … FOR UPDATE SKIP LOCKED` in a transaction that ends with the delete."""

import os
import signal
from collections.abc import Sequence
from typing import Any

import psycopg

from harness.cluster import HOST, free_ports
from peers.packages import postgres_directory
from peers.peer import Client, Peer
from peers.processes import own_directory, run_once

USER = "postgres"
_CLAIM = "SELECT id, payload FROM task ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED"
_INSERT = "WITH new AS (INSERT INTO task (payload) SELECT unnest(%b::bytea[])) SELECT pg_notify('task', '')"


class Postgres(Peer):
    async def start(self) -> None:
        user = USER if os.geteuid() == 0 else None  # its programs refuse to run as root
        programs = postgres_directory()
        assert programs is not None
        [port] = free_ports(1)
        data = own_directory(self.directory / "data", user)
        command = [str(programs / "initdb"), "-D", str(data), "-A", "trust", "-U", USER]
        await run_once(command, directory=self.directory, user=user, env={})
        settings = (
            "fsync=on", "synchronous_commit=on", "max_wal_size=4GB", "autovacuum_naptime=1s", f"listen_addresses={HOST}"
        )  # fmt: skip
        options = [part for setting in settings for part in ("-c", setting)]
        await self.processes.start(
            programs / "postgres", "-D", data, "-p", str(port), "-k", data, *options,
            user=user, stop_signal=signal.SIGINT,
        )  # fmt: skip
        self.target = {"dsn": f"host={HOST} port={port} user={USER} dbname=postgres"}
        await self.processes.until("postgres", self._ping)
        await self.make_tables()

    async def _ping(self) -> None:
        self.execute("SELECT 1")

    async def make_tables(self) -> None:
        self.execute("CREATE TABLE task (id bigserial PRIMARY KEY, payload bytea NOT NULL)")

    async def empty_queue(self) -> str:
        self.execute("TRUNCATE task")
        return self.next_queue()

    def execute(self, statement: str) -> None:
        with psycopg.connect(self.target["dsn"], autocommit=True) as connection:
            connection.execute(statement.encode())


class PostgresClient(Client):
    async def open(self) -> None:
        self._connection: Any = psycopg.connect(self.target["dsn"], autocommit=True)
        self._connection.execute("LISTEN task")

    async def produce(self, payloads: Sequence[bytes]) -> None:
        self._connection.execute(_INSERT, [list(payloads)])

    async def claim(self, tasks_max: int, wait_s: float) -> tuple[Sequence[bytes], Any]:
        rows = self._locked(tasks_max)
        if not rows:
            for _ in self._connection.notifies(timeout=wait_s, stop_after=1):
                pass
            rows = self._locked(tasks_max)
        return [payload for _, payload in rows], [number for number, _ in rows]

    def _locked(self, tasks_max: int) -> Any:
        """Rows of a transaction that is left open; if there are none it is ended."""
        self._connection.execute("BEGIN")
        rows = self._connection.execute(_CLAIM, [tasks_max], binary=True).fetchall()
        if not rows:
            self._connection.execute("COMMIT")
        return rows

    async def ack(self, handle: Any) -> None:
        self._connection.execute("DELETE FROM task WHERE id = ANY(%b)", [handle])
        self._connection.execute("COMMIT")
