"""What operators may ask of a cluster. Brokers and routers serve it alike: `cluster_service` has a method for each call
of the service Cluster, `backups` those of Backups that are about the map.

plans.py         plans as operators make and carry them out
handovers.py     whether a node may be stopped now              (pure)
node_answers.py  what only the nodes know
node_calls.py    calls to them; the only file here that knows gRPC
conversion.py    records as messages, and back
"""
