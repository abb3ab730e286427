"""The pure state machine of a shard. It imports no clock, no I/O, no randomness and no other package of Holdfast.

machine.py           applies entries, in order: `apply`, then `commit`
entries.py, operator_entries.py, run_entries.py, new_tasks.py, packing.py  what happened, and how it stands in the log
entry_parts.py       how much goes into one entry
handlers/            one for each kind of entry: guards, then transitions
transitions.py       how a task moves between states; the only code that touches indexes and counters
draft.py             the working copy that entries are applied to
outcomes.py, rejections.py  what an entry answers
effects.py           what the leader does because of it
reader.py            read-only looks at a state; whoever is outside reads through it
runs.py, run_rows.py, run_transitions.py, slices.py, new_runs.py  tasks that were accepted together and are still alike
task_walk.py, ready_lines.py, running.py  walks over tasks, lines of ready ones, counts of claims
keys.py, rows.py, ready_rows.py, ids.py  how a state is laid out
kv.py                the interface to whoever keeps the rows, its twin in memory, and whether states are equal
invariants.py        whether a state is sound
incarnations.py      a state that begins another incarnation, restored or recovered
"""
