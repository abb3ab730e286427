"""A member whose program is broken: whatever it says to a node that runs, the node lives and serves.

It has the place and the identity of the third node, so its frames are whole, its hello is welcome and its messages are
delivered. They are made from seeds: as they should be, damaged, and such as no correct member sends. Lies that could be
true are left out, for Raft trusts its members: votes and acks that were never given, entries, and what is committed.
"""

import asyncio
import random
import tomllib
from dataclasses import replace
from pathlib import Path

from holdfast.broker.peers import Peers, name_of, node_list_digest, pack, unpack
from holdfast.broker.peers.handshake import ClusterSecret
from holdfast.broker.replica.peer_wire import PEER_LIMITS, host_and_port
from holdfast.client import Client, NewTask
from holdfast.machine import entries as machine_entries
from holdfast.raft.codec import FrameError, decode, encode
from holdfast.raft.engine import TERM_LIKELY_MAX
from holdfast.raft.messages import (
    TERM_MAX,
    Append,
    AppendReply,
    EntryKind,
    LogEntry,
    Message,
    PreVote,
    PreVoteReply,
    RequestVote,
    TimeoutNow,
    VoteReply,
)
from holdfast.storage.snapshots import codec as snapshot_codec
from holdfast.storage.snapshots.messages import SnapshotChunk, SnapshotWants
from tests.integration.cluster import CLUSTER_SECRET, Cluster
from tests.integration.peer_nodes import until

PARTS = 2
MESSAGES_PER_PART = 30  # of each sort, so that each that is impossible is there with each term
PAUSE_S = 0.02
NOW_MS = 1_700_000_000_000
COMMAND = machine_entries.encode(machine_entries.LeaderStarted(NOW_MS, False))


class BrokenMember:
    """The transport of a node in whose place a test speaks, and what it has heard."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        config = tomllib.loads((cluster.directory / name / f"{name}.toml").read_text())
        rows = [[node["name"], node["address"], node["peer_address"]] for node in config["nodes"]]
        addresses = {node["name"]: host_and_port(node["peer_address"]) for node in config["nodes"]}
        self.host, self.port = addresses.pop(name)
        self.group = 0
        self.appends: dict[str, Append] = {}  # the newest of each node
        self.peers = Peers(
            name=name,
            node_id=(cluster.nodes[name].data_dir / "NODE_ID").read_text().strip(),
            cluster=config["cluster_name"],
            digest=node_list_digest([*rows, ["shards", str(config["shards"])]]),
            addresses=addresses,
            listener=self,
            limits=replace(PEER_LIMITS, redial_seconds_max=0.05),
            secret=ClusterSecret(CLUSTER_SECRET.encode()),
        )

    is_empty = False

    def peers_changed(self) -> None:
        """Nobody waits for that."""

    def frame_came(self, identity: str, body: bytes) -> None:
        for _shard, self.group, data in unpack(body)[1]:
            if not snapshot_codec.is_snapshot_message(data) and isinstance(message := decode(data), Append):
                self.appends[identity] = message

    @property
    def newest(self) -> Append:
        return max(self.appends.values(), key=lambda append: append.term)

    @property
    def leader(self) -> str:
        return name_of(max(self.appends, key=lambda identity: self.appends[identity].term))

    async def say(self, name: str, data: bytes) -> None:
        """Waits until it is connected: each word that is refused costs it the connection."""
        await until(lambda: name in self.peers.connected(), f"{name} to be connected")
        self.peers.send(self.peers.connected()[name].identity, pack(NOW_MS, [(0, self.group, data)]))
        await asyncio.sleep(PAUSE_S)  # what comes with a word that is refused is not looked at


def good(rng: random.Random, newest: Append) -> bytes:
    """What a member might say that knows a little less, or comes a little late."""
    term = rng.choice([newest.term, newest.term, newest.term - 1, newest.term + 1])
    index = rng.choice([newest.previous_index, 1, 2])
    snapshot_id = rng.getrandbits(40)
    return rng.choice(
        [
            encode(PreVote(term, index, newest.previous_term)),
            encode(PreVoteReply(term, False)),
            encode(RequestVote(term, index, newest.previous_term, rng.random() < 0.3)),
            encode(VoteReply(term, False)),
            encode(Append(newest.term - 1, index, 1, (), 0, rng.randint(1, 99))),
            encode(AppendReply(term, False, index, newest.round)),
            encode(TimeoutNow(term)),
            snapshot_codec.encode(SnapshotWants(term, snapshot_id, 0, 0)),
            snapshot_codec.encode(SnapshotChunk(term, snapshot_id, 0, 0, 0, b"piece")),
        ]
    )


def damaged(rng: random.Random, newest: Append) -> bytes:
    while True:
        data = bytearray(good(rng, newest))
        match rng.randrange(3):
            case 0:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            case 1:
                del data[rng.randrange(1, len(data)) :]
            case _:
                data += rng.randbytes(rng.randint(1, 30))
        if not could_be_true(bytes(data), newest):
            return bytes(data)


def could_be_true(data: bytes, newest: Append) -> bool:
    if snapshot_codec.is_snapshot_message(data):
        return False
    try:
        message = decode(data)
    except FrameError:
        return False
    match message:
        case VoteReply() | PreVoteReply():
            return message.granted
        case AppendReply():
            return message.success
        case Append():
            return newest.term <= message.term <= TERM_LIKELY_MAX
    return False


def impossible(number: int, newest: Append) -> bytes:
    """One of all that there are, for the leader: it knows that there is no other."""
    term, last, huge = newest.term, newest.previous_index, (TERM_MAX, TERM_MAX + 1, 2**64 - 1)[number % 3]
    messages: list[Message] = [
        Append(term, newest.previous_index, newest.previous_term, (), 0, 1),
        Append(term, 0, 0, (LogEntry(1, term, EntryKind.REGULAR, COMMAND),), 1, 1),
        Append(term + 1, 0, 0, (LogEntry(1, term + 1, EntryKind.REGULAR, COMMAND),), 1, 1),
        # As a new leader would append it, and committed at once; but whoever applies it ends.
        Append(
            term + 1,
            last,
            newest.previous_term,
            (LogEntry(last + 1, term + 1, EntryKind.REGULAR, b"\xff"),),
            last + 1,
            1,
        ),
        Append(huge, 1, 1, (), 0, 1),
        RequestVote(huge, 1, 1, True),
        AppendReply(huge, False, 1, 1),
        VoteReply(huge, False),
        TimeoutNow(huge),
    ]
    return [*map(encode, messages), b"\x00"][number % 10]


REFUSALS = (
    "cannot be applied",
    "where another is committed",
    " leads",
    "too far ahead",
    "no room for the next",
    "too large",
    "unknown kind",
)


async def test_a_member_that_says_what_no_member_says(tmp_path: Path) -> None:
    rng = random.Random(7)
    with Cluster(tmp_path) as cluster:
        await asyncio.to_thread(start_and_lose_the_last, cluster)
        broken = BrokenMember(cluster, "n3")
        await broken.peers.start(broken.host, broken.port)
        try:
            for part in range(PARTS):
                await until(lambda: len(broken.appends) > 0, "a leader to be heard")
                for number in range(MESSAGES_PER_PART):
                    await broken.say(rng.choice(["n1", "n2"]), rng.choice([good, damaged])(rng, broken.newest))
                    await broken.say(broken.leader, impossible(number, broken.newest))
                await asyncio.to_thread(serve, cluster, part)
        finally:
            await broken.peers.stop()
        lines = [line for name in ("n1", "n2") for line in cluster.nodes[name].events("message_refused")]
        assert {(line["sender"].partition("/")[0], line["shard"]) for line in lines} == {("n3", 0)}
        assert len(lines) > PARTS * MESSAGES_PER_PART // 2
        missing = [text for text in REFUSALS if not any(text in line["error"] for line in lines)]
        assert missing == []
        await asyncio.to_thread(heal, cluster)


def start_and_lose_the_last(cluster: Cluster) -> None:
    cluster.start()
    cluster.wait_whole()
    with Client(cluster.address) as client:
        client.enqueue(NewTask("q", "t"))
    cluster.kill("n3")


def serve(cluster: Cluster, part: int) -> None:
    assert [cluster.nodes[name].is_up for name in ("n1", "n2")] == [True, True]
    with Client(cluster.address, timeout_s=30) as client:
        client.enqueue(NewTask("q", "t", request_id=str(part)))


def heal(cluster: Cluster) -> None:
    """The node itself comes back, and all agree."""
    cluster.start_node("n3")
    cluster.wait_whole()
    cluster.check_hashes()
    with Client(cluster.address, timeout_s=30) as client:
        assert client.queue_stats("q").ready == 1 + PARTS
    assert cluster.nodes["n3"].events("message_refused") == []
