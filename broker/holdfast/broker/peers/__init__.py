"""Connections between nodes: one TCP port per node, frames shared by all shards.

identities.py   names, ids, and the digest of the list of nodes
reasons.py      why a connection is refused or dropped, as numbers and as sentences
frames.py       frames in a stream of bytes                                                  (pure)
handshake.py    the cluster secret, and how both sides prove that they know it
words.py        preface, hello and the other words of the transport itself; the check of a hello (pure)
bodies.py       what is in a frame: messages of many shards                                  (pure)
records.py      limits, counters, warnings that do not repeat themselves
tls.py          certificates of both sides, and the names in them
opening.py      a connected socket becomes a connection, with TLS or without
connections.py  one connection: reading, bounded writing, its end
listening.py    the listening side, with a bound on those who have not said hello
dialling.py     the dialling side, with back-off
calls.py        calls between brokers, as bodies of frames                                   (pure)
peer_calls.py   such calls under way: tasks for other shards, allocations of limits
transport.py    `Peers`: who is connected, sending, pausing, founding's question

A hello alone is a claim: it keeps mistakes out, not enemies. With TLS a certificate proves the node's name, with a
cluster secret both sides prove that they belong to the cluster.
"""

from holdfast.broker.peers.bodies import BodyError, Packed, pack, pack_within, unpack
from holdfast.broker.peers.identities import identity_of, name_of, node_list_digest
from holdfast.broker.peers.reasons import PeerError, Reason
from holdfast.broker.peers.records import PeerCounters, PeerLimits
from holdfast.broker.peers.tls import PeerTls
from holdfast.broker.peers.transport import PeerInfo, Peers

__all__ = [
    "BodyError",
    "Packed",
    "PeerCounters",
    "PeerError",
    "PeerInfo",
    "PeerLimits",
    "PeerTls",
    "Peers",
    "Reason",
    "identity_of",
    "name_of",
    "node_list_digest",
    "pack",
    "pack_within",
    "unpack",
]
