"""Who else is in the cluster, and where: what the parts of a node may ask. `view` is what they see, by a static list of
nodes; `map_view` the same by the partition map, and the copy of the map on the node's disk.
"""
