"""The wire API of a broker: requests are checked and translated, rules are elsewhere. `node` makes these and nobody
else.

server.py       finds who answers a call, before its body is let in; failures become refusals
shard_services.py  the services of the shards of a node
guarded.py      the same where callers are asked who they are; scoped.py: what they may not see is not there
tasks.py        the service of a shard; queues.py, dead_letters.py and schedules.py are parts of it
enqueueing.py   accepts tasks and runs of tasks
gathering.py    small calls of one moment are one entry, and tasks that are alike a run
claims.py       claims as their worker is told of them
shards.py       the service Shards, in terms of `ShardAdmin`, which admin.py is
backups.py      the service Backups
internal.py     what a broker does for other brokers of its cluster
validation.py   turns requests into what a shard works with, or refuses them                 (pure)
page_tokens.py  what the pages of lists end with                                             (pure)
conversion.py   rows of the state as messages
answering.py    an outcome for each item of a batch, in order
figures.py      what a scrape is told of queues
home_guard.py   what only the home of a queue remembers is refused elsewhere
purging.py      emptying a queue, page by page
"""
