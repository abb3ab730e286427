"""A stand-in for Kubernetes: it takes rendered manifests and does with real processes what the controllers would.

network.py      names of pods and Services, which lead to addresses of this machine; Services pass connections on
volumes.py      claims, Secrets and ConfigMaps as directories
pods.py         one pod: its process, probes as written, restarts, preStop, grace period, SIGKILL
controllers.py  StatefulSets, Deployments and Jobs: parallel start, rolling update by partition, scaling, eviction
load.py         a producer and workers, and what must hold of all that was acknowledged
stage.py        what the tests share

What differs from the real thing: a pod is one container without a file system and a network of its own. Its paths are
replaced by directories, and `0.0.0.0` by its own address of 127.0.0.0/8, another one each time that the pod is made.
Names are as written: they lead there by an /etc/hosts of the pod's own. Scheduling, rights, limits and network policies
are not tried.
"""
