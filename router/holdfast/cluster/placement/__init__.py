"""Which nodes should have the replicas of which shards (`placement`), and what should move for that (`planning`).
Pure."""
