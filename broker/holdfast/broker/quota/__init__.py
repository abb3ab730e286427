"""Limits of a queue that is spread over several shards. `coordinator`, on the queue's home, allocates them;
`allocation_manager`, on every shard of the queue, keeps to what it was granted. The arithmetic is in `holdfast.limits`.
"""
