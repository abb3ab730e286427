"""How shards and queues of this node follow the partition map, or the static list of nodes, until both say the same."""
