"""The partition map in etcd: where queues and shards live, how that changes, and what operators may ask of it.

From the top; each room knows only those below it (a contract in pyproject.toml):

local/         `holdfast cluster up`: a real cluster on one machine
admin/         the service Cluster, which brokers and routers answer alike
plans/         what should move, as a plan, and how far its steps are
map/           the map itself: its records, its copy in memory, and everything that changes it
placement/     which nodes should have which replicas; pure
etcd/          the client; connect.py makes one of a server's settings
"""
