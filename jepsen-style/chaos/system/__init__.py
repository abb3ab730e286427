"""What is started: hosts, their disks, and the processes of a whole system.

abilities.py  what this machine allows, and the private namespaces in which the harness runs itself
hosts.py      a host: an address, and a network namespace of its own where that is possible
network.py    the cables between hosts, and how they are cut
disks.py      a small filesystem of a host's own
process.py    one process on a host, and what its log says
servers.py    the command lines of etcd, brokers, routers and workers
system.py     all of it together
owners.py     what a harness that crashed has left behind
"""
