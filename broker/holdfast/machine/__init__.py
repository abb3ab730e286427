"""The pure state machine of a shard. It imports no clock, no I/O, no randomness and no other package of Holdfast."""
