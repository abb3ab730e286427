"""What is done to the data of a node that does not run. `restoring` is for `holdfast backup restore` and `shard
recover`, which load it by name; `sole_replicas` tells a node that refuses to start what nobody else has.
"""
