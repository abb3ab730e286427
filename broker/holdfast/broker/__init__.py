"""One broker process: the replicas of shards on this node, what their leaders do, and the calls that it answers.

From the top; each room knows only those below it (a contract in pyproject.toml):

main.py         `holdfast dev` and `holdfast broker`
node.py         puts the parts together, starts them in order, and stops them in the reverse order
offline/        what is done to the data of a node that does not run
membership/     how shards and queues follow the partition map or the static list of nodes
api/            the wire API: requests are checked and translated, rules are elsewhere
replica/        replicas of shards, and the commit loop that they share
leader/         what a shard has only while this node leads it
quota/          limits of queues that are spread over several shards
scheduler/      which ready task is handed out next
policy/         what queues do in their own way, and what a task is to be
cluster_view/   who else is there, and where
peers/          connections to the other nodes
config.py, metrics.py, histograms.py, round_budget.py and failpoints.py are used by all of them
"""
