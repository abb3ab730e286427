"""The writer of an audit log: what was noted is there, whatever happens to the process or the disk."""

import os
import stat
import threading
from pathlib import Path

import pytest

from holdfast.audit.chain import BEGINNING, Checked, check
from holdfast.serving import audit_log
from holdfast.serving.audit_log import WAITING_MAX, AuditLog, audit_files
from tests.integration.server import wait_until


def note(log: AuditLog, count: int = 1) -> None:
    for number in range(count):
        log.note("ada", "10.0.0.1:5", "Queues/PurgeQueue", f"queue=q{number}", "OK")


def checked(directory: Path) -> Checked:
    lines = [line for path in audit_files(directory) for line in path.read_text("ascii").splitlines()]
    return check(lines)


def test_entries_are_written_and_the_chain_goes_on_after_a_restart(tmp_path: Path) -> None:
    directory = tmp_path / "audit"
    for expected in (3, 6):
        log = AuditLog(directory, "n1")
        note(log, 3)
        log.close()
        assert checked(directory).last == expected
    [file] = audit_files(directory)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_files_are_rotated_and_the_oldest_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(12):
        log = AuditLog(tmp_path, "n1", file_bytes_max=1000, files_max=3)
        note(log, 2)
        log.close()
    files = audit_files(tmp_path)
    assert len(files) == 3
    found = checked(tmp_path)
    assert (found.last, found.first > 10) == (24, True)
    last_of_former = check(files[-2].read_text("ascii").splitlines()).hash
    assert last_of_former in capsys.readouterr().out, "whoever keeps the server's log can prove it"


def test_a_torn_line_is_taken_away_and_the_chain_goes_on(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, "n1")
    note(log, 2)
    log.close()
    [file] = audit_files(tmp_path)
    with file.open("ab") as torn:
        torn.write(b'{"number":3,"at')
    log = AuditLog(tmp_path, "n1")
    note(log)
    log.close()
    assert checked(tmp_path).last == 3


def test_a_file_that_was_begun_and_is_empty_continues_the_one_before(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, "n1")
    note(log, 2)
    log.close()
    (tmp_path / "audit-000000000003.jsonl").touch()
    log = AuditLog(tmp_path, "n1")
    note(log)
    log.close()
    assert checked(tmp_path).last == 3


def test_a_damaged_file_is_left_as_it_is_and_another_begun(tmp_path: Path) -> None:
    log = AuditLog(tmp_path, "n1")
    note(log, 3)
    log.close()
    [file] = audit_files(tmp_path)
    damaged = file.read_bytes()[:-30] + b"x" * 29 + b"\n"
    file.write_bytes(damaged)
    log = AuditLog(tmp_path, "n1")
    note(log)
    log.close()
    assert file.read_bytes() == damaged
    assert check(audit_files(tmp_path)[1].read_text("ascii").splitlines(), BEGINNING, 3).entries == 1


def test_a_disk_that_takes_nothing_loses_entries_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    full = True
    write = os.write

    def fail(fd: int, data: bytes) -> int:
        if full:
            write(fd, data[:10])
            raise OSError(28, "No space left on device")
        return write(fd, data)

    class Os:
        def __getattr__(self, name: str) -> object:
            return fail if name == "write" else getattr(os, name)

    monkeypatch.setattr(audit_log, "os", Os())
    log = AuditLog(tmp_path, "n1")
    note(log, 2)
    log.close()
    assert log.lost == 2
    full = False
    again = AuditLog(tmp_path, "n1")
    note(again)
    again.close()
    assert checked(tmp_path).entries == 1, "nothing of what failed is left"
    assert "No space left on device" in capsys.readouterr().out


def test_what_was_lost_is_said_by_the_next_entry(tmp_path: Path) -> None:
    """Also where nothing can be made at first. Nobody waits for it, and nothing grows."""
    place = tmp_path / "audit"
    place.touch()  # a file where a directory should be
    log = AuditLog(place, "n1")
    note(log, WAITING_MAX)
    wait_until(lambda: log.lost == WAITING_MAX, "all to be lost")
    place.unlink()
    note(log)
    log.close()
    found = checked(place)
    assert (found.entries, found.lost) == (1, WAITING_MAX)


def test_more_than_can_wait_is_dropped_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk hangs; whoever notes something does not."""
    hangs, os_sync = threading.Event(), os.fdatasync

    class Os:
        def __getattr__(self, name: str) -> object:
            return sync if name == "fdatasync" else getattr(os, name)

    def sync(fd: int) -> None:
        assert hangs.wait(20)
        os_sync(fd)

    monkeypatch.setattr(audit_log, "os", Os())
    log = AuditLog(tmp_path, "n1")
    note(log, WAITING_MAX + 2 * audit_log.BATCH_MAX)
    lost = log.lost
    assert lost >= audit_log.BATCH_MAX
    hangs.set()
    log.close()
    found = checked(tmp_path)
    assert found.entries + lost == WAITING_MAX + 2 * audit_log.BATCH_MAX
