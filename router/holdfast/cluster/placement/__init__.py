"""Which nodes should have the replicas of which shards, and what should move. Pure."""
