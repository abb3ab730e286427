"""etcd, which keeps the partition map. Others know `api`, what we ask of it; `cluster/connect.py` makes a client.

client.py    over gRPC; messages.py: its words in ours, problems.py: what its failures mean
fake.py      its twin in memory
process.py   a real server on this machine, for development and tests
"""
