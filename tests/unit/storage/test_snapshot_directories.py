"""Where states live: whatever moment the power fails at, the next start finds a whole state and removes the rest."""

import random
from pathlib import Path

import pytest

from holdfast.raft.messages import Configuration
from holdfast.storage.snapshots.directories import StateDirectories, StateMissingError
from holdfast.storage.snapshots.files import Files, RealFiles
from holdfast.storage.snapshots.messages import SnapshotBegin, SnapshotFile
from tests.simulation.snapshot_files import PowerCutError, PowerCutFiles

ROOT = Path("/data/state")
OLD, NEW = "s-0-00000000000000aa", "s-9-00000000000000bb"
CONTENT = {"CURRENT": b"MANIFEST-000005\n", "000008.sst": bytes(range(256)) * 100, "000004.log": b""}
BEGIN = SnapshotBegin(
    3,
    77,
    9,
    2,
    Configuration(4, ("n1/a", "n2/b")),
    tuple(SnapshotFile(name, len(CONTENT[name]), 0) for name in CONTENT),
)


def write_all(files: Files, path: Path, content: dict[str, bytes]) -> None:
    for name, data in content.items():
        files.write(path / name, 0, data)


def content_of(files: Files, path: Path) -> dict[str, bytes]:
    return {name: files.read(path / name, 0, files.size(path / name) or 0) for name in files.list_directory(path)}


def replica_with_a_state(files: Files) -> StateDirectories:
    """It has a state, durably, and the log names it."""
    directories = StateDirectories(ROOT, 0, files)
    path = directories.create(OLD)
    write_all(files, path, {"CURRENT": b"old"})
    files.sync_file(path / "CURRENT")
    files.sync_directory(path)
    return directories


def install(directories: StateDirectories, log: list[str]) -> None:
    """What a replica does with a snapshot, up to the record in the log that names the new state."""
    path = directories.begin(BEGIN)
    write_all(directories.files, path, CONTENT)
    directories.adopt(path, NEW)
    log.append(NEW)
    directories.remove(directories.state(OLD))


def steps_of_an_install() -> int:
    files = PowerCutFiles()
    directories = replica_with_a_state(files)
    before = files.steps
    install(directories, [OLD])
    return files.steps - before


@pytest.mark.parametrize("step", range(steps_of_an_install() + 1))
def test_a_power_cut_at_any_step_leaves_the_state_that_the_log_names_whole(step: int) -> None:
    for seed in range(20):
        draw = random.Random(seed)
        files = PowerCutFiles()
        directories, log = replica_with_a_state(files), [OLD]
        files.cut_power_at(step)
        try:
            install(directories, log)
        except PowerCutError:
            pass
        files = files.after_power_cut(draw)
        directories = StateDirectories(ROOT, 0, files)
        # The start itself may be cut short as well.
        files.cut_power_at(draw.randrange(10))
        try:
            directories.clean(log[-1])
        except PowerCutError:
            files = files.after_power_cut(draw)
            directories = StateDirectories(ROOT, 0, files)
        else:
            files = files.after_power_cut(draw)
            directories = StateDirectories(ROOT, 0, files)
        found = directories.clean(log[-1])

        expected = {"CURRENT": b"old"} if log[-1] == OLD else CONTENT
        assert content_of(files, directories.state(log[-1])) == expected
        assert directories.states() == [log[-1]]
        assert found.foreign == ()
        assert found.resumable in (None, BEGIN)
        if found.resumable is None:
            assert directories.incoming_paths() == []


def test_a_transfer_that_was_announced_survives_and_can_go_on() -> None:
    files = PowerCutFiles()
    directories = replica_with_a_state(files)
    directories.begin(BEGIN)
    files.cut_power()
    for seed in range(20):
        after = StateDirectories(ROOT, 0, files.after_power_cut(random.Random(seed)))
        assert after.clean(OLD).resumable == BEGIN
        assert after.announced(BEGIN.id) == BEGIN


def test_without_the_syncs_the_power_cut_would_be_noticed() -> None:
    """The check above can fail: an adoption that does not sync its files loses them."""

    class Careless(PowerCutFiles):
        def sync_file(self, path: Path) -> None:
            self._step()

    broken = 0
    for seed in range(20):
        files = Careless()
        directories = replica_with_a_state(files)
        install(directories, [OLD])
        after = files.after_power_cut(random.Random(seed))
        broken += content_of(after, directories.state(NEW)) != CONTENT
    assert broken > 0


def test_a_start_keeps_the_current_state_and_the_newest_transfer(tmp_path: Path) -> None:
    directories = StateDirectories(tmp_path, 3)
    for name in (OLD, NEW):
        directories.create(name)
    for number in (5, 6):
        directories.begin(SnapshotBegin(number, number, 9, 2, BEGIN.configuration, BEGIN.files))
    (tmp_path / "3" / "incoming-7").mkdir()
    (tmp_path / "3" / "outgoing-8").mkdir()
    (tmp_path / "3" / "outgoing-9.tmp").mkdir()
    (tmp_path / "3" / "000012.sst").write_bytes(b"of somebody else")
    found = directories.clean(NEW)
    assert set(found.removed) == {OLD, "incoming-5", "incoming-7", "outgoing-8", "outgoing-9.tmp"}
    assert found.resumable is not None
    assert found.resumable.id == 6
    assert found.foreign == ("000012.sst",)
    assert sorted(path.name for path in (tmp_path / "3").iterdir()) == ["000012.sst", "incoming-6", NEW]


def test_a_state_that_the_log_names_and_is_not_there_stops_the_start(tmp_path: Path) -> None:
    directories = StateDirectories(tmp_path, 0)
    directories.create(OLD)
    with pytest.raises(StateMissingError, match=NEW):
        directories.clean(NEW)
    assert directories.states() == [OLD]


def test_a_note_that_is_damaged_or_of_another_transfer_is_not_resumed(tmp_path: Path) -> None:
    directories = StateDirectories(tmp_path, 0)
    path = directories.begin(BEGIN)
    note = path / "TRANSFER"
    whole = note.read_bytes()
    for changed in (b"", whole[:-1], whole[:10] + b"\xff" + whole[11:]):
        note.write_bytes(changed)
        assert directories.announced(BEGIN.id) is None
    note.write_bytes(whole)
    path.rename(directories.incoming(78))
    assert directories.announced(78) is None
    assert directories.transfers() == []


@pytest.mark.parametrize(
    "name", ["", "s-1", "../s-1-00000000000000aa", "s-1-00000000000000aa/..", "S-1-00000000000000aa"]
)
def test_only_names_of_states_become_paths(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="name of a state"):
        StateDirectories(tmp_path, 0).state(name)


def test_new_names_differ_and_are_names(tmp_path: Path) -> None:
    directories = StateDirectories(tmp_path, 0)
    names = {directories.new_name(12) for _ in range(100)}
    assert len(names) == 100
    for name in names:
        assert directories.state(name).name.startswith("s-12-")


def test_real_files_do_as_the_twin_does(tmp_path: Path) -> None:
    def play(files: Files, root: Path) -> list[object]:
        files.make_directory(root / "a" / "b")
        path = root / "a" / "b" / "file"
        files.write(path, 5, b"five")
        files.write(path, 0, b"zero")
        seen: list[object] = [files.read(path, 0, 100), files.size(path), files.size(root / "none")]
        files.truncate(path, 3)
        files.sync_file(path)
        files.sync_directory(path.parent)
        seen += [files.read(path, 1, 100), files.list_directory(root / "a"), files.list_directory(root / "none")]
        files.rename(path, path.with_name("other"))
        seen += [files.size(path), files.size(path.with_name("other"))]
        files.remove_file(path)
        files.remove_tree(root / "a")
        files.remove_tree(root / "a")
        seen += [files.list_directory(root)]
        with pytest.raises(FileNotFoundError):
            files.read(path, 0, 1)
        return seen

    assert play(RealFiles(), tmp_path) == play(PowerCutFiles(), Path("/data"))
