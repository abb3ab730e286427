"""The replicas of shards on this node: `host` has them all, `commit_loop` drives them with one write and sync."""
