"""Why a connection is refused or dropped. The numbers go over the wire: none is ever given another meaning."""

from enum import IntEnum, unique
from typing import Final


@unique
class Reason(IntEnum):
    # The hello does not fit
    OTHER_PROTOCOL = 1
    OTHER_VERSION = 2
    OTHER_CLUSTER = 3
    OTHER_NODE_LIST = 4
    UNKNOWN_NODE = 5
    OTHER_NODE = 6
    OWN_NAME = 7
    TLS_NAME = 8
    REPLACED = 9
    HELLO_BROKEN = 10
    TWO_OF_ONE_NAME = 11
    SECRET_MISSING = 12
    SECRET_WRONG = 13
    # It never came to a hello
    TLS_FAILED = 20
    HELLO_LATE = 21
    HALF_OPEN_MAX = 22
    # What came after the hello is not what a node sends
    FRAME_EMPTY = 30
    FRAME_OVERSIZED = 31
    FRAME_DAMAGED = 32
    FRAME_TRUNCATED = 33
    FRAME_UNEXPECTED = 34
    BODY_BROKEN = 35
    ANSWERS_UNREAD = 36
    FRAME_UNFINISHED = 37


SENTENCES: Final = {
    Reason.OTHER_PROTOCOL: "Expected a Holdfast node, but something else spoke.",
    Reason.OTHER_VERSION: "Expected this release's version of the protocol between nodes, but the other has another.",
    Reason.OTHER_CLUSTER: "Expected the same cluster_name on both nodes, but they differ.",
    Reason.OTHER_NODE_LIST: "Expected the same list of nodes, in the same order, on both nodes, but they differ; "
    "compare `nodes` and `shards` in their configurations.",
    Reason.UNKNOWN_NODE: "Expected a node of the list, but its name is not there.",
    Reason.OTHER_NODE: "Expected the node that was dialled, but another one answers at that address.",
    Reason.OWN_NAME: "Expected another node, but it has the name of the one it speaks to.",
    Reason.TLS_NAME: "Expected a certificate that names the node, but it names others only.",
    Reason.REPLACED: "Expected one connection from each node, but a newer one came.",
    Reason.HELLO_BROKEN: "Expected a complete hello, but it does not fit its form.",
    Reason.TWO_OF_ONE_NAME: "Expected one node of each name, but two call themselves the same; the one that is "
    "connected stays. Look at `node_name` on both.",
    Reason.SECRET_MISSING: "Expected a cluster secret on both nodes, but one has none; set cluster_secret_file on all "
    "nodes, to the same secret.",
    Reason.SECRET_WRONG: "Expected the same cluster secret on both nodes, but they differ; compare what "
    "cluster_secret_file names on each.",
    Reason.TLS_FAILED: "Expected a TLS handshake with a certificate of our authority, but it failed.",
    Reason.HELLO_LATE: "Expected a hello within the deadline, but none came.",
    Reason.HALF_OPEN_MAX: "Expected fewer connections without a hello; the oldest made room.",
    Reason.FRAME_EMPTY: "Expected a frame with a body, but it is empty.",
    Reason.FRAME_OVERSIZED: "Expected a frame within the limit, but it says to be larger.",
    Reason.FRAME_DAMAGED: "Expected a frame with its own checksum, but they do not fit.",
    Reason.FRAME_TRUNCATED: "Expected the rest of a frame, but the connection ended.",
    Reason.FRAME_UNEXPECTED: "Expected a frame that belongs here, but this one does not.",
    Reason.BODY_BROKEN: "Expected messages in a frame, but its body does not fit their form.",
    Reason.ANSWERS_UNREAD: "Expected answers to be read, but they pile up.",
    Reason.FRAME_UNFINISHED: "Expected the rest of a frame, but nothing more came.",
}


class PeerError(ValueError):
    """Bytes that no node of ours sends. Whoever sent them is not to be trusted with more: drop the connection."""

    def __init__(self, reason: Reason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
