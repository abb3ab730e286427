"""Which ready task is handed out next: the leader's pick, soft state over the ready index. Others call `Scheduler`.

scheduler.py       picks, over all queues
windows.py         what is held of one queue
picks.py           one pick out of it
lines.py           a bounded window onto lines of ready tasks
slices.py          parts of what waits, is picked or claimed together
subqueues.py       turns of tenants, and of limit keys within a tenant
round_robin.py     turns among any number of names
oldest.py          the ready tasks of a queue by age
limiter.py         what may be claimed now: pauses, caps, rates
allocation_use.py  what a shard makes of its allocation while tasks wait
"""
