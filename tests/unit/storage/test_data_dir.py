"""The data directory: one process at a time, one format, one identity, and never somebody else's directory."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.storage.data_dir import (
    DataDir,
    DataDirDamagedError,
    DataDirError,
    DataDirFormatError,
    DataDirLockedError,
)

HOLD_UNTIL_STDIN_CLOSES = """
import sys
from pathlib import Path
from holdfast.storage.data_dir import DataDir
with DataDir.open(Path(sys.argv[1])) as data_dir:
    print(data_dir.node_id, flush=True)
    sys.stdin.read()
"""


def hold(path: Path) -> subprocess.Popen[str]:
    """A second process that has the directory open once its first line is read."""
    env = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    return subprocess.Popen(
        [sys.executable, "-c", HOLD_UNTIL_STDIN_CLOSES, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    )


def test_a_new_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    with DataDir.open(path) as data_dir:
        assert data_dir.path == path
        assert data_dir.log_dir.is_dir()
        assert data_dir.state_dir.is_dir()
        assert len(bytes.fromhex(data_dir.node_id)) == 16
    assert (path / "FORMAT").read_bytes() == b"holdfast-data 10\n"
    assert (path.stat().st_mode & 0o777) == 0o700


def test_the_node_id_stays_and_differs_between_directories(tmp_path: Path) -> None:
    with DataDir.open(tmp_path / "a") as first, DataDir.open(tmp_path / "b") as other:
        ids = (first.node_id, other.node_id)
    assert ids[0] != ids[1]
    with DataDir.open(tmp_path / "a") as again:
        assert again.node_id == ids[0]


def test_a_second_process_is_told_who_holds_it(tmp_path: Path) -> None:
    with hold(tmp_path) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        node_id = holder.stdout.readline().strip()
        with pytest.raises(DataDirLockedError) as refused:
            DataDir.open(tmp_path)
        assert str(tmp_path) in str(refused.value)
        assert f"process {holder.pid}." in str(refused.value)
        assert "Stop that process" in str(refused.value)
        holder.stdin.close()
        assert holder.wait() == 0
    with DataDir.open(tmp_path) as data_dir:
        assert data_dir.node_id == node_id


def test_a_killed_process_lets_go(tmp_path: Path) -> None:
    with hold(tmp_path) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.kill()
        holder.wait()
        DataDir.open(tmp_path).close()


def test_the_same_process_cannot_open_it_twice(tmp_path: Path) -> None:
    with DataDir.open(tmp_path) as data_dir:
        with pytest.raises(DataDirLockedError, match=f"process {os.getpid()}"):
            DataDir.open(tmp_path)
        data_dir.close()
        data_dir.close()
        DataDir.open(tmp_path).close()


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"holdfast-data 11\n", "has format 11, but this version reads format 10. Use the newer version that wrote it"),
        (
            b"holdfast-data 1\n",
            "has format 1, but this version reads format 10. Use the older version that wrote it, or",
        ),
        (b"holdfast-data 10", "is damaged"),
        (b"", "is damaged"),
        (b"\xff" * 5000, "is damaged"),
        (b"holdfast-data \xc2\xb9\n", "is damaged"),
    ],
)
def test_another_format_is_refused(tmp_path: Path, content: bytes, expected: str) -> None:
    DataDir.open(tmp_path).close()
    (tmp_path / "FORMAT").write_bytes(content)
    with pytest.raises((DataDirFormatError, DataDirDamagedError), match=expected) as refused:
        DataDir.open(tmp_path)
    assert "reads format 10" in str(refused.value)
    assert len(str(refused.value)) < 1000
    (tmp_path / "FORMAT").write_bytes(b"holdfast-data 10\n")
    DataDir.open(tmp_path).close()  # the refusal let go of the lock


@pytest.mark.parametrize("content", [None, b"", b"abc\n", b"G" * 32 + b"\n"])
def test_a_lost_identity_is_not_replaced(tmp_path: Path, content: bytes | None) -> None:
    DataDir.open(tmp_path).close()
    (tmp_path / "NODE_ID").unlink()
    if content is not None:
        (tmp_path / "NODE_ID").write_bytes(content)
    with pytest.raises(DataDirDamagedError, match="NODE_ID(, but it)? is (missing|damaged)"):
        DataDir.open(tmp_path)


@pytest.mark.parametrize("unknown", ["notes.txt", "log/old", "state/old", "CURRENT"])
def test_a_directory_of_something_else_is_left_alone(tmp_path: Path, unknown: str) -> None:
    (tmp_path / unknown).parent.mkdir(exist_ok=True)
    (tmp_path / unknown).write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(DataDirError, match="not a Holdfast data directory"):
        DataDir.open(tmp_path)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("left_behind", [["LOCK"], ["LOCK", "NODE_ID.tmp"], ["LOCK", "FORMAT.tmp"], ["lost+found/"]])
def test_an_interrupted_first_start_is_finished(tmp_path: Path, left_behind: list[str]) -> None:
    for name in left_behind:
        if name.endswith("/"):
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_bytes(b"")
    with DataDir.open(tmp_path) as data_dir:
        assert data_dir.node_id
    assert (tmp_path / "FORMAT").read_bytes() == b"holdfast-data 10\n"


def test_a_first_start_interrupted_before_format_keeps_its_identity(tmp_path: Path) -> None:
    with DataDir.open(tmp_path) as data_dir:
        node_id = data_dir.node_id
    (tmp_path / "FORMAT").unlink()
    with DataDir.open(tmp_path) as again:
        assert again.node_id == node_id


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataDirError, match=f"Cannot use data directory {path}: .*file"):
            DataDir.open(path)


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Injected, because the tests may run as a user whom no permission stops."""

    def refuse(path: Path, *_args: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(DataDirError, match=f"Cannot use data directory {tmp_path}: .*LOCK: Permission denied"):
        DataDir.open(tmp_path)


def test_every_new_name_is_synced_with_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real_fsync = os.fsync

    def record(fd: int) -> None:
        synced.append(os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), tmp_path))
        real_fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    DataDir.open(tmp_path / "d").close()
    assert synced == [".", "d/LOCK", "d", "d", "d", "d/NODE_ID.tmp", "d", "d/FORMAT.tmp", "d"]


def test_a_node_whose_log_is_gone_does_not_begin_anew(tmp_path: Path) -> None:
    """It would vote and lead as if it had never promised anything."""
    with DataDir.open(tmp_path) as data:
        data.check_log(is_empty=True)  # new
        data.note_log_begun()
        data.check_log(is_empty=False)
        with pytest.raises(DataDirDamagedError, match="it was lost"):
            data.check_log(is_empty=True)
    with DataDir.open(tmp_path) as data, pytest.raises(DataDirError, match="not mounted"):
        data.check_log(is_empty=True)


def test_a_log_from_before_it_was_marked_is_marked(tmp_path: Path) -> None:
    """The process ended between its first round and the mark."""
    with DataDir.open(tmp_path) as data:
        data.check_log(is_empty=False)
        with pytest.raises(DataDirError):
            data.check_log(is_empty=True)


def test_a_directory_that_stays_in_place_is_fine(tmp_path: Path) -> None:
    with DataDir.open(tmp_path / "data") as data_dir:
        data_dir.note_log_begun()
        (data_dir.log_dir / "segment").write_bytes(b"x")
        data_dir.check_in_place()


@pytest.mark.parametrize("what", ["", "LOCK", "log", "state"])
@pytest.mark.parametrize("is_replaced", [False, True])
def test_what_is_deleted_or_replaced_is_noticed(tmp_path: Path, what: str, is_replaced: bool) -> None:
    with DataDir.open(tmp_path / "data") as data_dir:
        gone = data_dir.path / what
        gone.rename(tmp_path / "elsewhere")  # so that nothing new gets its number
        if is_replaced:
            gone.touch() if what == "LOCK" else gone.mkdir()
        expected = "was replaced by another one" if is_replaced else "is gone"
        with pytest.raises(DataDirDamagedError, match=f"Expected {gone} to stay in place .* it {expected}"):
            data_dir.check_in_place()
