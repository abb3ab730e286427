"""Reading the parts of an entry's body one after the other."""

import struct

COUNT = struct.Struct(">I")
U64 = struct.Struct(">Q")
PAIR = struct.Struct(">QQ")
_unpack_count, _unpack_u64 = COUNT.unpack_from, U64.unpack_from


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

    def view(self, length: int) -> memoryview:
        """The same without a copy, which keeps all of the entry."""
        start, self.offset = self.offset, self.offset + length
        if self.offset > len(self.data):
            raise DecodeError("the entry ends in the middle of a part")
        return memoryview(self.data)[start : self.offset]

    def unpack(self, form: struct.Struct) -> tuple[int, ...]:
        start, self.offset = self.offset, self.offset + form.size
        return form.unpack_from(self.data, start)

    def u64(self) -> int:
        start, self.offset = self.offset, self.offset + 8
        number: int = _unpack_u64(self.data, start)[0]
        return number

    def count(self) -> int:
        start, self.offset = self.offset, self.offset + 4
        number: int = _unpack_count(self.data, start)[0]
        return number

    def flag(self) -> bool:
        byte = self.take(1)
        if byte not in (b"\0", b"\1"):
            raise DecodeError(f"the entry has {byte!r} where 0 or 1 was expected")
        return byte == b"\1"

    def task_ids(self) -> list[bytes]:
        count = self.count()
        start, self.offset = self.offset, self.offset + 16 * count
        if self.offset > len(self.data):
            raise DecodeError("the entry ends in the middle of a part")
        return [self.data[at : at + 16] for at in range(start, self.offset, 16)]


def put_task_ids(parts: list[bytes], task_ids: list[bytes]) -> None:
    parts.append(COUNT.pack(len(task_ids)))
    parts.extend(task_ids)
