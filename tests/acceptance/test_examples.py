"""Each program of examples/ does what it says: with a real server, real workers and, for e-mail, a real SMTP server."""

import os
import socket
import socketserver
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, time, timedelta
from pathlib import Path

import pytest

from examples.nightly_report import next_run
from holdfast.client import Client, Holdfast, TaskState
from tests.acceptance.running import REPO, Running, environment, running
from tests.integration.server import ServerProcess, wait_until

EXAMPLES = REPO / "examples"


class Stage:
    """A server, and the processes of one example."""

    def __init__(self, server: ServerProcess, directory: Path, stack: ExitStack) -> None:
        self.directory = directory
        self._stack = stack
        self._workers = 0
        self.client = stack.enter_context(Client(server.address))
        self.app = stack.enter_context(Holdfast(server.address))
        self.settings = {"HOLDFAST_ADDRESS": server.address}

    def worker(self, app: str) -> Running:
        self._workers += 1
        command = ["holdfast", "worker", app, "--grace", "5s"]
        output = self.directory / f"worker-{self._workers}.log"
        worker = self._stack.enter_context(running(command, EXAMPLES, output, environment(self.settings)))
        worker.wait_for(" serves ")
        return worker

    def program(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, name, *arguments],
            cwd=EXAMPLES, env=environment(self.settings), capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip


@pytest.fixture
def stage(shared_server: ServerProcess, tmp_path: Path) -> Iterator[Stage]:
    with ExitStack() as stack:
        yield Stage(shared_server, tmp_path, stack)


class MailSink(socketserver.ThreadingTCPServer):
    """An SMTP server that puts off the first tries, has no mailbox called nobody, and keeps what it accepts."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, put_off: int) -> None:
        super().__init__(("127.0.0.1", 0), _MailTalk)
        self.put_off = put_off
        self.asked = 0  # recipients
        self.mails: list[str] = []

    def recipient(self, line: str) -> str:
        self.asked += 1
        if "nobody@" in line:
            return "550 no such mailbox"
        return "451 try again later" if self.asked <= self.put_off else "250 ok"


class _MailTalk(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        sink = self.server
        assert isinstance(sink, MailSink)
        self._say("220 sink")
        while line := self.rfile.readline().decode().strip():
            verb = line[:4].upper()
            if verb == "RCPT":
                self._say(sink.recipient(line))
            elif verb == "DATA":
                self._say("354 go on")
                lines = iter(lambda: self.rfile.readline().decode(), ".\r\n")
                sink.mails.append("".join(lines))
                self._say("250 taken")
            elif verb == "QUIT":
                self._say("221 bye")
                return
            else:
                self._say("250 ok")

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


@pytest.fixture
def sink() -> Iterator[MailSink]:
    with MailSink(put_off=2) as sink:
        thread = threading.Thread(target=sink.serve_forever, daemon=True)
        thread.start()
        yield sink
        sink.shutdown()
        thread.join()


def test_a_mail_gets_through_a_server_that_refuses_at_first(stage: Stage, sink: MailSink) -> None:
    stage.settings |= {"SMTP_HOST": "127.0.0.1", "SMTP_PORT": str(sink.server_address[1])}
    worker = stage.worker("email_with_retries:app")

    sent = stage.program("email_with_retries.py", "ada@example.org")
    assert sent.returncode == 0, sent.stdout + sent.stderr
    assert "after 2 failed attempts" in sent.stdout
    [mail] = sink.mails
    task_id = sent.stdout.partition("accepted as task ")[2].partition(":")[0]
    assert f"Message-ID: <{task_id}@example.org>" in mail
    assert "This mail was not lost on its way." in mail

    refused = stage.program("email_with_retries.py", "nobody@example.org")
    assert refused.returncode == 1
    assert "given up: 550 no such mailbox" in refused.stdout
    assert sink.asked == 4  # two put off, one taken, one refused for good and not tried again
    stats = stage.client.queue_stats("mail")
    assert (stats.ready, stats.claimed, stats.retrying, stats.dead) == (0, 0, 0, 1)
    assert worker.stop() == 0
    assert worker.output.count(": mail to ") == 4


def test_a_mail_waits_for_a_mail_server_that_is_down(stage: Stage, sink: MailSink) -> None:
    """The first attempts meet a closed port: the server's own back-off brings the task back."""
    sink.put_off = 0
    closed = socket.socket()  # bound, so that nobody else gets the port, and deaf
    closed.bind(("127.0.0.1", 0))
    stage.settings |= {"SMTP_HOST": "127.0.0.1", "SMTP_PORT": str(closed.getsockname()[1])}
    first = stage.worker("email_with_retries:app")
    program = subprocess.Popen(
        [sys.executable, "email_with_retries.py", "ada@example.org"],
        cwd=EXAMPLES, env=environment(stage.settings), stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    with closed, program:
        first.wait_for("attempt 2")
        assert first.stop() == 0
        stage.settings |= {"SMTP_PORT": str(sink.server_address[1])}
        second = stage.worker("email_with_retries:app")
        assert program.wait(60) == 0
        assert len(sink.mails) == 1
        assert second.stop() == 0


def test_a_report_is_planned_once_and_made_in_time(stage: Stage) -> None:
    reports = stage.directory / "reports"
    reports.mkdir()
    stage.settings |= {"REPORT_DIR": str(reports)}
    due = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=10)
    when = ("--at", f"{due:%H:%M:%S}", "--zone", "UTC")

    first, second = stage.program("nightly_report.py", *when), stage.program("nightly_report.py", *when)
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert "is planned: task " in first.stdout
    assert "was planned before: task " in second.stdout
    task_id = first.stdout.strip().rpartition(" ")[2]
    assert second.stdout.strip().endswith(task_id)
    assert stage.client.get_task(task_id).state is TaskState.DELAYED

    worker = stage.worker("nightly_report:app")
    assert stage.app.handle(task_id).result(timeout=30) == str(reports / f"report-{due:%Y-%m-%d}.txt")
    [report] = reports.iterdir()
    assert report.name == f"report-{due:%Y-%m-%d}.txt"
    assert report.stat().st_mtime >= due.timestamp()  # never early
    stats = stage.client.queue_stats("reports")
    assert (stats.succeeded_total, stats.delayed) == (1, 1)  # and the next night is planned
    assert worker.stop() == 0


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2026-01-10T00:30:00+00:00", "2026-01-10T01:00:00+00:00"),  # 01:30 in Berlin: this night
        ("2026-01-10T01:00:00+00:00", "2026-01-11T01:00:00+00:00"),  # 02:00 sharp: the next one
        ("2026-07-10T12:00:00+00:00", "2026-07-11T00:00:00+00:00"),  # summer time
        ("2026-03-28T12:00:00+00:00", "2026-03-29T01:00:00+00:00"),  # 02:00 does not exist: 03:00
        ("2026-10-24T12:00:00+00:00", "2026-10-25T00:00:00+00:00"),  # 02:00 comes twice: the first
    ],
)
def test_the_next_night_is_right_also_when_clocks_change(now: str, expected: str) -> None:
    found = next_run(datetime.fromisoformat(now), time(2, 0), "Europe/Berlin")
    assert found.astimezone(UTC) == datetime.fromisoformat(expected)


def test_a_payment_happens_once_although_its_handler_runs_twice(stage: Stage) -> None:
    path = stage.directory / "payments.db"
    stage.settings |= {"PAYMENTS_DB": str(path)}
    workers = [stage.worker("effectively_once:app") for _ in range(2)]

    paid = stage.program("effectively_once.py")
    assert paid.returncode == 0, paid.stdout + paid.stderr
    assert "the handler ran 2 times, the customer paid 1 time" in paid.stdout
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT customer, cents FROM payments").fetchall() == [("ada", 1999)]
        assert database.execute("SELECT count(*) FROM runs").fetchone() == (2,)
    stats = stage.client.queue_stats("payments")
    assert (stats.succeeded_total, stats.expired_total, stats.dead) == (1, 1, 0)

    wait_until(lambda: any(worker.exit_code is not None for worker in workers), "the end of the worker that was killed")
    assert sorted(worker.exit_code or worker.stop() for worker in workers) == [-9, 0]
    said = "".join(worker.output for worker in workers)
    assert said.count("ada pays 19.99") == 1
    assert said.count("ada has paid already") == 1


def test_a_burst_of_one_tenant_leaves_the_others_their_share(stage: Stage) -> None:
    shown = stage.program("fair_shares.py")
    assert shown.returncode == 0, shown.stderr
    # A quarter, a quarter and half, although the ten claims for the oldest are all of the burst.
    burst, plain, gold = (int(line.split()[1]) for line in shown.stdout.splitlines()[:3])
    assert burst + plain + gold == 100
    assert abs(gold - 2 * plain) <= 2
    assert abs(burst - plain) <= 3
    assert "620 tasks are left" in shown.stdout


def test_a_cleanup_is_scheduled_once_and_can_be_had_now(stage: Stage) -> None:
    files = stage.directory / "files"
    files.mkdir()
    stage.settings |= {"CLEAN_DIR": str(files)}
    for name, age_days in (("old.tmp", 8), ("new.tmp", 6), ("old.txt", 8)):
        (files / name).touch()
        when = (datetime.now(UTC) - timedelta(days=age_days)).timestamp()
        os.utime(files / name, (when, when))
    worker = stage.worker("scheduled_cleanup:app")

    yearly = ("scheduled_cleanup.py", "--when", "@yearly")  # so that no tick comes in between
    first, second = stage.program(*yearly), stage.program(*yearly, "--now")
    assert first.returncode == second.returncode == 0, first.stderr + second.stderr
    assert len(first.stdout.splitlines()) == 3
    assert second.stdout == first.stdout + "deleted 1 files now\n"
    assert sorted(path.name for path in files.iterdir()) == ["new.tmp", "old.txt"]
    [known] = stage.client.list_schedules("housekeeping").schedules
    assert (known.name, known.fired_total) == ("cleanup", 1)
    assert worker.stop() == 0


def test_a_note_is_encrypted_and_its_key_is_rotated(stage: Stage) -> None:
    old, new = f"old:{bytes(range(32)).hex()}", f"new:{bytes(32).hex()}"

    def noted(keys: str) -> bytes:
        stage.settings |= {"NOTES_KEYS": keys}
        shown = stage.program("encrypted_notes.py", "Ada has a cold")
        assert shown.returncode == 0, shown.stderr
        first, said = shown.stdout.splitlines()
        assert said == "noted 14 characters: Ada has a cold"
        result = stage.client.get_task(first.split()[1]).result
        assert result is not None
        assert b"Ada" not in result
        return result

    stage.settings |= {"NOTES_KEYS": f"{old},{new}"}
    worker = stage.worker("encrypted_notes:app")
    assert b"old" in noted(old)
    stage.settings |= {"NOTES_KEYS": f"{new},{old}"}
    other = stage.worker("encrypted_notes:app")
    assert worker.stop() == 0
    assert b"new" in noted(f"{new},{old}")
    assert other.stop() == 0
