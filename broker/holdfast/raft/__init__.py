"""Raft for one shard, driven by pysyncobj and corrected.

messages.py      what replicas say to each other (pure values)
codec.py         messages and configurations as bytes and back
journal.py       what an engine needs of its log, and one in memory
node_journal.py  the one on the node's log
library.py       the only file that knows pysyncobj: its private names, checked at import, behind plain ones
membership.py    which changes of a group's members are allowed
progress.py      what a leader knows of another replica
group.py         who belongs to the group, by the newest configuration in the log
sending.py       what a replica has to say, and when it may leave; one append, encoded once, for all at the same place
liveness.py      heartbeats, echoes and silences: who is known to be alive
engine.py        the corrected steps: votes, appends, commits, hand-over, snapshots

An engine does no I/O and reads no clock. Its driver delivers what arrived, takes proposals, makes the journal durable,
says so, lets time pass, sends what is ready and applies what is committed, in this order, one shard after the
other, and nothing enters an engine while its journal is being synced: but for signs of life, which promise nothing.
"""
