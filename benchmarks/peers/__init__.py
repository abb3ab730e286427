"""Holdfast and other brokers in one run: each is started on this machine, measured, stopped, and its data deleted.

`rows` says which there are and what their confirms mean, `peer` what each can do: its servers as the parent sees them,
its clients as a load process does. `brokers` has one file per broker, `libraries` one per library of tasks. `workloads`
measures a row, `clients` is what the load processes do, and `tally` counts over all of them. `spent` reads CPU time
from /proc, `processes` starts and stops servers, `packages` installs those that are missing. `results`, `tables` and
`sizing` turn samples into figures and figures into pages; they do nothing else. `arguments` is the command line.
"""
