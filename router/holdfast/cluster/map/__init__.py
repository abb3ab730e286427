"""The partition map. What changes it goes through `store`, what reads it through a `follower`.

records.py, keys.py, fields.py  how it stands in etcd
partition_map.py   all records at one revision
follower.py        keeps it in step with etcd
store.py           everything that changes it; store_shards.py, store_nodes.py and transactions.py are parts of it
queues.py, policy.py  how the settings of a queue change                          (pure)
bootstrap.py       the making of a cluster
"""
