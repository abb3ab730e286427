"""The replicas of shards on this node. Others ask `host.py` for them, and `shard.py` for what one can do.

host.py                opens, founds, joins and removes replicas; knows who leads elsewhere
commit_loop.py         drives all of them, round by round, with one write and one sync
sync_mode.py           whether a round waits for its sync in line  (pure)
deadlines.py           when which of them has something to do next (pure)
peer_wire.py           the other nodes, as a round sees them

replica.py             one of them: its journal, its engine, its state
shard.py               applies the log; while it leads, takes entries into it and answers
replication.py         what a shard needs of its engine
decoded_entries.py     entries of other leaders are read before they enter the log
read_barrier.py        current reads
snapshot_transfers.py  snapshots, both ways
probes.py              whether the states of all replicas are equal
backups.py             copies of states for a backup

member_plan.py         the next change of a group's members        (pure)
successors.py          who may lead in a leader's place
stuck_shards.py        without a leader, or with writes that go nowhere  (pure)
"""
