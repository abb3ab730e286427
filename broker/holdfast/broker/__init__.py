"""The node: durability, scheduling and the network around the pure machine."""
