"""Raft for one shard, driven by pysyncobj and corrected.

messages.py  what replicas say to each other (pure values)
library.py   the only file that knows pysyncobj: its private names, checked at import, behind plain ones
codec.py     messages as bytes and back
engine.py    the corrected steps: votes, appends, commits, hand-over
journal.py   what an engine needs of its log, and one in memory

An engine does no I/O and reads no clock. Its driver delivers what arrived, takes proposals, makes the journal durable,
says so, lets time pass, sends what is in the outbox and applies what is committed, in this order, one shard after the
other, and nothing enters an engine while its journal is being synced.
"""
