"""The stateless gateway: finds the leader of each shard and forwards calls to it."""
