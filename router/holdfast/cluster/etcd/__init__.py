"""etcd, which keeps the partition map: what we ask of it, the client, an in-memory twin, and a server to run."""
