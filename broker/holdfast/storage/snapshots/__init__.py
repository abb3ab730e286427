"""Snapshots between the replicas of a shard: a checkpoint of the leader's state, sent in chunks to a replica that is
behind the start of the log.

messages.py     what sender and receiver say to each other (pure values)
codec.py        these messages as bytes and back; their kinds begin at 64, those of Raft are below
files.py        the seam between this package and the file system, and how blocking work is done
checkpoint.py   a copy of a state, and what is in it
directories.py  where the states of a shard live, and what a start does with leftovers
throttle.py     the bytes per second that all transfers of a node share
sending.py      the leader's side
receiving.py    the other side

Neither side knows of sockets: both are given a function that sends, are told what has arrived, and expect that any
message may be lost, repeated or overtaken.
"""
