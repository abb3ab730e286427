"""Reading the parts of an entry's body one after the other."""

import struct

COUNT = struct.Struct(">I")
U64 = struct.Struct(">Q")
PAIR = struct.Struct(">QQ")


class DecodeError(ValueError):
    """The bytes are not an entry that this version knows."""


class BytesReader:
    """Walks over the bytes of one entry."""

    __slots__ = ("data", "offset")

    def __init__(self, data: bytes, offset: int) -> None:
        self.data = data
        self.offset = offset

    def take(self, length: int) -> bytes:
        start, self.offset = self.offset, self.offset + length
        if self.offset > len(self.data):
            raise DecodeError("the entry ends in the middle of a part")
        return self.data[start : self.offset]

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        start, self.offset = self.offset, self.offset + form.size
        return form.unpack_from(self.data, start)

    def u64(self) -> int:
        return self.unpack(U64)[0]

    def count(self) -> int:
        return self.unpack(COUNT)[0]

    def flag(self) -> bool:
        byte = self.take(1)
        if byte not in (b"\0", b"\1"):
            raise DecodeError(f"the entry has {byte!r} where 0 or 1 was expected")
        return byte == b"\1"

    def task_ids(self) -> list[bytes]:
        return [self.take(16) for _ in range(self.count())]


def put_task_ids(parts: list[bytes], task_ids: list[bytes]) -> None:
    parts.append(COUNT.pack(len(task_ids)))
    parts.extend(task_ids)
