"""Who else is in the cluster, and where: what a node's parts may ask, by the map or by the static list of nodes."""
