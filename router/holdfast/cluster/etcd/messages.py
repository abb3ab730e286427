"""Between our words and etcd's messages, without I/O."""

from collections.abc import Sequence

from holdfast.cluster.etcd.api import Changes, Delete, Put, Row, RowChange, Unchanged
from holdfast.proto.etcd import etcd_pb2 as pb

PAGE_ROWS = 1000


def range_of(prefix: bytes) -> tuple[bytes, bytes]:
    """The first key of a prefix, and the first after it, as etcd wants them."""
    for position in reversed(range(len(prefix))):
        if prefix[position] < 0xFF:
            return prefix, prefix[:position] + bytes([prefix[position] + 1])
    return prefix or b"\0", b"\0"  # nothing comes after it: a zero byte stands for the end of all keys


def row_of(found: pb.KeyValue) -> Row:
    return Row(found.key, found.value, found.create_revision, found.mod_revision, found.lease)


def page_request(key: bytes, end: bytes, revision: int) -> pb.RangeRequest:
    return pb.RangeRequest(key=key, range_end=end, limit=PAGE_ROWS, revision=revision)


def commit_request(compares: Sequence[Unchanged], changes: Sequence[Put | Delete]) -> pb.TxnRequest:
    return pb.TxnRequest(
        compare=[
            pb.Compare(
                result=pb.Compare.EQUAL, target=pb.Compare.MOD, key=compare.key, mod_revision=compare.mod_revision
            )
            for compare in compares
        ],
        success=[_operation(change) for change in changes],
    )


def _operation(change: Put | Delete) -> pb.RequestOp:
    if isinstance(change, Put):
        return pb.RequestOp(request_put=pb.PutRequest(key=change.key, value=change.value, lease=change.lease))
    return pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=change.key))


class WatchReader:
    """Reads the answers of one watch after the other, and knows where the next one has to begin."""

    def __init__(self, prefix: bytes, after_revision: int) -> None:
        self.prefix = prefix
        self.reported_revision = after_revision
        self._parts: list[RowChange] = []

    def begin(self) -> pb.WatchRequest:
        """What to ask of a new connection."""
        self._parts = []
        key, end = range_of(self.prefix)
        return pb.WatchRequest(
            create_request=pb.WatchCreateRequest(
                key=key, range_end=end, start_revision=self.reported_revision + 1, progress_notify=True, fragment=True
            )
        )

    def take(self, answer: pb.WatchResponse) -> Changes | None:
        """The next changes, if the answer makes them complete."""
        # Each is told once, whatever a server repeats.
        fresh = [event for event in answer.events if event.kv.mod_revision > self.reported_revision]
        self._parts += [RowChange(row_of(event.kv), event.type == pb.Event.DELETE) for event in fresh]
        if answer.fragment:
            return None  # the rest may be of the same revision
        changes, self._parts = self._parts, []
        if changes:
            # Not the header's revision: while a watch catches up, that one is far ahead of what has been told.
            self.reported_revision = changes[-1].row.mod_revision
        elif answer.events or answer.header.revision < self.reported_revision:
            return None
        else:
            self.reported_revision = answer.header.revision
        return Changes(self.reported_revision, changes)
