"""What is done to a system. Each fault strikes, lasts for a while, and is undone by the same function.

A fault is written into the history once it has struck, so that whatever was sent later was sent to a broken system.

arena.py      what faults work on: the system, the history, whom a target means
processes.py  kill, pause, restart, death of a whole host
network.py    cuts, loss, slow links
disks.py      full, failing, slow, stalled, power cut, lost, damaged
clocks.py     wall clocks that jump or run wild
operations.py what operators do: moves, drains, new nodes, rolling restarts, spreads
catalogue.py  all of them by name
"""
