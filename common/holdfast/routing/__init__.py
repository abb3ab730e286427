"""Where a call goes: pure rules that routers, brokers and clients share. Each file can be called from outside. None of
them knows the messages of the wire API, and time is an argument.

homes.py, sets.py       where a queue is; groups.py: how often a shard was founded; task_ids.py: where a task is
calls.py                what a call names; placing.py: its shards, and those of new tasks
splitting.py            a batch as parts, and the answers joined; sums.py, pages.py: numbers, lists
leaders.py              who leads a shard, as far as is known
retries.py              the retry state of a call; silence.py: whom to ask while its server says nothing
reserve_calls.py        one Reserve over several shards; patience.py: how long it waits where
"""
