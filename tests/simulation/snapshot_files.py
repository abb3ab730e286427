"""The in-memory twin of storage/snapshots/files.py: loses what was not synced, and fails at any step it is told to."""

from __future__ import annotations

import random
from pathlib import Path

PAGE_BYTES = 4096


class PowerCutError(BaseException):
    """The machine is off. Not an OSError: nobody is there to handle it."""


class _File:
    def __init__(self, content: bytes = b"") -> None:
        self.content = bytearray(content)  # as a process sees it
        self.synced = bytes(content)  # as the disk has it

    def survive(self, draw: random.Random) -> _File:
        """Each page as it was or as it was to be, and either length; beyond what was written there are zeros."""
        size = draw.choice([len(self.content), len(self.synced)])
        survived = bytearray(self.synced[:size].ljust(size, b"\0"))
        for start in range(0, size, PAGE_BYTES):
            if draw.random() < 0.5:
                page = self.content[start : min(start + PAGE_BYTES, size)]
                survived[start : start + len(page)] = page
        return _File(bytes(survived))


class _Directory:
    def __init__(self) -> None:
        self.entries: dict[str, _File | _Directory] = {}
        self.could_survive: list[dict[str, _File | _Directory]] = [{}]  # the synced one, then one after each change

    def changed(self) -> None:
        self.could_survive.append(dict(self.entries))

    def sync(self) -> None:
        self.could_survive = [dict(self.entries)]

    def survive(self, draw: random.Random) -> _Directory:
        survivor = _Directory()
        for name, node in draw.choice(self.could_survive).items():
            survivor.entries[name] = node.survive(draw)
        survivor.sync()
        return survivor


class PowerCutFiles:
    """A `Files` whose power fails before step `cut_at`, and which has `steps` behind it. Reading is no step."""

    def __init__(self, root: _Directory | None = None, cut_at: int | None = None) -> None:
        self._root = root if root is not None else _Directory()
        self._cut_at = cut_at
        self.steps = 0
        self.written_bytes = 0

    def cut_power_at(self, step: int) -> None:
        """Counted from now."""
        self._cut_at = self.steps + step

    def cut_power(self) -> None:
        self._cut_at = self.steps

    def keep_power(self) -> None:
        self._cut_at = None

    @property
    def is_off(self) -> bool:
        return self._cut_at is not None and self.steps >= self._cut_at

    def after_power_cut(self, draw: random.Random) -> PowerCutFiles:
        """What the machine finds when it is on again."""
        return PowerCutFiles(self._root.survive(draw))

    def copy_out(self, path: Path, target: Path) -> None:
        """A directory of files, into the real file system."""
        target.mkdir(parents=True)
        for name, node in self._directory(path).entries.items():
            assert isinstance(node, _File)
            (target / name).write_bytes(node.content)

    def damage(self, path: Path, offset: int) -> None:
        """A byte changes, on the disk and for everybody who reads."""
        file = self._file(path)
        file.content[offset] ^= 0xFF
        file.synced = bytes(file.content)

    # --- Files ------------------------------------------------------------------------------------------------

    def list_directory(self, path: Path) -> list[str]:
        self._check_power()
        node = self._find(path)
        return sorted(node.entries, reverse=True) if isinstance(node, _Directory) else []

    def make_directory(self, path: Path) -> None:
        if self._find(path) is None:
            self.make_directory(path.parent)
            self._step()
            parent = self._directory(path.parent)
            parent.entries[path.name] = _Directory()
            parent.changed()
            self.sync_directory(path.parent)

    def rename(self, old: Path, new: Path) -> None:
        assert old.parent == new.parent
        self._step()
        parent = self._directory(old.parent)
        target = parent.entries.get(new.name)
        assert not isinstance(target, _Directory), "a directory is not replaced"
        parent.entries[new.name] = parent.entries.pop(old.name)
        parent.changed()

    def remove_file(self, path: Path) -> None:
        self._step()
        parent = self._directory(path.parent)
        if parent.entries.pop(path.name, None) is not None:
            parent.changed()

    def remove_tree(self, path: Path) -> None:
        node = self._find(path)
        if isinstance(node, _Directory):
            for name in list(node.entries):
                self.remove_tree(path / name)
        if node is not None:
            self.remove_file(path)

    def size(self, path: Path) -> int | None:
        self._check_power()
        node = self._find(path)
        return len(node.content) if isinstance(node, _File) else None

    def read(self, path: Path, offset: int, length: int) -> bytes:
        self._check_power()
        return bytes(self._file(path).content[offset : offset + length])

    def write(self, path: Path, offset: int, data: bytes) -> None:
        self._step()
        file = self._made(path)
        if len(file.content) < offset:
            file.content.extend(bytes(offset - len(file.content)))
        file.content[offset : offset + len(data)] = data
        self.written_bytes += len(data)

    def truncate(self, path: Path, size_bytes: int) -> None:
        self._step()
        file = self._made(path)
        del file.content[size_bytes:]
        file.content.extend(bytes(size_bytes - len(file.content)))

    def sync_file(self, path: Path) -> None:
        self._step()
        file = self._file(path)
        file.synced = bytes(file.content)

    def sync_directory(self, path: Path) -> None:
        self._step()
        self._directory(path).sync()

    # ----------------------------------------------------------------------------------------------------------

    def _check_power(self) -> None:
        if self.is_off:
            raise PowerCutError

    def _step(self) -> None:
        self._check_power()
        self.steps += 1

    def _find(self, path: Path) -> _File | _Directory | None:
        node: _File | _Directory | None = self._root
        for part in path.parts[1:]:
            node = node.entries.get(part) if isinstance(node, _Directory) else None
        return node

    def _file(self, path: Path) -> _File:
        node = self._find(path)
        if not isinstance(node, _File):
            raise FileNotFoundError(2, "No such file", str(path))
        return node

    def _directory(self, path: Path) -> _Directory:
        node = self._find(path)
        if not isinstance(node, _Directory):
            raise FileNotFoundError(2, "No such directory", str(path))
        return node

    def _made(self, path: Path) -> _File:
        parent = self._directory(path.parent)
        if path.name not in parent.entries:
            parent.entries[path.name] = _File()
            parent.changed()
        return self._file(path)
