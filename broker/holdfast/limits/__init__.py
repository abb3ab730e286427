"""The arithmetic of limits, pure like the machine: token buckets (`buckets`), a queue's limits allocated to its
shards (`allocation`, `reports`), and equal parts of limits that nobody allocates (`equal_parts`).
"""
