"""Where queues and shards live."""
