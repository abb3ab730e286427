"""`make demo-cluster`: a cluster under load loses a leader, a node is emptied, another comes, and no task is lost.

__main__.py  its options, and its end whatever happens
story.py     what happens, in order
commands.py  the `holdfast` commands it runs, as anybody would
load.py      the producer, which goes on all the while
telling.py   what a person sees

The workers, their tasks and the account of them are those of examples/demo.
"""
