"""What a node keeps on its disk beside the log: the states of its shards in RocksDB, and the directory around them.

rocksdb.py         a shard's state; the only file that knows rocksdict
checkpoints.py     flushes states and cuts the log behind them
snapshots/         copies of a state between the replicas of a shard
data_dir.py        the directory that holds everything a node must not lose
startup_checks.py  that log and state belong together
disk_guard.py      watches free space; disk_watch.py: a disk that does not answer
"""
