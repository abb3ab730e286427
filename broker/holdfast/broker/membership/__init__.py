"""How shards and queues of this node follow the partition map, or the static list of nodes, until both say the same.
`node` makes a cluster of one kind or the other, and nobody else calls anything here.

mapped_cluster.py    a cluster with its map in etcd; peer_cluster.py: what both kinds have of the others
reconciler.py        replicas and members of shards as the map has them
queue_reconciler.py  settings of queues into the log, and where old tasks are left into the map
handover.py          a node that is about to be stopped
settings_news.py     what others know of settings, while etcd does not answer
delivering.py        the way to the leaders of other shards
static.py            the list of nodes: founding, and members as listed
static_topology.py   the cluster side of the wire API where there is no map
"""
