"""Of which shards a data directory has the only replica, by what can still be read of it: its log, as far as that is
not damaged, and its copy of the map. Blocks, and changes nothing."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from holdfast.broker.cluster_view.map_view import MapCopy
from holdfast.cluster.map.store_nodes import WrongClusterError
from holdfast.raft.node_journal import HardState, JournalError
from holdfast.routing.groups import incarnation_of
from holdfast.storage.data_dir import DataDirError, log_dir_of, node_id_of
from holdfast.wal.disk import RealDisk
from holdfast.wal.errors import LogError
from holdfast.wal.recovery import readable_hard_states

# Of a shard: which incarnation and version of its configuration this is, and its voters.
_Known = tuple[int, tuple[int, int], tuple[str, ...]]


def sole_replicas(data_dir: Path, cluster_name: str) -> list[int] | None:
    """The shards that nobody else has; None if nothing is known of any shard."""
    newest: dict[int, tuple[tuple[int, int], tuple[str, ...]]] = {}
    try:
        node_id = node_id_of(data_dir)
        for shard, version, voters in (*_of_log(log_dir_of(data_dir)), *_of_map(data_dir, cluster_name)):
            if shard not in newest or newest[shard][0] < version:
                newest[shard] = version, voters
    except (OSError, DataDirError, LogError):
        return None
    if not newest:
        return None
    return sorted(
        shard for shard, (_, voters) in newest.items() if [voter.partition("/")[2] for voter in voters] == [node_id]
    )


def _of_log(log_dir: Path) -> Iterator[_Known]:
    if not log_dir.is_dir():
        return
    for shard, record in readable_hard_states(RealDisk(log_dir)).items():
        with suppress(JournalError):
            hard = HardState.decode(record)
            if hard.configurations and not hard.is_tombstone:
                configuration = hard.configurations[-1][1]
                yield shard, (incarnation_of(hard.group), configuration.version), configuration.voters


def _of_map(data_dir: Path, cluster_name: str) -> Iterator[_Known]:
    with suppress(WrongClusterError):
        for shard, record in MapCopy(data_dir, cluster_name).load().shards.items():
            if record.is_founded:
                yield shard, (record.incarnation, record.members.version), record.members.voters
