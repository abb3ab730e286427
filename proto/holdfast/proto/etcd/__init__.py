"""The part of the API of etcd that the cluster uses."""
