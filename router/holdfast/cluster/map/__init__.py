"""The partition map: `records` in etcd, the `partition_map` made of them, a `follower` that keeps it current, and the
`store`, through which everything that changes it goes."""
