"""Limits of a queue that is spread over several shards: its home coordinates, each shard keeps to its allocation."""
