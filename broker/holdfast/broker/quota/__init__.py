"""Limits of a queue that is spread over several shards. `coordinator`, on the queue's home, deals them out;
`allocation_manager`, on every shard of the queue, keeps to what it was dealt. The arithmetic is in `holdfast.limits`.
"""
