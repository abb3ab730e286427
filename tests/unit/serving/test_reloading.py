"""What is made of files is made anew when they change, and kept when nothing can be made of them."""

import os
from pathlib import Path

import pytest

from holdfast.serving.reloading import Reloaded, certificate_gauges


class UnusableError(Exception):
    pass


class Made(str):
    """What is made of files knows until when it is good."""

    expires_s = 1e9


def reloaded(*paths: Path) -> Reloaded[Made]:
    def make() -> Made:
        try:
            text = "".join(path.read_text() for path in paths)
        except OSError as error:
            raise UnusableError("gone") from error
        if "broken" in text:
            raise UnusableError("broken")
        return Made(text)

    return Reloaded("test", [*paths, None], make, errors=UnusableError)


def shown(*found: Reloaded[Made] | None) -> tuple[float, ...]:
    gauges = certificate_gauges(found)
    return tuple(
        gauges[f"certificates_{name}"] for name in ("reloaded", "unusable", "expire_timestamp_seconds")
    )  # fmt: skip


def test_a_file_that_changes_is_read_anew(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("one")
    found = reloaded(file)
    assert (found.current, found.poll(), found.reloads) == ("one", False, 0)
    file.write_text("another")
    assert (found.poll(), found.current, found.reloads) == (True, "another", 1)
    assert not found.poll()


def test_a_directory_that_is_turned_to_another_is_noticed(tmp_path: Path) -> None:
    """As mounted secrets are changed: all files of one at once."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "key").write_text(name)
    os.utime(tmp_path / "new" / "key", ns=(os.stat(tmp_path / "old" / "key").st_mtime_ns,) * 2)
    link = tmp_path / "data"
    link.symlink_to("old")
    found = reloaded(link / "key")
    (tmp_path / "data.new").symlink_to("new")
    os.replace(tmp_path / "data.new", link)
    assert (found.poll(), found.current) == (True, "new"), "of the same size and age, but another file"


def test_what_cannot_be_used_leaves_the_last_good_one(tmp_path: Path) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_text("one")
    other.write_text("+")
    found = reloaded(file, other)
    for change in (lambda: file.write_text("broken"), file.unlink):
        change()
        assert not found.poll()
        assert found.current == "one+"
        assert shown(found) == (0, 1, 1e9)
    assert found.problem == "gone"
    assert not found.poll(), "it is tried again when the files change, and not before"
    file.write_text("two")
    assert (found.poll(), found.current, found.problem) == (True, "two+", "")
    assert shown(found, None) == (1, 0, 1e9)


def test_at_the_start_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusableError):
        reloaded(tmp_path / "nothing")
    assert shown(None) == (0, 0, 0), "there are none"
